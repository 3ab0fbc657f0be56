//! The room of a disk, asked beside everything else: the question may take as long as the disk hangs, and a
//! node that says nothing meanwhile is taken for dead, with its other disks.

use disk::{IoFuture, ReadFault, Space};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::{info, warn};

/// The time after which a disk that does not say how much room it has is complained about. Healthy ones
/// answer in microseconds from memory, busy spinning ones within a second or two.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);

/// The room that a disk last said it has.
pub(crate) struct KnownSpace {
    state: Mutex<State>,
}

#[derive(Clone, Copy)]
struct State {
    space: Space,
    /// The time at which the disk was asked for what it last said.
    asked: Instant,
    /// Whether the disk could not say, the last time it was asked.
    failed: bool,
    /// The time of the question that is not answered yet.
    waits_since: Option<Instant>,
}

impl KnownSpace {
    pub(crate) fn new(space: Space) -> KnownSpace {
        KnownSpace {
            state: Mutex::new(State { space, asked: Instant::now(), failed: false, waits_since: None }),
        }
    }

    /// The room that the disk last said it has; `None` when it could not say the last time it was asked.
    pub(crate) fn get(&self) -> Option<Space> {
        let State { space, failed, .. } = *self.lock();
        (!failed).then_some(space)
    }

    /// The age of the disk's last answer.
    pub(crate) fn age(&self) -> Duration {
        self.lock().asked.elapsed()
    }

    /// The time for which the disk has not answered what it was asked.
    pub(crate) fn unanswered(&self) -> Duration {
        self.lock().waits_since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Asks again and again, `interval` after each answer. May be dropped anywhere.
    pub(crate) async fn keep_asking(
        &self,
        disk: &str,
        interval: Duration,
        ask: impl Fn() -> IoFuture<Space>,
    ) {
        loop {
            sleep(interval).await;
            let asked = Instant::now();
            self.lock().waits_since = Some(asked);
            let mut answer = ask();
            let answer = match timeout(ANSWER_PATIENCE, &mut answer).await {
                Ok(answer) => answer,
                Err(_) => {
                    warn!(disk, patience = ?ANSWER_PATIENCE, "a disk does not say how much room it has; waiting on");
                    let answer = answer.await;
                    info!(disk, took = ?asked.elapsed(), "the disk has answered");
                    answer
                }
            };
            let mut state = self.lock();
            state.waits_since = None;
            match answer {
                Ok(space) => *state = State { space, asked, failed: false, waits_since: None },
                // The process could not ask: that says nothing of the disk. How old the last answer is, is
                // shown.
                Err(error) if ReadFault::of(&error) == ReadFault::Shortage => {
                    warn!(disk, %error, "a disk could not be asked how much room it has");
                }
                Err(error) => {
                    if !state.failed {
                        warn!(disk, %error, "a disk cannot say how much room it has");
                    }
                    state.failed = true;
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    fn space(free_bytes: u64) -> Space {
        Space { capacity_bytes: 100, free_bytes }
    }

    async fn pass(seconds: u64) {
        sleep(Duration::from_secs(seconds)).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_disk_that_hangs_is_answered_for_with_what_it_last_said() {
        let known = Arc::new(KnownSpace::new(space(50)));
        let asked = Arc::new(AtomicU64::new(0));
        let (watched, count) = (known.clone(), asked.clone());
        let task = tokio::spawn(async move {
            let ask = || -> IoFuture<Space> {
                let number = count.fetch_add(1, Ordering::Relaxed);
                Box::pin(async move {
                    match number {
                        0 => Ok(space(40)),
                        1 => {
                            pass(60).await;
                            Ok(space(30))
                        }
                        // EMFILE
                        2 => Err(io::Error::from_raw_os_error(24)),
                        3 => Err(io::Error::other("planted")),
                        _ => Ok(space(20)),
                    }
                })
            };
            watched.keep_asking("d1", Duration::from_secs(1), ask).await;
        });
        pass(0).await;
        assert_eq!(known.get(), Some(space(50)), "what it said when it was opened");
        tokio::time::sleep(Duration::from_millis(1500)).await;
        assert_eq!(known.get(), Some(space(40)));
        assert_eq!(known.unanswered(), Duration::ZERO);
        // The second question hangs from 2 s to 62 s.
        pass(50).await;
        assert_eq!(known.get(), Some(space(40)), "while it hangs");
        assert_eq!(known.unanswered(), Duration::from_millis(49_500));
        assert_eq!(asked.load(Ordering::Relaxed), 2, "one question at a time");
        assert_eq!(known.age(), Duration::from_millis(50_500));
        pass(11).await;
        assert_eq!(known.get(), Some(space(30)));
        pass(1).await;
        assert_eq!(known.get(), Some(space(30)), "this process had no file to ask with");
        assert_eq!(known.age(), Duration::from_millis(61_500), "which shows");
        assert_eq!(known.unanswered(), Duration::ZERO, "and says nothing of the disk");
        pass(1).await;
        assert_eq!(known.get(), None, "it could not say");
        pass(1).await;
        assert_eq!(known.get(), Some(space(20)));
        assert_eq!(known.unanswered(), Duration::ZERO);
        task.abort();
        assert!(task.await.unwrap_err().is_cancelled());
    }
}
