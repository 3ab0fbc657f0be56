//! What is deleted, on a whole cluster of real processes, and how soon its disks have it back.

mod cluster;
mod compacted;
mod deleted;
mod overwritten;
mod plan;
mod room;

pub use plan::Plan;

use serde_json::Value;

/// A part of the bench, with a cluster of its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// Nine tenths of small and larger objects are deleted, which lie side by side in their containers.
    Deleted,
    /// The small objects are written ten times more.
    Overwritten,
    /// Two of three small objects are deleted, and their containers written anew, while others read and write
    /// and while nobody does.
    Compacted,
}

impl Part {
    pub const ALL: [Part; 3] = [Part::Deleted, Part::Overwritten, Part::Compacted];

    pub fn name(self) -> &'static str {
        match self {
            Part::Deleted => "deleted",
            Part::Overwritten => "overwritten",
            Part::Compacted => "compacted",
        }
    }

    pub fn run(self, plan: &Plan) -> anyhow::Result<Value> {
        match self {
            Part::Deleted => deleted::run(plan),
            Part::Overwritten => overwritten::run(plan),
            Part::Compacted => compacted::run(plan),
        }
    }
}
