//! Replicas come and go: what a disk says of one, its first start, its removal, and the reset that is left
//! when a majority is lost.

pub(crate) mod beginning;
pub(crate) mod begun_reset;
pub(crate) mod identity;
pub(crate) mod record;
pub(crate) mod removal;
pub(crate) mod reset;
