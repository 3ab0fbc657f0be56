//! The file `hard-state` of a log, docs/format/hard-state.md: two slots, at bytes 0 and 4096, of which the
//! valid one with the higher sequence counts. Little-endian.
//!
//! ```text
//! offset size field
//!      0    4 magic            "FLhs"
//!      4    1 version          1
//!      5    1 flags            1: vote is meant, 2: vote committed, 4: purged, 8: committed, 16: durable, 32: begun are meant
//!      6    2 zero
//!      8    8 sequence
//!     16    8 log
//!     24    8 vote_term
//!     32    8 vote_replica
//!     40   16 purged           term, index
//!     56   16 committed        term, index: a hint
//!     72   16 durable          term, index: a hint, records up to it were synced
//!     88    8 start_owner      where the record after `purged` goes if it fits ...
//!     96    8 start_offset
//!    104    8 start_owner_bytes  bytes of the owner's records before it
//!    112    4 start_segment
//!    116    8 begun_owner      the newest segment whose file was made
//!    124    4 begun_segment
//!    128  380 zero
//!    508    4 crc              CRC32C of bytes 0..508
//! ```

use crate::HardState;
use crate::segment::{NUMBER_MAX, Position, SEGMENT_MAX, SegmentId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::{File, IoFuture};
use std::io;
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId, Term};

/// The name of the file in a log's directory.
pub const FILE_NAME: &str = "hard-state";
pub(crate) const TEMPORARY_NAME: &str = "hard-state.tmp";

const MAGIC: [u8; 4] = *b"FLhs";
const VERSION: u8 = 1;
pub(crate) const SLOT_BYTES: usize = 512;
/// The offsets of the slots, which stand in different physical sectors, also of drives that write 4 KiB at
/// once.
pub(crate) const SLOT_OFFSETS: [u64; 2] = [0, 4096];
pub(crate) const FILE_BYTES: u64 = 8192;
pub(crate) const CRC_AT: usize = SLOT_BYTES - 4;

const FLAG_VOTE: u8 = 1;
const FLAG_VOTE_COMMITTED: u8 = 2;
const FLAG_PURGED: u8 = 4;
const FLAG_COMMITTED: u8 = 8;
const FLAG_DURABLE: u8 = 16;
const FLAG_BEGUN: u8 = 32;
const FLAGS_KNOWN: u8 = 63;

const _: () = assert!(SLOT_OFFSETS[1] + SLOT_BYTES as u64 <= FILE_BYTES);

/// The facts that a log must remember beside its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRecord {
    pub(crate) log: u64,
    pub(crate) hard_state: Option<HardState>,
    pub(crate) purged: Option<LogId>,
    /// The place of the record after `purged`, if it fits there; the beginning of the log as it is read at
    /// opening.
    pub(crate) start: Position,
    pub(crate) committed: Option<LogId>,
    /// The last record that was synced when the slot was written: recovery must find all up to it.
    pub(crate) durable: Option<LogId>,
    /// The newest segment: its file was there, durably, before a record was written to it. The slot is
    /// written anew before the segment is removed.
    pub(crate) begun: Option<SegmentId>,
}

fn put_id(out: &mut BytesMut, id: Option<LogId>) {
    let id = id.unwrap_or_default();
    out.put_u64_le(id.term.0);
    out.put_u64_le(id.index.0);
}

impl SlotRecord {
    pub(crate) fn encode(&self, sequence: u64) -> Bytes {
        let flag = |set: bool, flag: u8| if set { flag } else { 0 };
        let vote = self.hard_state.unwrap_or_default();
        let mut out = BytesMut::with_capacity(SLOT_BYTES);
        out.put_slice(&MAGIC);
        out.put_u8(VERSION);
        out.put_u8(
            flag(self.hard_state.is_some(), FLAG_VOTE)
                | flag(vote.vote_committed, FLAG_VOTE_COMMITTED)
                | flag(self.purged.is_some(), FLAG_PURGED)
                | flag(self.committed.is_some(), FLAG_COMMITTED)
                | flag(self.durable.is_some(), FLAG_DURABLE)
                | flag(self.begun.is_some(), FLAG_BEGUN),
        );
        out.put_u16_le(0);
        out.put_u64_le(sequence);
        out.put_u64_le(self.log);
        out.put_u64_le(vote.vote_term);
        out.put_u64_le(vote.vote_replica);
        put_id(&mut out, self.purged);
        put_id(&mut out, self.committed);
        put_id(&mut out, self.durable);
        out.put_u64_le(self.start.owner.0);
        out.put_u64_le(self.start.offset);
        out.put_u64_le(self.start.owner_bytes);
        out.put_u32_le(self.start.segment);
        let begun = self.begun.unwrap_or_default();
        out.put_u64_le(begun.owner.0);
        out.put_u32_le(begun.segment);
        out.resize(CRC_AT, 0);
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out.freeze()
    }

    /// The sequence and the facts of a slot; `None` when it was never written, or not whole, or says more
    /// than this version would write.
    pub(crate) fn decode(slot: &[u8]) -> Option<(u64, SlotRecord)> {
        let (sequence, record) = SlotRecord::decode_fields(slot)?;
        let is_known = record.encode(sequence) == slot && sequence <= NUMBER_MAX && record.is_possible();
        is_known.then_some((sequence, record))
    }

    /// Whether a log can have come so far: what follows can be counted without passing a number's end.
    fn is_possible(&self) -> bool {
        let ids = [self.purged, self.committed, self.durable];
        self.start.is_possible()
            && self.begun.is_none_or(|begun| begun.segment <= SEGMENT_MAX)
            && ids.iter().flatten().all(|id| id.index.0 <= NUMBER_MAX)
    }

    fn decode_fields(mut slot: &[u8]) -> Option<(u64, SlotRecord)> {
        if slot.len() != SLOT_BYTES || (&slot[CRC_AT..]).get_u32_le() != crc32c::crc32c(&slot[..CRC_AT]) {
            return None;
        }
        let mut magic = [0; 4];
        slot.copy_to_slice(&mut magic);
        let version = slot.get_u8();
        let flags = slot.get_u8();
        if magic != MAGIC || version != VERSION || flags & !FLAGS_KNOWN != 0 {
            return None;
        }
        slot.advance(2);
        let sequence = slot.get_u64_le();
        let log = slot.get_u64_le();
        let vote = HardState {
            vote_term: slot.get_u64_le(),
            vote_replica: slot.get_u64_le(),
            vote_committed: flags & FLAG_VOTE_COMMITTED != 0,
        };
        let mut id = |flag: u8| {
            let id = LogId { term: Term(slot.get_u64_le()), index: LogIndex(slot.get_u64_le()) };
            (flags & flag != 0).then_some(id)
        };
        let (purged, committed, durable) = (id(FLAG_PURGED), id(FLAG_COMMITTED), id(FLAG_DURABLE));
        let start = Position {
            owner: OwnerId(slot.get_u64_le()),
            offset: slot.get_u64_le(),
            owner_bytes: slot.get_u64_le(),
            segment: slot.get_u32_le(),
        };
        let begun = SegmentId { owner: OwnerId(slot.get_u64_le()), segment: slot.get_u32_le() };
        let begun = (flags & FLAG_BEGUN != 0).then_some(begun);
        let hard_state = (flags & FLAG_VOTE != 0).then_some(vote);
        Some((sequence, SlotRecord { log, hard_state, purged, start, committed, durable, begun }))
    }
}

/// The open file. The slot that was synced last is never written over before the other one was synced: a hint
/// (unsynced) that is torn leaves the promise standing in the other slot.
pub(crate) struct HardStateFile {
    file: Arc<dyn File>,
    sequence: u64,
    synced_slot: usize,
    /// The hint under way; the next write waits for it, because both go to the same slot.
    hint: Option<IoFuture<()>>,
}

impl HardStateFile {
    /// The contents of a new log's file: one slot.
    pub(crate) fn first_contents(record: &SlotRecord) -> Bytes {
        record.encode(1)
    }

    /// Reads the newest slot and makes it durable, as it may be a hint that was never synced; `None` when no
    /// slot is valid.
    pub(crate) async fn open(file: Arc<dyn File>) -> io::Result<Option<(HardStateFile, SlotRecord)>> {
        let mut newest: Option<(usize, u64, SlotRecord)> = None;
        for (slot, offset) in SLOT_OFFSETS.into_iter().enumerate() {
            let bytes = file.read_at(offset, SLOT_BYTES).await?;
            if let Some((sequence, record)) = SlotRecord::decode(&bytes)
                && newest.is_none_or(|(_, other, _)| sequence > other)
            {
                newest = Some((slot, sequence, record));
            }
        }
        let Some((synced_slot, sequence, record)) = newest else { return Ok(None) };
        file.sync_data().await?;
        Ok(Some((HardStateFile { file, sequence, synced_slot, hint: None }, record)))
    }

    /// Writes a record, durably on return.
    pub(crate) async fn save(&mut self, record: &SlotRecord) -> io::Result<()> {
        self.finish_hint().await?;
        let (slot, bytes) = self.next(record);
        self.file.write_and_sync(SLOT_OFFSETS[slot], vec![bytes]).await?;
        self.synced_slot = slot;
        Ok(())
    }

    /// Starts writing a record without a sync, for what is only a hint. `record` must agree with what was
    /// saved last in all that is a promise.
    pub(crate) async fn start_hint(&mut self, record: &SlotRecord) -> io::Result<()> {
        self.finish_hint().await?;
        let (slot, bytes) = self.next(record);
        self.hint = Some(self.file.write_at(SLOT_OFFSETS[slot], vec![bytes]));
        Ok(())
    }

    pub(crate) async fn finish_hint(&mut self) -> io::Result<()> {
        match self.hint.take() {
            Some(hint) => hint.await,
            None => Ok(()),
        }
    }

    fn next(&mut self, record: &SlotRecord) -> (usize, Bytes) {
        self.sequence += 1;
        (1 - self.synced_slot, record.encode(self.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> SlotRecord {
        let id = |term, index| Some(LogId { term: Term(term), index: LogIndex(index) });
        SlotRecord {
            log: 0x11,
            hard_state: Some(HardState { vote_term: 0x22, vote_replica: 0x33, vote_committed: true }),
            purged: id(0x44, 0x55),
            start: Position { owner: OwnerId(0xaa), segment: 0xbb, offset: 0xcc0, owner_bytes: 0xddd },
            committed: id(0x66, 0x77),
            durable: id(0x88, 0x99),
            begun: Some(SegmentId { owner: OwnerId(0xee), segment: 0xff }),
        }
    }

    #[test]
    fn version_1_is_laid_out_as_documented() {
        let slot = record().encode(0x1234);
        let mut expected = b"FLhs\x01\x3f\0\0".to_vec();
        for field in [0x1234u64, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xcc0, 0xddd] {
            expected.extend(field.to_le_bytes());
        }
        expected.extend(0xbbu32.to_le_bytes());
        expected.extend(0xeeu64.to_le_bytes());
        expected.extend(0xffu32.to_le_bytes());
        expected.resize(508, 0);
        expected.extend(0x3a59_1fafu32.to_le_bytes());
        assert_eq!(slot, expected);
        assert_eq!(SlotRecord::decode(&slot), Some((0x1234, record())));
    }

    #[test]
    fn every_combination_of_missing_parts_is_kept() {
        for parts in 0..64 {
            let mut some = record();
            some.hard_state = some.hard_state.filter(|_| parts & 1 != 0);
            some.purged = some.purged.filter(|_| parts & 2 != 0);
            some.committed = some.committed.filter(|_| parts & 4 != 0);
            some.durable = some.durable.filter(|_| parts & 8 != 0);
            some.begun = some.begun.filter(|_| parts & 32 != 0);
            if let Some(vote) = &mut some.hard_state {
                vote.vote_committed = parts & 16 != 0;
            }
            assert_eq!(SlotRecord::decode(&some.encode(1)), Some((1, some)));
        }
    }

    #[test]
    fn every_flipped_bit_makes_a_slot_invalid() {
        let slot = record().encode(7);
        for bit in 0..SLOT_BYTES * 8 {
            let mut damaged = slot.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(SlotRecord::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(SlotRecord::decode(&[0; SLOT_BYTES]), None);
        assert_eq!(SlotRecord::decode(&slot[..511]), None);
    }

    /// Found by the fuzzer: fields that have no meaning were passed over.
    #[test]
    fn a_slot_that_says_more_than_is_known_is_none() {
        let bare = SlotRecord {
            hard_state: None,
            purged: None,
            committed: None,
            durable: None,
            begun: None,
            ..record()
        };
        for at in [5, 6, 24, 40, 56, 72, 116, 124, 128, 507] {
            let mut slot = bare.encode(7).to_vec();
            slot[at] ^= 2;
            let crc = crc32c::crc32c(&slot[..CRC_AT]);
            slot[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
            assert_eq!(SlotRecord::decode(&slot), None, "byte {at}");
        }
    }

    /// Found by the fuzzer: opening such a log panicked, or counted past the end of a number.
    #[test]
    fn a_slot_of_a_place_that_no_log_reaches_is_none() {
        let start = Position { owner: OwnerId(1), segment: 1, offset: 800, owner_bytes: 900 };
        let at = |start| SlotRecord { start, ..record() };
        assert!(SlotRecord::decode(&at(start).encode(1)).is_some());
        let last = Some(LogId { term: Term(1), index: LogIndex(u64::MAX) });
        for (sequence, record) in [
            (u64::MAX, at(start)),
            (1, at(Position { segment: u32::MAX, ..start })),
            (1, at(Position { offset: 804, ..start })),
            (1, at(Position { offset: 1 << 35, owner_bytes: 1 << 40, ..start })),
            (1, at(Position { owner_bytes: 799, ..start })),
            (1, at(Position { owner_bytes: u64::MAX, ..start })),
            (1, SlotRecord { purged: last, ..at(start) }),
            (1, SlotRecord { durable: last, ..at(start) }),
            (1, SlotRecord { begun: Some(SegmentId { owner: OwnerId(1), segment: u32::MAX }), ..at(start) }),
        ] {
            assert_eq!(SlotRecord::decode(&record.encode(sequence)), None, "{sequence} {record:?}");
        }
    }

    #[tokio::test]
    async fn a_torn_hint_leaves_the_promise_in_the_other_slot() {
        use disk::Disk;
        let dir = tempfile::tempdir().unwrap();
        let disk = disk::RealDisk::open(dir.path(), 1).unwrap();
        let file = disk.open("hard-state", true).await.unwrap();
        file.set_len(FILE_BYTES).await.unwrap();
        file.write_and_sync(0, vec![HardStateFile::first_contents(&record())]).await.unwrap();
        let vote = |vote_term| SlotRecord {
            hard_state: Some(HardState { vote_term, ..HardState::default() }),
            ..record()
        };
        for term in 0..5 {
            let (mut open, _) = HardStateFile::open(file.clone()).await.unwrap().unwrap();
            open.save(&vote(term)).await.unwrap();
            for _ in 0..3 {
                open.start_hint(&SlotRecord { durable: None, ..vote(term) }).await.unwrap();
            }
            open.finish_hint().await.unwrap();
            let torn = SLOT_OFFSETS[1 - open.synced_slot];
            file.write_at(torn + 100, vec![Bytes::from_static(b"torn")]).await.unwrap();
            let (_, found) = HardStateFile::open(file.clone()).await.unwrap().unwrap();
            assert_eq!(found, vote(term));
        }
    }
}
