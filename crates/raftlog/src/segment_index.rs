//! The places of a segment's records, in a file beside it: docs/format/segment-index.md. Opening a log reads
//! these instead of every record's head. The file is derived from the segment and never synced, so nothing in
//! it is believed that the hard state's durable mark and the segment's own last record do not confirm.
//!
//! ```text
//! offset size field
//!      0    4 magic          "FLix"
//!      4    1 version        1
//!      5    3 zero
//!      8    8 log
//!     16    8 owner
//!     24    8 term           of all records in the block
//!     32    8 first_index    of the first of them; the others follow
//!     40    8 start_offset   of the first of them in the segment; each begins where the one before ends
//!     48    4 segment
//!     52    4 count          1 to 65536
//!     56    4 zero
//!     60    4 crc            CRC32C of the crc of the block before (none for the first), bytes 0..60 and what follows
//!     64  8·n records        meta_bytes, body_bytes of each
//! ```

use crate::index::{Index, Located};
use crate::record::{BODY_BYTES_MAX, META_BYTES_MAX};
use crate::segment::{Position, SegmentId};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::{Disk, File};
use std::io;
use std::sync::Arc;
use types::{LogId, LogIndex, OwnerId, Term};

const MAGIC: [u8; 4] = *b"FLix";
const VERSION: u8 = 1;
const CRC_AT: usize = 60;
const HEADER_BYTES: usize = CRC_AT + 4;
const SLOT_BYTES: usize = 8;
const COUNT_MAX: usize = 1 << 16;
/// The bound of offsets: no segment is so long, and sums of offsets below it do not overflow.
const OFFSET_MAX: u64 = 1 << 40;

/// The most bytes of an index. The records of a segment fill 72 bytes each at least, so the index of one of
/// 128 MiB has 15 MiB at most. A longer file is none of ours.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// The number of records, or their bytes, that are not in the index yet when a block is written: what a crash
/// leaves to be walked record by record.
const PENDING_RECORDS_MAX: u64 = 4096;
const PENDING_BYTES_MAX: u64 = 8 << 20;

pub(crate) fn path(id: SegmentId, owners_dir: &str) -> String {
    let segment = id.path(owners_dir);
    format!("{}.idx", segment.strip_suffix(".seg").expect("the name of a segment ends so"))
}

/// Records that follow each other in one segment and one term.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Block {
    log: u64,
    file: SegmentId,
    first: LogId,
    start_offset: u64,
    /// The bytes of meta and body of each record.
    lengths: Vec<(u32, u32)>,
}

impl Block {
    /// The block's bytes and checksum; `before` is the checksum of the block before it, 0 for the first.
    fn encode(&self, before: u32) -> (Bytes, u32) {
        let mut out = BytesMut::with_capacity(HEADER_BYTES + self.lengths.len() * SLOT_BYTES);
        out.put_slice(&MAGIC);
        out.put_u8(VERSION);
        out.put_slice(&[0; 3]);
        out.put_u64_le(self.log);
        out.put_u64_le(self.file.owner.0);
        out.put_u64_le(self.first.term.0);
        out.put_u64_le(self.first.index.0);
        out.put_u64_le(self.start_offset);
        out.put_u32_le(self.file.segment);
        out.put_u32_le(self.lengths.len() as u32); // at most COUNT_MAX
        out.put_u32_le(0);
        debug_assert_eq!(out.len(), CRC_AT);
        out.put_u32_le(0);
        for (meta_bytes, body_bytes) in &self.lengths {
            out.put_u32_le(*meta_bytes);
            out.put_u32_le(*body_bytes);
        }
        let crc = checksum(before, &out);
        out[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
        (out.freeze(), crc)
    }

    /// The block at the start of `bytes`, how long it is and its checksum; `None` when no whole one is there.
    fn decode(before: u32, bytes: &[u8]) -> Option<(Block, usize, u32)> {
        let mut rest = bytes.get(..HEADER_BYTES)?;
        let mut start = [0; 8];
        rest.copy_to_slice(&mut start);
        if start[..4] != MAGIC || start[4..] != [VERSION, 0, 0, 0] {
            return None;
        }
        let log = rest.get_u64_le();
        let owner = OwnerId(rest.get_u64_le());
        let first = LogId { term: Term(rest.get_u64_le()), index: LogIndex(rest.get_u64_le()) };
        let start_offset = rest.get_u64_le();
        let segment = rest.get_u32_le();
        let count = rest.get_u32_le() as usize;
        let (zero, crc) = (rest.get_u32_le(), rest.get_u32_le());
        let fits = first.index.0.checked_add(count as u64).is_some() && start_offset <= OFFSET_MAX;
        if count == 0 || count > COUNT_MAX || zero != 0 || !fits {
            return None;
        }
        let block_bytes = HEADER_BYTES + count * SLOT_BYTES;
        let block = bytes.get(..block_bytes)?;
        if checksum(before, block) != crc {
            return None;
        }
        let lengths: Vec<_> = block[HEADER_BYTES..]
            .chunks_exact(SLOT_BYTES)
            .map(|mut slot| (slot.get_u32_le(), slot.get_u32_le()))
            .collect();
        let is_record = |(meta_bytes, body_bytes): &(u32, u32)| {
            *meta_bytes as usize <= META_BYTES_MAX && *body_bytes as usize <= BODY_BYTES_MAX
        };
        if !lengths.iter().all(is_record) {
            return None;
        }
        let file = SegmentId { owner, segment };
        Some((Block { log, file, first, start_offset, lengths }, block_bytes, crc))
    }

    fn end(&self) -> LogIndex {
        LogIndex(self.first.index.0.saturating_add(self.lengths.len() as u64))
    }
}

/// The checksum of a block, which goes on from that of the block before: blocks of two histories, which a
/// disk that lost some writes may have kept side by side, do not pass for one index.
fn checksum(before: u32, block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(before, &block[..CRC_AT]), &block[HEADER_BYTES..])
}

/// The index of a segment as the file beside it has it, in order. Whether it is true is for recovery to find
/// out.
pub(crate) struct SegmentIndex {
    id: SegmentId,
    blocks: Vec<Block>,
    file: Option<Arc<dyn File>>,
    /// The bytes of the blocks.
    bytes: u64,
    /// The checksum of the last block.
    crc: u32,
}

impl SegmentIndex {
    /// Reads what is whole and about this segment. Nothing depends on it, so a file that is missing, foreign
    /// or cannot be read is an empty index.
    pub(crate) async fn read(disk: &dyn Disk, owners_dir: &str, log: u64, id: SegmentId) -> SegmentIndex {
        let mut index = SegmentIndex { id, blocks: Vec::new(), file: None, bytes: 0, crc: 0 };
        let file_path = path(id, owners_dir);
        match read_file(disk, &file_path).await {
            Ok((file, bytes)) => {
                index.file = Some(file);
                index.add_blocks(log, &bytes);
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(log, file = file_path, %error, "read a segment's index"),
        }
        index
    }

    fn add_blocks(&mut self, log: u64, mut rest: &[u8]) {
        while let Some((block, block_bytes, crc)) = Block::decode(self.crc, rest) {
            let follows = self.blocks.last().is_none_or(|before| before.end() <= block.first.index);
            if block.log != log || block.file != self.id || !follows {
                break;
            }
            self.blocks.push(block);
            (self.bytes, self.crc) = (self.bytes + block_bytes as u64, crc);
            rest = &rest[block_bytes..];
        }
    }

    /// The records that follow each other from `tail`, the first of them `next` (any, if that is not known),
    /// the last of them `last` at most.
    pub(crate) fn records(&self, next: Option<LogIndex>, tail: Position, last: LogIndex) -> Vec<Located> {
        let mut found: Vec<Located> = Vec::new();
        let (mut next, mut tail) = (next, tail);
        for block in &self.blocks {
            let mut at = block.start_offset;
            for (id, (meta_bytes, body_bytes)) in ids(block.first).zip(block.lengths.iter().copied()) {
                let located = Located { id, position: tail, meta_bytes, body_bytes };
                let is_next = at == tail.offset && next.is_none_or(|next| next == id.index);
                if is_next && id.index <= last {
                    (next, tail) = (Some(id.index.next()), tail.after(located.record_bytes(), None));
                    found.push(located);
                } else if !found.is_empty() {
                    return found;
                }
                at += located.record_bytes();
            }
        }
        found
    }

    /// Goes on with an index of which everything was found to be true: the log has all entries before `end`.
    pub(crate) fn resume(self, log: u64, end: LogIndex) -> SegmentIndexWriter {
        let mut writer = SegmentIndexWriter::new(log);
        if let (Some(file), Some(last)) = (self.file, self.blocks.last())
            && last.end() <= end
        {
            (writer.open, writer.next) = (Some((self.id, file)), last.end());
            (writer.bytes, writer.crc) = (self.bytes, self.crc);
        }
        writer
    }
}

async fn read_file(disk: &dyn Disk, path: &str) -> io::Result<(Arc<dyn File>, Bytes)> {
    let file = disk.open(path, false).await?;
    let bytes = match file.len().await? {
        len if len > FILE_BYTES_MAX => return Err(io::Error::other(format!("{len} bytes are no index"))),
        len => file.read_at(0, len as usize).await?,
    };
    Ok((file, bytes))
}

fn ids(first: LogId) -> impl Iterator<Item = LogId> {
    (first.index.0..).map(move |index| LogId { term: first.term, index: LogIndex(index) })
}

/// Writes the index of the segment that a log writes to.
pub(crate) struct SegmentIndexWriter {
    log: u64,
    open: Option<(SegmentId, Arc<dyn File>)>,
    /// The bytes of the blocks in it; `crc` is the checksum of the last of them.
    bytes: u64,
    crc: u32,
    /// The first entry that the index lacks: those of the segment before it are there.
    next: LogIndex,
}

impl SegmentIndexWriter {
    pub(crate) fn new(log: u64) -> SegmentIndexWriter {
        SegmentIndexWriter { log, open: None, bytes: 0, crc: 0, next: LogIndex(0) }
    }

    /// Whether so much of a segment is missing in its index that a block should be written. Entries before
    /// `end` are on the disk.
    pub(crate) fn is_due(&self, id: SegmentId, end: LogIndex, index: &Index) -> bool {
        let next = self.next_of(id, index);
        let (Some(first), Some(last)) = (index.get(next), end.0.checked_sub(1)) else { return false };
        let Some(last) = index.get(LogIndex(last)) else { return false };
        let bytes = last.position.offset.saturating_sub(first.position.offset);
        end.0.saturating_sub(next.0) >= PENDING_RECORDS_MAX || bytes >= PENDING_BYTES_MAX
    }

    /// Blocks for the entries of a segment before `end` that are not in its index.
    pub(crate) fn pending(&self, id: SegmentId, end: LogIndex, index: &Index) -> Pending {
        let mut blocks: Vec<Block> = Vec::new();
        let mut next = self.next_of(id, index);
        while let Some(located) = index.get(next).filter(|_| next < end) {
            if located.position.file() != id {
                break;
            }
            let lengths = (located.meta_bytes, located.body_bytes);
            match blocks.last_mut() {
                Some(block) if block.first.term == located.id.term && block.lengths.len() < COUNT_MAX => {
                    block.lengths.push(lengths);
                }
                _ => blocks.push(Block {
                    log: self.log,
                    file: id,
                    first: located.id,
                    start_offset: located.position.offset,
                    lengths: vec![lengths],
                }),
            }
            next = next.next();
        }
        Pending { id, blocks, next }
    }

    fn next_of(&self, id: SegmentId, index: &Index) -> LogIndex {
        let first = index.first_in(id).unwrap_or(index.end());
        match &self.open {
            Some((open, _)) if *open == id => self.next.max(first),
            _ => first,
        }
    }

    /// Writes blocks, and does not sync them: what a crash takes is walked record by record.
    pub(crate) async fn write(
        &mut self,
        disk: &dyn Disk,
        owners_dir: &str,
        pending: Pending,
    ) -> io::Result<()> {
        let Pending { id, blocks, next } = pending;
        if blocks.is_empty() {
            return Ok(());
        }
        let file = match &self.open {
            Some((open, file)) if *open == id => file.clone(),
            // The segment is new, or was cut: its index is written from the start.
            _ => {
                let file = disk.open(&path(id, owners_dir), true).await?;
                file.set_len(0).await?;
                (self.open, self.bytes, self.crc) = (Some((id, file.clone())), 0, 0);
                file
            }
        };
        let mut crc = self.crc;
        let mut encoded = Vec::with_capacity(blocks.len());
        for block in &blocks {
            let bytes;
            (bytes, crc) = block.encode(crc);
            encoded.push(bytes);
        }
        let bytes: usize = encoded.iter().map(Bytes::len).sum();
        file.write_at(self.bytes, encoded).await?;
        (self.bytes, self.crc, self.next) = (self.bytes + bytes as u64, crc, next);
        Ok(())
    }

    /// Forgets the index that is open: the next block begins a new one.
    pub(crate) fn forget(&mut self) {
        self.open = None;
    }
}

/// Entries that are to be written; taken from a log's state under its lock.
pub(crate) struct Pending {
    id: SegmentId,
    blocks: Vec<Block>,
    next: LogIndex,
}

/// Empties the index of a segment that is cut.
pub(crate) async fn clear(disk: &dyn Disk, owners_dir: &str, id: SegmentId) -> io::Result<()> {
    match disk.open(&path(id, owners_dir), false).await {
        Ok(file) => file.set_len(0).await,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

/// Removes the index of a segment, before the segment goes.
pub(crate) async fn remove(disk: &dyn Disk, owners_dir: &str, id: SegmentId) -> io::Result<()> {
    match disk.remove_file(&path(id, owners_dir)).await {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::record_bytes;

    fn block(first: u64, start_offset: u64, count: u32) -> Block {
        Block {
            log: 0x11,
            file: SegmentId { owner: OwnerId(0x22), segment: 0x33 },
            first: LogId { term: Term(0x44), index: LogIndex(first) },
            start_offset,
            lengths: (0..count).map(|n| (n, 100 * n)).collect(),
        }
    }

    fn index_of(blocks: &[Block]) -> SegmentIndex {
        let mut crc = 0;
        let encode = |block: &Block| {
            let bytes;
            (bytes, crc) = block.encode(crc);
            bytes.to_vec()
        };
        let bytes: Vec<u8> = blocks.iter().flat_map(encode).collect();
        let file = SegmentId { owner: OwnerId(0x22), segment: 0x33 };
        let mut index = SegmentIndex { id: file, blocks: Vec::new(), file: None, bytes: 0, crc: 0 };
        index.add_blocks(0x11, &bytes);
        index
    }

    fn at(offset: u64) -> Position {
        Position { owner: OwnerId(0x22), segment: 0x33, offset, owner_bytes: offset + 1000 }
    }

    #[test]
    fn version_1_is_laid_out_as_documented() {
        let (bytes, crc_of_it) = block(0x55, 0x68, 2).encode(0);
        let mut expected = b"FLix\x01\0\0\0".to_vec();
        for field in [0x11u64, 0x22, 0x44, 0x55, 0x68] {
            expected.extend(field.to_le_bytes());
        }
        for field in [0x33u32, 2, 0] {
            expected.extend(field.to_le_bytes());
        }
        let slots: Vec<u8> = [0u32, 0, 1, 100].into_iter().flat_map(u32::to_le_bytes).collect();
        let crc = crc32c::crc32c_append(crc32c::crc32c(&expected), &slots);
        expected.extend(crc.to_le_bytes());
        expected.extend(slots);
        assert_eq!(bytes, expected);
        assert_eq!(Block::decode(0, &bytes), Some((block(0x55, 0x68, 2), bytes.len(), crc_of_it)));
        assert_eq!(crc_of_it, crc);
        assert_eq!(Block::decode(1, &bytes), None, "behind another block");
    }

    #[test]
    fn every_flipped_bit_and_every_cut_ends_the_index() {
        let (bytes, _) = block(5, 0, 3).encode(7);
        for bit in 0..bytes.len() * 8 {
            let mut damaged = bytes.to_vec();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Block::decode(7, &damaged), None, "bit {bit}");
        }
        for end in 0..bytes.len() {
            assert_eq!(Block::decode(7, &bytes[..end]), None, "cut at {end}");
        }
    }

    #[test]
    fn records_are_those_that_follow_each_other_from_where_the_log_ends() {
        let first = block(5, 0, 3);
        let first_bytes: u64 =
            first.lengths.iter().map(|(meta, body)| record_bytes(*meta as usize, *body as usize)).sum();
        let index = index_of(&[first.clone(), block(8, first_bytes, 4)]);
        let found = |next: Option<u64>, offset, last| {
            let records = index.records(next.map(LogIndex), at(offset), LogIndex(last));
            records.iter().map(|located| located.id.index.0).collect::<Vec<_>>()
        };
        assert_eq!(found(Some(5), 0, 100), [5, 6, 7, 8, 9, 10, 11]);
        assert_eq!(found(None, 0, 9), [5, 6, 7, 8, 9], "nothing after what is durable");
        assert_eq!(found(Some(6), record_bytes(0, 0), 7), [6, 7], "a purged log begins in the middle");
        assert_eq!(found(Some(6), 0, 100), [0; 0], "the log ends somewhere else");
        assert_eq!(found(Some(4), 0, 100), [0; 0]);
        assert_eq!(found(Some(5), 0, 4), [0; 0]);
        let last = index.records(Some(LogIndex(5)), at(0), LogIndex(7));
        assert_eq!(last[2].position, at(first_bytes - last[2].record_bytes()));
        let gap = index_of(&[first, block(9, first_bytes, 4)]);
        assert_eq!(gap.records(Some(LogIndex(5)), at(0), LogIndex(100)).len(), 3, "nothing behind a gap");
    }

    #[test]
    fn what_is_not_of_this_segment_ends_the_index() {
        let other = Block { log: 1, ..block(8, 0, 4) };
        assert_eq!(index_of(&[block(5, 0, 3), other]).blocks.len(), 1);
        let other = Block { file: SegmentId { owner: OwnerId(0x22), segment: 1 }, ..block(8, 0, 4) };
        assert_eq!(index_of(&[block(5, 0, 3), other]).blocks.len(), 1);
        assert_eq!(index_of(&[block(5, 0, 3), block(6, 0, 3)]).blocks.len(), 1, "entries go up");
    }
}
