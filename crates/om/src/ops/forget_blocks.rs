//! Unused blocks go out of the tables: no replica has them any more. So do those that some row names: when
//! the row names them no more they are filed again.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks::{BlockKey, IN_CONTAINER_BYTES, NamingRows};
use crate::tables::{Read, Refusal};
use proto::Failure;
use proto::om::{ForgetBlocksCommand, ForgetBlocksReply, UnusedBlock};

pub(crate) struct ForgetBlocks;

impl Operation for ForgetBlocks {
    type Request = ForgetBlocksCommand;
    type Command = ForgetBlocksCommand;
    type Response = ForgetBlocksReply;
    wire!(ForgetBlocks);

    fn prepare(request: ForgetBlocksCommand, _: Fresh) -> Result<ForgetBlocksCommand, Failure> {
        Ok(request)
    }

    /// A block that is not filed was forgotten before; no row can name one that is ([`Apply::check_takes`]).
    fn apply(apply: &mut Apply<'_, '_>, command: ForgetBlocksCommand) -> Result<ForgetBlocksReply, Refusal> {
        for block in blocks(command.container, &command.gone) {
            forget(apply, &block)?;
        }
        let mut rows = NamingRows::default();
        for block in blocks(command.container, &command.named) {
            if rows.name(apply.tables, &block)? && forget(apply, &block)? {
                apply.filed.still_named();
            }
        }
        Ok(ForgetBlocksReply {})
    }
}

fn blocks(container: u64, rests: &[u8]) -> impl Iterator<Item = BlockKey> {
    let (rests, _) = rests.as_chunks::<IN_CONTAINER_BYTES>();
    rests.iter().map(move |rest| BlockKey::in_container(container, rest))
}

/// Forgets an unused block, and answers whether it was there.
fn forget(apply: &mut Apply<'_, '_>, block: &BlockKey) -> anyhow::Result<bool> {
    let key = block.unused_key();
    let Some(UnusedBlock { bytes, .. }) = apply.tables.message(&key)? else { return Ok(false) };
    apply.tables.delete(key);
    apply.filed.forget(bytes);
    Ok(true)
}
