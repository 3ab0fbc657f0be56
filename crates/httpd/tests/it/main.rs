//! The accept loop on real sockets, with clients that send and read as they should not.
#![allow(clippy::unwrap_used)] // a test that fails may panic

extern crate flotilla_httpd as httpd;

mod bodies;
mod connections;
mod drain;
mod heads;
mod http2;
mod logs;
mod newcomers;
mod server;
mod slow;
mod starved;
