//! Messages between members: one service for all groups of a process, and one connection to each other
//! process.

pub(crate) mod append_check;
pub(crate) mod appends;
pub(crate) mod elections;
pub(crate) mod exchange;
pub(crate) mod network;
pub(crate) mod other_history;
pub(crate) mod processes;
pub(crate) mod protocol;
pub(crate) mod refusal;
pub(crate) mod service;
mod taker;
