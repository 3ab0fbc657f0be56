//! OM, the object manager: the namespace of buckets, keys and multipart uploads.
//!
//! Everything that changes it is an operation of [`ops`]: prepared on the leader, carried by the group's log,
//! applied on all members to [`tables`]. Everything that only reads is a query of [`queries`], answered by
//! the leader from its own tables once it knows that they are current.
//!
//! Names of buckets are the root's, group 0; what is in a bucket is its group's ([`buckets`]).
//!
//! What names which blocks is in [`blocks`]; what nobody names any more SCM has datanodes give up
//! ([`reclaim`]), and so it does with what nobody ever named ([`sweep`]).
//!
//! The replicas of groups that an OM has are in [`replicas`]. Which it is to have SCM says
//! (docs/adr/0013-scm-places-the-groups-of-names.md), in answer to the [`heartbeat`].

mod address;
mod after_reset;
mod backup;
#[cfg(test)]
mod backup_model;
mod blocks;
mod buckets;
mod change_queue;
mod counted;
mod filed;
mod groups;
mod heartbeat;
mod led_tasks;
mod moves;
mod om;
mod ops;
mod options;
mod others;
mod overlay;
mod queries;
mod reach;
mod reclaim;
mod replica;
mod replicas;
mod rules;
mod service;
mod state_machine;
mod sweep;
mod table_store;
mod tables;
mod taps;
mod unsettled;
mod upgrade;
mod usage;

pub use om::Om;
pub use options::OmOptions;
pub use table_store::TableStore;
pub use tables::{APPLIED_KEY, FORMAT as TABLES_FORMAT};
