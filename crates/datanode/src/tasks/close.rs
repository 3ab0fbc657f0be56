//! Closing a quasi-closed replica, as SCM knows that it is what its container is.

use crate::index::Closing;
use crate::manager::{ContainerManager, blocking};
use anyhow::{Context, bail};
use proto::scm::CloseReplica;
use tracing::info;
use types::{ContainerId, LogId, LogIndex, Term};

pub(super) async fn close_replica(manager: &ContainerManager, order: CloseReplica) -> anyhow::Result<()> {
    let container = ContainerId(order.container);
    let last = LogId { term: Term(order.last_term), index: LogIndex(order.last_index) };
    let replica = manager.disks().inventory.get(container).context("it is not on this node")?;
    let disk = manager.disks().get(replica.disk).context("its disk is not in use")?.clone();
    let index = disk.index.clone();
    match blocking(move || index.close_replica(container, last)).await? {
        Closing::Closed => {
            info!(%container, "closed a replica that was quasi-closed");
            disk.inventory.look_again(disk.id, container);
            Ok(())
        }
        Closing::NotHere => bail!("it is not on this node"),
        Closing::StillOpen => bail!("its pipeline has not ended here"),
        Closing::EndsElsewhere(here) => bail!("it ends with {here:?}, not {last:?}"),
    }
}
