//! Bugs that simulations plant, to see that they would find them. Only for simulations, each of which runs on one thread.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Planted {
    /// What ended without a leader is marked as CLOSED.
    QuasiClosedIsClosed,
    /// A copy is taken in without a look at its records.
    ImportsUnverified,
}

thread_local! {
    static PLANTED: Cell<Option<Planted>> = const { Cell::new(None) };
}

/// What datanodes on this thread do wrong from here on.
pub fn plant(planted: Option<Planted>) {
    PLANTED.set(planted);
}

pub(crate) fn has(planted: Planted) -> bool {
    PLANTED.get() == Some(planted)
}
