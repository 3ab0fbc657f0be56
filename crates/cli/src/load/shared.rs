//! The state that all clients of a run share, and how an operation may end.

use super::args::Kind;
use super::content::Content;
use super::tally::Tally;
use crate::output;
use client::ClientError;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// The most problems that are told in words; the others are only counted.
const TOLD_MAX: u64 = 20;

/// The reason why an operation does not count as done.
pub(super) enum Problem {
    /// The operation was refused, or nobody answered.
    Failed(ClientError),
    /// The cluster answered what cannot be.
    Wrong(String),
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Problem {
        Problem::Failed(error)
    }
}

/// The state that all clients of a run share.
pub(super) struct Run {
    pub(super) kind: Kind,
    pub(super) bucket: String,
    pub(super) content: Content,
    pub(super) written: u64,
    /// One in so many objects outlives `deletes`; 0: none.
    pub(super) stays: u64,
    /// A number that was drawn for this run.
    pub(super) drawn: u32,
    /// Numbers of operations; the next one, and the first that is too many.
    pub(super) next: AtomicU64,
    pub(super) end: u64,
    pub(super) over: CancellationToken,
    pub(super) tally: Mutex<Tally>,
    pub(super) told: AtomicU64,
}

impl Run {
    pub(super) fn next(&self) -> Option<u64> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        (number < self.end && !self.over.is_cancelled()).then_some(number)
    }

    /// Whether the object of that number outlives `deletes`.
    pub(super) fn is_to_stay(&self, number: u64) -> bool {
        self.stays > 0 && number.is_multiple_of(self.stays)
    }

    pub(super) fn note(&self, took: Duration, done: Result<u64, Problem>) {
        let mut tally = self.tally.lock().expect("no holder panics");
        let told = match done {
            Ok(bytes) => return tally.done(took, bytes),
            Err(Problem::Failed(error)) => {
                tally.failed += 1;
                format!("failed: {error}")
            }
            Err(Problem::Wrong(what)) => {
                tally.wrong += 1;
                format!("WRONG: {what}")
            }
        };
        drop(tally);
        if self.told.fetch_add(1, Ordering::Relaxed) < TOLD_MAX {
            output::complain(&format!("load: {}", output::printable(&told)));
        }
    }
}
