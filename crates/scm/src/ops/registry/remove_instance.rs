//! An instance leaves, or is given up. An instance that has registered again since is not the one that was
//! given up, and stays.

use super::reply::{changed, not_found};
use crate::tables::TablesMut;
use proto::Failure;
use proto::registry::{RegistryReply, RemoveInstanceCommand};

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: RemoveInstanceCommand,
) -> Result<RegistryReply, Failure> {
    let RemoveInstanceCommand { name, lease, expired } = command;
    let name = name.unwrap_or_default();
    let found = tables.directory().instance(&name.service, &name.id);
    if !found.is_some_and(|instance| lease == 0 || instance.lease == lease) {
        return Err(not_found(format_args!("instance {} of {}", name.id, name.service)));
    }
    Ok(changed(tables.remove_instance(name, expired)))
}
