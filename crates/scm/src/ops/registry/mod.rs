//! Changes of the registry. One that cannot be made changes nothing, and its reply says why with a code.

mod delete_keys;
mod expire_keys;
#[cfg(test)]
mod model_tests;
mod put_instance;
mod put_key;
mod remove_instance;
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
        // Its leader has led again since, and was not told yet that another did in between.
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

/// One change was made.
fn changed(revision: u64) -> RegistryReply {
    RegistryReply { revision, changed: 1, ..RegistryReply::default() }
}

fn not_found(what: impl std::fmt::Display) -> Failure {
    Failure::new(Code::NotFound, format!("there is no {what}"))
}

/// Compares before a change: `expected` is the revision at which the key was changed last, 0 for one that does not exist.
fn check_mod_revision(tables: &TablesMut<'_>, key: &str, expected: Option<u64>) -> Result<(), Failure> {
    let found = tables.directory().key(key).map_or(0, |entry| entry.mod_revision);
    match expected {
        Some(expected) if expected != found => {
            let message = match found {
                0 => format!("key `{key}` does not exist"),
                _ => format!("key `{key}` is at revision {found}, not {expected}"),
            };
            Err(Failure::new(Code::PreconditionFailed, message))
        }
        _ => Ok(()),
    }
}
