//! The blocks that a replica has beside those that groups know.

use crate::blocks::IN_CONTAINER_BYTES;
use bytes::Bytes;
use std::collections::BTreeSet;

/// The part of a block's name that tells it from the others of its container, as it sorts.
pub(super) type InContainer = [u8; IN_CONTAINER_BYTES];

/// Blocks of a replica, in their order, with their lengths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub(super) blocks: Vec<(InContainer, u64)>,
    /// Whether there are no more behind these.
    pub(super) is_last: bool,
}

impl Listed {
    /// The bounds of what may be known within the part: from its first local up to its last block; the second
    /// is empty where the part goes up to the end.
    pub(super) fn range(&self, from_local: u64) -> (Bytes, Bytes) {
        let mut from = [0; IN_CONTAINER_BYTES];
        from[..8].copy_from_slice(&from_local.to_be_bytes());
        let last = self.blocks.last().filter(|_| !self.is_last);
        let to = last.map(|(last, _)| {
            let mut to = [u8::MAX; IN_CONTAINER_BYTES];
            to[..8].copy_from_slice(&last[..8]);
            Bytes::copy_from_slice(&to)
        });
        (Bytes::copy_from_slice(&from), to.unwrap_or_default())
    }

    /// The local with which the next part begins.
    pub(super) fn next_local(&self) -> Option<u64> {
        let (last, _) = self.blocks.last().filter(|_| !self.is_last)?;
        u64::from_be_bytes(*last.first_chunk()?).checked_add(1)
    }
}

/// The blocks that groups know of a part, all groups together.
#[derive(Debug, Default)]
pub(super) struct KnownBlocks {
    /// The blocks that some row names, or is said to.
    pub(super) named: BTreeSet<InContainer>,
    /// The blocks that wait to go already.
    pub(super) unused: BTreeSet<InContainer>,
}

impl KnownBlocks {
    pub(super) fn take(&mut self, named: &[u8], unused: &[u8]) {
        self.named.extend(blocks(named));
        self.unused.extend(blocks(unused));
    }
}

pub(super) fn blocks(packed: &[u8]) -> impl Iterator<Item = InContainer> {
    packed.as_chunks::<IN_CONTAINER_BYTES>().0.iter().copied()
}

/// The differences between a replica and what groups know.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    /// The blocks that the replica has and no group knows, with their lengths.
    pub(super) orphans: Vec<(InContainer, u64)>,
    /// The blocks that are named and that the replica does not have.
    pub(super) missing: Vec<InContainer>,
}

pub(super) fn compare(listed: &Listed, known: &KnownBlocks) -> Found {
    let is_known = |block: &InContainer| known.named.contains(block) || known.unused.contains(block);
    let orphans = listed.blocks.iter().filter(|(block, _)| !is_known(block)).copied().collect();
    let here: BTreeSet<&InContainer> = listed.blocks.iter().map(|(block, _)| block).collect();
    let missing = known.named.iter().filter(|block| !here.contains(block)).copied().collect();
    Found { orphans, missing }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(local: u64, nonce: u8) -> InContainer {
        let mut block = [nonce; IN_CONTAINER_BYTES];
        block[..8].copy_from_slice(&local.to_be_bytes());
        block
    }

    #[test]
    fn blocks_are_told_apart_by_id_and_nonce() {
        let blocks = [(1, 7), (2, 7), (3, 7), (4, 7)].map(|(local, nonce)| (block(local, nonce), 10));
        let listed = Listed { blocks: blocks.to_vec(), is_last: false };
        let mut known = KnownBlocks::default();
        known.take(&[block(1, 7), block(3, 8)].concat(), &block(2, 7));
        known.take(&block(1, 7), &block(9, 9));
        let found = compare(&listed, &known);
        assert_eq!(found.orphans, [(block(3, 7), 10), (block(4, 7), 10)]);
        assert_eq!(found.missing, [block(3, 8)], "another block has its id; one that is to go may be gone");
        assert_eq!((listed.range(1).1, listed.next_local()), (block(4, 255).to_vec().into(), Some(5)));
        let last = Listed { is_last: true, ..listed };
        assert_eq!((last.range(1).1, last.next_local()), (Bytes::new(), None));
        assert_eq!(last.range(1).0, block(1, 0).to_vec());
    }
}
