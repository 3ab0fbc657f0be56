//! Changes of the registry. A change that cannot be made changes nothing, and its reply says why with a code.

mod delete_keys;
mod expire_keys;
#[cfg(test)]
mod model_tests;
mod put_instance;
mod put_key;
mod remove_instance;
mod reply;
mod set_checks;

use crate::tables::TablesMut;
use proto::registry::registry_command::Command;
use proto::registry::{RegistryCommand, RegistryReply};
use proto::scm::ScmReply;
use proto::{Code, Failure};
use types::Term;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: RegistryCommand, term: Term) -> ScmReply {
    let is_outlived = command.only_in_term != 0 && command.only_in_term != term.0;
    let result = match command.command {
        // The leader that decided the change leads again, in another term, and was not told yet that another
        // did in between.
        Some(_) if is_outlived => {
            Err(Failure::new(Code::PreconditionFailed, "decided by a leader of another term"))
        }
        Some(Command::PutInstance(command)) => put_instance::apply(tables, command),
        Some(Command::SetChecks(command)) => set_checks::apply(tables, command),
        Some(Command::RemoveInstance(command)) => remove_instance::apply(tables, command),
        Some(Command::PutKey(command)) => put_key::apply(tables, command),
        Some(Command::DeleteKeys(command)) => delete_keys::apply(tables, command),
        Some(Command::ExpireKeys(command)) => Ok(expire_keys::apply(tables, command)),
        None => Err(Failure::new(Code::NewerVersion, "the registry's command is unknown")),
    };
    let refused =
        |failure: Failure| RegistryReply { refused: Some(failure.into()), ..RegistryReply::default() };
    ScmReply { registry: Some(result.unwrap_or_else(refused)), ..ScmReply::default() }
}
