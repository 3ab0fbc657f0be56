//! The names of what a datanode has on its disks: docs/format/data-directory.md.

use types::{ContainerId, OwnerId, PipelineId};

/// The directory with a directory for each container.
pub(crate) const OWNERS_DIR: &str = "containers";
/// The directory with a directory for each log.
pub(crate) const GROUPS_DIR: &str = "groups";
/// The directory with the copies of containers that are not finished.
pub(crate) const INCOMING_DIR: &str = "incoming";
/// The directory of the index.
pub(crate) const DB_DIR: &str = "db";

/// The directory of what was put aside when an index was rebuilt: containers of which no record is left.
pub(crate) const LOST_DIR: &str = "lost";

pub(crate) fn container_dir(container: ContainerId) -> String {
    format!("{OWNERS_DIR}/{:016x}", OwnerId::from(container).0)
}

/// The directory that becomes [`container_dir`] once the copy is whole.
pub(crate) fn incoming_dir(container: ContainerId) -> String {
    format!("{INCOMING_DIR}/{:016x}", OwnerId::from(container).0)
}

/// The pipeline of a directory in [`GROUPS_DIR`].
pub(crate) fn pipeline_of(name: &str) -> Option<PipelineId> {
    name.strip_prefix("pipeline-")?.parse().ok().map(PipelineId)
}
