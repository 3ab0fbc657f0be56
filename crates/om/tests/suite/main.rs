//! A real OM over loopback.

#![allow(clippy::unwrap_used)] // all of this is tests

mod lost_answers;
mod namespace;
mod restart;
mod server;
