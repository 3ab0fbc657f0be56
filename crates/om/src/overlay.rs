use crate::tables::Read;
use anyhow::Context;
use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};
use statedb::Db;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};

/// The length up to which keys are of rows at which many commands of a batch look: tables of one row, and
/// those filed under one number.
const SHARED_KEY_BYTES_MAX: usize = 9;

/// A record's new value, or `None` for deleted.
pub(crate) type Change = Option<Vec<u8>>;

/// A batch of changes over a [`Db`], readable before it is written: later commands of a batch see what
/// earlier ones did. A command that is refused half way leaves nothing behind.
pub(crate) struct Overlay<'a> {
    db: &'a Db,
    changes: BTreeMap<Vec<u8>, Change>,
    /// The changes that the current command replaced in `changes`, oldest first: a key, and the change it had
    /// before.
    undo: Vec<(Vec<u8>, Option<Change>)>,
    /// The rows of the database with short keys that were read already, as they stay until the batch is
    /// written; `None`: there is no such row.
    shared: RefCell<HashMap<Vec<u8>, Option<Vec<u8>>>>,
}

impl<'a> Overlay<'a> {
    pub(crate) fn new(db: &'a Db) -> Overlay<'a> {
        let (changes, undo, shared) = Default::default();
        Overlay { db, changes, undo, shared }
    }

    pub(crate) fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.change(key, Some(value));
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.change(key, None);
    }

    fn change(&mut self, key: Vec<u8>, value: Change) {
        let before = self.changes.insert(key.clone(), value);
        self.undo.push((key, before));
    }

    /// Keeps the changes of the current command, which took effect.
    pub(crate) fn keep_command(&mut self) {
        self.undo.clear();
    }

    /// Undoes the changes of the current command, which was refused.
    pub(crate) fn undo_command(&mut self) {
        while let Some((key, before)) = self.undo.pop() {
            match before {
                Some(value) => self.changes.insert(key, value),
                None => self.changes.remove(&key),
            };
        }
    }

    /// Records whose keys start with `prefix`, in order.
    pub(crate) fn scan(
        &self,
        prefix: &[u8],
    ) -> impl Iterator<Item = anyhow::Result<(Vec<u8>, Vec<u8>)>> + use<'_, 'a> {
        self.scan_after(prefix, b"")
    }

    /// Records whose keys start with `prefix` and come after `after`, in order.
    pub(crate) fn scan_after(
        &self,
        prefix: &[u8],
        after: &[u8],
    ) -> impl Iterator<Item = anyhow::Result<(Vec<u8>, Vec<u8>)>> + use<'_, 'a> {
        let end = crate::tables::successor(prefix);
        let mut from = prefix.to_vec();
        if after >= prefix {
            from = [after, b"\0"].concat();
        }
        // A scan that would begin behind the end begins at the end, where nothing comes.
        from = end.iter().fold(from, |from, end| from.min(end.clone()));
        let mut options = ReadOptions::default();
        if let Some(end) = &end {
            options.set_iterate_upper_bound(end.clone());
        }
        let stored = self.db.rocks().iterator_opt(IteratorMode::From(&from, Direction::Forward), options);
        let from = std::ops::Bound::Included(from);
        let to = end.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let mut stored = stored.peekable();
        let mut changed = self.changes.range((from, to)).peekable();
        std::iter::from_fn(move || {
            loop {
                let stored_key = match stored.peek() {
                    Some(Ok((key, _))) => Some(&key[..]),
                    Some(Err(_)) => {
                        let error = stored.next().expect("it was just seen").expect_err("it is an error");
                        return Some(Err(error).context("scan tables"));
                    }
                    None => None,
                };
                let next_is_change = match (stored_key, changed.peek()) {
                    (None, None) => return None,
                    (Some(stored_key), Some((key, _))) => key.as_slice() <= stored_key,
                    (stored_key, _) => stored_key.is_none(),
                };
                if !next_is_change {
                    let (key, value) = stored.next().expect("it was just seen").expect("it is no error");
                    return Some(Ok((key.into_vec(), value.into_vec())));
                }
                let (key, value) = changed.next().expect("it was just seen");
                if stored_key == Some(key.as_slice()) {
                    stored.next();
                }
                if let Some(value) = value {
                    return Some(Ok((key.clone(), value.clone())));
                }
            }
        })
    }

    /// The changed records whose keys start with `prefix`, as they will be.
    pub(crate) fn changed(&self, prefix: &[u8]) -> impl Iterator<Item = (&Vec<u8>, &Change)> {
        let from = self.changes.range(prefix.to_vec()..);
        from.take_while(move |(key, _)| key.starts_with(prefix))
    }

    pub(crate) fn into_batch(self) -> WriteBatch {
        let mut batch = WriteBatch::default();
        for (key, value) in self.changes {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        batch
    }
}

impl Read for Overlay<'_> {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        if let Some(value) = self.changes.get(key) {
            return Ok(value.clone());
        }
        if key.len() > SHARED_KEY_BYTES_MAX {
            return self.db.get(key);
        }
        if let Some(row) = self.shared.borrow().get(key) {
            return Ok(row.clone());
        }
        let row = self.db.get(key)?;
        self.shared.borrow_mut().insert(key.to_vec(), row.clone());
        Ok(row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn check(stored: &BTreeMap<Vec<u8>, Vec<u8>>, changes: &[(Vec<u8>, Option<Vec<u8>>)], prefix: &[u8]) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &statedb::DbOptions::default()).unwrap();
        let mut batch = WriteBatch::default();
        stored.iter().for_each(|(key, value)| batch.put(key, value));
        db.write(batch).unwrap();

        let mut overlay = Overlay::new(&db);
        let mut model = stored.clone();
        for (key, value) in changes {
            // A row that was read before it is changed.
            assert_eq!(overlay.get(key).unwrap(), model.get(key).cloned());
            match value {
                Some(value) => {
                    overlay.put(key.clone(), value.clone());
                    model.insert(key.clone(), value.clone());
                }
                None => {
                    overlay.delete(key.clone());
                    model.remove(key);
                }
            }
            overlay.keep_command();
        }
        overlay.put(b"refused".to_vec(), Vec::new());
        overlay.put(b"refused".to_vec(), vec![1]);
        stored.keys().for_each(|key| overlay.delete(key.clone()));
        overlay.undo_command();

        let expected: Vec<_> = model.clone().into_iter().filter(|(key, _)| key.starts_with(prefix)).collect();
        let scanned: Vec<_> = overlay.scan(prefix).collect::<anyhow::Result<_>>().unwrap();
        assert_eq!(scanned, expected);
        for after in model.keys() {
            let rest: Vec<_> = overlay.scan_after(prefix, after).collect::<anyhow::Result<_>>().unwrap();
            let expected: Vec<_> = expected.iter().filter(|(key, _)| key > after).cloned().collect();
            assert_eq!(rest, expected, "after {after:?}");
        }
        for key in stored.keys().chain(changes.iter().map(|(key, _)| key)) {
            assert_eq!(overlay.get(key).unwrap(), model.get(key).cloned());
        }
        let batch = overlay.into_batch();
        db.write(batch).unwrap();
        let overlay = Overlay::new(&db);
        assert_eq!(overlay.scan(b"").collect::<anyhow::Result<BTreeMap<_, _>>>().unwrap(), model);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(40))]
        #[test]
        fn an_overlay_reads_like_the_tables_it_becomes(
            stored in prop::collection::btree_map(prop::collection::vec(0u8..3, 1..4), prop::collection::vec(any::<u8>(), 0..2), 0..12),
            changes in prop::collection::vec((prop::collection::vec(0u8..3, 1..4), prop::option::of(prop::collection::vec(any::<u8>(), 0..2))), 0..12),
            prefix in prop::collection::vec(0u8..3, 0..2),
        ) {
            check(&stored, &changes, &prefix);
        }
    }
}
