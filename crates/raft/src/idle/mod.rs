//! Groups that nobody uses cost little: their heartbeats go together, and those that doze need none.

pub(crate) mod doze;
pub(crate) mod heartbeats;
