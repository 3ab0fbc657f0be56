use super::counts::Counts;
use crate::world::Trace;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use types::{BlockName, ContainerId};

/// A writer's blocks have numbers from this times the writer's own number, so no two writers write the same.
pub(super) const BLOCKS_EACH: u64 = 1_000_000;
/// The numbers of clients of objects, below those of the clients of schemes.
pub(super) const OBJECT_CLIENTS_FROM: u64 = 500;
/// The first number of writers whose blocks objects name.
const NAMED_FROM: u64 = OBJECT_CLIENTS_FROM;

/// A ledger of what clients were acknowledged, and what went wrong. A cheap handle.
#[derive(Clone)]
pub(super) struct Ledger {
    state: Arc<Mutex<State>>,
    trace: Trace,
}

struct State {
    blocks: Vec<Written>,
    /// The blocks that nobody names any more: they may be read, or not, until they are called gone.
    filed: BTreeMap<BlockName, Written>,
    violation: Option<String>,
    counts: Counts,
    is_writing: bool,
    /// Held by clients that may change names yet.
    at_work: Arc<()>,
    /// Whether blocks go that no key names, so that only those that one names have to be there.
    sweeps: bool,
    /// The blocks that the keys of gateways, which know of no block, name in the end.
    named_by_gateways: BTreeSet<BlockName>,
    /// Machines where a bit was flipped, or a disk failed: what they have may be bad.
    damaged: BTreeSet<usize>,
}

/// A block, and how much of it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Written {
    pub(super) number: u64,
    pub(super) block: BlockName,
    pub(super) length: u64,
    pub(super) commit_index: u64,
}

impl Ledger {
    pub(super) fn new(trace: Trace, sweeps: bool) -> Ledger {
        let state = State {
            blocks: Vec::new(),
            filed: BTreeMap::new(),
            violation: None,
            counts: Counts::default(),
            is_writing: true,
            at_work: Arc::default(),
            sweeps,
            named_by_gateways: BTreeSet::new(),
            damaged: BTreeSet::new(),
        };
        Ledger { state: Arc::new(Mutex::new(state)), trace }
    }

    pub(super) fn event(&self, what: fmt::Arguments<'_>) {
        self.trace.event(what);
    }

    /// Notes a violation; only the first counts.
    pub(super) fn fail(&self, what: String) {
        self.trace.event(format_args!("violation: {what}"));
        self.lock().violation.get_or_insert(what);
    }

    pub(super) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.lock().counts);
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    /// Notes that more of a block was acknowledged, or its first chunk.
    pub(super) fn acknowledge(&self, written: Written) {
        self.trace.event(format_args!("acknowledged: {written:?}"));
        let state = &mut *self.lock();
        state.counts.chunks += 1;
        if state.sweeps {
            return;
        }
        match state.blocks.iter_mut().rev().find(|block| block.number == written.number) {
            Some(block) if block.block != written.block => {
                let what = format!("block {} became {} as well", block.block, written.block);
                state.violation.get_or_insert(what);
            }
            Some(block) => *block = written,
            None => {
                state.counts.blocks += 1;
                state.blocks.push(written);
            }
        }
    }

    /// Notes that one more key names the block: from here on it has to be there.
    pub(super) fn name(&self, written: Written) {
        let state = &mut *self.lock();
        if state.sweeps {
            state.counts.blocks += 1;
            state.blocks.push(written);
        }
    }

    /// Notes that one key less names the block.
    pub(super) fn unname(&self, block: BlockName) {
        let state = &mut *self.lock();
        if let Some(at) = state.blocks.iter().position(|written| written.block == block) {
            state.blocks.remove(at);
        }
    }

    pub(super) fn name_by_gateway(&self, block: BlockName) {
        self.lock().named_by_gateways.insert(block);
    }

    /// All blocks that keys name.
    pub(super) fn named(&self) -> BTreeSet<BlockName> {
        let state = &*self.lock();
        let by_clients = state.blocks.iter().map(|written| written.block);
        by_clients.chain(state.named_by_gateways.iter().copied()).collect()
    }

    /// Files a block that nobody writes to any more, or all such of its container.
    pub(super) fn condemn(&self, is_whole: bool, pick: impl FnOnce(usize) -> usize) {
        let state = &mut *self.lock();
        if state.blocks.is_empty() {
            return;
        }
        let meant = state.blocks[pick(state.blocks.len())];
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for written in &state.blocks {
            let last = last.entry(written.number / BLOCKS_EACH).or_default();
            *last = written.number.max(*last);
        }
        let is_written = |written: &Written| written.number < last[&(written.number / BLOCKS_EACH)];
        let is_named = |written: &Written| written.number / BLOCKS_EACH >= NAMED_FROM;
        let goes = |written: &Written| {
            let is_meant =
                written.block == meant.block || is_whole && written.block.container == meant.block.container;
            is_meant && is_written(written) && !is_named(written)
        };
        let (dead, live): (Vec<_>, Vec<_>) = state.blocks.iter().copied().partition(goes);
        state.counts.blocks_filed += dead.len() as u64;
        state.filed.extend(dead.into_iter().map(|written| (written.block, written)));
        state.blocks = live;
    }

    pub(super) fn filed(&self) -> Vec<Written> {
        self.lock().filed.values().copied().collect()
    }

    /// Notes that SCM calls these blocks gone.
    pub(super) fn gone(&self, names: &[BlockName]) {
        let state = &mut *self.lock();
        state.counts.blocks_gone += names.len() as u64;
        for name in names {
            state.filed.remove(name);
        }
    }

    pub(super) fn blocks(&self) -> Vec<Written> {
        self.lock().blocks.clone()
    }

    pub(super) fn pick(&self, pick: impl FnOnce(usize) -> usize) -> Option<Written> {
        let state = self.lock();
        (!state.blocks.is_empty()).then(|| state.blocks[pick(state.blocks.len())])
    }

    /// The containers that have acknowledged blocks.
    pub(super) fn containers(&self) -> BTreeSet<ContainerId> {
        self.lock().blocks.iter().map(|written| written.block.container).collect()
    }

    /// The acknowledged block of each container that begins last.
    pub(super) fn newest_blocks(&self) -> BTreeMap<ContainerId, BlockName> {
        let mut newest: BTreeMap<ContainerId, BlockName> = BTreeMap::new();
        for Written { block, .. } in &self.lock().blocks {
            let newest = newest.entry(block.container).or_insert(*block);
            *newest = (*newest).max(*block);
        }
        newest
    }

    pub(super) fn stop_writing(&self) {
        self.lock().is_writing = false;
    }

    pub(super) fn is_writing(&self) -> bool {
        self.lock().is_writing
    }

    /// Runs a client's course, at whose end all that it asked is answered, or given up.
    pub(super) fn let_work(&self, course: impl Future<Output = ()> + Send + 'static) {
        let at_work = self.lock().at_work.clone();
        tokio::spawn(async move {
            course.await;
            drop(at_work);
        });
    }

    pub(super) fn is_at_work(&self) -> bool {
        Arc::strong_count(&self.lock().at_work) > 1
    }

    pub(super) fn damage(&self, machine: usize) {
        self.lock().damaged.insert(machine);
    }

    pub(super) fn has_damage(&self) -> bool {
        !self.lock().damaged.is_empty()
    }

    pub(super) fn is_damaged(&self, machine: usize) -> bool {
        self.lock().damaged.contains(&machine)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the ledger panics")
    }
}

/// The bytes of a block, from its number.
pub(super) fn contents(number: u64, range: std::ops::Range<u64>) -> Vec<u8> {
    let byte = |at: u64| {
        let mut word =
            number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (at / 8).wrapping_mul(0xd6e8_feb8_6659_fd93);
        word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
        (word >> (8 * (at % 8))) as u8
    };
    range.map(byte).collect()
}
