//! An instance makes itself known, with a lease of its own: what was decided about an earlier registration
//! does not touch this one.

use super::reply::changed;
use crate::tables::TablesMut;
use proto::registry::{Instance, PutInstanceCommand, RegistryReply};
use proto::{Code, Failure};

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: PutInstanceCommand,
) -> Result<RegistryReply, Failure> {
    let instances_max = command.instances_max;
    let instance = command.instance.ok_or_else(|| Failure::invalid("no instance is given"))?;
    let before = tables.directory().instance(&instance.service, &instance.id);
    let created = before.map(|before| before.create_revision);
    if created.is_none() && tables.directory().instances_count() >= instances_max {
        let message = format!("{instances_max} instances are registered, which is the limit");
        return Err(Failure::new(Code::LimitReached, message));
    }
    let revision = tables.draw_revision();
    tables.put_instance(Instance {
        lease: revision,
        create_revision: created.unwrap_or(revision),
        mod_revision: revision,
        ..instance
    });
    Ok(changed(revision))
}
