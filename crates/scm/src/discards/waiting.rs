//! The blocks of one container that wait to be discarded.

use super::progress::ContainerProgress;
use proto::scm::DiscardState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;
use types::{BlockName, ContainerId, NodeId, Nonce};

/// The most blocks that a node is told at once: 150 KB, and one flush of its index.
pub(super) const PORTION_BLOCKS_MAX: usize = 4096;

/// The last request of a group of names for a container: how many blocks are to go, and since when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    pub(crate) since: Instant,
    pub(crate) at: Instant,
}

/// Blocks that nodes are told to discard.
pub(super) struct Portion {
    pub(super) number: u64,
    pub(super) blocks: Arc<[BlockName]>,
    /// Nodes that have said that all of them are gone.
    pub(super) acked: BTreeSet<NodeId>,
}

/// A container of which a group has asked for blocks to go.
pub(crate) struct Waiting {
    pub(crate) container: ContainerId,
    pub(crate) progress: ContainerProgress,
    /// The last request of each group.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// Blocks that are to go.
    blocks: BTreeSet<Key>,
    /// Blocks that are gone from every replica, until a group has heard that.
    gone: BTreeSet<Key>,
    pub(super) portion: Option<Portion>,
    /// The replicas that counted when last looked at, each by its node and disk: the acks and `gone` are
    /// theirs.
    counted: Vec<(NodeId, Vec<u8>)>,
}

type Key = (u64, Nonce);

impl Waiting {
    pub(super) fn new(container: ContainerId) -> Waiting {
        let progress = ContainerProgress::of(DiscardState::DiscardUnderWay);
        let (asked, blocks, gone, portion, counted) = Default::default();
        Waiting { container, progress, asked, blocks, gone, portion, counted }
    }

    /// Takes note of the replicas that count now. Where they are others than before, what is acked and gone
    /// is forgotten: a replica may have come back with blocks that only those had discarded that have left.
    pub(super) fn take_counted(&mut self, now: &[(NodeId, &[u8])]) {
        let mut pairs = self.counted.iter().zip(now);
        let is_same = pairs.all(|(before, now)| before.0 == now.0 && before.1 == now.1);
        if !is_same || self.counted.len() != now.len() {
            self.counted = now.iter().map(|(node, disk)| (*node, disk.to_vec())).collect();
            self.gone.clear();
            self.portion = None;
        }
    }

    /// The number of blocks that are remembered because they are to go.
    pub(crate) fn remembered(&self) -> usize {
        self.blocks.len()
    }

    /// The number of blocks that are gone, and of which no group has heard that yet.
    pub(super) fn unheard(&self) -> usize {
        self.gone.len()
    }

    pub(super) fn note(&mut self, group: u64, blocks: u64, bytes: u64, now: Instant) {
        let since = self.asked.get(&group).map_or(now, |asked| asked.since);
        self.asked.insert(group, Asked { blocks, bytes, since, at: now });
    }

    /// Says which of these blocks are gone, and forgets them: the group hears it now. A group whose answer is
    /// lost asks again, which costs nodes a look-up for each.
    pub(super) fn take_gone(&mut self, names: &[BlockName]) -> Vec<bool> {
        names.iter().map(|name| self.gone.remove(&key(name))).collect()
    }

    /// Forgets what is gone, as if groups had heard it.
    pub(super) fn forget_gone(&mut self) {
        self.gone.clear();
    }

    /// Forgets a group that has nothing more that is to go.
    pub(super) fn forget(&mut self, group: u64) {
        self.asked.remove(&group);
    }

    /// Remembers as many of these blocks as there is room for, and takes that room. True if any of them is
    /// remembered now.
    pub(super) fn remember<'a>(
        &mut self,
        names: impl Iterator<Item = &'a BlockName>,
        room: &mut usize,
    ) -> bool {
        let mut is_any = false;
        for key in names.map(key) {
            let is_known = self.blocks.contains(&key);
            if !is_known && *room > 0 {
                *room -= 1;
                self.blocks.insert(key);
            }
            is_any |= self.blocks.contains(&key);
        }
        is_any
    }

    /// Forgets the blocks that are to go, also those that nodes were told of.
    pub(super) fn forget_blocks(&mut self) {
        self.blocks.clear();
        self.portion = None;
    }

    /// The next blocks that nodes are to be told to discard.
    pub(super) fn next(&self) -> Arc<[BlockName]> {
        let container = self.container;
        let names = self.blocks.iter().map(|&(local, nonce)| BlockName { container, local, nonce });
        names.take(PORTION_BLOCKS_MAX).collect()
    }

    /// Takes note that the portion is gone from every replica, and returns how many blocks it had.
    pub(super) fn finish_portion(&mut self) -> u64 {
        let Some(portion) = self.portion.take() else { return 0 };
        for key in portion.blocks.iter().map(key) {
            self.blocks.remove(&key);
            self.gone.insert(key);
        }
        portion.blocks.len() as u64
    }

    /// Forgets groups that have not asked since. True if any is left.
    pub(super) fn expire(&mut self, since: Instant) -> bool {
        self.asked.retain(|_, asked| asked.at >= since);
        !self.asked.is_empty()
    }
}

fn key(name: &BlockName) -> Key {
    (name.local, name.nonce)
}
