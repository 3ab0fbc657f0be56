//! A bug of openraft's default settings that simulations plant, to see that they would find it: docs/adr/0002.

use std::cell::Cell;

thread_local! {
    static RESTORES_LEADERS: Cell<bool> = const { Cell::new(false) };
}

/// Whether groups that are opened on this thread from here on lead again after a restart without being elected. They lose
/// acknowledged commands: only for simulations, each of which runs on one thread.
pub fn plant_leader_restore(is_planted: bool) {
    RESTORES_LEADERS.set(is_planted);
}

pub(crate) fn restores_leaders() -> bool {
    RESTORES_LEADERS.get()
}
