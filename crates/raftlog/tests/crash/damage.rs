//! Bits that flip: in one log's files for good, or on any read.

use crate::campaign::{live, random_world};
use crate::driver::observe;
use crate::liar::Lie;
use crate::world::{World, block_on};
use disk::sim::Random;
use raftlog::{Entry, LogSpace};
use std::collections::HashMap;

const SEEDS: u64 = 300;

/// A few lives, ended by a crash.
async fn lived(random: &mut Random, lie: Lie) -> World {
    let mut world = random_world(random, lie);
    for _ in 0..3 {
        live(&mut world, random).await.unwrap();
    }
    world
}

/// Entries by id and bytes that were ever asked for; ids alone are not enough, as a truncated one may be
/// asked for again.
fn known(world: &World, log: usize) -> HashMap<u64, Vec<&Entry>> {
    let mut known: HashMap<u64, Vec<&Entry>> = HashMap::new();
    for entry in world.drivers[log].history.every_entry() {
        known.entry(entry.id.index.0).or_default().push(entry);
    }
    known
}

#[test]
fn damage_in_one_log_is_reported_or_cut_and_reaches_no_other() {
    let (mut refused, mut opened) = (0, 0);
    for seed in 0..SEEDS {
        let mut random = Random::new(seed ^ 0xdada);
        block_on(async {
            let mut world = lived(&mut random, Lie::Honest).await;
            let damaged = random.below(world.drivers.len() as u64) as usize;
            let spec = world.drivers[damaged].spec.clone();
            let files: Vec<_> = world
                .disk
                .files()
                .into_iter()
                .filter(|(path, bytes)| *bytes > 0 && belongs(path, &spec))
                .collect();
            if files.is_empty() {
                return;
            }
            let (path, bytes) = random.pick(&files).clone();
            let (offset, bit) = (random.below(bytes), random.below(8) as u8);
            world.disk.flip_stored_bit(&path, offset, bit).unwrap();
            let context = format!("seed {seed}, bit {bit} of byte {offset} of {path}");

            let space = world.open_space();
            for log in 0..world.drivers.len() {
                if log != damaged {
                    let driver = &mut world.drivers[log];
                    let found = driver.open(&space).await.unwrap_or_else(|why| panic!("{context}: {why}"));
                    driver
                        .history
                        .explain(&found)
                        .unwrap_or_else(|why| panic!("{context}: log {log}: {why}"));
                }
            }
            let Ok(log) = space.open(spec).await else {
                refused += 1;
                return;
            };
            opened += 1;
            let Ok(found) = observe(&log).await else { return };
            let known = known(&world, damaged);
            for entry in &found.entries {
                let right = known.get(&entry.id.index.0).is_some_and(|known| known.contains(&entry));
                assert!(right, "{context}: entry {:?} has wrong bytes", entry.id);
            }
        });
    }
    assert!(refused > 10 && opened > 10, "both happen: {refused} refused, {opened} opened");
}

/// Whether a file is of this log alone. Owners of pipelines are numbered by log.
fn belongs(path: &str, spec: &raftlog::LogSpec) -> bool {
    let own_owner = |path: &str| {
        let owner = path.strip_prefix("containers/").and_then(|rest| rest.split('/').next());
        owner
            .and_then(|owner| u64::from_str_radix(owner, 16).ok())
            .is_some_and(|owner| owner / 1_000_000 == spec.log)
    };
    path.starts_with(&format!("{}/", spec.dir))
        || (spec.owners_dir != "containers" && path.starts_with(&format!("{}/", spec.owners_dir)))
        || own_owner(path)
}

#[test]
fn bits_that_flip_on_the_way_never_become_entries() {
    let mut errors = 0;
    for seed in 0..SEEDS {
        let mut random = Random::new(seed ^ 0xf11b);
        block_on(async {
            let world = lived(&mut random, Lie::Honest).await;
            world.disk.flip_bits_on_read(Some(3));
            let disk = world.lie.wrap(world.disk.clone());
            let space = LogSpace::new(disk.clone(), world.options.clone());
            for log in 0..world.drivers.len() {
                let Ok(open) = space.open(world.drivers[log].spec.clone()).await else {
                    errors += 1;
                    continue;
                };
                let Ok(found) = observe(&open).await else {
                    errors += 1;
                    continue;
                };
                let known = known(&world, log);
                for entry in &found.entries {
                    let right = known.get(&entry.id.index.0).is_some_and(|known| known.contains(&entry));
                    assert!(right, "seed {seed}, log {log}: entry {:?} has wrong bytes", entry.id);
                }
            }
            assert_eq!(disk.failure(), None);
        });
    }
    assert!(errors > 10, "flipped bits are noticed: {errors}");
}
