//! The adapter gives openraft what it works with: its types, their look on disk and on the wire, its runtime,
//! and our state machines behind its own interface. What works around openraft is listed in docs/openraft.md.

pub(crate) mod alive;
pub(crate) mod config;
pub(crate) mod encoding;
mod ids;
pub(crate) mod machine;
pub(crate) mod queue;
mod ride;
pub(crate) mod runtime;
pub(crate) mod terms;
pub(crate) mod type_config;
pub(crate) mod watch;
