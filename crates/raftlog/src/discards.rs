//! Discards: bodies of an owner's records that were given up (docs/format/discarded.md). The file beside the
//! segments is a chain of blocks; each is durable before a row or a byte goes because of it.
//!
//! ```text
//! offset size field
//!      0    4 magic   "FLdi"
//!      4    1 version 2
//!      5    3 zero
//!      8    8 owner
//!     16    4 count   1 to 65536
//!     20    4 crc     CRC32C of the crc of the block before (none for the first), bytes 0..20 and what follows
//!     24 56·n records: tag 8, index 8, offset 8, segment 4, meta_bytes 4, body_bytes 4, zero 4, name 16
//! ```
//!
//! Records of version 1, which is read, have no name.

use crate::compacted::Compacted;
use crate::read::read_error;
use crate::record::{ALIGNMENT, BODY_BYTES_MAX, META_BYTES_MAX, head_bytes, record_bytes};
use crate::scan::ScanError;
use crate::segment::{SegmentId, owner_dir};
use crate::space::KnownList;
use crate::{LogSpace, Place, ReadError};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use disk::{Disk, File, ReadRecordError};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::ops::Range;
use std::sync::{Arc, MutexGuard};
use types::{LogIndex, OwnerId};

pub(crate) const FILE_NAME: &str = "discarded";
const MAGIC: [u8; 4] = *b"FLdi";
const VERSION: u8 = 2;
/// The version whose records have no name.
const NAMELESS: u8 = 1;
const CRC_AT: usize = 20;
const HEADER_BYTES: usize = CRC_AT + 4;
const NAMELESS_BYTES: usize = 40;
const RECORD_BYTES: usize = NAMELESS_BYTES + 16;
const COUNT_MAX: usize = 1 << 16;
/// The most bytes of the file: 4.7 million records are listed, and then no more. A container of 2 GiB has
/// half a million records of 4 KiB, 28 MiB here. A longer file is none of ours.
const FILE_BYTES_MAX: u64 = 256 << 20;

/// The size of the whole blocks in which space is given back: those of ext4 and xfs, unless somebody chose
/// others.
pub const HOLE_BLOCK_BYTES: u64 = 4096;
/// The most holes of one operation of a disk: one of its threads is busy with them for as long.
const HOLES_AT_ONCE: usize = 16;

/// A record whose body is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// The tag under which the caller gave the record up: all records of one tag go together.
    pub tag: u64,
    pub index: LogIndex,
    /// The record's place when it was given up. A compaction leaves the record out, and then nothing is
    /// there.
    pub place: Place,
    meta_bytes: u32,
    /// The caller's name of the tag, which the record's own head has as long as it is there. `None`: it was
    /// listed before there were names.
    pub name: Option<u128>,
}

/// A record that is to be given up.
#[derive(Clone, Copy, Debug)]
pub struct Discard {
    pub tag: u64,
    pub name: u128,
    pub place: Place,
}

/// The list of an owner's records whose bodies were given up.
#[derive(Clone, Debug)]
pub struct Discards {
    owner: OwnerId,
    compacted: Compacted,
    /// In the order of their indexes, each of which is there once. There may be half a million of them.
    records: Vec<Discarded>,
    /// The bytes of the whole blocks; `crc` is the checksum of the last.
    bytes: u64,
    crc: u32,
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

impl Discarded {
    /// The record's part of the digest: FNV-1a over what is the same wherever the record stands, and
    /// splitmix64's last steps, without which sums would meet: near records have near hashes.
    fn digest(&self) -> u64 {
        let mut bytes = BytesMut::with_capacity(24);
        bytes.put_u64_le(self.tag);
        bytes.put_u64_le(self.index.0);
        bytes.put_u32_le(self.meta_bytes);
        bytes.put_u32_le(self.place.body_bytes);
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

    fn record_bytes(&self) -> u64 {
        record_bytes(self.meta_bytes as usize, self.place.body_bytes as usize)
    }

    fn put(&self, out: &mut BytesMut) {
        out.put_u64_le(self.tag);
        out.put_u64_le(self.index.0);
        out.put_u64_le(self.place.offset);
        out.put_u32_le(self.place.segment);
        out.put_u32_le(self.meta_bytes);
        out.put_u32_le(self.place.body_bytes);
        out.put_u32_le(0);
        out.put_u128_le(self.name.unwrap_or_default());
    }

    fn get(owner: OwnerId, mut bytes: &[u8]) -> Option<Discarded> {
        let (tag, index, offset) = (bytes.get_u64_le(), LogIndex(bytes.get_u64_le()), bytes.get_u64_le());
        let (segment, meta_bytes, body_bytes) = (bytes.get_u32_le(), bytes.get_u32_le(), bytes.get_u32_le());
        let is_record = meta_bytes as usize <= META_BYTES_MAX && body_bytes as usize <= BODY_BYTES_MAX;
        let is_place = offset.is_multiple_of(ALIGNMENT) && offset < 1 << 40;
        let place = Place { owner, segment, offset, body_bytes };
        let is_whole = is_record && is_place && bytes.get_u32_le() == 0;
        let name = (!bytes.is_empty()).then(|| bytes.get_u128_le());
        is_whole.then_some(Discarded { tag, index, place, meta_bytes, name })
    }
}

impl Discards {
    pub fn none(owner: OwnerId) -> Discards {
        Discards { owner, compacted: Compacted::NEVER, records: Vec::new(), bytes: 0, crc: 0 }
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
        Ok(Discards::decode(owner, &file.read_at(0, len as usize).await?))
    }

    /// This list, for an owner that was compacted as `compacted` says.
    pub fn after(self, compacted: Compacted) -> Discards {
        Discards { compacted, ..self }
    }

    fn decode(owner: OwnerId, bytes: &[u8]) -> Discards {
        let mut discards = Discards::none(owner);
        let mut all = Vec::with_capacity(bytes.len() / RECORD_BYTES);
        let mut rest = bytes;
        while let Some((records, block_bytes, crc)) = decode_block(owner, discards.crc, rest) {
            all.extend(records);
            (discards.bytes, discards.crc) = (discards.bytes + block_bytes as u64, crc);
            rest = &rest[block_bytes..];
        }
        discards.add(all);
        discards
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
        self.records.is_empty()
    }

    /// Iterates over the records in the order of their indexes.
    pub fn iter(&self) -> impl Iterator<Item = &Discarded> {
        self.records.iter()
    }

    pub fn get(&self, index: LogIndex) -> Option<&Discarded> {
        let at = self.records.binary_search_by_key(&index, |record| record.index);
        at.ok().map(|at| &self.records[at])
    }

    /// Whether the body of this record was given up. A record whose body was given up while its owner was
    /// being compacted is listed where it stood before.
    pub fn contains(&self, index: LogIndex, place: &Place) -> bool {
        let has_moved =
            |listed: &Discarded| !self.is_here(listed) && self.compacted.segments.start <= place.segment;
        self.get(index).is_some_and(|listed| listed.place == *place || has_moved(listed))
    }

    /// Whether no compaction has left a record out: it stands where it is listed, unless somebody removed its
    /// file.
    fn is_here(&self, record: &Discarded) -> bool {
        record.place.segment >= self.compacted.segments.start
    }

    /// Whether all of these records were given up, and left out by a compaction.
    pub fn are_gone(&self, indexes: Range<LogIndex>) -> bool {
        let (first, end) = (indexes.start, indexes.end);
        if first >= end {
            return true;
        }
        let place = |index| self.records.partition_point(|record| record.index < index);
        let listed = &self.records[place(first)..place(end)];
        listed.iter().filter(|record| !self.is_here(record)).count() as u64 == end.0 - first.0
    }

    /// The bytes that the records' holes give back.
    pub fn hole_bytes(&self) -> u64 {
        self.sum().hole_bytes
    }

    pub fn sum(&self) -> DiscardsSum {
        let mut sum = DiscardsSum::default();
        self.iter().for_each(|record| sum.add(record, self.is_here(record)));
        let mut tags: Vec<u64> = self.iter().map(|record| record.tag).collect();
        tags.sort_unstable();
        tags.dedup();
        DiscardsSum { blocks: tags.len() as u64, ..sum }
    }

    pub fn tags(&self) -> BTreeSet<u64> {
        self.iter().map(|record| record.tag).collect()
    }

    /// Adds records; of two with one index the later one counts.
    fn add(&mut self, records: Vec<Discarded>) {
        match self.records.is_empty() {
            true => self.records = records,
            false => self.records.extend(records),
        }
        self.records.sort_by_key(|record| record.index);
        self.records.dedup_by(|later, kept| {
            let is_one = later.index == kept.index;
            if is_one {
                *kept = *later;
            }
            is_one
        });
    }
}

impl LogSpace {
    /// The list of an owner's records whose bodies were given up, as it is read now.
    pub async fn discards(&self, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        let known = self.known_list(owner); // before it is read: it only becomes longer
        let discards = Discards::read(&**self.disk(), owners_dir, owner).await?;
        discards.check_reaches(owners_dir, known.bytes)?;
        Ok(discards)
    }

    /// Notes that an owner's list had so many bytes when somebody read it to its end.
    pub fn expect_discards(&self, owner: OwnerId, list_bytes: u64) {
        let mut known = self.known_lists();
        let known = known.entry(owner).or_default();
        known.bytes = known.bytes.max(list_bytes);
    }

    /// [`LogSpace::settled_discards`], as the disk has the list now: what was settled before may be damaged
    /// since, and the page cache goes on showing what was there.
    pub async fn discards_of_disk(&self, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        self.known_lists().entry(owner).or_default().is_settled = false;
        self.settled_discards(owners_dir, owner).await
    }

    /// The bytes that an owner's list has at least.
    pub fn expected_list_bytes(&self, owner: OwnerId) -> u64 {
        self.known_list(owner).bytes
    }

    fn known_list(&self, owner: OwnerId) -> KnownList {
        self.known_lists().get(&owner).copied().unwrap_or_default()
    }

    fn known_lists(&self) -> MutexGuard<'_, HashMap<OwnerId, KnownList>> {
        self.known_lists.lock().expect("no holder panics")
    }

    /// The list of [`LogSpace::discards`], but one that may be acted upon: it is durable, and it is the disk
    /// that says so. A process that was killed, or whose sync failed, may have left in memory what never
    /// reached it. What this process writes itself is durable, or ends the use of the disk.
    pub async fn settled_discards(&self, owners_dir: &str, owner: OwnerId) -> io::Result<Discards> {
        if !self.known_list(owner).is_settled {
            match self.disk().open(&path(owners_dir, owner), false).await {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                opened => {
                    opened?.settle().await?;
                    self.disk().sync_dir(&owner_dir(owners_dir, owner)).await?;
                }
            }
            self.known_lists().entry(owner).or_default().is_settled = true;
        }
        let discards = self.discards(owners_dir, owner).await?;
        // An owner that was deleted meanwhile has no list: who comes under its name later has its own.
        if let Some(known) = self.known_lists().get_mut(&owner) {
            known.bytes = known.bytes.max(discards.bytes);
        }
        Ok(discards)
    }

    /// Remembers, durably, that the bodies of these records are given up, each as its tag; what is remembered
    /// already is skipped. Changes none of them. Their heads are read: a record that is not there as said is
    /// an error, and then nothing is remembered. No log may write to the owner any more; one caller at a time
    /// for each owner.
    pub async fn remember_discards(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        records: &[Discard],
    ) -> Result<Discards, ReadError> {
        let file = path(owners_dir, owner);
        let io_error = |error| read_error(file.clone(), 0, ScanError::Io(error));
        let mut discards = self.settled_discards(owners_dir, owner).await.map_err(io_error)?;
        let at = |place: &Place| (place.segment, place.offset);
        let meant: BTreeSet<(u32, u64)> = records.iter().map(|record| at(&record.place)).collect();
        let listed = discards.iter().map(|record| at(&record.place)).filter(|place| meant.contains(place));
        let listed: BTreeSet<(u32, u64)> = listed.collect();
        let mut fresh = Vec::new();
        for Discard { tag, name, place } in records {
            if !listed.contains(&at(place)) {
                let head = self.read_head(owners_dir, *place).await?;
                let meta_bytes = head.meta.len() as u32; // as it stood in the header
                let (tag, index, name) = (*tag, head.id.index, Some(*name));
                fresh.push(Discarded { tag, index, place: *place, meta_bytes, name });
            }
        }
        self.append_discards(owners_dir, &mut discards, &fresh).await.map_err(io_error)?;
        Ok(discards)
    }

    /// Remembers, durably, names of records that were given up before there were names: their heads are about
    /// to go. One caller at a time for each owner.
    pub async fn name_discards(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        names: &BTreeMap<LogIndex, u128>,
    ) -> io::Result<()> {
        let mut discards = self.settled_discards(owners_dir, owner).await?;
        let nameless = discards.iter().filter(|record| record.name.is_none());
        let named = nameless.filter_map(|record| {
            let name = Some(*names.get(&record.index)?);
            Some(Discarded { name, ..*record })
        });
        let fresh: Vec<Discarded> = named.collect();
        // What comes later in the list counts.
        self.append_discards(owners_dir, &mut discards, &fresh).await
    }

    /// Lists again, durably, what was given up while its owner was compacted, by the places that it has
    /// since, and punches its holes there. To be called when the copy counts, and before anything else is
    /// given up; doing it again changes nothing. One caller at a time for each owner.
    pub async fn move_discards(
        &self,
        owners_dir: &str,
        owner: OwnerId,
        place_now: impl Fn(&Place) -> Option<Place>,
    ) -> io::Result<()> {
        let mut discards = self.settled_discards(owners_dir, owner).await?;
        let gone = discards.iter().filter(|record| !discards.is_here(record));
        let moved = gone.filter_map(|record| Some(Discarded { place: place_now(&record.place)?, ..*record }));
        let fresh: Vec<Discarded> = moved.collect();
        self.append_discards(owners_dir, &mut discards, &fresh).await?;
        self.punch_discards(owners_dir, &discards, |_| true).await
    }

    /// Punches the holes of the records with these tags, durably. Doing it again changes nothing.
    pub async fn punch_discards(
        &self,
        owners_dir: &str,
        discards: &Discards,
        is_meant: impl Fn(u64) -> bool,
    ) -> io::Result<()> {
        let is_due = |record: &&Discarded| discards.is_here(record) && is_meant(record.tag);
        let mut holes: BTreeMap<u32, Vec<Range<u64>>> = BTreeMap::new();
        for record in discards.iter().filter(is_due).filter(|record| !record.hole().is_empty()) {
            holes.entry(record.place.segment).or_default().push(record.hole());
        }
        for (segment, holes) in holes {
            let id = SegmentId { owner: discards.owner, segment };
            let file = self.disk().open(&id.path(owners_dir), false).await?;
            for at_once in holes.chunks(HOLES_AT_ONCE) {
                file.punch_holes(at_once.to_vec()).await?;
            }
            file.sync_data().await?;
        }
        Ok(())
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
        for records in in_blocks(fresh) {
            let block;
            (block, crc) = encode_block(discards.owner, crc, records);
            blocks.push(block);
        }
        let bytes: u64 = blocks.iter().map(|block| block.len() as u64).sum();
        if discards.bytes + bytes > FILE_BYTES_MAX {
            return Err(io::Error::other(format!("{FILE_NAME} would pass {FILE_BYTES_MAX} bytes")));
        }
        let file = self.disk().open(&path(owners_dir, discards.owner), true).await?;
        // The file may end with what a crash left of a block that nobody acted upon.
        file.set_len(discards.bytes).await?;
        file.write_and_sync(discards.bytes, blocks).await?;
        self.disk().sync_dir(&owner_dir(owners_dir, discards.owner)).await?;
        discards.add(fresh.to_vec());
        (discards.bytes, discards.crc) = (discards.bytes + bytes, crc);
        self.expect_discards(discards.owner, discards.bytes);
        Ok(())
    }
}

pub(crate) fn path(owners_dir: &str, owner: OwnerId) -> String {
    format!("{}/{FILE_NAME}", owner_dir(owners_dir, owner))
}

/// The records of each block of the list. A crash may leave the first blocks alone, and all records of one
/// tag go together: no block ends amid neighbours of one tag, unless they are more than one block takes. What
/// is listed again, by other places or names, comes in the order of indexes, and is listed to its end by who
/// finds half of it.
fn in_blocks(records: &[Discarded]) -> impl Iterator<Item = &[Discarded]> {
    let (mut blocks, mut begin, mut end) = (Vec::new(), 0, 0);
    for of_tag in records.chunk_by(|one, next| one.tag == next.tag) {
        if end - begin + of_tag.len() > COUNT_MAX {
            blocks.push(&records[begin..end]);
            begin = end;
        }
        end += of_tag.len();
    }
    blocks.push(&records[begin..end]);
    blocks.into_iter().flat_map(|block| block.chunks(COUNT_MAX))
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
    let bytes_of_record = match start[4] {
        NAMELESS => NAMELESS_BYTES,
        VERSION => RECORD_BYTES,
        _ => return None,
    };
    if start[..4] != MAGIC || start[5..] != [0, 0, 0] || header.get_u64_le() != owner.0 {
        return None;
    }
    let (count, crc) = (header.get_u32_le() as usize, header.get_u32_le());
    if count == 0 || count > COUNT_MAX {
        return None;
    }
    let block_bytes = HEADER_BYTES + count * bytes_of_record;
    let block = bytes.get(..block_bytes)?;
    if checksum(before, block) != crc {
        return None;
    }
    let records =
        block[HEADER_BYTES..].chunks_exact(bytes_of_record).map(|record| Discarded::get(owner, record));
    Some((records.collect::<Option<Vec<_>>>()?, block_bytes, crc))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(tag: u64, offset: u64, body_bytes: u32) -> Discarded {
        let place = Place { owner: OwnerId(0x11), segment: 0x22, offset, body_bytes };
        Discarded { tag, index: LogIndex(offset + 1), place, meta_bytes: 0x33, name: Some(0x66) }
    }

    #[test]
    fn records_of_one_tag_stand_in_one_block_of_the_list() {
        let check = |counts: &[usize], expect: &[usize]| {
            let of_tag = |(tag, count): (usize, &usize)| vec![record(tag as u64, 0, 0); *count];
            let records: Vec<Discarded> = counts.iter().enumerate().flat_map(of_tag).collect();
            let blocks: Vec<usize> = in_blocks(&records).map(<[Discarded]>::len).collect();
            assert_eq!(blocks, expect, "{counts:?}");
        };
        check(&[1, 2], &[3]);
        check(&[COUNT_MAX - 1, 1, 1], &[COUNT_MAX, 1]);
        check(&[COUNT_MAX - 1, 2, 3], &[COUNT_MAX - 1, 5]);
        check(&[3, COUNT_MAX + 1, 1], &[3, COUNT_MAX, 1, 1]);
    }

    /// The bytes of a block with one record, whose fields are documented.
    fn laid_out(version: u8) -> Vec<u8> {
        let mut expected = [b"FLdi", &[version, 0, 0, 0][..]].concat();
        expected.extend(0x11u64.to_le_bytes());
        expected.extend(1u32.to_le_bytes());
        let mut rows = Vec::new();
        [0x44u64, 0x49, 0x48].iter().for_each(|field| rows.extend(field.to_le_bytes()));
        [0x22u32, 0x33, 0x55, 0].iter().for_each(|field| rows.extend(field.to_le_bytes()));
        if version == 2 {
            rows.extend(0x66u128.to_le_bytes());
        }
        expected.extend(crc32c::crc32c_append(crc32c::crc32c(&expected), &rows).to_le_bytes());
        [expected, rows].concat()
    }

    #[test]
    fn version_2_is_laid_out_as_documented_and_version_1_is_read() {
        let named = record(0x44, 0x48, 0x55);
        let (bytes, crc) = encode_block(OwnerId(0x11), 0, &[named]);
        assert_eq!(bytes, laid_out(2));
        let old = laid_out(1);
        let (records, old_bytes, old_crc) = decode_block(OwnerId(0x11), 0, &old).unwrap();
        assert_eq!((records, old_bytes), (vec![Discarded { name: None, ..named }], old.len()));
        let (second, _) = encode_block(OwnerId(0x11), old_crc, &[named]);
        let both = Discards::decode(OwnerId(0x11), &[&old[..], &second].concat());
        assert_eq!(both.iter().collect::<Vec<_>>(), [&named], "what was named later has its name");
        assert_ne!(crc, old_crc);
    }

    /// The list's sync fails, and the page cache goes on showing what may never have reached the disk.
    #[tokio::test]
    async fn a_list_that_is_acted_upon_is_there_after_a_loss_of_power() {
        let owner = OwnerId(0x11);
        let mut found = Vec::new();
        for seed in 0..20 {
            let options = disk::sim::SimOptions { seed, ..Default::default() };
            let first = disk::sim::SimDisk::new(options);
            let space = LogSpace::new(Arc::new(first.clone()), Default::default());
            space.disk().create_dir_all(&owner_dir("owners", owner)).await.unwrap();
            space.disk().sync_dir("owners").await.unwrap();
            let mut none = Discards::none(owner);
            first.fail_sync_from(first.steps());
            let list = space.append_discards("owners", &mut none, &[record(0x44, 0x48, 0x55)]).await;
            assert!(list.is_err());
            let second = first.kill(options);
            let space = LogSpace::new(Arc::new(second.clone()), Default::default());
            let told = space.settled_discards("owners", owner).await.unwrap();
            let third = second.lose_power(disk::sim::Loss::AllUnsynced, options);
            let kept = Discards::read(&third, "owners", owner).await.unwrap();
            assert_eq!(told.tags(), kept.tags(), "seed {seed}");
            found.push(told.is_empty());
        }
        assert!(found.contains(&true) && found.contains(&false), "{found:?}");
    }

    /// A flipped bit ends a list as a torn tail does. What was acted upon is no such tail: it is not cut off.
    #[tokio::test]
    async fn a_list_that_ends_before_it_did_is_damaged() {
        let owner = OwnerId(0x11);
        let disk: Arc<dyn Disk> = Arc::new(disk::sim::SimDisk::new(Default::default()));
        let space = LogSpace::new(disk.clone(), Default::default());
        disk.create_dir_all(&owner_dir("owners", owner)).await.unwrap();
        let mut list = space.settled_discards("owners", owner).await.unwrap();
        space.append_discards("owners", &mut list, &[record(1, 0, 9)]).await.unwrap();
        let first_bytes = list.list_bytes();
        space.append_discards("owners", &mut list, &[record(2, 800, 9)]).await.unwrap();
        let is_damaged = |read: io::Result<Discards>| {
            read.is_err_and(|error| disk::ReadFault::of(&error) == disk::ReadFault::Medium)
        };
        for (byte, is_told) in [(0, true), (first_bytes + 60, true), (list.list_bytes(), false)] {
            let file = disk.open(&path("owners", owner), false).await.unwrap();
            let before = file.read_at(0, list.list_bytes() as usize).await.unwrap();
            file.write_and_sync(byte, vec![Bytes::from_static(&[0x55])]).await.unwrap();
            assert_eq!(is_damaged(space.discards("owners", owner).await), is_told, "byte {byte}");
            assert_eq!(is_damaged(space.settled_discards("owners", owner).await), is_told, "byte {byte}");
            // Another process knows what it was told by who had read the list.
            let next = LogSpace::new(disk.clone(), Default::default());
            assert!(next.settled_discards("owners", owner).await.is_ok());
            let next = LogSpace::new(disk.clone(), Default::default());
            next.expect_discards(owner, list.list_bytes());
            assert_eq!(is_damaged(next.settled_discards("owners", owner).await), is_told, "byte {byte}");
            file.write_and_sync(0, vec![before]).await.unwrap();
        }
        space.delete_owner("owners", owner).await.unwrap();
        disk.create_dir_all(&owner_dir("owners", owner)).await.unwrap();
        assert!(
            space.settled_discards("owners", owner).await.unwrap().is_empty(),
            "another of the same name"
        );
    }

    #[test]
    fn what_a_compaction_left_out_is_gone_and_counts_in_the_digest_alone() {
        let compacted = |start| Compacted { segments: start..0x99, ..Compacted::NEVER };
        let mut discards = Discards::none(OwnerId(0x11));
        discards.add(vec![record(1, 0, 9000), record(1, 1, 9), record(3, 2, 9)]);
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
            records.iter().for_each(|record| discards.add(vec![*record]));
            discards.sum()
        };
        let (one, two, three) = (record(1, 0, 9000), record(1, 16_384, 9), record(3, 1600, 9));
        assert_eq!(sum(&[]), DiscardsSum::default());
        assert_eq!(sum(&[one, two, three]), sum(&[three, one, two]));
        let both = sum(&[one, two]);
        assert_eq!((both.blocks, both.body_bytes, both.hole_bytes), (1, 9009, 4096));
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
        let decoded = Discards::decode(owner, &[first, second].concat());
        let mut added = Discards::none(owner);
        added.add(vec![other, one]);
        added.add(vec![renamed]);
        for discards in [decoded, added] {
            let listed: Vec<_> = discards.iter().map(|record| (record.index, record.name)).collect();
            assert_eq!(listed, [renamed, other].map(|record| (record.index, record.name)));
            assert_eq!(discards.get(one.index).unwrap().name, Some(77));
        }
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
