//! The checks of an instance change.

use super::reply::{changed, not_found};
use crate::tables::TablesMut;
use proto::Failure;
use proto::registry::{Instance, RegistryReply, SetChecksCommand};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: SetChecksCommand) -> Result<RegistryReply, Failure> {
    let SetChecksCommand { name, lease, checks } = command;
    let name = name.unwrap_or_default();
    let before = tables.directory().instance(&name.service, &name.id);
    let before = before.filter(|before| before.lease == lease).cloned();
    let before = before.ok_or_else(|| {
        not_found(format_args!("instance {} of {} with lease {lease}", name.id, name.service))
    })?;
    if before.checks == checks {
        return Ok(RegistryReply::default());
    }
    let revision = tables.draw_revision();
    tables.put_instance(Instance { checks, mod_revision: revision, ..before });
    Ok(changed(revision))
}
