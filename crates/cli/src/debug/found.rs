//! The words of `flotilla debug`: what it prints, and what that comes to.

use crate::output;
use anyhow::Context;

/// The outcome of looking; the worst of several counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found {
    Whole = 0,
    Damaged = 1,
    NotSeen = 2,
}

impl Found {
    pub(super) fn damaged(is_damaged: bool) -> Found {
        if is_damaged { Found::Damaged } else { Found::Whole }
    }
}

pub(super) fn print(text: &str) -> anyhow::Result<()> {
    output::print(text).context("write to standard output")
}
