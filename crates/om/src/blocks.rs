//! Which rows name which blocks (`docs/format/om-tables.md`): a row of `l` for each block of each row of a
//! key or part.
//!
//! Pieces that a row names no more are deleted pieces first (`d`), and after a while, container by container,
//! unused blocks (`e`). Their rows of `l` stay until then, so `l` may have more than there is and never less:
//! whoever needs to know looks at the row that is said to name the block ([`NamingRows`]).

use crate::overlay::Overlay;
use crate::tables::{Read, decode};
use bytes::Bytes;
use proto::datanode::BlockName;
use proto::om::{BlockPiece, KeyPieces, PartPieces};
use std::collections::HashMap;

/// The prefix of the rows that say what names a block.
pub(crate) const NAMED_PREFIX: &[u8] = b"l";
/// The prefix of unused blocks.
pub(crate) const UNUSED_PREFIX: &[u8] = b"e";
/// The length of a block's name in keys of the tables.
const BYTES: usize = 32;
/// The length of what tells blocks of a container apart: the local and the nonce.
pub(crate) const IN_CONTAINER_BYTES: usize = 24;

/// A block's name as it stands in keys of the tables: container and local, big-endian, and the nonce.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub(crate) struct BlockKey([u8; BYTES]);

impl BlockKey {
    /// The name of the block that a piece is of. `None`: the piece has no block, or the block no nonce.
    pub(crate) fn of(piece: &BlockPiece) -> Option<BlockKey> {
        let block = piece.block.as_ref()?;
        let nonce: &[u8; 16] = block.nonce.as_ref().try_into().ok()?;
        let mut key = [0; BYTES];
        key[..8].copy_from_slice(&block.container.to_be_bytes());
        key[8..16].copy_from_slice(&block.local.to_be_bytes());
        key[16..].copy_from_slice(nonce);
        Some(BlockKey(key))
    }

    /// The block of a row of `e` or `l`, by its key.
    pub(crate) fn in_key(key: &[u8]) -> Option<BlockKey> {
        key.get(1..)?.first_chunk().copied().map(BlockKey)
    }

    pub(crate) fn in_container(container: u64, rest: &[u8; IN_CONTAINER_BYTES]) -> BlockKey {
        let mut key = [0; BYTES];
        key[..8].copy_from_slice(&container.to_be_bytes());
        key[8..].copy_from_slice(rest);
        BlockKey(key)
    }

    pub(crate) fn container(&self) -> u64 {
        u64::from_be_bytes(*self.0.first_chunk().expect("it is longer"))
    }

    /// The part of the name that tells the block from the others of its container: local and nonce.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.0[8..]
    }

    pub(crate) fn to_proto(self) -> BlockName {
        let local = u64::from_be_bytes(*self.0[8..].first_chunk().expect("it is longer"));
        BlockName { container: self.container(), local, nonce: Bytes::copy_from_slice(&self.0[16..]) }
    }

    /// The key of the row that says that the block is unused.
    pub(crate) fn unused_key(&self) -> Vec<u8> {
        [UNUSED_PREFIX, &self.0].concat()
    }

    /// The prefix of the rows that say what names the block.
    pub(crate) fn named_prefix(&self) -> Vec<u8> {
        [NAMED_PREFIX, &self.0].concat()
    }

    /// The key of the row that says that `row` names the block.
    pub(crate) fn named_key(&self, row: &[u8]) -> Vec<u8> {
        [NAMED_PREFIX, &self.0, row].concat()
    }
}

/// The prefix of a container's rows in `e` or `l`.
pub(crate) fn container_prefix(table: &[u8], container: u64) -> Vec<u8> {
    [table, &container.to_be_bytes()].concat()
}

/// The key of the row that names the block, by the key of the row of `l` that says so.
pub(crate) fn naming_row(key: &[u8]) -> &[u8] {
    key.get(1 + BYTES..).unwrap_or_default()
}

/// Notes that a row names the blocks of these pieces from here on.
pub(crate) fn name(tables: &mut Overlay<'_>, row: &[u8], pieces: &[BlockPiece]) {
    for block in pieces.iter().filter_map(BlockKey::of) {
        tables.put(block.named_key(row), Vec::new());
    }
}

/// Notes that a row names the blocks of these pieces no more.
pub(crate) fn unname(tables: &mut Overlay<'_>, row: &[u8], pieces: &[BlockPiece]) {
    for block in pieces.iter().filter_map(BlockKey::of) {
        tables.delete(block.named_key(row));
    }
}

/// The pieces that a row names; none, if it is of no key or part.
pub(crate) fn pieces_of(row: &[u8], value: &[u8]) -> anyhow::Result<Vec<BlockPiece>> {
    match row.first() {
        Some(b'k') => Ok(decode::<KeyPieces>(row, value)?.pieces),
        Some(b'p') => Ok(decode::<PartPieces>(row, value)?.pieces),
        _ => Ok(Vec::new()),
    }
}

/// The pieces that a row names as it is now; none, if it is not there.
pub(crate) fn pieces_in(tables: &impl Read, row: &[u8]) -> anyhow::Result<Vec<BlockPiece>> {
    if row.is_empty() {
        return Ok(Vec::new());
    }
    tables.get(row)?.map_or(Ok(Vec::new()), |value| pieces_of(row, &value))
}

/// Rows that were looked at, and what each names, as they are as long as this stands. A row of a large object
/// has a hundred thousand blocks, and who asks for one of them asks for the next.
#[derive(Default)]
pub(crate) struct NamingRows {
    rows: HashMap<Vec<u8>, HashMap<BlockKey, u64>>,
}

impl NamingRows {
    const ROWS_MAX: usize = 16;

    /// The bytes that a row has in a block, modulo 2^64; `None`: the row does not name the block.
    pub(crate) fn bytes(
        &mut self,
        tables: &impl Read,
        row: &[u8],
        block: &BlockKey,
    ) -> anyhow::Result<Option<u64>> {
        if !self.rows.contains_key(row) {
            let mut blocks: HashMap<BlockKey, u64> = HashMap::new();
            for piece in pieces_in(tables, row)? {
                if let Some(block) = BlockKey::of(&piece) {
                    let bytes = blocks.entry(block).or_default();
                    *bytes = bytes.wrapping_add(piece.length);
                }
            }
            if self.rows.len() >= Self::ROWS_MAX {
                self.rows.clear();
            }
            self.rows.insert(row.to_vec(), blocks);
        }
        Ok(self.rows.get(row).and_then(|blocks| blocks.get(block)).copied())
    }

    /// Whether any row names a block.
    pub(crate) fn name(&mut self, tables: &Overlay<'_>, block: &BlockKey) -> anyhow::Result<bool> {
        for named in tables.scan(&block.named_prefix()) {
            if self.bytes(tables, naming_row(&named?.0), block)?.is_some() {
                return Ok(true);
            }
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::pieces;

    /// The bytes of `docs/format/om-tables.md`; a change here is a change of format.
    #[test]
    fn keys_have_their_documented_bytes() {
        let mut piece = pieces(0x0102, 10).remove(0);
        let block = piece.block.as_mut().unwrap();
        (block.local, block.nonce) = (3, Bytes::from_static(b"0123456789abcdef"));
        let key = BlockKey::of(&piece).unwrap();
        assert_eq!(key.unused_key(), b"e\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\0\x030123456789abcdef");
        assert_eq!(key.named_key(b"k!"), b"l\0\0\0\0\0\0\x01\x02\0\0\0\0\0\0\0\x030123456789abcdefk!");
        assert_eq!(naming_row(&key.named_key(b"k!")), b"k!");
        assert_eq!((key.to_proto(), key.container()), (piece.block.clone().unwrap(), 0x0102));
        assert_eq!(BlockKey::in_key(&key.named_key(b"k!")), Some(key));
        assert_eq!(BlockKey::in_container(0x0102, key.rest().try_into().unwrap()), key);
        piece.block.as_mut().unwrap().nonce = Bytes::new();
        assert_eq!(BlockKey::of(&piece), None);
    }
}
