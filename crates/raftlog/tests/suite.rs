//! The log engine on a real data directory.

extern crate flotilla_raftlog as raftlog;

#[path = "suite/append.rs"]
mod append;
#[path = "suite/support.rs"]
mod support;
