use crate::tables::successor;
use anyhow::Context;
use rocksdb::{DBRawIterator, ReadOptions};
use statedb::Db;

/// Walks the records whose keys start with a prefix, by steps and leaps, in one consistent view of the
/// tables.
pub(crate) struct Scan<'a> {
    iterator: DBRawIterator<'a>,
}

impl<'a> Scan<'a> {
    /// Starts at the first record at or after `from`.
    pub(crate) fn new(db: &'a Db, prefix: &[u8], from: &[u8]) -> Scan<'a> {
        let mut options = ReadOptions::default();
        if let Some(end) = successor(prefix) {
            options.set_iterate_upper_bound(end);
        }
        let mut iterator = db.rocks().raw_iterator_opt(options);
        iterator.seek(from.max(prefix));
        Scan { iterator }
    }

    /// The record here; `None` after the last.
    pub(crate) fn record(&self) -> anyhow::Result<Option<(&[u8], &[u8])>> {
        if let Some(record) = self.iterator.item() {
            return Ok(Some(record));
        }
        self.iterator.status().context("scan tables")?;
        Ok(None)
    }

    pub(crate) fn step(&mut self) {
        self.iterator.next();
    }

    /// Goes on at the first record at or after `to`, which is after this one.
    pub(crate) fn leap(&mut self, to: &[u8]) {
        self.iterator.seek(to);
    }
}
