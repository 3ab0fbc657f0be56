//! Messages that nobody of ours sends, to the handlers of each gRPC method of a real process: nothing may end
//! it, take its memory, or stop it from serving. A binary of its own, so that `./dev fuzz` builds and runs
//! nothing else.

// The tests touch files and clocks of their own, outside of any server, and may panic in helpers too.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod batch;
mod campaign;
mod examples;
mod house;
mod known;
mod learn;
mod message;
mod methods;
mod planted;
mod processes;
mod random;
mod reach;
#[path = "../processes/s3.rs"]
#[allow(dead_code)] // what other tests ask S3 for
mod s3;
mod shown;
mod values;
mod watch;
mod wire;

/// The binary under test.
fn binary() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_BIN_EXE_flotilla"))
}
