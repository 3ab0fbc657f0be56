//! Datanodes in one process over loopback gRPC, with real disks in temporary directories. SCM is not here:
//! the tests give the orders that a heartbeat would bring, through the same call.

// `allow-unwrap-in-tests` reaches only functions marked as tests, not what they share.
#![allow(clippy::unwrap_used)]

mod cluster;
mod copies;
mod damage;
mod deletion;
mod discards;
mod disks;
mod diverged;
mod ending;
mod forgetting;
mod full_index;
mod in_place;
mod inventory;
mod limits;
mod listing;
mod memory;
mod restart;
mod roll;
mod scm;
mod write_and_read;
