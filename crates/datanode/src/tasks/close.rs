//! Closing a quasi-closed replica, once SCM has said where its container ends.

use crate::blocking::blocking;
use crate::container_end::ContainerEnd;
use crate::disks::Disks;
use crate::index::records::ContainerState;
use proto::{Code, Failure, Retry};
use std::sync::Arc;
use types::{ContainerId, LogId};

/// Makes a quasi-closed replica CLOSED if its last record is what SCM says the container ends with.
pub(crate) async fn close_replica(
    disks: &Arc<Disks>,
    container: ContainerId,
    last: Option<LogId>,
) -> Result<(), Failure> {
    let finder = disks.clone();
    let found = blocking(move || {
        let Some((disk, _)) = finder.holding(container)? else { return Ok(None) };
        Ok(disk.index.container(container)?.map(|record| (disk.clone(), record)))
    });
    let broken = |failure: anyhow::Error| Failure::internal(format!("{failure:#}"));
    let Some((disk, record)) = found.await.map_err(broken)? else {
        let message = format!("container {container} is not on this node");
        return Err(Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) });
    };
    match record.state {
        ContainerState::Closed => return Ok(()),
        ContainerState::QuasiClosed | ContainerState::WithoutLog if record.last == last => {}
        ContainerState::QuasiClosed | ContainerState::WithoutLog => {
            let message = format!("container {container} ends at {:?} here, not at {last:?}", record.last);
            return Err(Failure::invalid(message));
        }
        ContainerState::Open => {
            let message = format!("container {container} is open here");
            return Err(Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) });
        }
    }
    // The file first: the index may be lost, and is made after it.
    let end = ContainerEnd::closed(last);
    end.write(&**disk.space.disk(), container).await.map_err(broken)?;
    let closed = disk.clone();
    let marked = blocking(move || {
        closed.index.set_end(container, end)?;
        closed.index.flush()
    });
    marked.await.map_err(broken)?;
    disk.inventory.look_again(disk.id, container);
    Ok(())
}
