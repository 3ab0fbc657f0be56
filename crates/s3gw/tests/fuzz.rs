//! Requests that no client of S3 sends: none may panic, hang, take more memory than its bytes come to, pass
//! for a request that somebody else signed, or have its body read where nobody signed it. A binary of its
//! own, so that `./dev fuzz` builds and runs nothing else.

#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

// The same counting as there; a crate for it would be one more.
#[path = "../../proto/tests/fuzz/allocation.rs"]
mod allocation;
#[path = "fuzz/campaign.rs"]
mod campaign;
#[path = "fuzz/chunks.rs"]
mod chunks;
#[path = "fuzz/form.rs"]
mod form;
#[path = "fuzz/planted.rs"]
mod planted;
#[path = "fuzz/random.rs"]
mod random;
#[path = "fuzz/range.rs"]
mod range;
#[path = "fuzz/request.rs"]
mod request;
#[path = "fuzz/signature.rs"]
mod signature;
#[path = "fuzz/wire.rs"]
mod wire;
#[path = "fuzz/xml.rs"]
mod xml;
