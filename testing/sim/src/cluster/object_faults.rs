//! Faults that OM goes through, beside all that the others do: it is killed or loses power, and its answers
//! do not arrive.

use super::disks::random_disk;
use super::memory_db::MemoryDbPlace;
use crate::scenario::random_crash;
use crate::world::Crash;
use disk::sim::{Random, SimOptions};
use std::time::Duration;

const PAUSE_MS_MAX: u64 = 8000;
const LASTS_MS_MAX: u64 = 2500;

/// Something that befalls OM.
pub(super) enum OmFault {
    /// Its answers do not arrive.
    CutOff,
    /// It is back after so long.
    Crash(Crash, SimOptions, Duration),
}

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
    /// The fault whose time has come.
    pub(super) fn due(&mut self, now: Duration) -> Option<OmFault> {
        if now < self.next {
            return None;
        }
        let random = &mut self.random;
        let lasts = Duration::from_millis(50 + random.below(LASTS_MS_MAX));
        self.next = now + lasts + Duration::from_millis(random.below(PAUSE_MS_MAX));
        if random.one_in(3) {
            self.cut_until = Some(now + lasts);
            return Some(OmFault::CutOff);
        }
        let crash = random_crash(random);
        Some(OmFault::Crash(crash, random_disk(random), lasts))
    }

    pub(super) fn is_to_be_mended(&self, now: Duration) -> bool {
        self.cut_until.is_some_and(|until| until <= now)
    }

    /// Whether OM was cut off.
    pub(super) fn mended(&mut self) -> bool {
        self.cut_until.take().is_some()
    }
}
