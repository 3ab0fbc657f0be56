//! OM, the object manager: the namespace of buckets, keys and multipart uploads.
//!
//! Everything that changes it is an operation of [`ops`]: prepared on the leader, carried by the group's log,
//! applied on all members to [`tables`]. Everything that only reads is a query of [`queries`], answered by
//! the leader from its own tables once it knows that they are current.

mod counted;
mod founding;
mod om;
mod ops;
mod options;
mod overlay;
mod queries;
mod rules;
mod service;
mod state_machine;
mod tables;
mod upgrade;
mod usage;

pub use om::Om;
pub use options::OmOptions;
pub use tables::APPLIED_KEY;
