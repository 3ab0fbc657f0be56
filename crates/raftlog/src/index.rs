use crate::Place;
use crate::record::{self, ALIGNMENT};
use crate::segment::{Position, SegmentId};
use std::collections::VecDeque;
use types::{LogId, LogIndex, OwnerId, Term};

/// The place of each entry of a log, in 16 bytes per entry. What many entries share is in their run.
pub(crate) struct Index {
    /// The index of the first slot; meaningless when there is none.
    first: LogIndex,
    slots: VecDeque<Slot>,
    runs: VecDeque<Run>,
    /// The number of the first run in `runs`; slots count runs from the log's opening.
    first_run: u32,
}

#[derive(Clone, Copy)]
struct Slot {
    run: u32,
    /// The offset of the record in its segment, in units of the record alignment.
    offset_units: u32,
    meta_bytes: u32,
    body_bytes: u32,
}

/// Entries that follow each other in one segment and one term.
struct Run {
    first: LogIndex,
    term: Term,
    file: SegmentId,
    /// Bytes of the owner's records before this segment.
    owner_bytes_before: u64,
}

/// An entry's place and lengths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Located {
    pub(crate) id: LogId,
    pub(crate) position: Position,
    pub(crate) meta_bytes: u32,
    pub(crate) body_bytes: u32,
}

impl Located {
    pub(crate) fn place(&self) -> Place {
        self.position.place(self.body_bytes)
    }

    pub(crate) fn record_bytes(&self) -> u64 {
        record::record_bytes(self.meta_bytes as usize, self.body_bytes as usize)
    }
}

impl Index {
    /// An empty index; the next entry will be at `next`.
    pub(crate) fn starting_at(next: LogIndex) -> Index {
        Index { first: next, slots: VecDeque::new(), runs: VecDeque::new(), first_run: 0 }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    pub(crate) fn first(&self) -> LogIndex {
        self.first
    }

    pub(crate) fn end(&self) -> LogIndex {
        LogIndex(self.first.0 + self.slots.len() as u64)
    }

    pub(crate) fn last(&self) -> Option<Located> {
        self.get(LogIndex(self.end().0.checked_sub(1)?))
    }

    /// Adds the entry after the last one; the first of an empty index may stand anywhere.
    pub(crate) fn push(&mut self, located: Located) {
        let Located { id, position, meta_bytes, body_bytes } = located;
        if self.is_empty() {
            self.first = id.index;
        }
        assert!(id.index == self.end(), "entry {:?} pushed to a log that ends at {:?}", id, self.end());
        let fits = |run: &Run| run.file == position.file() && run.term == id.term;
        if !self.runs.back().is_some_and(fits) {
            self.runs.push_back(Run {
                first: id.index,
                term: id.term,
                file: position.file(),
                owner_bytes_before: position.owner_bytes - position.offset,
            });
        }
        let run = self.first_run + (self.runs.len() - 1) as u32;
        let offset_units = u32::try_from(position.offset / ALIGNMENT).expect("segments are below 32 GiB");
        self.slots.push_back(Slot { run, offset_units, meta_bytes, body_bytes });
    }

    pub(crate) fn get(&self, index: LogIndex) -> Option<Located> {
        let nth = index.0.checked_sub(self.first.0)?;
        let slot = self.slots.get(usize::try_from(nth).ok()?)?;
        let run = &self.runs[(slot.run - self.first_run) as usize];
        let offset = u64::from(slot.offset_units) * ALIGNMENT;
        Some(Located {
            id: LogId { term: run.term, index },
            position: Position {
                owner: run.file.owner,
                segment: run.file.segment,
                offset,
                owner_bytes: run.owner_bytes_before + offset,
            },
            meta_bytes: slot.meta_bytes,
            body_bytes: slot.body_bytes,
        })
    }

    /// The first entry that stands in a file.
    pub(crate) fn first_in(&self, file: SegmentId) -> Option<LogIndex> {
        let newer = self.runs.iter().rev().skip_while(|run| run.file != file);
        newer.take_while(|run| run.file == file).last().map(|run| run.first.max(self.first))
    }

    /// The entry whose record begins at a place, looking only at entries from `from` on, newest first.
    pub(crate) fn find(&self, place: &Place, from: LogIndex) -> Option<LogIndex> {
        let mut end = self.end();
        for run in self.runs.iter().rev() {
            if end <= from {
                return None;
            }
            if run.file == (SegmentId { owner: place.owner, segment: place.segment }) {
                let found = self.find_in_run(run.first.max(from), end, place.offset);
                if found.is_some() {
                    return found;
                }
            }
            end = run.first;
        }
        None
    }

    /// Binary search for an offset among the entries `[first, end)` of one run.
    fn find_in_run(&self, first: LogIndex, end: LogIndex, offset: u64) -> Option<LogIndex> {
        let (mut low, mut high) = (first.0, end.0);
        while low < high {
            let middle = low + (high - low) / 2;
            let found = self.get(LogIndex(middle))?.position.offset;
            match found.cmp(&offset) {
                std::cmp::Ordering::Equal => return Some(LogIndex(middle)),
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        None
    }

    /// Removes the entries from `end` on; returns the file of the last entry that stays, if there is one, and
    /// theirs, oldest first.
    pub(crate) fn truncate(&mut self, end: LogIndex) -> Vec<SegmentId> {
        let kept = usize::try_from(end.0.saturating_sub(self.first.0)).unwrap_or(usize::MAX);
        self.slots.truncate(kept);
        let mut files = Vec::new();
        while let Some(run) = self.runs.back() {
            let emptied = run.first >= end;
            files.push(run.file);
            if !emptied {
                break;
            }
            self.runs.pop_back();
        }
        files.reverse();
        files.dedup();
        files
    }

    /// Forgets the entries before `first`; when that is all of them, the next may stand anywhere from there.
    pub(crate) fn drop_before(&mut self, first: LogIndex) {
        if first <= self.first {
            return;
        }
        let dropped = usize::try_from(first.0 - self.first.0).unwrap_or(usize::MAX).min(self.slots.len());
        self.slots.drain(..dropped);
        self.first = first;
        let runs_kept_from =
            self.slots.front().map_or(self.first_run + self.runs.len() as u32, |slot| slot.run);
        self.runs.drain(..(runs_kept_from - self.first_run) as usize);
        self.first_run = runs_kept_from;
    }
}

/// Distinct owners of files, in order.
pub(crate) fn owners(files: &[SegmentId]) -> Vec<OwnerId> {
    let mut owners: Vec<_> = files.iter().map(|file| file.owner).collect();
    owners.dedup();
    owners
}
