//! The whole mount table: from `listmount` and `statmount`, or from `/proc/thread-self/mountinfo`.
//!
//! The whole is read at start only. The parser is total: any bytes give rows or the number of the line that is none.
use crate::sys::ffi;
use crate::sys::kernel::{DeviceId, MountId, MountRow};
use crate::sys::real::facts::{Asking, described, is_there};
use rustix::io::Errno;
use std::collections::HashSet;
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A line of a mount table that cannot be understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the mount table cannot be understood")]
pub struct BadLine {
    /// Counted from 1.
    pub line: usize,
}

/// Every mount that this process sees.
pub(crate) fn read(asking: Asking) -> io::Result<Vec<MountRow>> {
    match asking {
        Asking::Statmount => listed(0),
        Asking::Statfs => {
            let content = std::fs::read("/proc/thread-self/mountinfo")?;
            parse(&content).map_err(|bad| io::Error::new(io::ErrorKind::InvalidData, bad))
        }
    }
}

/// Those of these mounts that are there, where their ids tell them from all others until the next boot.
pub(crate) fn among(asking: Asking, mut ids: HashSet<MountId>) -> io::Result<Option<HashSet<MountId>>> {
    match asking {
        Asking::Statmount => {
            let mut failed = None;
            ids.retain(|id| match is_there(id.0) {
                Ok(there) => there,
                Err(errno) => {
                    failed = Some(errno);
                    true
                }
            });
            failed.map_or(Ok(Some(ids)), |errno| Err(errno.into()))
        }
        Asking::Statfs => Ok(None),
    }
}

/// A mount, those that came after it, and what each of these is mounted on. Ids that are never used again only grow.
pub(crate) fn since(asking: Asking, id: MountId) -> io::Result<Option<Vec<MountRow>>> {
    match asking {
        Asking::Statmount => {
            let mut rows = listed(id.0.saturating_sub(1))?;
            let mut known: HashSet<_> = rows.iter().map(|row| row.id).collect();
            let parents: Vec<_> = rows.iter().map(|row| row.parent).filter(|id| known.insert(*id)).collect();
            for parent in parents {
                rows.extend(row_of(parent.0)?);
            }
            Ok(Some(rows))
        }
        Asking::Statfs => Ok(None),
    }
}

fn listed(after: u64) -> io::Result<Vec<MountRow>> {
    let mut rows = Vec::new();
    each_id(after, |id| {
        rows.extend(row_of(id)?);
        Ok(())
    })?;
    Ok(rows)
}

/// None of one that went away meanwhile.
fn row_of(id: u64) -> io::Result<Option<MountRow>> {
    match described(id) {
        Ok(mount) => Ok(Some(mount.row())),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

fn each_id(after: u64, mut found: impl FnMut(u64) -> io::Result<()>) -> io::Result<()> {
    let mut ids = [0_u64; 512];
    let mut last = after;
    loop {
        let count = ffi::listmount(last, &mut ids)?;
        for &id in &ids[..count] {
            found(id)?;
        }
        match ids[..count].last() {
            Some(&id) if count == ids.len() => last = id,
            Some(_) | None => return Ok(()),
        }
    }
}

/// Reads the content of a `mountinfo` file. Ids are the reused ones.
pub fn parse(content: &[u8]) -> Result<Vec<MountRow>, BadLine> {
    let lines = content.split(|&byte| byte == b'\n').enumerate();
    lines
        .filter(|(_, line)| !line.is_empty())
        .map(|(index, line)| row(line).ok_or(BadLine { line: index + 1 }))
        .collect()
}

/// `36 35 98:0 /root /mount/point rw,noatime shared:1 - ext3 /dev/sda rw`, with any number of optional fields.
fn row(line: &[u8]) -> Option<MountRow> {
    let mut fields = line.split(|&byte| byte == b' ');
    let id = MountId(number(fields.next()?)?);
    let parent = MountId(number(fields.next()?)?);
    let mut device = fields.next()?.split(|&byte| byte == b':');
    let device = DeviceId { major: number(device.next()?)?, minor: number(device.next()?)? };
    let root = PathBuf::from(unescape(fields.next()?));
    let mount_point = PathBuf::from(unescape(fields.next()?));
    let options = fields.next()?;
    let (mut peer_group, mut master) = (0_u64, 0_u64);
    loop {
        match fields.next()? {
            b"-" => break,
            field => {
                let tagged = |tag: &[u8]| field.strip_prefix(tag).map_or(Some(0), number);
                peer_group = tagged(b"shared:")?.max(peer_group);
                master = tagged(b"master:")?.max(master);
            }
        }
    }
    let fs_type = unescape(fields.next()?).to_string_lossy().into_owned();
    let source = unescape(fields.next()?).to_string_lossy().into_owned();
    let super_options = fields.next()?;
    let read_only = is_read_only(options) || is_read_only(super_options);
    let source = Some(source);
    Some(MountRow { id, parent, device, root, mount_point, fs_type, source, read_only, peer_group, master })
}

fn number<T: std::str::FromStr>(field: &[u8]) -> Option<T> {
    std::str::from_utf8(field).ok()?.parse().ok()
}

fn is_read_only(options: &[u8]) -> bool {
    options.split(|&byte| byte == b',').any(|option| option == b"ro")
}

/// The kernel writes blank, tab, newline, backslash and `#` as a backslash and three octal digits.
fn unescape(field: &[u8]) -> OsString {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, after)) = rest.split_first() {
        let octal = match (first, after) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                Some(((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), tail))
            }
            _ => None,
        };
        let (byte, tail) = octal.unwrap_or((first, after));
        bytes.push(byte);
        rest = tail;
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_line_with_optional_fields_and_escapes() {
        let line =
            br"36 35 98:5 /a\040b /mnt/x\134y rw,noatime shared:1 master:2 - fuse.sshfs me@host:/ ro,size=1";
        let rows = parse(line).unwrap();
        let expected = MountRow {
            id: MountId(36),
            parent: MountId(35),
            device: DeviceId { major: 98, minor: 5 },
            root: "/a b".into(),
            mount_point: r"/mnt/x\y".into(),
            fs_type: "fuse.sshfs".to_owned(),
            source: Some("me@host:/".to_owned()),
            read_only: true,
            peer_group: 1,
            master: 2,
        };
        assert_eq!(rows, [expected]);
        assert_eq!(parse(b"1 2 0:1 / / rw - tmpfs  rw\n").unwrap()[0].source.as_deref(), Some(""));
    }

    #[test]
    fn a_bad_line_is_named() {
        let good = "1 2 0:1 / / rw - tmpfs none rw";
        for bad in ["x", "1 2 0:1 / / rw tmpfs none rw", "1 2 0 / / rw - t n rw", "1 2 0:1 / / rw - t n"] {
            assert_eq!(parse(format!("{good}\n\n{bad}\n").as_bytes()), Err(BadLine { line: 3 }), "{bad}");
        }
    }

    fn escape(bytes: &[u8]) -> String {
        let escaped = |byte: &u8| match byte {
            b' ' | b'\t' | b'\n' | b'\\' | b'#' => format!("\\{byte:03o}"),
            _ => char::from(*byte).to_string(),
        };
        bytes.iter().map(escaped).collect()
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(content in proptest::collection::vec(any::<u8>(), 0..400)) {
            drop(parse(&content));
        }

        #[test]
        fn nothing_close_to_a_table_makes_it_panic(content in "([0-9]{1,12}|[ :/,\\\\\n-]|rw|ro|tmpfs|[0-7]{3}){0,80}") {
            drop(parse(content.as_bytes()));
        }

        #[test]
        fn what_the_kernel_escapes_comes_back(
            root in "/[a-z \\\\#\t\n0-9]{0,40}",
            point in "/[a-z \\\\#\t\n0-9]{0,40}",
            optional in proptest::collection::vec("(shared|master):[0-9]{1,4}", 0..3),
        ) {
            let (r, p) = (escape(root.as_bytes()), escape(point.as_bytes()));
            let optional: String = optional.iter().flat_map(|field| [field.as_str(), " "]).collect();
            let line = format!("1 2 3:4 {r} {p} rw,relatime {optional}- xfs /dev/x rw\n");
            let rows = parse(line.as_bytes()).unwrap();
            prop_assert_eq!(rows[0].root.as_os_str().as_bytes(), root.as_bytes());
            prop_assert_eq!(rows[0].mount_point.as_os_str().as_bytes(), point.as_bytes());
            prop_assert!(!rows[0].read_only);
        }
    }
}
