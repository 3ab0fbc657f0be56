//! The way of fences to groups that lack some, since they were reset or restored: until they have all again
//! they take no block that they do not name. Their leader asks for them; the root's makes its own anew.

use super::root::Root;
use super::{LOOK_EVERY, Sweep};
use crate::ops::{FENCED_AT_ONCE, FenceContainers};
use crate::replica::Replica;
use crate::tables::{ROOT, fences, runs_before};
use proto::Failure;
use proto::om::{BringFencesRequest, FenceContainersRequest};
use proto::scm::ContainerState;
use std::sync::Arc;
use tokio::time::sleep;
use tracing::{debug, info};

/// Gets the fences that groups lack, wherever one is led from here.
pub(crate) async fn complete_always(sweep: Sweep) {
    loop {
        for replica in sweep.replicas.led(&sweep.addresses).filter(|replica| lacks_fences(replica)) {
            let group = replica.group.id().number;
            match sweep.complete(replica).await {
                Ok(()) => info!(group, "has all fences again since it was reset or restored"),
                Err(failure) => debug!(group, %failure, "get the fences that a group lacks"),
            }
        }
        sleep(LOOK_EVERY).await;
    }
}

fn lacks_fences(replica: &Replica) -> bool {
    fences(&*replica.dbs.current()).is_ok_and(|fences| fences.lacks)
}

impl Sweep {
    async fn complete(&self, replica: Arc<Replica>) -> Result<(), Failure> {
        let group = replica.group.id().number;
        if group == ROOT {
            let root = Root { replica, others: self.others.clone(), clock: self.clock.clone() };
            return self.complete_root(&root).await;
        }
        let bring = BringFencesRequest { group };
        self.others
            .ask(ROOT, bring, |mut om, bring| async move { om.bring_fences(bring).await })
            .await
            .map(drop)
    }

    /// Has the root fence anew every container that is not open: nobody knows which fences it has lost, but
    /// nothing is fenced before it is closed.
    async fn complete_root(&self, root: &Root) -> Result<(), Failure> {
        let history = root.read(runs_before).await?;
        let mut after = 0;
        loop {
            let (containers, more) = self.containers(after, None).await?;
            let closed = containers.iter().filter(|info| info.state() != ContainerState::ContainerOpen);
            let closed: Vec<u64> = closed.map(|info| info.container).collect();
            for some in closed.chunks(FENCED_AT_ONCE) {
                root.fence(some, 0).await?;
            }
            match containers.last().filter(|_| more) {
                Some(last) => after = last.container,
                None => break,
            }
        }
        let complete_to = u64::MAX;
        let complete = FenceContainersRequest { group: ROOT, complete_to, history, ..Default::default() };
        root.change::<FenceContainers>(complete).await.map(drop)
    }
}
