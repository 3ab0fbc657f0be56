//! The containers of a disk in which blocks were deleted a moment ago. Who reads a container whole, to hash
//! it or to write it anew, waits for a pause: it would have to do so again after the next deletion.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use types::ContainerId;

/// The length of a long pause, in short ones.
const LONG_TO_SHORT: u32 = 6;

pub(crate) struct DeletedLately {
    /// The time without a deletion that is a pause.
    pause: Duration,
    /// The beginning of these notes; nobody knows what was deleted before.
    began: Instant,
    containers: Mutex<BTreeMap<ContainerId, Deletions>>,
}

/// Deletions without a pause between them.
#[derive(Clone, Copy)]
struct Deletions {
    first: Instant,
    last: Instant,
}

/// The pause that a container has had since the last deletion of blocks in it, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pause {
    NotYet,
    /// A pause that has not come yet, though there were deletions for as long as a long one.
    Overdue,
    Short,
    Long,
}

impl DeletedLately {
    pub(crate) fn new(pause: Duration) -> DeletedLately {
        DeletedLately { pause, began: Instant::now(), containers: Mutex::default() }
    }

    /// Takes note that blocks were deleted just now.
    pub(crate) fn note(&self, container: ContainerId) {
        let now = Instant::now();
        let mut lately = self.lock();
        lately.retain(|_, deletions| deletions.last.elapsed() < self.long());
        let deletions = lately.entry(container).or_insert(Deletions { first: now, last: now });
        if deletions.last.elapsed() >= self.pause {
            deletions.first = now;
        }
        deletions.last = now;
    }

    pub(crate) fn pause_of(&self, container: ContainerId) -> Pause {
        let noted = self.lock().get(&container).copied();
        let Deletions { first, last } = noted.unwrap_or(Deletions { first: self.began, last: self.began });
        match last.elapsed() {
            pause if pause >= self.long() => Pause::Long,
            pause if pause >= self.pause => Pause::Short,
            _ if first.elapsed() >= self.long() => Pause::Overdue,
            _ => Pause::NotYet,
        }
    }

    /// Whether blocks were deleted so lately that more may follow.
    pub(crate) fn has(&self, container: ContainerId) -> bool {
        self.lock().get(&container).is_some_and(|deletions| deletions.last.elapsed() < self.pause)
    }

    /// The moment at which the next container has its pause, if nothing more is deleted in it.
    pub(crate) fn next_pause(&self) -> Option<Instant> {
        let lately = self.lock();
        let pauses = lately.values().map(|deletions| deletions.last + self.pause);
        pauses.filter(|pause| *pause > Instant::now()).min()
    }

    fn long(&self) -> Duration {
        self.pause * LONG_TO_SHORT
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ContainerId, Deletions>> {
        self.containers.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pause_ends_what_was_deleted_lately() {
        let seconds = Duration::from_secs;
        let (lately, container) = (DeletedLately::new(seconds(10)), ContainerId(3));
        let wait = async |time| tokio::time::sleep(seconds(time)).await;
        let now = || {
            assert_eq!(lately.has(container), lately.next_pause().is_some());
            (lately.pause_of(container), lately.next_pause())
        };
        let in_10_s = || Some(Instant::now() + seconds(10));
        assert_eq!(now(), (Pause::NotYet, None), "nobody knows what was before");
        wait(10).await;
        assert_eq!(now(), (Pause::Short, None));
        wait(50).await;
        assert_eq!(now(), (Pause::Long, None));
        for pause in [[Pause::NotYet; 7].as_slice(), &[Pause::Overdue; 2]].concat() {
            lately.note(container);
            assert_eq!(now(), (pause, in_10_s()));
            wait(9).await;
        }
        wait(1).await;
        assert_eq!(now(), (Pause::Short, None));
        lately.note(container);
        assert_eq!(lately.pause_of(container), Pause::NotYet, "what was before does not count");
        wait(59).await;
        assert_eq!(now(), (Pause::Short, None));
        wait(1).await;
        assert_eq!(now(), (Pause::Long, None));
    }
}
