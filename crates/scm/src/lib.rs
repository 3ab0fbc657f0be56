//! SCM, the storage container manager: knows nodes, pipelines and containers, and decides where pipelines go.
//!
//! Decisions are commands in its Raft log ([`ops`]) and end in [`tables`]. What nodes merely report (being
//! alive, free space, who leads a pipeline) stays in the leader's memory ([`leader`]) and is forgotten with
//! leadership: the next heartbeats bring it back. Timers run on the leader only.

mod admission;
mod adoption;
mod advance;
mod balancer;
mod clock_apart;
mod closing;
mod container_loss;
mod departures;
mod discards;
mod formation;
mod full_disk;
mod leader;
mod leader_moves;
mod leadership;
mod locate;
mod member_view;
mod metrics;
mod nodes;
mod om_groups;
#[cfg(test)]
mod om_groups_model_tests;
#[cfg(test)]
mod om_groups_tests;
mod om_leaders;
mod om_orders;
mod om_view;
mod oms;
mod ops;
mod options;
mod pipelines;
mod placement;
mod planners;
mod quality;
mod racks;
mod registry;
mod replicas;
mod replication;
mod resolution;
#[cfg(test)]
mod resolution_model_tests;
mod rolls;
mod safe_mode;
mod scm;
mod seat;
mod service;
mod state_machine;
mod tables;
mod twins;
mod view;
mod watch;
mod world;

pub use options::ScmOptions;
pub use scm::Scm;
pub use tables::APPLIED_KEY;
