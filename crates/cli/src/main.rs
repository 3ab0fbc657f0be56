//! The `flotilla` binary.
fn main() {}
