//! The containers of a disk in which blocks were deleted a moment ago. Who reads a container whole, to hash
//! it or to write it anew, waits for a pause: it would have to do so again after the next deletion.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;
use types::ContainerId;

/// The pauses that make a long one, which is how long deletions are remembered.
const LONG_PAUSE: u32 = 6;

pub(crate) struct DeletedLately {
    pause: Duration,
    containers: Mutex<BTreeMap<ContainerId, Deletions>>,
}

/// Deletions without a pause between them.
#[derive(Clone, Copy)]
struct Deletions {
    first: Instant,
    last: Instant,
}

/// The time that has passed since blocks of a container were deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quiet {
    /// No pause yet.
    No,
    /// No pause yet, and deletions for longer than any pause.
    Never,
    /// A pause, but not a long one.
    Short,
    Long,
}

impl DeletedLately {
    pub fn new(pause: Duration) -> DeletedLately {
        DeletedLately { pause, containers: Mutex::default() }
    }

    pub fn note(&self, container: ContainerId) {
        let now = Instant::now();
        let mut lately = self.lock();
        lately.retain(|_, deletions| deletions.last.elapsed() < self.pause * LONG_PAUSE);
        let deletions = lately.entry(container).or_insert(Deletions { first: now, last: now });
        if deletions.last.elapsed() >= self.pause {
            deletions.first = now;
        }
        deletions.last = now;
    }

    pub fn quiet(&self, container: ContainerId) -> Quiet {
        let Some(Deletions { first, last }) = self.lock().get(&container).copied() else {
            return Quiet::Long;
        };
        match last.elapsed() {
            pause if pause >= self.pause * LONG_PAUSE => Quiet::Long,
            pause if pause >= self.pause => Quiet::Short,
            _ if first.elapsed() >= self.pause * LONG_PAUSE => Quiet::Never,
            _ => Quiet::No,
        }
    }

    /// The moment at which the next container has its pause, if nothing more is deleted in it.
    pub fn next_pause(&self) -> Option<Instant> {
        let lately = self.lock();
        let pauses = lately.values().map(|deletions| deletions.last + self.pause);
        pauses.filter(|pause| *pause > Instant::now()).min()
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
        let now = || (lately.quiet(container), lately.next_pause());
        assert_eq!(now(), (Quiet::Long, None));
        for quiet in [[Quiet::No; 7].as_slice(), &[Quiet::Never; 2]].concat() {
            lately.note(container);
            assert_eq!(now(), (quiet, Some(Instant::now() + seconds(10))));
            wait(9).await;
        }
        wait(1).await;
        assert_eq!(now(), (Quiet::Short, None));
        lately.note(container);
        assert_eq!(lately.quiet(container), Quiet::No, "what was before does not count");
        wait(59).await;
        assert_eq!(now(), (Quiet::Short, None));
        wait(1).await;
        assert_eq!(now(), (Quiet::Long, None));
    }
}
