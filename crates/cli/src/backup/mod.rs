//! A backup of all names, as it stands in a directory: docs/format/om-backup.md. `manifest` says what belongs
//! to it, and makes it count; `parts` is the file of one group; `directory` is all of it, and `files` what
//! touches it.

mod directory;
mod files;
mod manifest;
mod parts;

pub(crate) use directory::BackupDir;
pub(crate) use manifest::{BackupId, GroupBackup, Manifest};
