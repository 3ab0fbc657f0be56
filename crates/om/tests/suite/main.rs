//! A real OM over loopback.

mod namespace;
mod restart;
mod server;
