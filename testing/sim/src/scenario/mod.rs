//! Clusters of Raft groups under faults, from a seed.
//!
//! A run: machines, groups and clients as [`plan`] chose them; faults for some seconds; then none, and every
//! group must elect, take a write and bring all its members up to date within a bound that follows from the
//! settings. All the while [`oracle`] checks what it sees on the wire ([`wire`]), of state machines
//! ([`watched`]), in logs and of clients.

mod client;
mod counts;
mod ending;
mod faults;
mod node;
mod operator;
mod oracle;
#[cfg(test)]
mod oracle_tests;
mod plan;
mod planted;
mod run;
mod seats;
mod watched;
mod wire;

pub use counts::Counts;
pub(crate) use counts::counts;
pub(crate) use faults::{Links, below_one_of, random_crash, random_link};
pub use planted::Planted;
pub use run::{Options, run};
