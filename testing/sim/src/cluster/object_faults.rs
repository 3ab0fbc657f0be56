//! Faults that OMs go through, beside all that the others do: one is killed or loses power, its answers do
//! not arrive, and where there are three, one loses all that it has.

use crate::scenario::random_crash;
use crate::services::MemoryTables;
use crate::services::random_disk;
use crate::world::Crash;
use disk::sim::{Random, SimOptions};
use std::collections::BTreeMap;
use std::ops::Range;
use std::time::Duration;

/// The longest pause between the faults of a cluster with one OM; more of them are hit more often.
const PAUSE_MS_MAX: u64 = 8000;
const LASTS_MS_MAX: u64 = 2500;
/// One crash in so many empties the disk, where that loses no names; once in a run.
const EMPTIED_ONE_IN: u64 = 4;

/// Something that befalls an OM.
pub(super) enum OmFault {
    /// An OM's answers do not arrive.
    CutOff(usize),
    /// An OM crashes, and is back after `lasts`.
    Crash { om: usize, crash: Crash, disk: SimOptions, lasts: Duration, is_emptied: bool },
}

pub(super) struct ObjectFaults {
    random: Random,
    next: Duration,
    cut: Option<(usize, Duration)>,
    oms: Range<usize>,
    /// The tables of each OM.
    tables: BTreeMap<usize, MemoryTables>,
    emptied: u64,
}

impl ObjectFaults {
    pub(super) fn new(seed: u64, oms: Range<usize>) -> ObjectFaults {
        let (random, next) = (Random::new(seed ^ 1), Duration::from_secs(6));
        ObjectFaults { random, next, cut: None, oms, tables: BTreeMap::new(), emptied: 0 }
    }

    pub(super) fn random_disk(&mut self) -> SimOptions {
        random_disk(&mut self.random)
    }

    pub(super) fn random_u128(&mut self) -> u128 {
        u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64())
    }

    pub(super) fn tables(&self, om: usize) -> MemoryTables {
        self.tables[&om].clone()
    }

    /// Gives an OM these tables, and returns those that it had until then.
    pub(super) fn put_tables(&mut self, om: usize, tables: MemoryTables) -> MemoryTables {
        self.tables.insert(om, tables).expect("each OM has tables")
    }

    /// Takes from an OM all that it has; returns the number of times that this befell one.
    pub(super) fn emptied(&mut self, om: usize) -> u64 {
        self.emptied += 1;
        self.tables.insert(om, MemoryTables::new(format!("/om-db{om}.{}", self.emptied)));
        self.emptied
    }

    /// The fault whose time has come. `may_empty`: no names are lost with one OM.
    pub(super) fn due(&mut self, now: Duration, may_empty: bool) -> Option<OmFault> {
        if now < self.next || self.oms.is_empty() {
            return None;
        }
        let (count, random) = (self.oms.len() as u64, &mut self.random);
        let lasts = Duration::from_millis(50 + random.below(LASTS_MS_MAX));
        self.next = now + lasts + Duration::from_millis(random.below(PAUSE_MS_MAX) / count);
        let om = self.oms.start + random.below(count) as usize;
        if random.one_in(3) {
            self.cut = Some((om, now + lasts));
            return Some(OmFault::CutOff(om));
        }
        let (crash, disk) = (random_crash(random), random_disk(random));
        let was_emptied = self.emptied > count;
        let is_emptied = random.one_in(EMPTIED_ONE_IN) && may_empty && !was_emptied;
        Some(OmFault::Crash { om, crash, disk, lasts, is_emptied })
    }

    pub(super) fn is_to_be_mended(&self, now: Duration) -> bool {
        self.cut.is_some_and(|(_, until)| until <= now)
    }

    /// The OM that was cut off.
    pub(super) fn mended(&mut self) -> Option<usize> {
        self.cut.take().map(|(om, _)| om)
    }
}
