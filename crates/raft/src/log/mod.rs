//! A group's log as openraft has it, what it forgets, and what can be read of it without a group.

pub(crate) mod forgetting;
pub(crate) mod log_store;
pub(crate) mod replay;
pub(crate) mod room_wait;
pub(crate) mod unserved;
