//! Blocks that nobody names any more go from the disks: each group tells SCM of them, which has datanodes
//! give them up, and says of which blocks no replica is left. Only then are those forgotten here
//! (docs/space.md).
//!
//! ```text
//! a row names a block no more ──► deleted pieces ──reclaim_after──► unused blocks ──SCM: gone──► nothing
//!                                 d, by time                        e, by container
//! ```
//!
//! The leader of a group drives this. Each step may be done again, by whoever leads by then, or by one that
//! leads no more: what is unused stays so ([`crate::ops::SortDeleted`]; nothing takes it again), and SCM is
//! asked until it is gone. What a leader keeps in memory is when to ask for which container again
//! ([`waits`]).

mod counts;
#[cfg(test)]
mod model;
mod portion;
mod waits;
mod worker;

pub(crate) use counts::UnusedCounts;

use crate::led_tasks::LedTasks;
use crate::replicas::Replicas;
use disk::DataDirectory;
use raft::AddressBook;
use rpc::Link;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use types::Clock;
use worker::Worker;

/// The time after which a new leader of a group begins to reclaim.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The way of unused blocks from the groups that are led here to SCM.
#[derive(Clone)]
pub(crate) struct Reclaim {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) scm: Link,
    pub(crate) disk: Arc<dyn DataDirectory>,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counts: Arc<UnusedCounts>,
    /// The time for which what is deleted may still be read.
    pub(crate) after: Duration,
}

/// Reclaims what is unused, in all groups that are led from here.
pub(crate) async fn go_on_always(reclaim: Reclaim) {
    let mut tasks = LedTasks::default();
    loop {
        let led: Vec<_> = reclaim.replicas.led(&reclaim.addresses).collect();
        tasks.keep(&led);
        for replica in led {
            tasks.begin(&replica, (), || Worker::new(reclaim.clone(), replica.clone()).run());
        }
        sleep(LOOK_EVERY).await;
    }
}
