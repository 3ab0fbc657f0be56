//! What waits to be discarded in one container.

use super::obstacle::Standing;
use proto::scm::DiscardState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::time::Instant;
use types::{BlockName, ContainerId, NodeId, Nonce};

/// Blocks that a node is told at once: 150 KB, and one flush of its index.
pub(super) const PORTION_BLOCKS_MAX: usize = 4096;

/// What a group of names asked for last.
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
    pub(crate) standing: Standing,
    /// By group.
    pub(crate) asked: BTreeMap<u64, Asked>,
    /// Whether each block is gone from every replica. Remembered until its group has heard that.
    blocks: BTreeMap<(u64, Nonce), bool>,
    pub(super) portion: Option<Portion>,
}

impl Waiting {
    pub(super) fn new(container: ContainerId) -> Waiting {
        let standing = Standing::of(DiscardState::DiscardUnderWay);
        Waiting { container, standing, asked: BTreeMap::new(), blocks: BTreeMap::new(), portion: None }
    }

    /// The number of blocks that are remembered.
    pub(crate) fn remembered(&self) -> usize {
        self.blocks.len()
    }

    pub(super) fn note(&mut self, group: u64, blocks: u64, bytes: u64, now: Instant) {
        let since = self.asked.get(&group).map_or(now, |asked| asked.since);
        self.asked.insert(group, Asked { blocks, bytes, since, at: now });
    }

    pub(super) fn are_gone(&self, names: &[BlockName]) -> bool {
        names.iter().all(|name| self.blocks.get(&key(name)) == Some(&true))
    }

    /// A group has heard that these are gone.
    pub(super) fn forget(&mut self, group: u64, names: &[BlockName]) {
        for name in names {
            self.blocks.remove(&key(name));
        }
        self.asked.remove(&group);
    }

    /// Remembers as many of these as there is room for, which it takes; whether any of them is remembered now.
    pub(super) fn remember(&mut self, names: &[BlockName], room: &mut usize) -> bool {
        let before = self.blocks.len();
        for name in names {
            if self.blocks.len() < before + *room {
                self.blocks.entry(key(name)).or_insert(false);
            }
        }
        *room -= self.blocks.len() - before;
        names.iter().any(|name| self.blocks.contains_key(&key(name)))
    }

    /// The next blocks that nodes are to be told; none where all are gone.
    pub(super) fn next(&self) -> Arc<[BlockName]> {
        let container = self.container;
        let rest = self.blocks.iter().filter(|(_, is_gone)| !**is_gone);
        rest.map(|((local, nonce), _)| BlockName { container, local: *local, nonce: *nonce })
            .take(PORTION_BLOCKS_MAX)
            .collect()
    }

    /// The portion is gone from every replica; how many blocks it had.
    pub(super) fn finish_portion(&mut self) -> u64 {
        let Some(portion) = self.portion.take() else { return 0 };
        for name in portion.blocks.iter() {
            // Not one that is not remembered any more.
            self.blocks.entry(key(name)).and_modify(|is_gone| *is_gone = true);
        }
        portion.blocks.len() as u64
    }

    /// Forgets groups that have not asked since; whether any is left.
    pub(super) fn expire(&mut self, since: Instant) -> bool {
        self.asked.retain(|_, asked| asked.at >= since);
        !self.asked.is_empty()
    }
}

fn key(name: &BlockName) -> (u64, Nonce) {
    (name.local, name.nonce)
}
