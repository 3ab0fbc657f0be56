//! One record that is given up, and what that gives back.

use crate::Place;
use crate::record::{head_bytes, record_bytes};
use bytes::{BufMut, BytesMut};
use std::ops::Range;
use types::LogIndex;

/// The size of the whole blocks in which space is given back: those of ext4 and xfs, unless somebody chose
/// others.
pub const HOLE_BLOCK_BYTES: u64 = 4096;

/// A record whose body is given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Discarded {
    /// The tag under which the caller gave the record up: all records of one tag go together.
    pub tag: u64,
    pub index: LogIndex,
    /// The record's place when it was given up. A compaction leaves the record out, and then nothing is
    /// there.
    pub place: Place,
    pub(super) meta_bytes: u32,
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

impl Discarded {
    /// The record's part of the digest: FNV-1a over what is the same wherever the record stands, and
    /// splitmix64's last steps, without which sums would meet: near records have near hashes.
    pub(super) fn digest(&self) -> u64 {
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

    pub(super) fn record_bytes(&self) -> u64 {
        record_bytes(self.meta_bytes as usize, self.place.body_bytes as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::record;

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
