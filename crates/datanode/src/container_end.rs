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

use crate::index::records::ContainerState;
use crate::layout::{OWNERS_DIR, container_dir};
use anyhow::{Context, ensure};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::Disk;
use raftlog::WalkEnd;
use std::io::ErrorKind;
use types::{ContainerId, LogId, LogIndex, Term};

/// In the container's directory.
pub(crate) const FILE_NAME: &str = "end";
const MAGIC: [u8; 4] = *b"FLce";
const VERSION: u8 = 2;
const CRC_AT: usize = 40;
const FILE_BYTES: usize = CRC_AT + 4;

/// The end of a container that no roll ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ContainerEnd {
    /// The state, which is never open. Closed: SCM has said that its last record is the container's.
    pub state: ContainerState,
    /// `None`: there is no record in it.
    pub last: Option<LogId>,
    /// The entry up to which this replica knew its log to be committed when that ended; 0 of a closed one.
    pub committed: LogIndex,
}

impl ContainerEnd {
    /// The end of which nothing is left that says more.
    pub(crate) const LOST: ContainerEnd =
        ContainerEnd { state: ContainerState::WithoutLog, last: None, committed: LogIndex(0) };

    pub(crate) fn closed(last: Option<LogId>) -> ContainerEnd {
        ContainerEnd { state: ContainerState::Closed, last, committed: LogIndex(0) }
    }

    /// `None` for a container that is open, or ended in a roll.
    pub(crate) async fn read(
        disk: &dyn Disk,
        container: ContainerId,
    ) -> anyhow::Result<Option<ContainerEnd>> {
        let path = format!("{}/{FILE_NAME}", container_dir(container));
        let file = match disk.open(&path, false).await {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            opened => opened.with_context(|| format!("open {path}"))?,
        };
        // One byte more than there must be, to see that there is none.
        let bytes = file.read_at(0, FILE_BYTES + 1).await.with_context(|| format!("read {path}"))?;
        decode(&bytes, container).with_context(|| format!("decode {path}")).map(Some)
    }

    /// Durable on return; a crash before leaves what was there, or this.
    pub(crate) async fn write(&self, disk: &dyn Disk, container: ContainerId) -> anyhow::Result<()> {
        let dir = container_dir(container);
        let (path, temporary) = (format!("{dir}/{FILE_NAME}"), format!("{dir}/{FILE_NAME}.tmp"));
        let write = async {
            disk.create_dir_all(&dir).await?;
            let file = disk.open(&temporary, true).await?;
            file.set_len(0).await?;
            file.write_and_sync(0, vec![encode(self, container)]).await?;
            // Only a whole file gets the name.
            disk.rename(&temporary, &path).await?;
            disk.sync_dir(&dir).await?;
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

fn encode(end: &ContainerEnd, container: ContainerId) -> Bytes {
    let mut out = BytesMut::with_capacity(FILE_BYTES);
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_u8(end.state as u8);
    out.put_u16_le(0);
    out.put_u64_le(container.0);
    let last = end.last.unwrap_or_default();
    out.put_u64_le(last.term.0);
    out.put_u64_le(last.index.0);
    out.put_u64_le(end.committed.0);
    let crc = crc32c::crc32c(&out);
    out.put_u32_le(crc);
    out.freeze()
}

fn decode(bytes: &Bytes, container: ContainerId) -> anyhow::Result<ContainerEnd> {
    ensure!(bytes.len() == FILE_BYTES, "it has {} bytes, expected {FILE_BYTES}", bytes.len());
    ensure!(bytes[..4] == MAGIC, "it does not begin with `FLce`");
    let (stored, computed) = ((&bytes[CRC_AT..]).get_u32_le(), crc32c::crc32c(&bytes[..CRC_AT]));
    ensure!(stored == computed, "checksum mismatch: stored {stored:#010x}, computed {computed:#010x}");
    ensure!(bytes[4] == VERSION, "its version {} is unknown", bytes[4]);
    let state = ContainerState::decode(bytes[5])?;
    ensure!(state.is_over(), "it says that its container is open");
    let mut rest = &bytes[8..CRC_AT];
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
        ContainerEnd { state: ContainerState::QuasiClosed, last, committed: LogIndex(5) }
    }

    #[test]
    fn a_member_that_came_no_further_than_the_first_entry_has_all_it_ever_had() {
        let walked = WalkEnd::Unfinished { segment: 0, offset: 120 };
        let end = |last| Some(quasi_closed(last));
        let log_id = |index| LogId { term: Term(0), index: LogIndex(index) };
        // As it is read back: `None`.
        assert!(is_whole(&walked, Some(log_id(0)), end(None)));
        assert!(is_whole(&walked, None, end(None)));
        assert!(!is_whole(&walked, Some(log_id(0)), end(Some(log_id(1)))));
        assert!(!is_whole(&walked, Some(log_id(1)), None));
    }

    #[test]
    fn the_file_is_laid_out_as_documented_and_every_flipped_bit_is_found() {
        let container = ContainerId(0x0102);
        let last = Some(LogId { term: Term(7), index: LogIndex(0x0304) });
        let end = ContainerEnd { state: ContainerState::WithoutLog, last, committed: LogIndex(0x0301) };
        let bytes = encode(&end, container);
        let fields =
            b"FLce\x02\x04\0\0\x02\x01\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0\x01\x03\0\0\0\0\0\0";
        assert_eq!(bytes[..CRC_AT], *fields);
        assert_eq!(decode(&bytes, container).unwrap(), end);
        assert!(decode(&bytes, ContainerId(9)).is_err(), "another container's");
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&damaged.into(), container).is_err(), "bit {bit}");
        }
        let empty = quasi_closed(None);
        assert_eq!(decode(&encode(&empty, container), container).unwrap(), empty);
    }
}
