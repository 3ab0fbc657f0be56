//! Deletes what a bucket has left in a group, a few rows at a time.

use super::Moves;
use crate::ops::{self, Fresh, SweepRows};
use crate::replica::Replica;
use crate::tables::{BucketNumber, left_since};
use bytes::Bytes;
use proto::om::SweepRowsCommand;
use proto::{Failure, RequestId};
use rand::RngExt;
use std::sync::Arc;
use tracing::{debug, info};
use types::random::random;

/// Deletes what a bucket has left here, until nothing is left or somebody else leads.
pub(super) async fn run(moves: Moves, replica: Arc<Replica>, number: u64) {
    let group = replica.group.id();
    match sweep(&moves, &replica, number).await {
        Ok(()) => info!(%group, number, "deleted what a bucket has left here"),
        Err(failure) => debug!(%group, number, %failure, "delete what a bucket has left here"),
    }
}

async fn sweep(moves: &Moves, replica: &Replica, number: u64) -> Result<(), Failure> {
    let since = left_since(&*replica.dbs.current(), BucketNumber(number));
    let since = since.map_err(|error| Failure::internal(format!("read what is left: {error:#}")))?;
    let Some(since) = since else { return Ok(()) };
    let mut after = Bytes::new();
    loop {
        let some = SweepRowsCommand { number, since, after, pieces_max: ops::PIECES_AT_ONCE as u32 };
        let fresh = Fresh { random: 0, now_ms: moves.clock.now_ms() };
        let command = ops::prepare::<SweepRows>(RequestId(random().random()), None, some, fresh)?;
        let swept = replica.change::<SweepRows>(command).await?;
        if swept.is_done {
            return Ok(());
        }
        after = swept.last;
    }
}
