//! The file `hard-state` of a log, docs/format/hard-state.md: two slots, at bytes 0 and 4096, of which the valid one
//! with the higher sequence counts. Little-endian.
//!
//! ```text
//! offset size field
//!      0    4 magic            "FLhs"
//!      4    1 version          1
//!      5    1 flags            1: vote is meant, 2: vote committed, 4: purged, 8: committed, 16: durable are meant
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
//!    116  392 zero
//!    508    4 crc              CRC32C of bytes 0..508
//! ```

use crate::HardState;
use crate::segment::Position;
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::{File, IoFuture};
use std::io;
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId, Term};

pub(crate) const FILE_NAME: &str = "hard-state";
pub(crate) const TEMPORARY_NAME: &str = "hard-state.tmp";

const MAGIC: [u8; 4] = *b"FLhs";
const VERSION: u8 = 1;
pub(crate) const SLOT_BYTES: usize = 512;
/// Slots stand in different physical sectors, also of drives that write 4 KiB at once.
pub(crate) const SLOT_OFFSETS: [u64; 2] = [0, 4096];
pub(crate) const FILE_BYTES: u64 = 8192;
const CRC_AT: usize = SLOT_BYTES - 4;

const FLAG_VOTE: u8 = 1;
const FLAG_VOTE_COMMITTED: u8 = 2;
const FLAG_PURGED: u8 = 4;
const FLAG_COMMITTED: u8 = 8;
const FLAG_DURABLE: u8 = 16;
const FLAGS_KNOWN: u8 = 31;

const _: () = assert!(SLOT_OFFSETS[1] + SLOT_BYTES as u64 <= FILE_BYTES);

/// What a log must remember beside its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SlotRecord {
    pub(crate) log: u64,
    pub(crate) hard_state: Option<HardState>,
    pub(crate) purged: Option<LogId>,
    /// Where the record after `purged` goes if it fits there; the beginning of the log as it is read at opening.
    pub(crate) start: Position,
    pub(crate) committed: Option<LogId>,
    /// Records up to here were synced when the slot was written: what recovery must find.
    pub(crate) durable: Option<LogId>,
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
                | flag(self.durable.is_some(), FLAG_DURABLE),
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
        out.resize(CRC_AT, 0);
        let crc = crc32c::crc32c(&out);
        out.put_u32_le(crc);
        out.freeze()
    }

    /// `None` when the slot was never written, or not whole.
    pub(crate) fn decode(mut slot: &[u8]) -> Option<(u64, SlotRecord)> {
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
        let hard_state = (flags & FLAG_VOTE != 0).then_some(vote);
        Some((sequence, SlotRecord { log, hard_state, purged, start, committed, durable }))
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

    /// Reads the newest slot and makes it durable, as it may be a hint that was never synced; `None` when no slot is
    /// valid.
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

    /// Durable on return.
    pub(crate) async fn save(&mut self, record: &SlotRecord) -> io::Result<()> {
        self.finish_hint().await?;
        let (slot, bytes) = self.next(record);
        self.file.write_and_sync(SLOT_OFFSETS[slot], vec![bytes]).await?;
        self.synced_slot = slot;
        Ok(())
    }

    /// Starts writing without a sync, for what is only a hint. `record` must agree with what was saved last in all
    /// that is a promise.
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
