//! Tests of what a state machine may rely on, of RocksDB and of its twin in memory alike.

use disk::sim::Random;
use flotilla_sim::MemTables;
use statedb::{Changes, Db, DbOptions, Tables};
use std::collections::BTreeMap;

type Records = BTreeMap<Vec<u8>, Vec<u8>>;

#[test]
fn rocksdb_conforms() {
    let dir = tempfile::tempdir().unwrap();
    let open = || Db::open(dir.path(), &DbOptions::default()).unwrap();
    conform(open(), |db| {
        drop(db);
        open()
    });
}

#[test]
fn memory_conforms() {
    conform(MemTables::default(), |tables| tables.close());
}

/// Runs the same random history on the tables and on a map.
fn conform<T: Tables>(mut tables: T, reopen: impl Fn(T) -> T) {
    let mut random = Random::new(7);
    let mut expected = Records::new();
    for round in 0..60 {
        for _ in 0..10 {
            let changes = random_changes(&mut random);
            apply(&mut expected, changes.clone());
            tables.write(changes).unwrap();
        }
        if round % 10 == 5 {
            tables.flush().unwrap();
        }
        if round % 20 == 19 {
            tables = reopen(tables);
        }
        check(&tables, &expected, &mut random);
    }
}

fn random_changes(random: &mut Random) -> Changes {
    let mut changes = Changes::default();
    for _ in 0..random.below(6) {
        let key = random_key(random);
        if random.one_in(3) {
            changes.delete(key);
        } else {
            changes.put(key, random.next_u64().to_le_bytes());
        }
    }
    changes
}

fn random_key(random: &mut Random) -> Vec<u8> {
    (0..random.below(4)).map(|_| *random.pick(&[0, 1, 0x7f, 0xff])).collect()
}

fn apply(records: &mut Records, changes: Changes) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(records.insert(key, value)),
            None => drop(records.remove(&key)),
        }
    }
}

fn check(tables: &dyn Tables, expected: &Records, random: &mut Random) {
    let all = |records: &Records| {
        records.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<Vec<_>>()
    };
    assert_eq!(tables.scan(&[], None, usize::MAX).unwrap(), all(expected));
    for _ in 0..10 {
        let (from, end) = (random_key(random), random_key(random));
        assert_eq!(tables.get(&from).unwrap(), expected.get(&from).cloned());
        let count = random.below(5) as usize;
        let range = expected.iter().filter(|(key, _)| **key >= from && **key < end).take(count);
        let range: Vec<_> = range.map(|(key, value)| (key.clone(), value.clone())).collect();
        assert_eq!(tables.scan(&from, Some(&end), count).unwrap(), range, "{from:?} to {end:?}");
    }
}

#[test]
fn a_crash_takes_the_newest_batches_whole_and_nothing_that_was_flushed() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..60 {
        let tables = MemTables::default();
        for number in 0..8_u8 {
            let mut changes = Changes::default();
            changes.put([b'a'], [number]);
            changes.put([b'b'], [number]);
            tables.write(changes).unwrap();
            if number == 3 {
                tables.flush().unwrap();
            }
        }
        let next = tables.lose_power(&mut Random::new(seed));
        assert!(tables.get(b"a").is_err(), "the process is gone");
        let (a, b) = (next.get(b"a").unwrap().unwrap(), next.get(b"b").unwrap().unwrap());
        assert_eq!(a, b, "half a batch");
        assert!(a[0] >= 3, "flushed, and lost");
        outcomes.insert(a);
    }
    assert_eq!(outcomes.len(), 5, "every point from the flush on is possible");
}
