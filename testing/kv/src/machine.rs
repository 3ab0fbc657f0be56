use crate::ops::encode_outcomes;
use crate::{Op, Outcome, decode_ops};
use anyhow::Context;
use bytes::Bytes;
use raft::{Applied, Committed, Snapshots, StateMachine};
use statedb::{Changes, Tables};
use std::collections::HashMap;
use std::sync::Arc;

/// The key under which the applied position stands.
pub const APPLIED_KEY: &[u8] = b"a";
const KEYS: u8 = b'k';

/// Keys and values in the tables of one group. A command is one or more [`Op`]s, which take effect together;
/// the answer is their outcomes.
pub struct KvMachine {
    tables: Arc<dyn Tables>,
    snapshots: Option<Arc<dyn Snapshots>>,
}

impl KvMachine {
    pub fn new(tables: Arc<dyn Tables>, snapshots: Option<Arc<dyn Snapshots>>) -> KvMachine {
        KvMachine { tables, snapshots }
    }
}

/// Reads the value of a key.
pub fn read(tables: &dyn Tables, key: &[u8]) -> anyhow::Result<Option<Bytes>> {
    Ok(tables.get(&table_key(key))?.map(Bytes::from))
}

/// All keys and their values, in order; not all of one moment while commands are applied.
pub fn records(tables: &dyn Tables) -> anyhow::Result<Vec<(Bytes, Bytes)>> {
    const PIECE_COUNT: usize = 1000;
    let (mut all, mut from) = (Vec::new(), vec![KEYS]);
    loop {
        let piece = tables.scan(&from, Some(&[KEYS + 1]), PIECE_COUNT)?;
        let Some((last, _)) = piece.last() else { return Ok(all) };
        from = [last.as_slice(), &[0]].concat();
        all.extend(piece.into_iter().map(|(key, value)| (Bytes::from(key).slice(1..), Bytes::from(value))));
    }
}

fn table_key(key: &[u8]) -> Vec<u8> {
    let mut table_key = Vec::with_capacity(1 + key.len());
    table_key.push(KEYS);
    table_key.extend_from_slice(key);
    table_key
}

impl StateMachine for KvMachine {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.tables.get(APPLIED_KEY)?.map(|stored| Applied::decode(&stored)).transpose()
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let decoded = batch
            .into_iter()
            .map(|command| decode_ops(command.meta).with_context(|| format!("command {:?}", command.id)));
        let commands = decoded.collect::<anyhow::Result<Vec<_>>>()?;
        let looks_up = commands.iter().flatten().any(|op| !matches!(op, Op::Set { .. }));
        let mut batch = ApplyBatch {
            tables: &*self.tables,
            changes: Changes::default(),
            changed: looks_up.then(HashMap::new),
        };
        let mut replies = Vec::with_capacity(commands.len());
        for ops in commands {
            let outcomes = ops.into_iter().map(|op| batch.apply(op));
            replies.push(encode_outcomes(&outcomes.collect::<anyhow::Result<Vec<_>>>()?));
        }
        let mut changes = batch.changes;
        changes.put(APPLIED_KEY, applied.encode());
        self.tables.write(changes)?;
        Ok(replies)
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        self.snapshots.clone()
    }
}

/// Commands that are written together.
struct ApplyBatch<'a> {
    tables: &'a dyn Tables,
    changes: Changes,
    /// The changes of this batch, if one of its operations asks what stands somewhere.
    changed: Option<HashMap<Bytes, Option<Bytes>>>,
}

impl ApplyBatch<'_> {
    fn apply(&mut self, op: Op) -> anyhow::Result<Outcome> {
        match op {
            Op::Set { key, value } => self.put(key, value),
            Op::CompareAndSet { key, expected, value } => {
                let found = self.found(&key)?;
                if found != expected {
                    return Ok(Outcome::Conflict(found));
                }
                self.put(key, value);
            }
            Op::Append { key, value } => {
                let longer = [&self.found(&key)?.unwrap_or_default()[..], &value].concat();
                self.put(key, Some(longer.into()));
            }
        }
        Ok(Outcome::Done)
    }

    fn found(&self, key: &[u8]) -> anyhow::Result<Option<Bytes>> {
        match self.changed.as_ref().and_then(|changed| changed.get(key)) {
            Some(found) => Ok(found.clone()),
            None => read(self.tables, key),
        }
    }

    fn put(&mut self, key: Bytes, value: Option<Bytes>) {
        match &value {
            Some(value) => self.changes.put(table_key(&key), &value[..]),
            None => self.changes.delete(table_key(&key)),
        }
        if let Some(changed) = &mut self.changed {
            changed.insert(key, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{decode_outcomes, encode_ops};
    use statedb::{Db, DbOptions};
    use types::{LogId, LogIndex, Term};

    fn committed(index: u64, ops: &[Op]) -> Committed {
        let id = LogId { term: Term(1), index: LogIndex(index) };
        let place = raftlog::Place { owner: types::OwnerId(1), segment: 1, offset: 0, body_bytes: 0 };
        Committed { id, meta: encode_ops(ops), place, roll_to: None }
    }

    #[test]
    fn operations_see_what_stands_before_them_in_the_same_batch() {
        let dir = tempfile::tempdir().unwrap();
        let tables: Arc<dyn Tables> = Arc::new(Db::open(dir.path(), &DbOptions::default()).unwrap());
        let mut machine = KvMachine::new(tables.clone(), None);
        let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
        let set = |value| Op::Set { key: bytes("k"), value: Some(bytes(value)) };
        let append = |value| Op::Append { key: bytes("k"), value: bytes(value) };
        let swap = |expected, value| Op::CompareAndSet {
            key: bytes("k"),
            expected: Some(bytes(expected)),
            value: Some(bytes(value)),
        };
        let mut apply = |index: u64, batch: Vec<Committed>| {
            let id = LogId { term: Term(1), index: LogIndex(index) };
            let applied = Applied { id, membership: Bytes::new() };
            let replies = machine.apply(batch, applied.clone()).unwrap();
            assert_eq!(machine.applied().unwrap(), Some(applied));
            replies.into_iter().flat_map(|reply| decode_outcomes(reply).unwrap()).collect::<Vec<_>>()
        };
        // Without a look-up, the later one wins.
        assert_eq!(
            apply(2, vec![committed(1, &[set("a")]), committed(2, &[set("b")])]),
            [Outcome::Done, Outcome::Done]
        );
        assert_eq!(read(&*tables, b"k").unwrap(), Some(bytes("b")));
        // A look-up sees the changes of the batch before what is stored.
        let batch = vec![
            committed(3, &[append("c"), swap("bc", "d")]),
            committed(4, &[swap("b", "x"), set("e"), append("f")]),
        ];
        let conflict = Outcome::Conflict(Some(bytes("d")));
        let expected = [Outcome::Done, Outcome::Done, conflict, Outcome::Done, Outcome::Done];
        assert_eq!(apply(4, batch), expected);
        assert_eq!(read(&*tables, b"k").unwrap(), Some(bytes("ef")));
    }
}
