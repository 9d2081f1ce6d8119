//! A page of a list of volumes or snapshots.
use super::refusal::Refusal;
use super::request::VolumeId;

/// The tokens of a list are the last id of a page behind this, so they stay good when that volume is deleted.
const TOKEN: &str = "after-";

/// The ids of the page that is asked for, out of all in order, and the token of the next one.
pub(super) fn page<'a>(
    ids: &'a [VolumeId],
    max_entries: i32,
    starting_token: &str,
) -> Result<(Vec<&'a VolumeId>, String), Refusal> {
    let max = usize::try_from(max_entries).map_err(|_| Refusal::Invalid {
        field: "max_entries",
        problem: format!("{max_entries} is negative"),
    })?;
    let after = token(starting_token)?;
    let mut rest = ids.iter().filter(|id| after.as_ref().is_none_or(|after| *id > after));
    let page = rest.by_ref().take(if max == 0 { usize::MAX } else { max }).collect::<Vec<_>>();
    let next = match (rest.next(), page.last()) {
        (Some(_), Some(last)) => format!("{TOKEN}{}", last.as_str()),
        _ => String::new(),
    };
    Ok((page, next))
}

fn token(token: &str) -> Result<Option<VolumeId>, Refusal> {
    if token.is_empty() {
        return Ok(None);
    }
    let id = token.strip_prefix(TOKEN).and_then(VolumeId::parse);
    id.map(Some).ok_or_else(|| Refusal::BadToken(token.to_owned()))
}

/// Bytes as the wire has them, which ends at 8 EiB.
pub(super) fn wire(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
