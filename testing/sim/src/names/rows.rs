//! The rows in the tables of a group of names when all is quiet (docs/format/om-tables.md).

use anyhow::{Context, ensure};
use prost::Message;
use proto::om::{BucketEntry, BucketRecord, BucketStage};
use statedb::{Db, Tables};
use std::collections::BTreeMap;

/// Tables of rows that stand for something which is under way: names of buckets that are made, deleted or
/// moved, buckets that are sent, that come, and of which something is left.
const UNDER_WAY: &[u8] = b"oviy";
/// Tables of the contents of buckets: keys, parts, uploads.
const CONTENTS: &[u8] = b"kpu";

pub(super) type Rows = BTreeMap<Vec<u8>, Vec<u8>>;

pub(super) fn read(tables: &Db) -> anyhow::Result<Rows> {
    Ok(tables.scan(&[], None, usize::MAX)?.into_iter().collect())
}

/// The first row of something that has not come to its end.
pub(super) fn under_way(rows: &Rows) -> Option<String> {
    let row = rows.keys().find(|key| UNDER_WAY.contains(&key[0]))?;
    Some(row.escape_ascii().to_string())
}

/// Two sets of rows where they differ first.
pub(super) fn difference(one: &Rows, other: &Rows) -> Option<String> {
    let differs = |(key, value): &(&Vec<u8>, &Vec<u8>)| other.get(*key) != Some(value);
    let first = one.iter().find(differs).map(|(key, _)| key);
    let only_other = other.keys().find(|key| !one.contains_key(*key));
    let key = first.or(only_other)?;
    let shown = |rows: &Rows| rows.get(key).map(|value| value.escape_ascii().to_string());
    Some(format!("row {}: {:?} and {:?}", key.escape_ascii(), shown(one), shown(other)))
}

/// Checks what all groups have against what the root says of it.
pub(super) fn check(groups: &BTreeMap<u64, Rows>) -> anyhow::Result<()> {
    let mut held: BTreeMap<u64, (u64, BucketRecord)> = BTreeMap::new();
    for (group, rows) in groups {
        for (number, record) in records(rows)? {
            let before = held.insert(number, (*group, record));
            ensure!(before.is_none(), "bucket {number} is in group {group} and in {before:?}");
        }
        check_contents(rows).with_context(|| format!("group {group}"))?;
    }
    let root = groups.get(&0).context("there is no root")?;
    for (name, entry) in root.iter().filter(|(key, _)| key[0] == b'b') {
        let entry = BucketEntry::decode(entry.as_slice())?;
        let name = name.escape_ascii();
        ensure!(entry.stage() == BucketStage::BucketLive, "{name} is not settled: {entry:?}");
        let record = held.remove(&entry.number);
        let is_there = record.as_ref().is_some_and(|(group, record)| {
            (*group, record.epoch) == (entry.group, entry.epoch) && !record.frozen
        });
        ensure!(is_there, "the root says of {name}: {entry:?}, and groups: {record:?}");
    }
    ensure!(held.is_empty(), "buckets that the root does not know: {held:?}");
    Ok(())
}

fn records(rows: &Rows) -> anyhow::Result<Vec<(u64, BucketRecord)>> {
    let records = rows.iter().filter(|(key, _)| key[0] == b'c');
    records.map(|(key, value)| Ok((number(key)?, BucketRecord::decode(value.as_slice())?))).collect()
}

/// Checks that nothing is in a bucket that is not here, and that buckets have as many keys as they say.
fn check_contents(rows: &Rows) -> anyhow::Result<()> {
    let mut keys: BTreeMap<u64, u64> = BTreeMap::new();
    for key in rows.keys().filter(|key| CONTENTS.contains(&key[0])) {
        *keys.entry(number(key)?).or_default() += u64::from(key[0] == b'k');
    }
    for (number, record) in records(rows)? {
        let count = keys.remove(&number).unwrap_or_default();
        ensure!(count == record.keys, "bucket {number} has {count} keys: {record:?}");
    }
    ensure!(keys.is_empty(), "rows of buckets that are not here: {keys:?}");
    Ok(())
}

/// The number of the bucket whose row this is.
fn number(key: &[u8]) -> anyhow::Result<u64> {
    let number = key.get(1..9).context("a bucket's number has 8 bytes")?;
    Ok(u64::from_be_bytes(number.try_into()?))
}
