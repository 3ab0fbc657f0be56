//! The namespace under faults, from a seed: the real OMs and SCM on simulated machines, several groups of
//! names, and many clients on few keys.
//!
//! A run: machines and settings as [`plan`] chose them. [`callers`] make buckets, delete them, make them
//! again, put keys (with conditions too), read, list and delete them, by the client crate, whose calls
//! [`lossy`] loses and delays, while
//! [`movers`] move the buckets about and [`faults`] befall OMs, SCM and the network. Each bucket's history
//! must be one that could have happened ([`histories`]). Then there are no faults, and within a bound every
//! move has ended, all members of a group are the same to the byte, and what groups have is what the root
//! says of them ([`ending`]).

mod callers;
mod counts;
mod ending;
mod faults;
mod histories;
mod lossy;
mod movers;
mod plan;
mod planted;
mod record;
mod rows;
mod run;
mod troubles;
mod view;

pub use counts::Counts;
pub use planted::Planted;
pub use run::{Options, run};
