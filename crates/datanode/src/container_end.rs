//! The file `end` beside the segments of a container that ended without a roll: docs/format/container-end.md.
//!
//! ```text
//! offset size field
//!      0    4 magic      "FLce"
//!      4    1 version    2
//!      5    1 state      2 closed, 3 quasi-closed, 4 without its log
//!      6    2 zero
//!      8    8 owner
//!     16    8 last_term  of its last record; 0 if there is none
//!     24    8 last_index
//!     32    8 committed  what was known to be committed when the log ended; 0 of a closed one
//!     40    4 crc        CRC32C of bytes 0..40
//! ```

use crate::index::records::ReplicaState;
use crate::layout::{OWNERS_DIR, container_dir};
use crate::verdict::condemns;
use anyhow::{Context, ensure};
use bytes::{Buf, BufMut};
use disk::{Disk, RecordFile};
use raftlog::WalkEnd;
use types::{ContainerId, LogId, LogIndex, Term};

/// The file's name in the container's directory.
pub(crate) const FILE_NAME: &str = "end";
/// The bytes of all between the version and the checksum.
const FIELDS_BYTES: usize = 1 + 2 + 4 * 8;
const FILE: RecordFile = RecordFile::of_fields(b"FLce", 2, FIELDS_BYTES);

/// The end of a container that no roll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerEnd {
    /// The state, which is never open. Closed: SCM has said that its last record is the container's.
    pub state: ReplicaState,
    /// The container's last record; `None` where there is none, or none is known.
    pub last: Option<LogId>,
    /// The entry up to which this replica knew its log to be committed when that ended; 0 of a closed one.
    pub committed: LogIndex,
}

/// The file of a container's end, as it is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EndFile {
    None,
    /// The file cannot be read, now or ever: the container is over, and this does not say how.
    Damaged,
    Says(ContainerEnd),
}

impl ContainerEnd {
    /// The end of a container of which nothing is left that says more.
    pub(crate) const LOST: ContainerEnd =
        ContainerEnd { state: ReplicaState::WithoutLog, last: None, committed: LogIndex(0) };

    pub(crate) fn closed(last: Option<LogId>) -> ContainerEnd {
        ContainerEnd { state: ReplicaState::Closed, last, committed: LogIndex(0) }
    }

    /// Reads the end of a container; `None` for one that is open, or ended in a roll.
    pub(crate) async fn read(
        disk: &dyn Disk,
        container: ContainerId,
    ) -> anyhow::Result<Option<ContainerEnd>> {
        let path = format!("{}/{FILE_NAME}", container_dir(container));
        let decode = |fields: &[u8]| decode(fields, container).map_err(|failure| failure.to_string());
        FILE.read(disk, &path, decode).await.context("read how a container ended")
    }

    /// Looks at the file of a container's end: for those who know the end from elsewhere, or do without.
    pub(crate) async fn file(disk: &dyn Disk, container: ContainerId) -> anyhow::Result<EndFile> {
        match ContainerEnd::read(disk, container).await {
            Ok(None) => Ok(EndFile::None),
            Ok(Some(end)) => Ok(EndFile::Says(end)),
            Err(failure) if condemns(&failure) => Ok(EndFile::Damaged),
            Err(failure) => Err(failure),
        }
    }

    /// Writes the end, durably on return; a crash before leaves what was there, or this.
    pub(crate) async fn write(&self, disk: &dyn Disk, container: ContainerId) -> anyhow::Result<()> {
        let dir = container_dir(container);
        let path = format!("{dir}/{FILE_NAME}");
        let write = async {
            disk.create_dir_all(&dir).await?;
            FILE.write(disk, &path, &encode(self, container)).await?;
            // A container that was just rolled to has no directory yet.
            disk.sync_dir(OWNERS_DIR).await
        };
        write.await.with_context(|| format!("write {path}"))
    }
}

/// Whether a container that is over was followed to where it ends; `last` is its last record.
pub(crate) fn is_whole(walked: &WalkEnd, last: Option<LogId>, end: Option<ContainerEnd>) -> bool {
    match (walked, end) {
        (WalkEnd::Bad { .. }, _) | (WalkEnd::Unfinished { .. }, None) => false,
        (WalkEnd::Rolled { .. }, _) => true,
        // Entry 0, the first members, is `LogId::default()`, which the file has for "nothing": a member may
        // have come no further.
        (WalkEnd::Unfinished { .. }, Some(end)) => end.last.unwrap_or_default() == last.unwrap_or_default(),
    }
}

fn encode(end: &ContainerEnd, container: ContainerId) -> Vec<u8> {
    let mut out = Vec::with_capacity(FIELDS_BYTES);
    out.put_u8(end.state as u8);
    out.put_u16_le(0);
    out.put_u64_le(container.0);
    let last = end.last.unwrap_or_default();
    out.put_u64_le(last.term.0);
    out.put_u64_le(last.index.0);
    out.put_u64_le(end.committed.0);
    out
}

fn decode(fields: &[u8], container: ContainerId) -> anyhow::Result<ContainerEnd> {
    ensure!(fields.len() == FIELDS_BYTES, "its fields have {} bytes, not {FIELDS_BYTES}", fields.len());
    let state = ReplicaState::decode(fields[0])?;
    ensure!(state.is_over(), "it says that its container is open");
    let mut rest = &fields[3..];
    let owner = rest.get_u64_le();
    ensure!(owner == container.0, "it is that of container {owner}");
    let last = LogId { term: Term(rest.get_u64_le()), index: LogIndex(rest.get_u64_le()) };
    let committed = LogIndex(rest.get_u64_le());
    Ok(ContainerEnd { state, last: Some(last).filter(|last| *last != LogId::default()), committed })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quasi_closed(last: Option<LogId>) -> ContainerEnd {
        ContainerEnd { state: ReplicaState::QuasiClosed, last, committed: LogIndex(5) }
    }

    #[test]
    fn a_member_that_came_no_further_than_the_first_entry_has_all_it_ever_had() {
        let walked = WalkEnd::Unfinished { segment: 0, offset: 120 };
        let end = |last| Some(quasi_closed(last));
        let log_id = |index| LogId { term: Term(0), index: LogIndex(index) };
        // The file gives entry 0 back as `None`.
        assert!(is_whole(&walked, Some(log_id(0)), end(None)));
        assert!(is_whole(&walked, None, end(None)));
        assert!(!is_whole(&walked, Some(log_id(0)), end(Some(log_id(1)))));
        assert!(!is_whole(&walked, Some(log_id(1)), None));
    }

    #[test]
    fn the_file_is_laid_out_as_documented_and_every_flipped_bit_is_found() {
        let container = ContainerId(0x0102);
        let last = Some(LogId { term: Term(7), index: LogIndex(0x0304) });
        let end = ContainerEnd { state: ReplicaState::WithoutLog, last, committed: LogIndex(0x0301) };
        let bytes = FILE.encode(&encode(&end, container));
        let read =
            |bytes: &[u8], container| decode(FILE.decode(bytes).map_err(anyhow::Error::msg)?, container);
        let fields =
            b"FLce\x02\x04\0\0\x02\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0\x01\x03\0\0\0\0\0\0";
        assert_eq!((&bytes[..40], bytes.len()), (&fields[..], 44));
        assert_eq!(read(&bytes, container).unwrap(), end);
        assert!(read(&bytes, ContainerId(9)).is_err(), "another container's");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read(&damaged, container).is_err(), "bit {bit}");
        }
        let empty = quasi_closed(None);
        assert_eq!(decode(&encode(&empty, container), container).unwrap(), empty);
    }
}
