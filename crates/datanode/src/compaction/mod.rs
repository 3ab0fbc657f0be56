//! Writing a closed container anew without its discarded records: docs/format/compacted.md, ADR 0017.
//!
//! ```text
//! `compacted` says where the segments end that count      a crash: as before
//! live records copied into segments after those, synced   a crash: the next start removes them
//! `compacted` says that the new ones count                 a crash: the next start does the rest
//! rows point to the new places, flushed
//! the old segments go
//! ```
//!
//! The old segments go last: whoever looked a record up before its row changed finds it there, or looks
//! again.

mod rewrite;
mod settle;
mod worker;

pub(crate) use settle::recover;
pub(crate) use worker::{CompactOptions, Compactor};

#[cfg(test)]
mod crash_tests;
#[cfg(test)]
pub(crate) mod tests;
