//! Blocks that no group of names has ever heard of come back, and names whose block no replica has are told
//! of: the leader of the root compares each closed container with what all groups know of it (docs/space.md,
//! docs/adr/0018).
//!
//! ```text
//! closed ──sweep_after──► fenced: the root, then every group    ──reclaim_after──►   a replica's blocks, a part at a time
//!                         takes no block any more that it                            ▼
//!                         does not name                          the root counts moves ─► every group: known? ─► none knows it
//!                                                                        └──── the same count? ────► unused, in the root's `e`
//! ```
//!
//! What a group names of a fenced container only ever becomes less, so what no group knows, none ever will. A
//! new group has no bucket before it has all fences ([`crate::ops::FenceContainers`]). Where names may only
//! be missing for a while, since a group has fewer than it had, nothing is swept before an operator says so
//! ([`crate::ops::NoteGroups`]).

mod compare;
mod complete;
mod container;
mod counts;
mod fences;
mod look_through;
mod lost;
#[cfg(test)]
mod model;
mod outside;
mod queue;
mod root;
mod start;
#[cfg(test)]
pub(crate) mod testing;
mod worker;

pub(crate) use complete::complete_always;
pub(crate) use counts::SweepCounts;
pub(crate) use fences::Lacks;
pub(crate) use root::Root;

use crate::led_tasks::LedTasks;
use crate::others::Others;
use crate::replicas::Replicas;
use disk::DataDirectory;
use raft::AddressBook;
use rpc::{Channels, Link};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use types::Clock;
use worker::Worker;

/// The time after which a new leader begins, and after which it is looked again what groups that are led here
/// lack.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The means that the root's leader needs to sweep.
#[derive(Clone)]
pub(crate) struct Sweep {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) others: Others,
    pub(crate) scm: Link,
    /// The ways to datanodes.
    pub(crate) nodes: Channels,
    pub(crate) disk: Arc<dyn DataDirectory>,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counts: Arc<SweepCounts>,
    pub(crate) times: Times,
    /// The version of this process's software.
    pub(crate) version: String,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    /// The time for which a container has been closed before it is swept.
    pub(crate) after: Duration,
    /// The time after which a container is swept again. `None`: only those that an operator asks for are
    /// swept.
    pub(crate) every: Option<Duration>,
    /// The age of a fence before anything is decided by it: a group that is reset to before it has lost more
    /// than that.
    pub(crate) behind_fence: Duration,
}

/// Sweeps wherever the root is led from here.
pub(crate) async fn go_on_always(sweep: Sweep) {
    let mut tasks = LedTasks::default();
    loop {
        let root = sweep.replicas.led_root(&sweep.addresses);
        tasks.keep(root.as_slice());
        if let Some(root) = root {
            tasks.begin(&root, (), || Worker::new(sweep.clone(), root.clone()).run());
        }
        sleep(LOOK_EVERY).await;
    }
}
