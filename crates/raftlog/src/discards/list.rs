//! The list of what was given up of an owner, in memory.

use super::block::{BLOCK_BYTES_MAX, RECORD_BYTES, decode_block};
use super::{Discarded, FILE_BYTES_MAX, FILE_NAME, path};
use crate::Place;
use crate::compacted::Compacted;
use bytes::{Buf, BytesMut};
use disk::{Disk, File, ReadRecordError};
use std::collections::BTreeSet;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use types::{LogIndex, OwnerId};

/// The bytes of a list that are read at a time: a whole block at least.
const PIECE_BYTES: u64 = BLOCK_BYTES_MAX as u64;

/// The list of an owner's records whose bodies were given up.
#[derive(Clone, Debug)]
pub struct Discards {
    owner: OwnerId,
    compacted: Compacted,
    /// In the order of their indexes, each of which is there once.
    rows: Vec<Row>,
    /// The bytes of the whole blocks; `crc` is the checksum of the last.
    bytes: u64,
    crc: u32,
}

/// A record of the list, in as many bytes as the file has for it: there may be half a million of them.
#[derive(Clone, Copy, Debug)]
struct Row {
    tag: u64,
    index: LogIndex,
    offset: u64,
    /// The halves of the name, the lower one first; zero where there is none.
    name: [u64; 2],
    segment: u32,
    meta_bytes: u32,
    body_bytes: u32,
    has_name: bool,
}

const _: () = assert!(size_of::<Row>() == RECORD_BYTES);

impl Row {
    fn of(record: &Discarded) -> Row {
        let Discarded { tag, index, place, meta_bytes, name } = *record;
        let Place { segment, offset, body_bytes, .. } = place;
        let bits = name.unwrap_or_default();
        let halves = [bits as u64, (bits >> 64) as u64];
        Row { tag, index, offset, name: halves, segment, meta_bytes, body_bytes, has_name: name.is_some() }
    }

    fn record(&self, owner: OwnerId) -> Discarded {
        let Row { tag, index, offset, name: [low, high], segment, meta_bytes, body_bytes, has_name } = *self;
        let place = Place { owner, segment, offset, body_bytes };
        let name = has_name.then_some((u128::from(high) << 64) | u128::from(low));
        Discarded { tag, index, place, meta_bytes, name }
    }
}

/// The sum of what was given up of an owner. Two copies of an owner whose blocks and digests are equal have
/// given up the same records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardsSum {
    /// The number of tags: the caller's blocks.
    pub blocks: u64,
    /// The digest of all records, whatever their order; 0 where there is none. It tells sets apart that came
    /// about by chance, and is no protection from somebody who makes them.
    pub digest: u64,
    /// The bytes of the bodies of all that were ever given up.
    pub body_bytes: u64,
    /// The bytes that the holes in the bodies of records that are still there give back.
    pub hole_bytes: u64,
    /// The bytes that these records take all the same: a compaction gives them back.
    pub dead_bytes: u64,
}

impl DiscardsSum {
    fn add(&mut self, record: &Discarded, is_here: bool) {
        self.digest = self.digest.wrapping_add(record.digest());
        self.body_bytes += u64::from(record.place.body_bytes);
        if is_here {
            let hole = record.hole();
            self.hole_bytes += hole.end - hole.start;
            self.dead_bytes += record.record_bytes() - (hole.end - hole.start);
        }
    }
}

impl Discards {
    pub fn none(owner: OwnerId) -> Discards {
        Discards { owner, compacted: Compacted::NEVER, rows: Vec::new(), bytes: 0, crc: 0 }
    }

    /// Reads what was given up, and what of that is gone by now. What a crash left of a last block was never
    /// acted upon, and does not count.
    pub async fn read(disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        let compacted = Compacted::read(disk, owners_dir, owner).await?;
        let discards = match disk.open(&path(owners_dir, owner), false).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Discards::none(owner),
            opened => Discards::read_file(opened?, owner).await?,
        };
        Ok(discards.after(compacted))
    }

    /// The list as it is on the disk now; `None` when it is this one.
    pub async fn newer(&self, disk: &dyn Disk, owners_dir: &str) -> io::Result<Option<Discards>> {
        let compacted = Compacted::read(disk, owners_dir, self.owner).await?;
        let bytes = match disk.open(&path(owners_dir, self.owner), false).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            opened => opened?.len().await?,
        };
        match bytes == self.bytes && compacted == self.compacted {
            true => Ok(None),
            false => Discards::read(disk, owners_dir, self.owner).await.map(Some),
        }
    }

    pub(crate) async fn read_file(file: Arc<dyn File>, owner: OwnerId) -> io::Result<Discards> {
        let len = file.len().await?;
        if len > FILE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "{FILE_NAME} has {len} bytes, at most {FILE_BYTES_MAX} are ours"
            )));
        }
        let mut discards = Discards::none(owner);
        discards.rows.reserve_exact(len as usize / RECORD_BYTES);
        let (mut at, mut piece) = (0, BytesMut::new());
        while at < len {
            let bytes = (len - at).min(PIECE_BYTES);
            piece.extend_from_slice(&file.read_at(at, bytes as usize).await?);
            at += bytes;
            piece.advance(discards.decode(&piece));
            // What is no block after so many bytes ends the list.
            if piece.len() >= BLOCK_BYTES_MAX {
                break;
            }
        }
        discards.sort();
        Ok(discards)
    }

    /// This list, for an owner that was compacted as `compacted` says.
    pub fn after(self, compacted: Compacted) -> Discards {
        Discards { compacted, ..self }
    }

    /// Takes the whole blocks at the start of `bytes`, which follow those that were taken before. Returns how
    /// many bytes they have. To be called before [`Discards::sort`].
    fn decode(&mut self, bytes: &[u8]) -> usize {
        let mut rest = bytes;
        while let Some((records, block_bytes, crc)) = decode_block(self.owner, self.crc, rest) {
            self.rows.extend(records.iter().map(Row::of));
            (self.bytes, self.crc) = (self.bytes + block_bytes as u64, crc);
            rest = &rest[block_bytes..];
        }
        bytes.len() - rest.len()
    }

    pub fn owner(&self) -> OwnerId {
        self.owner
    }

    /// The bytes of the list, but for what a crash left of a last block.
    pub fn list_bytes(&self) -> u64 {
        self.bytes
    }

    /// Fails where the list ends before so many bytes, which it had.
    pub fn check_reaches(&self, owners_dir: &str, bytes: u64) -> io::Result<()> {
        if self.bytes >= bytes {
            return Ok(());
        }
        let why = format!("it is whole up to byte {}, and was up to byte {bytes}", self.bytes);
        Err(ReadRecordError::Damaged { path: path(owners_dir, self.owner), why }.into())
    }

    pub fn compacted(&self) -> &Compacted {
        &self.compacted
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Iterates over the records in the order of their indexes.
    pub fn iter(&self) -> impl Iterator<Item = Discarded> {
        self.rows.iter().map(|row| row.record(self.owner))
    }

    pub fn get(&self, index: LogIndex) -> Option<Discarded> {
        let at = self.rows.binary_search_by_key(&index, |row| row.index);
        at.ok().map(|at| self.rows[at].record(self.owner))
    }

    /// Whether the body of this record was given up. A record whose body was given up while its owner was
    /// being compacted is listed where it stood before.
    pub fn contains(&self, index: LogIndex, place: &Place) -> bool {
        let starts = self.compacted.segments.start;
        let has_moved = |listed: &Discarded| listed.place.segment < starts && starts <= place.segment;
        self.get(index).is_some_and(|listed| listed.place == *place || has_moved(&listed))
    }

    /// Whether no compaction has left a record out: it stands where it is listed, unless somebody removed its
    /// file.
    pub(super) fn is_here(&self, record: &Discarded) -> bool {
        record.place.segment >= self.compacted.segments.start
    }

    /// Whether all of these records were given up, and left out by a compaction.
    pub fn are_gone(&self, indexes: Range<LogIndex>) -> bool {
        let (first, end) = (indexes.start, indexes.end);
        if first >= end {
            return true;
        }
        let place = |index| self.rows.partition_point(|row| row.index < index);
        let listed = &self.rows[place(first)..place(end)];
        let is_gone = |row: &&Row| row.segment < self.compacted.segments.start;
        listed.iter().filter(is_gone).count() as u64 == end.0 - first.0
    }

    /// The bytes that the records' holes give back.
    pub fn hole_bytes(&self) -> u64 {
        self.sum().hole_bytes
    }

    pub fn sum(&self) -> DiscardsSum {
        let mut sum = DiscardsSum::default();
        self.iter().for_each(|record| sum.add(&record, self.is_here(&record)));
        let mut tags: Vec<u64> = self.rows.iter().map(|row| row.tag).collect();
        tags.sort_unstable();
        tags.dedup();
        DiscardsSum { blocks: tags.len() as u64, ..sum }
    }

    /// One record of each tag, in the order of the tags.
    pub fn into_tags(mut self) -> impl ExactSizeIterator<Item = Discarded> + Send {
        self.rows.sort_unstable_by_key(|row| (row.tag, row.index));
        self.rows.dedup_by_key(|row| row.tag);
        self.rows.into_iter().map(move |row| row.record(self.owner))
    }

    pub fn tags(&self) -> BTreeSet<u64> {
        self.rows.iter().map(|row| row.tag).collect()
    }

    /// Adds records; of two with one index the later one counts.
    fn add(&mut self, records: &[Discarded]) {
        self.rows.reserve_exact(records.len());
        self.rows.extend(records.iter().map(Row::of));
        self.sort();
    }

    /// Adds what was appended to the file, up to a block with this checksum.
    pub(super) fn append(&mut self, records: &[Discarded], bytes: u64, crc: u32) {
        self.add(records);
        (self.bytes, self.crc) = (self.bytes + bytes, crc);
    }

    /// The checksum of the last block, which the next one's goes on from.
    pub(super) fn crc(&self) -> u32 {
        self.crc
    }

    fn sort(&mut self) {
        if !self.rows.is_sorted_by_key(|row| row.index) {
            self.rows.sort_by_key(|row| row.index);
        }
        self.rows.dedup_by(|later, kept| {
            let is_one = later.index == kept.index;
            if is_one {
                *kept = *later;
            }
            is_one
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::block::{encode_block, in_blocks};
    use super::super::testing::record;
    use super::*;

    fn decoded(owner: OwnerId, bytes: &[u8]) -> Discards {
        let mut discards = Discards::none(owner);
        discards.decode(bytes);
        discards.sort();
        discards
    }

    #[test]
    fn what_a_compaction_left_out_is_gone_and_counts_in_the_digest_alone() {
        let compacted = |start| Compacted { segments: start..0x99, ..Compacted::NEVER };
        let mut discards = Discards::none(OwnerId(0x11));
        discards.add(&[record(1, 0, 9000), record(1, 1, 9), record(3, 2, 9)]);
        let (before, place) = (discards.sum(), record(1, 0, 9000).place);
        let gone = |discards: &Discards, indexes: Range<u64>| {
            discards.are_gone(LogIndex(indexes.start)..LogIndex(indexes.end))
        };
        assert!(gone(&discards, 5..5) && !gone(&discards, 1..2), "they are listed, and there");
        let after = discards.clone().after(compacted(0x23));
        assert!(gone(&after, 1..4) && gone(&after, 2..3) && !gone(&after, 0..2) && !gone(&after, 1..5));
        let DiscardsSum { hole_bytes, dead_bytes, .. } = before;
        // Heads of 72 + 0x33 bytes with a sum of four, padded.
        assert_eq!((hole_bytes, dead_bytes), (4096, 9128 - 4096 + 2 * 136));
        assert_eq!(after.sum(), DiscardsSum { hole_bytes: 0, dead_bytes: 0, ..before });
        let (elsewhere, moved) = (Place { offset: 8, ..place }, Place { segment: 0x23, ..place });
        assert!(discards.contains(LogIndex(1), &place) && !discards.contains(LogIndex(1), &elsewhere));
        assert!(!discards.contains(LogIndex(1), &moved) && after.contains(LogIndex(1), &moved));
        assert!(!after.contains(LogIndex(4), &moved));
    }

    /// The digest of docs/format/discarded.md, which nodes of several versions compare.
    #[test]
    fn the_sum_depends_on_the_records_and_on_no_order() {
        let sum = |records: &[Discarded]| {
            let mut discards = Discards::none(OwnerId(0x11));
            records.iter().for_each(|record| discards.add(&[*record]));
            discards.sum()
        };
        let (one, two, three) = (record(1, 0, 9000), record(1, 16_384, 9), record(3, 1600, 9));
        assert_eq!(sum(&[]), DiscardsSum::default());
        assert_eq!(sum(&[one, two, three]), sum(&[three, one, two]));
        let both = sum(&[one, two]);
        assert_eq!((both.blocks, both.body_bytes, both.hole_bytes), (1, 9009, 4096));
        let mut all = Discards::none(OwnerId(0x11));
        all.add(&[three, two, one]);
        assert_eq!(all.into_tags().collect::<Vec<_>>(), [one, three], "the first of each tag");
        assert_ne!(both.digest, sum(&[one]).digest);
        let moved = Discarded { place: Place { segment: 9, offset: 8, ..one.place }, name: None, ..one };
        assert_eq!(sum(&[one]).digest, sum(&[moved]).digest, "in another place");
        assert_ne!(sum(&[one]).digest, sum(&[Discarded { index: LogIndex(7), ..one }]).digest);
        assert_eq!(sum(&[one]).digest.wrapping_add(sum(&[three]).digest), sum(&[one, three]).digest);
    }

    #[test]
    fn of_two_records_with_one_index_the_later_counts() {
        let owner = OwnerId(0x11);
        let (one, other) = (record(1, 0, 9000), record(3, 16_384, 9));
        let renamed = Discarded { name: Some(77), ..one };
        let (first, crc) = encode_block(owner, 0, &[other, one]);
        let (second, _) = encode_block(owner, crc, &[renamed]);
        let decoded = decoded(owner, &[first, second].concat());
        let mut added = Discards::none(owner);
        added.add(&[other, one]);
        added.add(&[renamed]);
        for discards in [decoded, added] {
            let listed: Vec<_> = discards.iter().map(|record| (record.index, record.name)).collect();
            assert_eq!(listed, [renamed, other].map(|record| (record.index, record.name)));
            assert_eq!(discards.get(one.index).unwrap().name, Some(77));
        }
    }

    #[tokio::test]
    async fn a_list_of_several_pieces_is_read_to_its_end() {
        const COUNT: u64 = 150_000;
        let owner = OwnerId(0x11);
        let disk = disk::sim::SimDisk::new(Default::default());
        let records: Vec<Discarded> = (0..COUNT).rev().map(|n| record(n, n * 8, 9)).collect();
        let (mut blocks, mut crc) = (Vec::new(), 0);
        for records in in_blocks(&records) {
            let block;
            (block, crc) = encode_block(owner, crc, records);
            blocks.push(block);
        }
        let lens: Vec<u64> = blocks.iter().map(|block| block.len() as u64).collect();
        let file = disk.open("list", true).await.unwrap();
        file.write_and_sync(0, blocks).await.unwrap();
        let whole = Discards::read_file(file.clone(), owner).await.unwrap();
        assert!(whole.list_bytes() > 2 * PIECE_BYTES && whole.list_bytes() == lens.iter().sum());
        assert!(whole.iter().map(|record| record.tag).eq(0..COUNT));
        assert_eq!(whole.get(LogIndex(1)), records.last().copied(), "as it was listed");
        file.set_len(whole.list_bytes() - 1).await.unwrap();
        let torn = Discards::read_file(file, owner).await.unwrap();
        assert_eq!(torn.list_bytes(), lens[..lens.len() - 1].iter().sum::<u64>());
    }

    #[test]
    fn a_torn_or_flipped_block_ends_the_list() {
        let (first, crc) = encode_block(OwnerId(0x11), 0, &[record(1, 0, 9), record(2, 800, 9)]);
        let (second, _) = encode_block(OwnerId(0x11), crc, &[record(3, 1600, 9)]);
        let both = [&first[..], &second[..]].concat();
        let count = |bytes: &[u8]| decoded(OwnerId(0x11), bytes).iter().count();
        assert_eq!(count(&both), 3);
        for end in 0..both.len() {
            assert_eq!(count(&both[..end]), if end < first.len() { 0 } else { 2 }, "cut at {end}");
        }
        for bit in 0..both.len() * 8 {
            let mut damaged = both.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(count(&damaged), if bit / 8 < first.len() { 0 } else { 2 }, "bit {bit}");
        }
        assert_eq!(decoded(OwnerId(0x12), &both).iter().count(), 0, "another owner's");
        assert_eq!(count(&second), 0, "behind another block");
    }
}
