//! Discards: bodies of an owner's records that were given up (docs/format/discarded.md). The file beside the
//! segments is a chain of blocks; each is durable before a row or a byte goes because of it.
//!
//! ```text
//! offset size field
//!      0    4 magic   "FLdi"
//!      4    1 version 1
//!      5    3 zero
//!      8    8 owner
//!     16    4 count   1 to 65536
//!     20    4 crc     CRC32C of the crc of the block before (none for the first), bytes 0..20 and what follows
//!     24 40·n records: tag 8, index 8, offset 8, segment 4, meta_bytes 4, body_bytes 4, zero 4
//! ```

use crate::read::read_error;
use crate::record::{ALIGNMENT, BODY_BYTES_MAX, META_BYTES_MAX, head_bytes};
use crate::scan::ScanError;
use crate::segment::{SegmentId, owner_dir};
use crate::{LogSpace, Place, ReadError};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::{Disk, File};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use types::{LogIndex, OwnerId};

pub(crate) const FILE_NAME: &str = "discarded";
const MAGIC: [u8; 4] = *b"FLdi";
const VERSION: u8 = 1;
const CRC_AT: usize = 20;
const HEADER_BYTES: usize = CRC_AT + 4;
const RECORD_BYTES: usize = 40;
const COUNT_MAX: usize = 1 << 16;
/// A container of 2 GiB has half a million records of 4 KiB: 20 MiB here. A longer file is none of ours, and
/// none gets so long.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// Space is given back in whole blocks of this size, those of ext4 and xfs unless somebody chose others.
pub const HOLE_BLOCK_BYTES: u64 = 4096;

/// A record whose body is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// The tag under which the caller gave it up: all records of one tag go together.
    pub tag: u64,
    pub index: LogIndex,
    pub place: Place,
    meta_bytes: u32,
}

/// All of an owner.
#[derive(Clone, Debug)]
pub struct Discards {
    owner: OwnerId,
    by_place: BTreeMap<(u32, u64), Discarded>,
    /// The bytes of the whole blocks; `crc` is the checksum of the last.
    bytes: u64,
    crc: u32,
}

/// The sum of what was given up of an owner. Two copies of an owner whose blocks and digests are equal have
/// given up the same records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiscardsSum {
    /// Tags.
    pub blocks: u64,
    /// Of all records, whatever their order; 0 where there is none. It tells sets apart that came about by
    /// chance, and is no protection from somebody who makes them.
    pub digest: u64,
    /// The bytes of the bodies, and what their holes give back of them.
    pub body_bytes: u64,
    pub hole_bytes: u64,
}

impl DiscardsSum {
    fn add(&mut self, record: &Discarded) {
        let hole = record.hole();
        self.digest = self.digest.wrapping_add(record.digest());
        self.body_bytes += u64::from(record.place.body_bytes);
        self.hole_bytes += hole.end - hole.start;
    }
}

impl Discarded {
    /// FNV-1a over the record's bytes, and splitmix64's last steps, without which sums would meet: near
    /// records have near hashes.
    fn digest(&self) -> u64 {
        let mut bytes = BytesMut::with_capacity(RECORD_BYTES);
        self.put(&mut bytes);
        let fnv = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        let mut hash = bytes.iter().fold(0xcbf2_9ce4_8422_2325, fnv);
        hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        hash ^ (hash >> 31)
    }

    /// The whole blocks within the body: what a hole gives back.
    pub fn hole(&self) -> Range<u64> {
        let body = self.place.offset + head_bytes(self.meta_bytes as usize, self.place.body_bytes as usize);
        let start = body.next_multiple_of(HOLE_BLOCK_BYTES);
        let end = (body + u64::from(self.place.body_bytes)) / HOLE_BLOCK_BYTES * HOLE_BLOCK_BYTES;
        start..end.max(start)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.tag);
        out.put_u64_le(self.index.0);
        out.put_u64_le(self.place.offset);
        out.put_u32_le(self.place.segment);
        out.put_u32_le(self.meta_bytes);
        out.put_u32_le(self.place.body_bytes);
        out.put_u32_le(0);
    }

    fn get(owner: OwnerId, mut bytes: &[u8]) -> Option<Discarded> {
        let (tag, index, offset) = (bytes.get_u64_le(), LogIndex(bytes.get_u64_le()), bytes.get_u64_le());
        let (segment, meta_bytes, body_bytes) = (bytes.get_u32_le(), bytes.get_u32_le(), bytes.get_u32_le());
        let is_record = meta_bytes as usize <= META_BYTES_MAX && body_bytes as usize <= BODY_BYTES_MAX;
        let is_place = offset.is_multiple_of(ALIGNMENT) && offset < 1 << 40;
        let place = Place { owner, segment, offset, body_bytes };
        (is_record && is_place && bytes.get_u32_le() == 0).then_some(Discarded {
            tag,
            index,
            place,
            meta_bytes,
        })
    }
}

impl Discards {
    pub fn none(owner: OwnerId) -> Discards {
        Discards { owner, by_place: BTreeMap::new(), bytes: 0, crc: 0 }
    }

    /// Reads what was given up. What a crash left of a last block was never acted upon, and does not count.
    pub async fn read(disk: &dyn Disk, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        match disk.open(&path(owners_dir, owner), false).await {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Discards::none(owner)),
            opened => Discards::read_file(opened?, owner).await,
        }
    }

    pub(crate) async fn read_file(file: Arc<dyn File>, owner: OwnerId) -> io::Result<Discards> {
        let len = file.len().await?;
        if len > FILE_BYTES_MAX {
            return Err(io::Error::other(format!(
                "{FILE_NAME} has {len} bytes, at most {FILE_BYTES_MAX} are ours"
            )));
        }
        Ok(Discards::decode(owner, &file.read_at(0, len as usize).await?))
    }

    fn decode(owner: OwnerId, bytes: &[u8]) -> Discards {
        let mut discards = Discards::none(owner);
        let mut rest = bytes;
        while let Some((records, block_bytes, crc)) = decode_block(owner, discards.crc, rest) {
            discards.add(&records);
            (discards.bytes, discards.crc) = (discards.bytes + block_bytes as u64, crc);
            rest = &rest[block_bytes..];
        }
        discards
    }

    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    /// Iterates in the order of their places.
    pub fn iter(&self) -> impl Iterator<Item = &Discarded> {
        self.by_place.values()
    }

    /// Whether the body of this record was given up.
    pub fn contains(&self, index: LogIndex, place: &Place) -> bool {
        let listed = self.by_place.get(&(place.segment, place.offset));
        listed.is_some_and(|listed| listed.index == index && listed.place == *place)
    }

    /// The bytes that their holes give back.
    pub fn hole_bytes(&self) -> u64 {
        self.iter().map(|record| record.hole()).map(|hole| hole.end - hole.start).sum()
    }

    pub fn sum(&self) -> DiscardsSum {
        let mut sum = DiscardsSum::default();
        self.iter().for_each(|record| sum.add(record));
        DiscardsSum { blocks: self.tags().len() as u64, ..sum }
    }

    pub fn tags(&self) -> BTreeSet<u64> {
        self.iter().map(|record| record.tag).collect()
    }

    fn add(&mut self, records: &[Discarded]) {
        self.by_place.extend(records.iter().map(|it| ((it.place.segment, it.place.offset), *it)));
    }
}

impl LogSpace {
    /// The bodies of an owner that were given up.
    pub async fn discards(&self, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        Discards::read(&**self.disk(), owners_dir, owner).await
    }

    /// Remembers, durably, that the bodies of these records are given up, each as its tag; what is remembered
    /// already is skipped. Changes none of them. Their heads are read: a record that is not there as said is
    /// an error, and then nothing is remembered. No log may write to the owner any more; one caller at a time
    /// for each owner.
    pub async fn remember_discards(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        records: &[(u64, Place)],
    ) -> Result<Discards, ReadError> {
        let file = path(owners_dir, owner);
        let io_error = |error| read_error(file.clone(), 0, ScanError::Io(error));
        let mut discards = self.discards(owners_dir, owner).await.map_err(io_error)?;
        let mut fresh = Vec::new();
        for (tag, place) in records {
            if !discards.by_place.contains_key(&(place.segment, place.offset)) {
                let head = self.read_head(owners_dir, *place).await?;
                let meta_bytes = head.meta.len() as u32; // as it stood in the header
                fresh.push(Discarded { tag: *tag, index: head.id.index, place: *place, meta_bytes });
            }
        }
        self.append_discards(owners_dir, &mut discards, &fresh).await.map_err(io_error)?;
        Ok(discards)
    }

    /// Punches the holes of the records with these tags, durably. Doing it again changes nothing.
    pub async fn punch_discards(
        &self,
        owners_dir: &str,
        discards: &Discards,
        is_meant: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let mut open: Option<(u32, Arc<dyn File>)> = None;
        for record in discards.iter().filter(|record| is_meant(record.tag)) {
            let hole = record.hole();
            if hole.is_empty() {
                continue;
            }
            let segment = record.place.segment;
            if let Some((_, before)) = open.take_if(|(open, _)| *open != segment) {
                before.sync_data().await?;
            }
            if open.is_none() {
                let id = SegmentId { owner: discards.owner, segment };
                open = Some((segment, self.disk().open(&id.path(owners_dir), false).await?));
            }
            let (_, file) = open.as_ref().expect("opened above");
            file.punch_hole(hole.start, hole.end - hole.start).await?;
        }
        match open {
            Some((_, last)) => last.sync_data().await,
            None => Ok(()),
        }
    }

    async fn append_discards(
        &self,
        owners_dir: &str,
        discards: &mut Discards,
        fresh: &[Discarded],
    ) -> io::Result<()> {
        if fresh.is_empty() {
            return Ok(());
        }
        let (mut crc, mut blocks) = (discards.crc, Vec::new());
        for records in fresh.chunks(COUNT_MAX) {
            let block;
            (block, crc) = encode_block(discards.owner, crc, records);
            blocks.push(block);
        }
        let bytes: u64 = blocks.iter().map(|block| block.len() as u64).sum();
        if discards.bytes + bytes > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("{FILE_NAME} would pass {FILE_BYTES_MAX} bytes")));
        }
        let file = self.disk().open(&path(owners_dir, discards.owner), true).await?;
        // What a crash left of a block that nobody acted upon.
        file.set_len(discards.bytes).await?;
        file.write_and_sync(discards.bytes, blocks).await?;
        self.disk().sync_dir(&owner_dir(owners_dir, discards.owner)).await?;
        discards.add(fresh);
        (discards.bytes, discards.crc) = (discards.bytes + bytes, crc);
        Ok(())
    }
}

pub(crate) fn path(owners_dir: &str, owner: OwnerId) -> String {
    format!("{}/{FILE_NAME}", owner_dir(owners_dir, owner))
}

fn checksum(before: u32, block: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c_append(before, &block[..CRC_AT]), &block[HEADER_BYTES..])
}

fn encode_block(owner: OwnerId, before: u32, records: &[Discarded]) -> (Bytes, u32) {
    let mut out = BytesMut::with_capacity(HEADER_BYTES + records.len() * RECORD_BYTES);
    out.put_slice(&MAGIC);
    out.put_u8(VERSION);
    out.put_slice(&[0; 3]);
    out.put_u64_le(owner.0);
    out.put_u32_le(records.len() as u32); // at most COUNT_MAX
    debug_assert_eq!(out.len(), CRC_AT);
    out.put_u32_le(0);
    records.iter().for_each(|record| record.put(&mut out));
    let crc = checksum(before, &out);
    out[CRC_AT..HEADER_BYTES].copy_from_slice(&crc.to_le_bytes());
    (out.freeze(), crc)
}

/// The block at the start of `bytes`, how long it is and its checksum; `None` when no whole one is there.
fn decode_block(owner: OwnerId, before: u32, bytes: &[u8]) -> Option<(Vec<Discarded>, usize, u32)> {
    let mut header = bytes.get(..HEADER_BYTES)?;
    let mut start = [0; 8];
    header.copy_to_slice(&mut start);
    if start[..4] != MAGIC || start[4..] != [VERSION, 0, 0, 0] || header.get_u64_le() != owner.0 {
        return None;
    }
    let (count, crc) = (header.get_u32_le() as usize, header.get_u32_le());
    if count == 0 || count > COUNT_MAX {
        return None;
    }
    let block_bytes = HEADER_BYTES + count * RECORD_BYTES;
    let block = bytes.get(..block_bytes)?;
    if checksum(before, block) != crc {
        return None;
    }
    let records =
        block[HEADER_BYTES..].chunks_exact(RECORD_BYTES).map(|record| Discarded::get(owner, record));
    Some((records.collect::<Option<Vec<_>>>()?, block_bytes, crc))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u64, offset: u64, body_bytes: u32) -> Discarded {
        let place = Place { owner: OwnerId(0x11), segment: 0x22, offset, body_bytes };
        Discarded { tag, index: LogIndex(tag + 1), place, meta_bytes: 0x33 }
    }

    #[test]
    fn version_1_is_laid_out_as_documented() {
        let (bytes, crc) = encode_block(OwnerId(0x11), 0, &[record(0x44, 0x48, 0x55)]);
        let mut expected = b"FLdi\x01\0\0\0".to_vec();
        expected.extend(0x11u64.to_le_bytes());
        expected.extend(1u32.to_le_bytes());
        let mut rows = Vec::new();
        [0x44u64, 0x45, 0x48].iter().for_each(|field| rows.extend(field.to_le_bytes()));
        [0x22u32, 0x33, 0x55, 0].iter().for_each(|field| rows.extend(field.to_le_bytes()));
        assert_eq!(crc, crc32c::crc32c_append(crc32c::crc32c(&expected), &rows));
        expected.extend(crc.to_le_bytes());
        expected.extend(rows);
        assert_eq!(bytes, expected);
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
        assert_ne!(both.digest, sum(&[one]).digest);
        assert_ne!(sum(&[one]).digest, sum(&[record(1, 8, 9000)]).digest, "in another place");
        assert_eq!(sum(&[one]).digest.wrapping_add(sum(&[three]).digest), sum(&[one, three]).digest);
    }

    #[test]
    fn a_torn_or_flipped_block_ends_the_list() {
        let (first, crc) = encode_block(OwnerId(0x11), 0, &[record(1, 0, 9), record(2, 800, 9)]);
        let (second, _) = encode_block(OwnerId(0x11), crc, &[record(3, 1600, 9)]);
        let both = [&first[..], &second[..]].concat();
        let count = |bytes: &[u8]| Discards::decode(OwnerId(0x11), bytes).iter().count();
        assert_eq!(count(&both), 3);
        for end in 0..both.len() {
            assert_eq!(count(&both[..end]), if end < first.len() { 0 } else { 2 }, "cut at {end}");
        }
        for bit in 0..both.len() * 8 {
            let mut damaged = both.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(count(&damaged), if bit / 8 < first.len() { 0 } else { 2 }, "bit {bit}");
        }
        assert_eq!(Discards::decode(OwnerId(0x12), &both).iter().count(), 0, "another owner's");
        assert_eq!(count(&second), 0, "behind another block");
    }

    #[test]
    fn a_hole_is_the_whole_blocks_within_the_body() {
        let check = |offset, body_bytes, expect| assert_eq!(record(1, offset, body_bytes).hole(), expect);
        // The head has 72 + 4 + 0x33 = 127 bytes.
        check(0, 4096, 4096..4096);
        check(0, 8064, 4096..4096);
        check(0, 8065, 4096..8192);
        check(8192 - 126, 4097, 12288..12288);
        check(8192 - 127, 4096, 8192..12288);
        check(0, 0, 4096..4096);
    }
}
