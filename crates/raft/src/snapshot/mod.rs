//! Snapshots of a group's state: written beside the log, sent to members that the log can no longer serve,
//! installed.
//!
//! `contract` is what a state machine gives. `manifest` names a snapshot's files, `stored` is one on a disk
//! and `store` keeps a group's; `keeper` decides when one is due and purges the log behind it. `sender` and
//! `receiver` are the two ends of a transfer, which an offer begins (`offers`), and whose state on the
//! receiver's disk is `reception`; `agreement` is what the receiver checks of an offer; `limits` is what all
//! transfers of a host share, `counters` what is known of a group's.

mod agreement;
mod contract;
mod counters;
#[cfg(test)]
mod crash_tests;
mod keeper;
mod limits;
mod manifest;
mod offers;
mod policy;
mod receiver;
mod reception;
mod sender;
mod store;
mod stored;
#[cfg(test)]
pub(crate) mod testing;

pub use contract::Snapshots;
pub use counters::{SendProgress, SnapshotProgress};
pub use policy::SnapshotPolicy;

pub(crate) use counters::Counters;
pub(crate) use keeper::{forgettable_to, keep, until};
pub(crate) use limits::Limits;
pub(crate) use offers::take_offer;
pub(crate) use sender::{Transfer, send, streaming};
pub(crate) use store::{ROOT, SnapshotStore, newest_applied, root};
pub(crate) use stored::SnapshotData;
