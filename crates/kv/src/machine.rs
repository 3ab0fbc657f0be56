use crate::ops::encode_outcomes;
use crate::{Op, Outcome, decode_ops};
use anyhow::Context;
use bytes::Bytes;
use raft::{Applied, Changes, Committed, Snapshots, StateMachine, Tables};
use std::collections::HashMap;
use std::sync::Arc;

/// Where the applied position stands.
pub const APPLIED_KEY: &[u8] = b"a";
const KEYS: u8 = b'k';

/// Keys and values in the tables of one group. A command is one or more [`Op`]s, which take effect together; the answer
/// is their outcomes.
pub struct KvMachine {
    tables: Arc<dyn Tables>,
    snapshots: Option<Arc<dyn Snapshots>>,
}

impl KvMachine {
    pub fn new(tables: Arc<dyn Tables>, snapshots: Option<Arc<dyn Snapshots>>) -> KvMachine {
        KvMachine { tables, snapshots }
    }
}

/// What stands under a key.
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
        let mut changed: HashMap<Bytes, Option<Bytes>> = HashMap::new();
        let mut replies = Vec::with_capacity(batch.len());
        for command in batch {
            let ops = decode_ops(command.meta).with_context(|| format!("command {:?}", command.id))?;
            let outcomes = ops.into_iter().map(|op| self.apply_op(op, &mut changed));
            replies.push(encode_outcomes(&outcomes.collect::<anyhow::Result<Vec<_>>>()?));
        }
        let mut changes = Changes::default();
        for (key, value) in changed {
            match value {
                Some(value) => changes.put(table_key(&key), value),
                None => changes.delete(table_key(&key)),
            }
        }
        changes.put(APPLIED_KEY, applied.encode());
        self.tables.write(changes)?;
        Ok(replies)
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        self.snapshots.clone()
    }
}

impl KvMachine {
    fn apply_op(&self, op: Op, changed: &mut HashMap<Bytes, Option<Bytes>>) -> anyhow::Result<Outcome> {
        let (key, value) = match op {
            Op::Set { key, value } => (key, value),
            Op::CompareAndSet { key, expected, value } => {
                let found = match changed.get(&key) {
                    Some(found) => found.clone(),
                    None => read(&*self.tables, &key)?,
                };
                if found != expected {
                    return Ok(Outcome::Conflict(found));
                }
                (key, value)
            }
            Op::Append { key, value } => {
                let found = match changed.get(&key) {
                    Some(found) => found.clone(),
                    None => read(&*self.tables, &key)?,
                };
                let longer = [&found.unwrap_or_default()[..], &value].concat();
                (key, Some(longer.into()))
            }
        };
        changed.insert(key, value);
        Ok(Outcome::Done)
    }
}
