//! The tail of an owner's records that a crash has torn, and its removal where the log is lost.
//!
//! Recovery tells a torn tail from damage by what the hard state knows to be durable ([`crate::recovery`]).
//! Where that is lost only the records tell: one that is not whole was torn if nothing of its log stands
//! behind it, and whatever else is there is what a recycled segment held before. Of several that were torn at
//! once, of which a later one is whole, nothing is cut: that looks like damage, and may be it.

use crate::ReadError;
use crate::read::read_error;
use crate::record::{ALIGNMENT, MAGIC};
use crate::scan::{ScanError, SegmentReader};
use crate::segment::{SegmentId, owner_dir};
use crate::segment_index;
use crate::walk::{OwnerWalk, Step, WalkEnd};
use crate::writer::open_existing;
use disk::Disk;
use std::io;
use std::sync::Arc;
use types::{LogIndex, OwnerId};

/// Bytes read at once when the rest of a file is looked at.
const REST_READ_BYTES: usize = 4 << 20;

/// Cuts what stands behind the whole records of the owner that a log which is lost ended in, unless it looks
/// like damage; the records up to `whole_to` were whole once. Answers whether anything was cut, durably.
pub async fn cut_torn_tail(
    disk: &Arc<dyn Disk>,
    owners_dir: &str,
    owner: OwnerId,
    log: u64,
    whole_to: Option<LogIndex>,
) -> Result<bool, ReadError> {
    let io_error = |error| read_error(owner_dir(owners_dir, owner), 0, ScanError::Io(error));
    let mut walk = OwnerWalk::new(disk.clone(), owners_dir, owner).await.map_err(io_error)?.from_disk();
    let mut last = None;
    let end = loop {
        match walk.next().await? {
            Step::Record(record) => last = Some(record),
            Step::End(end) => break end,
        }
    };
    let (segment, offset) = match end {
        WalkEnd::Rolled { .. } => return Ok(false),
        WalkEnd::Unfinished { segment, offset } | WalkEnd::Bad { segment, offset, .. } => (segment, offset),
    };
    let is_behind = |index: Option<LogIndex>| whole_to.is_none_or(|to| index.is_some_and(|index| index > to));
    let torn = match &last {
        Some(record) if is_behind(Some(record.meta.id.index)) => match walk.check_body(record).await {
            Err(ReadError::Damaged { .. }) => Some(record.meta.place),
            checked => checked.map(|()| None)?,
        },
        _ => None,
    };
    let next = last.as_ref().map(|record| record.meta.id.index.next());
    let (segment, offset) = match torn {
        Some(place) => (place.segment, place.offset),
        None if matches!(end, WalkEnd::Bad { .. }) && is_behind(next) => (segment, offset),
        None => return Ok(false),
    };
    let id = SegmentId { owner, segment };
    cut(&**disk, owners_dir, id, offset, log).await.map_err(io_error)
}

/// Cuts a segment where a record of the log is not whole, with all segments after it; false where a record of
/// the log follows.
async fn cut(disk: &dyn Disk, owners_dir: &str, id: SegmentId, offset: u64, log: u64) -> io::Result<bool> {
    let later = segments_after(disk, owners_dir, id).await?;
    let first = later.iter().map(|segment| (SegmentId { segment: *segment, ..id }, 0));
    for (id, from) in [(id, offset + ALIGNMENT)].into_iter().chain(first) {
        if has_record(disk, owners_dir, id, from, log).await? {
            return Ok(false);
        }
    }
    remove_segments(disk, owners_dir, id.owner, later, log).await?;
    if let Some(open) = open_existing(disk, owners_dir, id).await? {
        let file = id.path(owners_dir);
        tracing::warn!(
            log,
            file,
            offset,
            bytes = open.end.saturating_sub(offset),
            "cut the torn tail of a lost log"
        );
        open.file.set_len(offset).await?;
        open.file.sync_data().await?;
    }
    disk.sync_dir(&owner_dir(owners_dir, id.owner)).await?;
    Ok(true)
}

/// Whether a record of the log begins anywhere in a segment, from an offset on.
async fn has_record(
    disk: &dyn Disk,
    owners_dir: &str,
    id: SegmentId,
    from: u64,
    log: u64,
) -> io::Result<bool> {
    let Some(open) = open_existing(disk, owners_dir, id).await? else { return Ok(false) };
    let mut reader = SegmentReader::new(open.file.clone(), id);
    let mut at = from;
    while at < open.end {
        let bytes = open.file.read_at(at, REST_READ_BYTES).await?;
        if bytes.is_empty() {
            break;
        }
        for begin in (0..bytes.len()).step_by(ALIGNMENT as usize) {
            if !bytes[begin..].starts_with(&MAGIC) {
                continue;
            }
            match reader.head(at + begin as u64).await {
                Ok(head) if head.header.log == log => return Ok(true),
                Ok(_) | Err(ScanError::Bad(_)) => {}
                Err(ScanError::Io(error)) => return Err(error),
            }
        }
        at += bytes.len() as u64;
    }
    Ok(false)
}

/// Numbers of the owner's segments after one of them, in order.
pub(crate) async fn segments_after(disk: &dyn Disk, owners_dir: &str, id: SegmentId) -> io::Result<Vec<u32>> {
    let names = disk.list(&owner_dir(owners_dir, id.owner)).await?;
    let numbers = names.iter().filter_map(|name| SegmentId::parse_number(name));
    let mut later: Vec<u32> = numbers.filter(|segment| *segment > id.segment).collect();
    later.sort_unstable();
    Ok(later)
}

/// Removes segments, newest first, each durably before the next: a crash in between leaves no later segment
/// without its predecessor, which would be taken for damage.
pub(crate) async fn remove_segments(
    disk: &dyn Disk,
    owners_dir: &str,
    owner: OwnerId,
    segments: Vec<u32>,
    log: u64,
) -> io::Result<()> {
    for segment in segments.into_iter().rev() {
        let id = SegmentId { owner, segment };
        segment_index::remove(disk, owners_dir, id).await?;
        let file = id.path(owners_dir);
        tracing::warn!(log, file, "remove a segment without records after the end of the log");
        disk.remove_file(&file).await?;
        disk.sync_dir(&owner_dir(owners_dir, owner)).await?;
    }
    Ok(())
}
