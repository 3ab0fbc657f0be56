//! Deleting blocks on this replica.

use super::Served;
use crate::deletion;
use proto::datanode::{DeleteBlocksRequest, DeleteBlocksResponse};
use proto::{Code, Failure, Retry};
use types::ContainerId;

/// Blocks of one request: their records are listed in memory, some forty bytes for each chunk.
const LOCALS_MAX: usize = 16 << 10;

pub(super) async fn delete_blocks(
    served: &Served,
    request: DeleteBlocksRequest,
) -> Result<DeleteBlocksResponse, Failure> {
    let DeleteBlocksRequest { container, locals } = request;
    if locals.len() > LOCALS_MAX {
        let message = format!("{} blocks are more than {LOCALS_MAX}, the most of one request", locals.len());
        return Err(Failure::new(Code::TooLarge, message));
    }
    let container = ContainerId(container);
    let Some((disk, _)) = served.find_container(container).await? else {
        let message = format!("container {container} is not on this node");
        return Err(Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) });
    };
    // A log without its bodies cannot bring a member up to date, and an elected leader that looks for the end
    // of its followers' logs reads its own: it would find a hole and stop.
    let record = disk.index.with(move |index| index.container(container)).await;
    let record = record.map_err(|failure| Failure::internal(format!("{failure:#}")))?;
    if record.is_some_and(|record| !served.pipelines.has_released(&record)) {
        let message = format!("a log still has the blocks of container {container}");
        return Err(Failure { retry: Retry::Here, ..Failure::new(Code::NotYet, message) });
    }
    Ok(DeleteBlocksResponse { deleted: deletion::delete_blocks(&served.disks, container, locals).await? })
}
