//! Replies that several changes of the registry give.

use crate::tables::TablesMut;
use proto::registry::RegistryReply;
use proto::{Code, Failure};

/// The reply that says that one change was made.
pub(super) fn changed(revision: u64) -> RegistryReply {
    RegistryReply { revision, changed: 1, ..RegistryReply::default() }
}

pub(super) fn not_found(what: impl std::fmt::Display) -> Failure {
    Failure::new(Code::NotFound, format!("there is no {what}"))
}

/// Compares before a change: `expected` is the revision at which the key was changed last, 0 for one that
/// does not exist.
pub(super) fn check_mod_revision(
    tables: &TablesMut<'_>,
    key: &str,
    expected: Option<u64>,
) -> Result<(), Failure> {
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
