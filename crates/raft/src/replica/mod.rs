//! How a replica comes and goes: what its disk says of it, its first start, its removal, and the reset that
//! is left when a majority is lost.

pub(crate) mod beginning;
pub(crate) mod begun_reset;
pub(crate) mod identity;
pub(crate) mod removal;
pub(crate) mod reset;
