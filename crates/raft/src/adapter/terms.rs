//! Terms that can have come about. A replica that took any number for a term could be told the last one there
//! is: nobody is elected after it, and what is promised is never taken back. So no term goes to openraft or
//! to the disk before it was asked for here.
//!
//! The limit is the same for all members whatever they have heard, so that a member that was away, joins, or
//! was lied to is never too far from the others to meet them: a limit on steps would leave two of them apart
//! for good, once a stranger had led one up the stairs. It grows faster than terms do: who is told the
//! highest term that passes finds the next one free a millisecond later.

use types::{Clock, Term};

/// The highest term that passes whatever the clock says, so that none that came about by elections depends on
/// it: one election each second for 136 years.
const TERM_ALWAYS_MAX: u64 = 1 << 32;
/// The time by which a clock may have been set back since a disk was written.
const SET_BACK_MAX_MS: u64 = 24 * 60 * 60 * 1000;

/// A term that elections cannot have come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("term {term} cannot have come about: by the clock here the highest is {limit}")]
pub(crate) struct TermTooHigh {
    pub(crate) term: u64,
    pub(crate) limit: u64,
}

/// The highest term that can have come about at some time: by one election each millisecond since 1970.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TermLimit(u64);

impl TermLimit {
    pub(crate) fn at(now_ms: u64) -> TermLimit {
        TermLimit(now_ms.max(TERM_ALWAYS_MAX))
    }

    /// The limit for what others say: that of now.
    pub(crate) fn now(clock: &dyn Clock) -> TermLimit {
        TermLimit::at(clock.now_ms())
    }

    /// The limit for what this replica wrote down itself, by a clock that may have been set back since.
    pub(crate) fn stored(clock: &dyn Clock) -> TermLimit {
        TermLimit::at(clock.now_ms().saturating_add(SET_BACK_MAX_MS))
    }

    pub(crate) fn check(self, term: u64) -> Result<(), TermTooHigh> {
        if term > self.0 { Err(TermTooHigh { term, limit: self.0 }) } else { Ok(()) }
    }

    pub(crate) fn allows(self, term: Term) -> bool {
        self.check(term.0).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use types::ManualClock;

    #[test]
    fn a_term_is_free_a_millisecond_after_the_highest_that_passed() {
        let clock = ManualClock::at_ms(1_800_000_000_000);
        let highest = 1_800_000_000_000;
        assert_eq!(TermLimit::now(&clock).check(highest), Ok(()));
        let refused = TermTooHigh { term: highest + 1, limit: highest };
        assert_eq!(TermLimit::now(&clock).check(highest + 1), Err(refused));
        clock.advance(Duration::from_millis(1));
        assert_eq!(TermLimit::now(&clock).check(highest + 1), Ok(()));
        assert!(
            TermLimit::now(&clock).check(1 << 62).is_err() && TermLimit::now(&clock).check(u64::MAX).is_err()
        );
        assert!(
            TermLimit::stored(&clock).allows(Term(highest + SET_BACK_MAX_MS)),
            "written before it was set back"
        );
    }

    #[test]
    fn no_clock_is_too_wrong_for_terms_of_elections() {
        for now_ms in [0, u64::MAX] {
            let clock = ManualClock::at_ms(now_ms);
            assert_eq!(TermLimit::now(&clock).check(TERM_ALWAYS_MAX), Ok(()));
            assert!(TermLimit::stored(&clock).allows(Term(TERM_ALWAYS_MAX)));
        }
    }
}
