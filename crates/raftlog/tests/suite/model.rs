//! Random histories against a vector of entries.

use crate::support::*;
use proptest::prelude::*;
use raftlog::{Entry, HardState, Log, LogSpace, Place};
use std::collections::BTreeMap;
use std::sync::Arc;
use types::{LogIndex, OwnerId};

#[derive(Clone, Debug)]
enum Step {
    Append {
        bodies: Vec<usize>,
        wait: bool,
    },
    Roll,
    /// Removes up to this many entries at the end.
    Truncate {
        count: u64,
    },
    /// Forgets up to this many entries at the start.
    Purge {
        count: u64,
    },
    Vote,
    Reopen,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (prop::collection::vec(0usize..1500, 1..6), any::<bool>())
            .prop_map(|(bodies, wait)| Step::Append { bodies, wait }),
        2 => Just(Step::Roll),
        2 => (0u64..12).prop_map(|count| Step::Truncate { count }),
        1 => (0u64..8).prop_map(|count| Step::Purge { count }),
        1 => Just(Step::Vote),
        1 => Just(Step::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    /// All entries that were never truncated, purged ones among them.
    entries: Vec<Entry>,
    purged: u64,
    term: u64,
    owners: u64,
    vote: Option<HardState>,
}

impl Model {
    fn push(&mut self, body_bytes: usize, roll_to: Option<OwnerId>) -> Entry {
        let entry = Entry { roll_to, ..entry(self.term, self.entries.len() as u64, body_bytes) };
        self.entries.push(entry.clone());
        entry
    }
}

async fn run(steps: Vec<Step>, cached: bool) {
    let mut machine = Machine::small_segments(4000);
    if !cached {
        machine = machine.without_cache();
    }
    let space = machine.start();
    let mut log = space.open(spec(1)).await.unwrap();
    let mut model = Model { term: 1, ..Model::default() };
    for step in steps {
        match step {
            Step::Append { bodies, wait } => {
                let batch = bodies.iter().map(|bytes| model.push(*bytes, None)).collect();
                let token = log.append(batch).unwrap();
                if wait {
                    token.durable().await.unwrap();
                }
            }
            Step::Roll => {
                model.owners += 1;
                let roll = model.push(20, Some(OwnerId(1000 + model.owners)));
                drop(log.append(vec![roll]).unwrap());
            }
            Step::Truncate { count } => {
                let end = (model.entries.len() as u64).saturating_sub(count).max(model.purged);
                log.truncate_after(end.checked_sub(1).map(LogIndex)).await.unwrap();
                model.entries.truncate(end as usize);
                model.term += 1;
            }
            Step::Purge { count } => {
                let to = (model.purged + count).min(model.entries.len() as u64);
                if let Some(last) = to.checked_sub(1) {
                    log.purge(model.entries[last as usize].id).await.unwrap();
                    model.purged = to;
                }
            }
            Step::Vote => {
                model.term += 1;
                let vote = HardState { vote_term: model.term, vote_replica: 3, vote_committed: false };
                log.save_hard_state(vote).await.unwrap();
                model.vote = Some(vote);
            }
            Step::Reopen => {
                drop(log);
                log = space.open(spec(1)).await.unwrap();
            }
        }
        check(&log, &model).await;
    }
    let places = places(&log).await;
    log.close().await;
    log = space.open(spec(1)).await.unwrap();
    check(&log, &model).await;
    check_places(&space, &places, &model).await;
    log.close().await;
    check_replica(&machine, model).await;
}

async fn check(log: &Log, model: &Model) {
    let state = log.state();
    assert_eq!(state.hard_state, model.vote);
    assert_eq!(state.last, model.entries.last().map(|entry| entry.id));
    assert_eq!(state.purged, model.purged.checked_sub(1).map(|last| model.entries[last as usize].id));
    assert_eq!(read_all(log).await, model.entries[model.purged as usize..]);
}

async fn places(log: &Log) -> BTreeMap<u64, Place> {
    let state = log.state();
    let range = LogIndex(state.purged.map_or(0, |id| id.index.0 + 1))
        ..LogIndex(state.last.map_or(0, |id| id.index.0 + 1));
    let metas = log.read_meta(range, 10_000).await.unwrap();
    metas.into_iter().map(|meta| (meta.id.index.0, meta.place)).collect()
}

async fn check_places(space: &LogSpace, places: &BTreeMap<u64, Place>, model: &Model) {
    for (index, place) in places {
        let pieces = space.read_body("containers", *place, 0..place.body_bytes).await.unwrap();
        assert_eq!(pieces.bytes, *model.entries[*index as usize].body.bytes());
    }
}

/// Another replica that was given only what stayed, all at once, has the same segments.
async fn check_replica(machine: &Machine, model: Model) {
    let replica = Machine::small_segments(4000);
    let space: Arc<LogSpace> = replica.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, model.entries).await;
    log.close().await;
    assert_eq!(segments(machine), segments(&replica));
}

fn segments(machine: &Machine) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let Ok(owners) = std::fs::read_dir(machine.dir.path().join("disk/containers")) else { return found };
    for owner in owners {
        for segment in std::fs::read_dir(owner.unwrap().path()).unwrap() {
            let path = segment.unwrap().path();
            if path.extension().is_none_or(|kind| kind != "seg") {
                continue;
            }
            let bytes = std::fs::read(&path).unwrap();
            if !bytes.is_empty() {
                let name: Vec<_> =
                    path.components().rev().take(2).map(|part| part.as_os_str().to_owned()).collect();
                found.insert(format!("{name:?}"), bytes);
            }
        }
    }
    found
}

proptest! {
    // Each case is some hundred syncs; the campaign of `./dev crash` will run more.
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn a_log_is_a_vector_of_entries(steps in prop::collection::vec(step(), 1..40), cached in any::<bool>()) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(run(steps, cached));
    }
}
