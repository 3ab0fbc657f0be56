//! Calls in frames of our own: what HTTP/2 does for gRPC, with less. docs/format/frames.md has the bytes,
//! [ADR 0019](../../../docs/adr/0019-frames-of-our-own.md) why.
//!
//! A connection carries calls side by side. Each is an HTTP request and its response, whose bodies come in
//! frames of data; services and their clients know nothing of what is below them. [`FrameLink`] is a client's
//! way to an address,
//! [`serve`] answers one connection.

mod body;
mod client;
mod counts;
mod ends;
mod flow;
mod head;
mod headers;
mod queue;
mod reader;
mod resets;
mod server;
#[cfg(test)]
mod tests;
mod wire;
mod writer;

pub(crate) use client::FrameLink;
pub use client::NotConnected;
pub use counts::{CloseReason, FrameCounts};
pub(crate) use head::FIRST_BYTE;
pub(crate) use server::serve;
pub use writer::NOTHING_TAKEN_MAX;
