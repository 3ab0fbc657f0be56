use crate::Entry;
use std::collections::VecDeque;
use types::LogIndex;

/// The cost of an entry beside its meta and body: the structs that hold them.
const ENTRY_OVERHEAD_BYTES: usize = 160;

/// The most recent entries of a log, without a gap up to its last one.
#[derive(Default)]
pub(crate) struct Cache {
    entries: VecDeque<Entry>,
    bytes: usize,
}

fn cost(entry: &Entry) -> usize {
    entry.meta.len() + entry.body.len() + ENTRY_OVERHEAD_BYTES
}

impl Cache {
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first entry that the cache holds; `end` is the log's.
    pub(crate) fn first(&self, end: LogIndex) -> LogIndex {
        LogIndex(end.0 - self.entries.len() as u64)
    }

    pub(crate) fn get(&self, index: LogIndex, end: LogIndex) -> Option<&Entry> {
        let nth = index.0.checked_sub(self.first(end).0)?;
        self.entries.get(usize::try_from(nth).ok()?)
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.bytes += cost(&entry);
        self.entries.push_back(entry);
    }

    /// Drops the oldest entries until at most `bytes_max` bytes are left, but none from `keep_from` on.
    pub(crate) fn shrink(&mut self, bytes_max: usize, keep_from: LogIndex) {
        while self.bytes > bytes_max && self.entries.front().is_some_and(|entry| entry.id.index < keep_from) {
            self.pop_front();
        }
    }

    pub(crate) fn drop_before(&mut self, first: LogIndex) {
        while self.entries.front().is_some_and(|entry| entry.id.index < first) {
            self.pop_front();
        }
    }

    pub(crate) fn truncate(&mut self, end: LogIndex) {
        while let Some(entry) = self.entries.pop_back_if(|entry| entry.id.index >= end) {
            self.bytes -= cost(&entry);
        }
    }

    fn pop_front(&mut self) {
        if let Some(entry) = self.entries.pop_front() {
            self.bytes -= cost(&entry);
        }
    }
}
