//! A bug that simulations plant, to see that they would find it. Only for simulations, each of which runs on one thread.

use std::cell::Cell;

thread_local! {
    static COPIES_COUNT_EARLY: Cell<bool> = const { Cell::new(false) };
}

/// Whether SCM on this thread takes replicas for good ones while they are being copied.
pub fn plant_copies_count_early(is_planted: bool) {
    COPIES_COUNT_EARLY.set(is_planted);
}

pub(crate) fn copies_count_early() -> bool {
    COPIES_COUNT_EARLY.get()
}
