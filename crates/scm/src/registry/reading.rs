//! Reads of the registry, on any member.

use super::feed::{Feed, Interest};
use crate::leadership::Leadership;
use crate::tables::Tables;
use proto::registry::Reading;
use proto::{Code, Failure, Retry};
use raft::ReadIndexError;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// The time after which a long poll is answered at the latest; whoever asked asks again.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// The reader of the tables as they are applied on this member.
#[derive(Clone)]
pub(super) struct Reader {
    pub(super) leadership: Arc<Leadership>,
    pub(super) feed: Arc<Feed>,
    /// Cancelled when the process stops.
    pub(super) stop: CancellationToken,
}

impl Reader {
    pub(super) async fn read<T>(
        &self,
        reading: Option<Reading>,
        interest: &Interest,
        answer: impl FnOnce(&Tables) -> T,
    ) -> Result<T, Failure> {
        let Reading { stale, after, wait_ms } = reading.unwrap_or_default();
        let deadline = Instant::now() + Duration::from_millis(wait_ms).min(WAIT_MAX);
        if !stale {
            self.catch_up().await?;
        }
        if after > 0 && wait_ms > 0 {
            let changed = self.feed.changed(after, interest, deadline);
            self.stop.run_until_cancelled(changed).await.ok_or_else(stopping)??;
            // A change may have happened that this member did not hear of, if it was cut off.
            if !stale && Instant::now() >= deadline {
                self.catch_up().await?;
            }
        }
        Ok(self.leadership.tables.read(answer))
    }

    /// On return, everything is applied here that was acknowledged before the call.
    pub(super) async fn catch_up(&self) -> Result<(), Failure> {
        let read = self.leadership.group()?.read_index().await;
        read.map(|_| ()).map_err(|error| match error {
            // A member with a full disk applies nothing, and one may be cut off from the leader: others can
            // answer.
            ReadIndexError::Expired => {
                let message = format!("this member of SCM did not catch up in time: {error}");
                Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) }
            }
            error => error.into_failure(&self.leadership.addresses),
        })
    }
}

pub(super) fn stopping() -> Failure {
    Failure::new(Code::Unavailable, "SCM stops")
}
