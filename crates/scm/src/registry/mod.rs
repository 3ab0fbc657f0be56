//! The registry: who runs where and how they are, and a small key-value space beside it (docs/registry.md).
//!
//! The registry's instances and keys are in SCM's tables ([`directory`]); each change of an instance or a key
//! is one revision. The last few thousand changes are in every member's memory ([`feed`]), where watches and
//! long polls find them. Leases are the leader's ([`leases`]): renewing one costs no log entry, but a
//! confirmation that the leader still leads ([`confirmation`]); letting one end costs an entry ([`expiry`]).

mod confirmation;
mod datanodes;
mod directory;
mod expiry;
mod feed;
mod health;
mod instances;
mod keys;
mod leases;
#[cfg(test)]
mod leases_model_tests;
mod limits;
mod metrics;
mod reading;
mod service;
mod watch;

pub(crate) use confirmation::{Confirmations, confirm_leadership};
pub(crate) use datanodes::follow_datanodes;
pub(crate) use directory::Directory;
pub(crate) use expiry::expire_leases;
pub(crate) use feed::Feed;
pub(crate) use health::apart_clock;
pub(crate) use leases::Leases;
pub(crate) use metrics::expose;
pub(crate) use service::RegistryService;
