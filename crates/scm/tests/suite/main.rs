//! A real SCM over loopback, with datanodes that only register and report.

mod datanodes;
mod placement;
mod restart;
mod server;
mod watch;
