/// Another process's clock, less SCM's. Nothing is decided by it; but times that people read, and until when
/// a maintenance lasts, are wrong somewhere, and a gateway whose clock is a quarter of an hour off refuses
/// every signature.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) struct ClockApart {
    ahead_ms: i64,
}

impl ClockApart {
    /// The time for which a heartbeat or a renewal may be under way: a clock that seems to be behind by less
    /// may be right.
    const MAX_MS: i64 = 5000;

    pub(crate) fn of(theirs_ms: u64, ours_ms: u64) -> ClockApart {
        let ahead = i128::from(theirs_ms) - i128::from(ours_ms);
        let far = if ahead < 0 { i64::MIN } else { i64::MAX };
        ClockApart { ahead_ms: i64::try_from(ahead).unwrap_or(far) }
    }

    pub(crate) fn is_too_far(self) -> bool {
        self.ahead_ms.unsigned_abs() > Self::MAX_MS as u64
    }

    pub(crate) fn problem(self) -> Option<String> {
        let seconds = self.ahead_ms.unsigned_abs() as f64 / 1000.0;
        let side = if self.ahead_ms < 0 { "behind" } else { "ahead of" };
        self.is_too_far().then(|| format!("its clock is {seconds:.0} s {side} SCM's"))
    }
}
