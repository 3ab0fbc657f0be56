//! The file of what was given up of an owner: a chain of blocks (docs/format/discarded.md).
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

use super::Discarded;
use crate::Place;
use crate::record::{ALIGNMENT, BODY_BYTES_MAX, META_BYTES_MAX};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use types::{LogIndex, OwnerId};

const MAGIC: [u8; 4] = *b"FLdi";
const VERSION: u8 = 2;
/// The version whose records have no name.
const NAMELESS: u8 = 1;
const CRC_AT: usize = 20;
const HEADER_BYTES: usize = CRC_AT + 4;
const NAMELESS_BYTES: usize = 40;
pub(super) const RECORD_BYTES: usize = NAMELESS_BYTES + 16;
const COUNT_MAX: usize = 1 << 16;
/// The most bytes of a block.
pub(super) const BLOCK_BYTES_MAX: usize = HEADER_BYTES + COUNT_MAX * RECORD_BYTES;

impl Discarded {
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

/// The records of each block of the list. A crash may leave the first blocks alone, and all records of one
/// tag go together: no block ends amid neighbours of one tag, unless they are more than one block takes. What
/// is listed again, by other places or names, comes in the order of indexes, and is listed to its end by who
/// finds half of it.
pub(super) fn in_blocks(records: &[Discarded]) -> impl Iterator<Item = &[Discarded]> {
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

pub(super) fn encode_block(owner: OwnerId, before: u32, records: &[Discarded]) -> (Bytes, u32) {
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
pub(super) fn decode_block(
    owner: OwnerId,
    before: u32,
    bytes: &[u8],
) -> Option<(Vec<Discarded>, usize, u32)> {
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
    use super::super::testing::record;
    use super::*;

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
        assert_ne!(crc, old_crc);
    }
}
