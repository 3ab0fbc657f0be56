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

use crate::replicas::Replicas;
use disk::DataDirectory;
use raft::AddressBook;
use rpc::Link;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::sleep;
use types::{Clock, GroupId};
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
    let mut workers = JoinSet::new();
    let mut at_work: BTreeMap<GroupId, AbortHandle> = BTreeMap::new();
    loop {
        while workers.try_join_next().is_some() {}
        at_work.retain(|_, worker| !worker.is_finished());
        for replica in reclaim.replicas.led(&reclaim.addresses) {
            let group = replica.group.id();
            let work = || workers.spawn(Worker::new(reclaim.clone(), replica).run());
            at_work.entry(group).or_insert_with(work);
        }
        sleep(LOOK_EVERY).await;
    }
}
