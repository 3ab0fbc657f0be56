//! The parts that simulations of whole clusters share: the real services as processes of a
//! [`World`](crate::world::World), their disks and databases, the way to SCM, one life of a cluster from a
//! seed, and many of them.

mod clock;
mod directories;
mod disks;
mod life;
pub(crate) mod logs;
mod memory_db;
mod om_process;
mod scm_calls;
mod scm_process;

pub(crate) use clock::Ahead;
pub(crate) use directories::empty_directory;
pub(crate) use disks::{CAPACITY_BYTES, quick_disk, random_disk};
pub use life::{Finished, Violation};
pub(crate) use life::{Life, live};
pub(crate) use memory_db::{MemoryStore, MemoryTables};
pub(crate) use om_process::OmProcess;
pub(crate) use scm_calls::{ScmCalls, cluster_named};
pub(crate) use scm_process::ScmProcess;
