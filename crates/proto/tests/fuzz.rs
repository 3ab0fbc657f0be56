//! Messages that nobody of ours sends, to each method of gRPC: none may panic, and none may become more in
//! memory than its limits come to. A binary of its own, so that `./dev fuzz` builds and runs nothing else.

#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

#[path = "fuzz/allocation.rs"]
mod allocation;
#[path = "fuzz/campaign.rs"]
mod campaign;
#[path = "fuzz/message.rs"]
mod message;
