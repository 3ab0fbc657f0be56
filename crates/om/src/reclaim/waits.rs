//! The containers of which SCM was asked for something, and when it is asked again.

use proto::scm::{DiscardProgress, DiscardState};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The pauses between two questions for one container, as long as SCM says the same of it: each is twice the
/// one before. SCM holds what it was asked for longer than the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(20);
/// The longest pause for a container at which nodes are at work.
const PAUSE_UNDER_WAY_MAX: Duration = Duration::from_secs(2);
/// The most containers whose turn is kept, some hundred bytes each; of others SCM is asked each time.
const WAITS_MAX: usize = 65_536;
/// The number of blocks by which it is tried whether a container still waits.
const BLOCKS_TRIED: usize = 1024;
/// The most characters of a reason that are kept: enough for people.
const WHY_CHARS_MAX: usize = 200;

#[derive(Debug, Default)]
pub(crate) struct Waits(Mutex<Waiting>);

#[derive(Debug, Default)]
struct Waiting {
    containers: BTreeMap<u64, Wait>,
    /// The time at which the oldest piece was deleted that is not sorted yet; 0: there is none.
    deleted_ms: u64,
}

#[derive(Debug)]
struct Wait {
    again_at: Instant,
    pause: Duration,
    said: Said,
}

/// The last word on a container, and what it was asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Said {
    pub(crate) state: DiscardState,
    pub(crate) why: String,
    pub(crate) node: u64,
    pub(crate) blocks: u64,
    pub(crate) oldest_ms: u64,
}

impl Said {
    pub(crate) fn by_scm(progress: DiscardProgress, blocks: u64, oldest_ms: u64) -> Said {
        let state = progress.state();
        let why = progress.why.chars().take(WHY_CHARS_MAX).collect();
        Said { state, why, node: progress.node, blocks, oldest_ms }
    }
}

impl Waits {
    pub(super) fn is_waiting(&self, container: u64, now: Instant) -> bool {
        let known = self.0.lock().expect("no holder panics");
        known.containers.get(&container).is_some_and(|wait| wait.again_at > now)
    }

    /// The most blocks of a container that SCM is asked about at a time: few of a container that waits for
    /// something, so that many such cost little; all of one that is open, since by their number SCM decides
    /// whether to close it.
    pub(super) fn blocks_max(&self, container: u64) -> usize {
        use DiscardState::{DiscardAway, DiscardHeld, DiscardPaused, DiscardTroubled, DiscardUnknown};
        let known = self.0.lock().expect("no holder panics");
        match known.containers.get(&container).map(|wait| wait.said.state) {
            Some(DiscardHeld | DiscardAway | DiscardTroubled | DiscardPaused | DiscardUnknown) => {
                BLOCKS_TRIED
            }
            _ => usize::MAX,
        }
    }

    /// Notes that a container waits, and what was said of it.
    pub(super) fn note(&self, container: u64, said: Said, now: Instant) {
        let mut known = self.0.lock().expect("no holder panics");
        let before = known.containers.get(&container).filter(|before| before.said.state == said.state);
        let pause_max = match said.state {
            DiscardState::DiscardUnderWay => PAUSE_UNDER_WAY_MAX,
            _ => PAUSE_MAX,
        };
        let pause = before.map_or(FIRST_PAUSE, |before| (2 * before.pause).min(pause_max));
        if known.containers.len() < WAITS_MAX || known.containers.contains_key(&container) {
            known.containers.insert(container, Wait { again_at: now + pause, pause, said });
        }
    }

    /// Forgets a container of which nothing that was seen waits any more.
    pub(super) fn remove(&self, container: u64) {
        self.0.lock().expect("no holder panics").containers.remove(&container);
    }

    /// Forgets those of some containers of which nothing is unused any more, which was not seen to go: all
    /// but those that were met.
    pub(super) fn keep(&self, containers: Range<u64>, met: &BTreeSet<u64>) {
        let mut known = self.0.lock().expect("no holder panics");
        known.containers.extract_if(containers, |container, _| !met.contains(container)).for_each(drop);
    }

    pub(super) fn note_deleted(&self, deleted_ms: u64) {
        self.0.lock().expect("no holder panics").deleted_ms = deleted_ms;
    }

    /// The moment of the next container's turn.
    pub(super) fn next(&self) -> Option<Instant> {
        let known = self.0.lock().expect("no holder panics");
        known.containers.values().map(|wait| wait.again_at).min()
    }

    /// The time at which the oldest was deleted of all that waits and was seen; 0: nothing does.
    pub(crate) fn oldest_ms(&self) -> u64 {
        let known = self.0.lock().expect("no holder panics");
        let of_containers = known.containers.values().map(|wait| wait.said.oldest_ms);
        of_containers.chain([known.deleted_ms]).filter(|ms| *ms != 0).min().unwrap_or_default()
    }

    /// The number of containers that wait, by what was said of them; a state that no container is in has a 0.
    pub(crate) fn states(&self) -> BTreeMap<DiscardState, u64> {
        use DiscardState::*;
        let all = [
            DiscardUnderWay,
            DiscardOpen,
            DiscardHeld,
            DiscardAway,
            DiscardTroubled,
            DiscardPaused,
            DiscardUnknown,
        ];
        let mut states = BTreeMap::from(all.map(|state| (state, 0)));
        for wait in self.0.lock().expect("no holder panics").containers.values() {
            *states.entry(wait.said.state).or_default() += 1;
        }
        states
    }

    /// The containers that wait longest, with what was said of them.
    pub(crate) fn oldest(&self, count: usize) -> Vec<(u64, Said)> {
        let known = self.0.lock().expect("no holder panics");
        let mut all: Vec<_> = known.containers.iter().map(|(number, wait)| (*number, &wait.said)).collect();
        all.sort_by_key(|(number, said)| (said.oldest_ms, *number));
        all.into_iter().take(count).map(|(number, said)| (number, said.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(state: DiscardState, oldest_ms: u64) -> Said {
        let progress = DiscardProgress { state: state.into(), why: "ü".repeat(1000), ..Default::default() };
        Said::by_scm(progress, 3, oldest_ms)
    }

    #[tokio::test]
    async fn pauses_grow_while_nothing_changes() {
        let (waits, begun) = (Waits::default(), Instant::now());
        let pause = |state| {
            waits.note(7, said(state, 5), begun);
            waits.next().unwrap() - begun
        };
        let held: Vec<u128> = (0..8).map(|_| pause(DiscardState::DiscardHeld).as_millis()).collect();
        assert_eq!(held, [500, 1000, 2000, 4000, 8000, 16_000, 20_000, 20_000]);
        let at_work: Vec<u128> = (0..4).map(|_| pause(DiscardState::DiscardUnderWay).as_millis()).collect();
        assert_eq!(at_work, [500, 1000, 2000, 2000]);
        assert_eq!(waits.blocks_max(7), usize::MAX);
        pause(DiscardState::DiscardAway);
        assert_eq!((waits.blocks_max(7), waits.blocks_max(8)), (BLOCKS_TRIED, usize::MAX));
        let again: Vec<u128> = (0..3).map(|_| pause(DiscardState::DiscardUnderWay).as_millis()).collect();
        assert_eq!(again, [500, 1000, 2000]);
        assert!(waits.is_waiting(7, begun + Duration::from_millis(1999)));
        assert!(!waits.is_waiting(7, begun + Duration::from_secs(2)) && !waits.is_waiting(8, begun));
        waits.remove(7);
        assert!(!waits.is_waiting(7, begun) && waits.next().is_none());
    }

    #[tokio::test]
    async fn the_oldest_are_told_first() {
        let (waits, now) = (Waits::default(), Instant::now());
        assert_eq!((waits.oldest_ms(), waits.oldest(9)), (0, vec![]));
        for (container, state, oldest_ms) in [
            (1, DiscardState::DiscardOpen, 30),
            (2, DiscardState::DiscardHeld, 10),
            (3, DiscardState::DiscardOpen, 20),
        ] {
            waits.note(container, said(state, oldest_ms), now);
        }
        let told: Vec<u64> = waits.oldest(2).into_iter().map(|(container, _)| container).collect();
        assert_eq!((told, waits.oldest_ms()), (vec![2, 3], 10));
        waits.note_deleted(5);
        assert_eq!(waits.oldest_ms(), 5);
        let states = [(DiscardState::DiscardOpen, 2), (DiscardState::DiscardHeld, 1)];
        let is_some = |(_, containers): &(DiscardState, u64)| *containers > 0;
        let some: BTreeMap<DiscardState, u64> = waits.states().into_iter().filter(is_some).collect();
        assert_eq!(some, BTreeMap::from(states));
        assert_eq!(waits.oldest(1)[0].1.why.chars().count(), WHY_CHARS_MAX);
    }
}
