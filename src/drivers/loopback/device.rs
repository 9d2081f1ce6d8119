//! The loop devices of a volume, as the kernel knows them.
//!
//! Each is labelled with volume, node and token when it is made. So it is known whose it is even when every record is
//! lost, and which of two attachments of one node it belongs to.
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Statx};

use super::attachment::{Attachment, Attachments};
use super::image::{FsType, IMAGE};
use crate::drivers::refusal::Refusal;
use crate::drivers::request::VolumeId;
use crate::drivers::spot::{FIELDS, table};
use crate::sys::kernel::{DeviceId, MountId, MountRow};
use crate::sys::real::loops::{self, LoopDevice};

/// The label of the device of one attachment.
pub(super) fn label(volume: &VolumeId, attachment: &Attachment) -> String {
    format!("{}{}", node_label(volume, &attachment.node), short(&attachment.token))
}

/// What the labels of all devices of one volume on one node begin with.
fn node_label(volume: &VolumeId, node: &str) -> String {
    format!("wharfline/{}/{}/", volume.as_str(), short(node))
}

/// Labels have room for 63 bytes.
fn short(text: &str) -> String {
    let digest = ring::digest::digest(&ring::digest::SHA256, text.as_bytes());
    digest.as_ref()[..6].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Every device that shows the volume, whoever made it.
pub(super) fn all(volume: &VolumeId) -> Result<Vec<LoopDevice>, Refusal> {
    let image = Path::new(volume.as_str()).join(IMAGE);
    loops::find(&image).map_err(Refusal::failed("look for loop devices of", &image))
}

/// The device of one attachment.
pub(super) fn of_attachment(
    volume: &VolumeId,
    attachment: &Attachment,
) -> Result<Option<LoopDevice>, Refusal> {
    let label = label(volume, attachment);
    Ok(all(volume)?.into_iter().find(|device| device.label == label))
}

/// Every device of a volume on one node: of its attachment, and of earlier ones that were not taken down.
pub(super) fn of_node(volume: &VolumeId, node: &str) -> Result<Vec<LoopDevice>, Refusal> {
    let label = node_label(volume, node);
    Ok(all(volume)?.into_iter().filter(|device| device.label.starts_with(&label)).collect())
}

/// A device that no present attachment accounts for: of a node that was fenced, of an attachment that was not taken
/// down, or of somebody else.
pub(super) fn stranger<'a>(
    volume: &VolumeId,
    attachments: &Attachments,
    devices: &'a [LoopDevice],
) -> Option<&'a LoopDevice> {
    let labels: Vec<_> = attachments.attachments.iter().map(|one| label(volume, one)).collect();
    devices.iter().find(|device| !labels.contains(&device.label))
}

/// Whether the root of a mount is the file system on one of these devices, or the device itself.
pub(super) fn shows(devices: &[DeviceId], root: &Statx) -> io::Result<bool> {
    let on = DeviceId { major: root.stx_dev_major, minor: root.stx_dev_minor };
    let is = DeviceId { major: root.stx_rdev_major, minor: root.stx_rdev_minor };
    let block = FileType::from_raw_mode(root.stx_mode.into()) == FileType::BlockDevice;
    if devices.contains(&if block { is } else { on }) {
        return Ok(true);
    }
    if block || devices.is_empty() || on.major != 0 {
        return Ok(false);
    }
    let mount = table()?.into_iter().find(|mount| mount.id == MountId(root.stx_mnt_id));
    Ok(mount.is_some_and(|mount| devices.iter().any(|device| is_on(&mount, *device))))
}

/// The same of a mount whose file system does not answer.
pub(super) fn is_its(devices: &[DeviceId], mount: &MountRow) -> bool {
    devices.iter().any(|device| is_on(mount, *device))
}

/// Whether a mount is of the file system on a device. That of a btrfs has a number that no device has.
fn is_on(mount: &MountRow, device: DeviceId) -> bool {
    if mount.device == device {
        return true;
    }
    let source = mount.source.as_ref().filter(|_| mount.fs_type == FsType::Btrfs.name());
    source.and_then(|source| rustix::fs::stat(source.as_str()).ok()).is_some_and(|source| {
        let number = source.st_rdev;
        let is = DeviceId { major: rustix::fs::major(number), minor: rustix::fs::minor(number) };
        FileType::from_raw_mode(source.st_mode) == FileType::BlockDevice && is == device
    })
}

/// Where the file system on a device is mounted, as far as this process sees it.
pub(super) fn mounts(device: DeviceId) -> io::Result<Vec<PathBuf>> {
    let on = |mount: MountRow| is_on(&mount, device).then_some(mount.mount_point);
    Ok(table()?.into_iter().filter_map(on).collect())
}

/// The root of the file system on a device, opened where it is mounted; none where this process does not see it.
pub(super) fn root(device: DeviceId) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for place in mounts(device)? {
        // Something else may be mounted over it.
        let Ok(root) = rustix::fs::open(&place, flags, Mode::empty()) else { continue };
        let here = rustix::fs::statx(&root, c"", AtFlags::EMPTY_PATH, FIELDS)?;
        if shows(&[device], &here)? {
            return Ok(Some(root));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drivers::request::{AccessMode, Capability};

    fn attachment(node: &str, token: &str) -> Attachment {
        let mode = AccessMode::Writer;
        let capability = Capability { mode, block: false, fs_type: String::new(), mount_flags: vec![] };
        Attachment { node: node.to_owned(), token: token.to_owned(), capability, read_only: false }
    }

    #[test]
    fn a_label_tells_volume_node_and_token_and_fits() {
        let id = VolumeId::parse("0123456789abcdef0123").unwrap();
        let other = VolumeId::parse("0123456789abcdef0124").unwrap();
        let one = label(&id, &attachment(&"n".repeat(63), "t"));
        assert!(one.len() <= 63, "{one}");
        let plain = label(&id, &attachment("n", "t"));
        for (id, node, token) in [(&other, "n", "t"), (&id, "m", "t"), (&id, "n", "u")] {
            assert_ne!(label(id, &attachment(node, token)), plain);
        }
        assert!(plain.starts_with(&node_label(&id, "n")));
        assert!(!label(&id, &attachment("n1", "t")).starts_with(&node_label(&id, "n")));
    }

    #[test]
    fn a_device_is_a_stranger_unless_an_attachment_has_its_label() {
        let id = VolumeId::parse("0123456789abcdef0123").unwrap();
        let (now, before) = (attachment("n", "now"), attachment("n", "before"));
        let device = |label: String| LoopDevice {
            path: "/dev/loop9".into(),
            device: DeviceId { major: 7, minor: 9 },
            file: (1, 2),
            label,
            read_only: false,
        };
        let attachments = Attachments { attachments: vec![now.clone()], shares: false };
        let own = [device(label(&id, &now))];
        assert_eq!(stranger(&id, &attachments, &own), None);
        for other in [label(&id, &before), label(&id, &attachment("m", "now")), "by hand".to_owned()] {
            let devices = [own[0].clone(), device(other)];
            assert_eq!(stranger(&id, &attachments, &devices), Some(&devices[1]));
        }
    }
}
