//! The changes of buckets that somebody follows: which of their rows have changed, as the tables of this
//! process show.

use crate::overlay::Overlay;
use crate::tables::{BucketNumber, contents};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

/// The taps of a group's tables, by bucket.
#[derive(Debug, Default)]
pub(crate) struct Taps {
    by_bucket: Mutex<BTreeMap<u64, Arc<Tap>>>,
}

/// The rows of a bucket that have changed since somebody last took them, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Tap {
    seen: Mutex<Seen>,
}

/// The most rows of a bucket that have changed and are yet to be sent again, some hundred bytes each; with
/// more the bucket changes faster than it is sent.
pub(crate) const CHANGED_MAX: usize = 200_000;

#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) changed: BTreeSet<Vec<u8>>,
    /// The reason why what changed is not known any more.
    pub(crate) broken: Option<&'static str>,
}

impl Seen {
    fn note(&mut self, rows: Vec<Vec<u8>>) {
        if self.broken.is_none() {
            self.changed.extend(rows);
        }
        if self.changed.len() > CHANGED_MAX {
            self.break_off("it changes faster than it is sent");
        }
    }

    fn break_off(&mut self, why: &'static str) {
        (self.changed, self.broken) = (BTreeSet::new(), Some(why));
    }
}

/// A tap that is open until this is dropped.
pub(crate) struct OpenTap {
    taps: Arc<Taps>,
    number: BucketNumber,
    tap: Arc<Tap>,
}

impl Taps {
    /// Follows a bucket: the tap sees all that is applied of commands that are proposed from here on. A tap
    /// that was open before sees nothing more.
    pub(crate) fn open(self: &Arc<Taps>, number: BucketNumber) -> OpenTap {
        let tap = Arc::<Tap>::default();
        self.by_bucket.lock().expect("no holder panics").insert(number.0, tap.clone());
        OpenTap { taps: self.clone(), number, tap }
    }

    /// The rows that are about to change of buckets that are followed now.
    pub(crate) fn changed(&self, overlay: &Overlay<'_>) -> Vec<(Arc<Tap>, Vec<Vec<u8>>)> {
        let taps = self.by_bucket.lock().expect("no holder panics").clone();
        let of_bucket = |number| {
            let tables = contents(BucketNumber(number));
            let changed = tables.iter().flat_map(|table| overlay.changed(table).map(|(key, _)| key.clone()));
            changed.collect()
        };
        taps.into_iter().map(|(number, tap)| (tap, of_bucket(number))).collect()
    }

    /// Notes in the taps that these rows have changed.
    pub(crate) fn note(&self, changed: Vec<(Arc<Tap>, Vec<Vec<u8>>)>) {
        for (tap, rows) in changed {
            tap.seen.lock().expect("no holder panics").note(rows);
        }
    }

    /// Breaks all taps: the tables are others from here on.
    pub(crate) fn break_all(&self) {
        for tap in self.by_bucket.lock().expect("no holder panics").values() {
            tap.seen.lock().expect("no holder panics").break_off("a snapshot was installed meanwhile");
        }
    }
}

impl OpenTap {
    /// Takes what was seen since this was called last. A row that is read after that is no older than its
    /// change.
    pub(crate) fn take(&self) -> Seen {
        std::mem::take(&mut *self.tap.seen.lock().expect("no holder panics"))
    }
}

impl Drop for OpenTap {
    fn drop(&mut self) {
        let mut taps = self.taps.by_bucket.lock().expect("no holder panics");
        if taps.get(&self.number.0).is_some_and(|tap| Arc::ptr_eq(tap, &self.tap)) {
            taps.remove(&self.number.0);
        }
    }
}
