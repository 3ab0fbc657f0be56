//! A real OM over loopback.

#![allow(clippy::unwrap_used)] // all of this is tests

mod lost_answers;
mod members;
mod namespace;
mod other_groups;
mod restart;
mod scripted_scm;
mod server;
mod strangers;
mod unused;
