//! A real OM over loopback.

#![allow(clippy::unwrap_used)] // all of this is tests

mod namespace;
mod restart;
mod server;
