//! What everything above relies on, of any [`Disk`]; and a real data directory's stamp and lock.

#![allow(clippy::disallowed_methods)] // tests damage files behind the disk's back
#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

extern crate flotilla_disk as disk;

#[path = "disk/conformance.rs"]
mod conformance;
#[path = "disk/data_directory.rs"]
mod data_directory;
#[path = "disk/simulated.rs"]
mod simulated;
#[path = "disk/timed.rs"]
mod timed;
