//! A model of what a log holds, written from docs/format/segment.md and not from the code it checks.

use raftlog::{Entry, HardState, Place};
use std::collections::BTreeMap;
use types::{LogId, LogIndex, OwnerId};

/// One change of a log.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Append(Entry),
    /// All entries from this index on go.
    Truncate {
        end: u64,
    },
    Purge {
        to: LogId,
    },
    Vote(HardState),
    /// Whole segments of purged entries go.
    DeletePurged,
}

/// The place of the next record, if it fits there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) owner: OwnerId,
    pub(crate) segment: u32,
    offset: u64,
    pub(crate) owner_bytes: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub(crate) entry: Entry,
    pub(crate) place: Place,
    after: Position,
}

#[derive(Clone, Debug)]
pub(crate) struct Model {
    segment_bytes_max: u64,
    pub(crate) entries: BTreeMap<u64, Stored>,
    pub(crate) purged: Option<LogId>,
    /// The place of the entry after the last purged one, if it fits there.
    pub(crate) start: Position,
    /// Segments of that owner before that one were deleted.
    pub(crate) deleted_before: Option<(OwnerId, u32)>,
    pub(crate) vote: Option<HardState>,
    /// Purged entries, whose records stay readable by place.
    pub(crate) forgotten: Vec<Stored>,
}

impl Model {
    pub(crate) fn new(first_owner: OwnerId, segment_bytes_max: u64) -> Model {
        let start = Position { owner: first_owner, segment: 0, offset: 0, owner_bytes: 0 };
        Model {
            segment_bytes_max,
            entries: BTreeMap::new(),
            purged: None,
            start,
            deleted_before: None,
            vote: None,
            forgotten: Vec::new(),
        }
    }

    /// Index of the next entry.
    pub(crate) fn end(&self) -> u64 {
        let last = self.entries.keys().last().copied();
        last.or(self.purged.map(|id| id.index.0)).map_or(0, |last| last + 1)
    }

    pub(crate) fn last(&self) -> Option<LogId> {
        self.entries.values().last().map(|stored| stored.entry.id).or(self.purged)
    }

    /// Index after the last purged entry.
    pub(crate) fn first(&self) -> u64 {
        self.purged.map_or(0, |id| id.index.0 + 1)
    }

    /// The same log, removed and created again.
    pub(crate) fn begun_again(&self, first_owner: OwnerId) -> Model {
        Model::new(first_owner, self.segment_bytes_max)
    }

    pub(crate) fn tail(&self) -> Position {
        self.entries.values().last().map_or(self.start, |stored| stored.after)
    }

    pub(crate) fn apply(&mut self, change: &Change) {
        match change {
            Change::Append(entry) => {
                let stored = self.store(entry.clone());
                self.entries.insert(entry.id.index.0, stored);
            }
            Change::Truncate { end } => drop(self.entries.split_off(end)),
            Change::Purge { to } => {
                let kept = self.entries.split_off(&(to.index.0 + 1));
                let gone = std::mem::replace(&mut self.entries, kept);
                self.start = gone.values().last().map_or(self.start, |last| last.after);
                self.forgotten.extend(gone.into_values());
                self.purged = Some(*to);
            }
            Change::Vote(vote) => self.vote = Some(*vote),
            Change::DeletePurged => self.deleted_before = Some((self.start.owner, self.start.segment)),
        }
    }

    fn store(&self, entry: Entry) -> Stored {
        let body_bytes = entry.body.len();
        let unpadded = 72 + 4 * body_bytes.div_ceil(65536) + entry.meta.len() + body_bytes;
        let bytes = unpadded.next_multiple_of(8) as u64;
        let mut at = self.tail();
        if at.offset > 0 && at.offset + bytes > self.segment_bytes_max {
            (at.segment, at.offset) = (at.segment + 1, 0);
        }
        let place =
            Place { owner: at.owner, segment: at.segment, offset: at.offset, body_bytes: body_bytes as u32 };
        let after = match entry.roll_to {
            Some(owner) if owner > at.owner => Position { owner, segment: 0, offset: 0, owner_bytes: 0 },
            _ => Position { offset: at.offset + bytes, owner_bytes: at.owner_bytes + bytes, ..at },
        };
        Stored { entry, place, after }
    }
}

/// A log's answers to all that can be asked of it.
#[derive(Debug)]
pub(crate) struct Observed {
    pub(crate) entries: Vec<Entry>,
    pub(crate) places: Vec<Place>,
    pub(crate) purged: Option<LogId>,
    pub(crate) last: Option<LogId>,
    pub(crate) vote: Option<HardState>,
    pub(crate) committed: Option<LogId>,
    pub(crate) owner: OwnerId,
    pub(crate) owner_bytes: u64,
}

impl Observed {
    /// Says why this is not what the model holds.
    pub(crate) fn differs(&self, model: &Model) -> Option<String> {
        if self.vote != model.vote {
            return Some(format!("hard state {:?}, not {:?}", self.vote, model.vote));
        }
        if self.purged != model.purged {
            return Some(format!("purged {:?}, not {:?}", self.purged, model.purged));
        }
        if self.last != model.last() || self.entries.len() != model.entries.len() {
            let (first, count, last) = (model.first(), self.entries.len(), model.last());
            return Some(format!(
                "{count} entries from {first} to {:?}, not {} to {last:?}",
                self.last,
                model.entries.len()
            ));
        }
        for ((found, place), stored) in self.entries.iter().zip(&self.places).zip(model.entries.values()) {
            if *found != stored.entry {
                return Some(format!("entry {:?} differs from {:?}", found.id, stored.entry.id));
            }
            if *place != stored.place {
                return Some(format!("entry {:?} at {place:?}, not {:?}", found.id, stored.place));
            }
        }
        let tail = model.tail();
        ((self.owner, self.owner_bytes) != (tail.owner, tail.owner_bytes))
            .then(|| format!("owner {:?} with {} bytes, not {tail:?}", self.owner, self.owner_bytes))
    }
}

pub(crate) fn log_id(term: u64, index: u64) -> LogId {
    LogId { term: types::Term(term), index: LogIndex(index) }
}
