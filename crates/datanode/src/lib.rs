//! Pipelines and containers: where the bytes live.
//!
//! A datanode owns disks. A disk carries pipelines (Raft groups of three datanodes), whose logs are the
//! containers; its RocksDB holds the index `block → places in the log`, a cache that applying the log fills.
//! The write path is `service/write.rs` → [`raft::Group::propose`] → `index/machine.rs`; the read path is
//! `service/read.rs`. SCM tells a node which pipelines to carry (`heartbeat.rs`, `orders/`), which it opens
//! and remembers in `opening.rs`.
//!
//! Who imports whom, from the top:
//!
//! ```text
//! node                                       puts the parts together, and is what others ask
//! upkeep, heartbeat, orders, service         what disks need, what SCM wants, what clients ask
//! opening, ending                            a pipeline's replica comes and goes
//! roll, forgetting, retired                  work on a pipeline
//! import, compaction, scrub, hasher, deletion, repeats   work on containers
//! pipelines, pipeline                        the replicas of pipelines that are here
//! disks, datanode_disk, container_reader     the disks, one of them, the records of its containers
//! index, inventory                           where blocks are, what SCM is told of containers
//! layout, options, blocking, workers, hash   import nothing of this crate
//! ```

mod blocking;
mod compaction;
mod container_end;
mod container_reader;
mod copies;
mod counters;
mod datanode_disk;
mod deleted_lately;
mod deletion;
mod disks;
mod ending;
mod exposed;
mod forgetting;
mod hash;
mod hasher;
mod health;
mod heartbeat;
mod import;
mod index;
mod index_age;
mod inventory;
mod known_space;
mod layout;
mod node;
pub mod offline;
mod opening;
mod options;
mod orders;
mod pipeline;
mod pipelines;
mod repeats;
mod retired;
mod roll;
mod scm;
mod scrub;
mod service;
mod spec_file;
mod under_way;
mod upkeep;
mod verdict;
mod workers;

pub use copies::CopyStats;
pub use counters::{ContainerReport, DiskStats};
pub use node::Datanode;
pub use options::DatanodeOptions;
pub use pipeline::{PipelineError, PipelineOrder};
pub use roll::ContainerAllocator;
