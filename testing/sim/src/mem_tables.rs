use anyhow::bail;
use disk::sim::Random;
use statedb::{Changes, Tables};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};

/// Batches kept in memory alone; older ones are flushed in the background, as RocksDB does it.
const UNFLUSHED_COUNT_MAX: usize = 200;

pub(crate) type Records = BTreeMap<Vec<u8>, Vec<u8>>;

/// The twin of [`statedb::Db`] for simulations: a store in memory that loses its newest batches in a crash,
/// whole ones. A cheap handle.
#[derive(Clone, Default)]
pub struct MemTables {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    seen: Records,
    flushed: Records,
    unflushed: VecDeque<Changes>,
    is_down: bool,
}

impl MemTables {
    /// The tables as the next process finds them: at some point not before the last flush. This one is down
    /// from now on.
    pub fn lose_power(&self, random: &mut Random) -> MemTables {
        let state = &mut *self.lock();
        let kept = random.below(state.unflushed.len() as u64 + 1);
        for _ in 0..kept {
            state.flush_first();
        }
        state.next_life(state.flushed.clone())
    }

    /// Closes the tables cleanly, which flushes them; returns them as the next process finds them.
    pub fn close(&self) -> MemTables {
        let state = &mut *self.lock();
        state.next_life(state.seen.clone())
    }

    pub fn records(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        self.lock().seen.iter().map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    pub(crate) fn seen(&self) -> Records {
        self.lock().seen.clone()
    }

    pub(crate) fn flushed(&self) -> Records {
        self.lock().flushed.clone()
    }

    /// Puts other records into the place of all, durably.
    pub(crate) fn replace(&self, records: Records) -> anyhow::Result<()> {
        let state = &mut *self.lock();
        state.check_up()?;
        *state =
            State { seen: records.clone(), flushed: records, unflushed: VecDeque::new(), is_down: false };
        Ok(())
    }

    pub(crate) fn flush_all(&self) -> anyhow::Result<()> {
        Tables::flush(self)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the tables panics")
    }
}

impl State {
    fn next_life(&mut self, records: Records) -> MemTables {
        self.is_down = true;
        let state =
            State { seen: records.clone(), flushed: records, unflushed: VecDeque::new(), is_down: false };
        MemTables { state: Arc::new(Mutex::new(state)) }
    }

    fn flush_first(&mut self) {
        if let Some(changes) = self.unflushed.pop_front() {
            apply(&mut self.flushed, changes);
        }
    }

    fn check_up(&self) -> anyhow::Result<()> {
        if self.is_down { bail!("the simulated machine is down") } else { Ok(()) }
    }
}

fn apply(records: &mut Records, changes: Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(records.insert(key, value)),
            None => drop(records.remove(&key)),
        }
    }
}

impl Tables for MemTables {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let state = self.lock();
        state.check_up()?;
        Ok(state.seen.get(key).cloned())
    }

    fn scan(
        &self,
        from: &[u8],
        end: Option<&[u8]>,
        count_max: usize,
    ) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let state = self.lock();
        state.check_up()?;
        let records = state.seen.range(from.to_vec()..);
        let records = records.take_while(|(key, _)| end.is_none_or(|end| key.as_slice() < end));
        Ok(records.take(count_max).map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    fn write(&self, changes: Changes) -> anyhow::Result<()> {
        let state = &mut *self.lock();
        state.check_up()?;
        apply(&mut state.seen, changes.clone());
        state.unflushed.push_back(changes);
        if state.unflushed.len() > UNFLUSHED_COUNT_MAX {
            state.flush_first();
        }
        Ok(())
    }

    fn flush(&self) -> anyhow::Result<()> {
        let state = &mut *self.lock();
        state.check_up()?;
        while !state.unflushed.is_empty() {
            state.flush_first();
        }
        Ok(())
    }
}
