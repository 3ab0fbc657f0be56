//! Closing a quasi-closed replica, once SCM has said where its container ends.

use crate::blocking::blocking;
use crate::container_end::ContainerEnd;
use crate::datanode_disk::DatanodeDisk;
use crate::disks::Disks;
use crate::index::records::ReplicaState;
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
    let found = blocking(move || Ok(finder.told_of(container)?.cloned()));
    let Some(disk) = found.await.map_err(broken)? else { return Err(not_here(container)) };
    close_on(&disk, container, last).await
}

/// Closes the replica of this disk. **Not to be dropped**: that would let go of the lock, and the writing of
/// the file would go on.
pub(crate) async fn close_on(
    disk: &DatanodeDisk,
    container: ContainerId,
    last: Option<LogId>,
) -> Result<(), Failure> {
    let _ending = disk.ending.lock().await;
    let record = disk.index.with(move |index| index.container(container)).await.map_err(broken)?;
    let record = record.ok_or_else(|| not_here(container))?;
    match record.state {
        ReplicaState::Closed => return Ok(()),
        ReplicaState::QuasiClosed | ReplicaState::WithoutLog if record.last == last => {}
        ReplicaState::QuasiClosed | ReplicaState::WithoutLog => {
            let message = format!("container {container} ends at {:?} here, not at {last:?}", record.last);
            return Err(Failure::invalid(message));
        }
        ReplicaState::Open => {
            let message = format!("container {container} is open here");
            return Err(Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) });
        }
    }
    // The file first: the index may be lost, and is made after it.
    let end = ContainerEnd::closed(last);
    end.write(&**disk.space.disk(), container).await.map_err(broken)?;
    let marked = disk.index.with(move |index| {
        index.set_end(container, end)?;
        index.flush()
    });
    marked.await.map_err(broken)?;
    disk.inventory.look_again(disk.id, container);
    Ok(())
}

fn broken(failure: anyhow::Error) -> Failure {
    Failure::internal(format!("{failure:#}"))
}

fn not_here(container: ContainerId) -> Failure {
    let message = format!("container {container} is not on this node");
    Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) }
}
