//! The library that `./dev` builds from RocksDB's sources, held to what the bindings promise. Every function
//! is named here, so a program that links this crate needs all of them: a source that is missing from the
//! library ends the build with its name.

/// Each function of RocksDB's C interface that the bindings declare, and its address.
pub fn functions() -> Vec<(&'static str, *const ())> {
    include!(concat!(env!("OUT_DIR"), "/functions.rs"))
}
