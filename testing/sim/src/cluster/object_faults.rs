//! What OM goes through, beside all that the others do: it is killed or loses power, and its answers do not arrive.

use super::memory_db::MemoryDbPlace;
use super::plan::random_disk;
use super::run::Run;
use crate::scenario::random_crash;
use crate::world::{Link, ProcessId};
use disk::sim::{Random, SimOptions};
use std::time::Duration;

const PAUSE_MS_MAX: u64 = 8000;
const LASTS_MS_MAX: u64 = 2500;

pub(super) struct ObjectFaults {
    random: Random,
    next: Duration,
    cut_until: Option<Duration>,
    pub(super) place: MemoryDbPlace,
}

impl ObjectFaults {
    pub(super) fn new(seed: u64) -> ObjectFaults {
        let (random, next) = (Random::new(seed ^ 1), Duration::from_secs(6));
        ObjectFaults { random, next, cut_until: None, place: MemoryDbPlace::new("/om-db") }
    }

    pub(super) fn random_disk(&mut self) -> SimOptions {
        random_disk(&mut self.random)
    }

    pub(super) fn random_u128(&mut self) -> u128 {
        u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64())
    }
}

impl Run {
    pub(super) fn object_faults_step(&mut self) {
        let (now, om) = (self.world.now(), self.plan.om());
        if !self.plan.has_om {
            return;
        }
        if self.object_faults.cut_until.is_some_and(|until| until <= now) {
            self.mend_way_of_om();
        }
        if now < self.object_faults.next {
            return;
        }
        let random = &mut self.object_faults.random;
        let lasts = Duration::from_millis(50 + random.below(LASTS_MS_MAX));
        self.object_faults.next = now + lasts + Duration::from_millis(random.below(PAUSE_MS_MAX));
        if random.one_in(3) {
            self.ledger.count(|counts| counts.om_cut_off += 1);
            self.object_faults.cut_until = Some(now + lasts);
            self.set_way_of_om(Link { is_cut: true, ..Link::FAST });
        } else if self.world.is_up(ProcessId(om)) {
            self.ledger.count(|counts| counts.om_crashes += 1);
            let (crash, disk) = (random_crash(random), random_disk(random));
            self.world.trace().event(format_args!("OM: {crash:?}"));
            self.crash_for(om, crash, disk, lasts);
        }
    }

    pub(super) fn mend_way_of_om(&mut self) {
        if self.object_faults.cut_until.take().is_some() {
            self.set_way_of_om(Link::FAST);
        }
    }

    /// What it answers to clients; what they ask arrives.
    fn set_way_of_om(&mut self, link: Link) {
        let (om, clients) = (ProcessId(self.plan.om()), ProcessId(self.plan.clients()));
        self.world.network().set_link(om, clients, link);
    }
}
