//! Deleting blocks on this replica.

use super::read::{Found, find_container};
use crate::deletion;
use crate::manager::ContainerManager;
use proto::datanode::{DeleteBlocksRequest, DeleteBlocksResponse};
use proto::{Code, Failure, Retry};
use types::ContainerId;

/// Blocks of one request: their records are listed in memory, some forty bytes for each chunk.
const LOCALS_MAX: usize = 16 << 10;

pub(super) async fn delete_blocks(
    manager: &ContainerManager,
    request: DeleteBlocksRequest,
) -> Result<DeleteBlocksResponse, Failure> {
    let DeleteBlocksRequest { container, locals } = request;
    if locals.len() > LOCALS_MAX {
        let message = format!("{} blocks are more than {LOCALS_MAX}, the most of one request", locals.len());
        return Err(Failure::new(Code::TooLarge, message));
    }
    let container = ContainerId(container);
    let found = find_container(manager, container).await?;
    let Some((disk, _)): Option<Found> = found else {
        let message = format!("container {container} is not on this node");
        return Err(Failure { retry: Retry::No, ..Failure::new(Code::NotFound, message) });
    };
    // On a task of its own: a caller that hangs up must not leave a deletion half way.
    let deleting = tokio::spawn(async move { deletion::delete_blocks(&disk, container, locals).await });
    let deleted =
        deleting.await.map_err(|failure| Failure::internal(format!("delete blocks: {failure}")))??;
    Ok(DeleteBlocksResponse { deleted })
}
