//! A history of what was asked of a log in one life and how much of it was acknowledged; decides whether what
//! is found after a crash can be.

use crate::model::{Change, Model, Observed, Stored};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use types::{LogId, OwnerId};

#[derive(Clone)]
pub(crate) struct History {
    /// The model of what a start found: known to be durable.
    base: Model,
    changes: Vec<Change>,
    /// The base and all changes.
    pub(crate) now: Model,
    pub(crate) acks: Acks,
    committed_max: Option<LogId>,
    pub(crate) removal: Removal,
    /// The last owner the log ever rolled to.
    pub(crate) last_owner: OwnerId,
    /// Owners before this one were deleted, or are about to be.
    pub(crate) deleted_end: OwnerId,
    /// Owners whose deletion was acknowledged.
    pub(crate) gone: BTreeSet<OwnerId>,
}

/// The stage that the removal of a log has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Removal {
    None,
    /// The log may be there as it was, or not at all.
    Asked,
    /// The log must not be there; its owners may be.
    Acknowledged,
}

/// Shared with callbacks and tasks of a life.
#[derive(Clone, Default)]
pub(crate) struct Acks(Arc<Mutex<AcksState>>);

#[derive(Default)]
struct AcksState {
    /// The number of changes that are acknowledged: they are carried out in order.
    acknowledged: usize,
    failure: Option<String>,
    token_failed: bool,
    out_of_order: bool,
}

impl Acks {
    pub(crate) fn resolved(&self, changes: usize, outcome: Result<(), String>) {
        let mut state = self.0.lock().unwrap();
        match outcome {
            Ok(()) => state.acknowledged = state.acknowledged.max(changes),
            Err(why) => drop(state.failure.get_or_insert(why)),
        }
    }

    /// The same for an append, whose tokens resolve in the order of the appends.
    pub(crate) fn resolved_in_order(&self, changes: usize, outcome: Result<(), String>) {
        {
            let mut state = self.0.lock().unwrap();
            state.out_of_order |= outcome.is_ok() && (state.acknowledged > changes || state.token_failed);
            state.token_failed |= outcome.is_err();
        }
        self.resolved(changes, outcome);
    }

    pub(crate) fn acknowledged(&self) -> usize {
        self.0.lock().unwrap().acknowledged
    }

    pub(crate) fn failure(&self) -> Option<String> {
        self.0.lock().unwrap().failure.clone()
    }
}

impl History {
    pub(crate) fn new(base: Model) -> History {
        let owner = base.tail().owner;
        History {
            now: base.clone(),
            base,
            changes: Vec::new(),
            acks: Acks::default(),
            committed_max: None,
            removal: Removal::None,
            last_owner: owner,
            deleted_end: OwnerId(0),
            gone: BTreeSet::new(),
        }
    }

    /// The log was removed, and its owners deleted.
    pub(crate) fn begin_again(&mut self, first_owner: OwnerId) {
        *self = History::new(self.base.begun_again(first_owner));
    }

    /// Whether something that was asked for is neither acknowledged nor refused.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.is_acknowledged() && self.acks.failure().is_none()
    }

    pub(crate) fn is_acknowledged(&self) -> bool {
        self.acks.acknowledged() == self.asked()
    }

    /// Purged entries whose segments were not deleted, the newest first.
    pub(crate) fn readable_forgotten(&self) -> impl Iterator<Item = &Stored> {
        self.now.forgotten.iter().rev().filter(|stored| stored.place.owner >= self.deleted_end)
    }

    /// Notes a change that was asked for; returns how many there are.
    pub(crate) fn push(&mut self, change: Change) -> usize {
        self.now.apply(&change);
        self.last_owner = self.last_owner.max(self.now.tail().owner);
        self.changes.push(change);
        self.changes.len()
    }

    pub(crate) fn asked(&self) -> usize {
        self.changes.len()
    }

    pub(crate) fn committed(&mut self, id: Option<LogId>) {
        self.committed_max = self.committed_max.max(id);
    }

    /// The state that was found must be that after some of the changes, in order, all acknowledged ones among
    /// them. A truncation that was under way may have come some way. Returns the state.
    pub(crate) fn explain(&self, found: &Observed) -> Result<Model, String> {
        let acknowledged = self.acks.acknowledged();
        if self.acks.0.lock().unwrap().out_of_order {
            return Err("tokens resolved out of order".to_owned());
        }
        let mut model = self.base.clone();
        self.changes[..acknowledged].iter().for_each(|change| model.apply(change));
        let least = model.clone();
        for done in acknowledged..=self.changes.len() {
            let next = self.changes.get(done);
            if found.differs(&model).is_none() {
                self.check_committed(found)?;
                return Ok(model);
            }
            if let Some(Change::Truncate { end }) = next {
                let mut partly = model.clone();
                while partly.end() > *end {
                    let last = partly.end() - 1;
                    partly.apply(&Change::Truncate { end: last });
                    if found.differs(&partly).is_none() {
                        return Ok(partly);
                    }
                }
            }
            next.iter().for_each(|change| model.apply(change));
        }
        Err(format!(
            "{acknowledged} of {} changes were acknowledged; found {}; and of all changes {}; unacknowledged: {}",
            self.changes.len(),
            found.differs(&least).unwrap_or_default(),
            found.differs(&model).unwrap_or_default(),
            self.changes[acknowledged..].iter().map(brief).collect::<Vec<_>>().join(", ")
        ))
    }

    fn check_committed(&self, found: &Observed) -> Result<(), String> {
        if found.committed > self.committed_max || found.committed > found.last {
            return Err(format!(
                "committed {:?} in a log that ends at {:?}; {:?} was the most that was said",
                found.committed, found.last, self.committed_max
            ));
        }
        Ok(())
    }

    /// The next life begins with what was found.
    pub(crate) fn begin_life(&mut self, base: Model) {
        let before = std::mem::replace(self, History::new(base));
        let History { committed_max, removal, last_owner, deleted_end, gone, .. } = before;
        *self = History { committed_max, removal, last_owner, deleted_end, gone, ..self.clone() };
    }

    /// Every entry that was ever asked for in this life, or forgotten before: a hard state that cannot be
    /// read may bring a purged entry back, which is no wrong one.
    pub(crate) fn every_entry(&self) -> Vec<&raftlog::Entry> {
        let appended = self.changes.iter().filter_map(|change| match change {
            Change::Append(entry) => Some(entry),
            _ => None,
        });
        let stored = self.base.entries.values().chain(&self.base.forgotten);
        stored.map(|stored| &stored.entry).chain(appended).collect()
    }
}

fn brief(change: &Change) -> String {
    match change {
        Change::Append(entry) => format!("append {:?} roll {:?}", entry.id, entry.roll_to),
        other => format!("{other:?}"),
    }
}
