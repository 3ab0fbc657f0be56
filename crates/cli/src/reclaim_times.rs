//! When what nobody names goes, as the command line says it.

use anyhow::bail;
use clap::Args;
use std::time::Duration;

use crate::duration::duration;

/// Longer than OM remembers requests (five minutes): a block that was given up is not named again by a request that comes
/// late.
const RECLAIM_AFTER_MIN: Duration = Duration::from_secs(6 * 60);

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ReclaimTimes {
    /// What was overwritten or deleted may be read for so long yet; then OM has its space given back. At least 6m
    #[arg(long, default_value = "10m", env = "FLOTILLA_RECLAIM_AFTER", value_parser = duration)]
    pub reclaim_after: Duration,
    /// For tests: what was deleted may go as soon as one likes
    #[arg(long, hide = true)]
    pub any_reclaim_after: bool,
    /// A container is looked through for blocks that no name ever had once it has been closed for so long. Longer than an
    /// upload of one object or part may take: what such a one has written before is given up then, and it fails
    #[arg(long, default_value = "1h", env = "FLOTILLA_SWEEP_AFTER", value_parser = duration)]
    pub sweep_after: Duration,
    /// And again after so long
    #[arg(long, default_value = "7d", env = "FLOTILLA_SWEEP_EVERY", value_parser = duration)]
    pub sweep_every: Duration,
}

impl ReclaimTimes {
    pub(crate) fn check(&self) -> anyhow::Result<()> {
        if self.reclaim_after < RECLAIM_AFTER_MIN && !self.any_reclaim_after {
            bail!(
                "--reclaim-after {:?} is too short: OM remembers requests for five minutes, and what a late one names must \
                 not be gone. At least {:?}",
                self.reclaim_after,
                RECLAIM_AFTER_MIN
            );
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_deleted_stays_for_longer_than_requests_are_remembered() {
        let times = |seconds, any_reclaim_after| ReclaimTimes {
            reclaim_after: Duration::from_secs(seconds),
            any_reclaim_after,
            sweep_after: Duration::from_secs(1),
            sweep_every: Duration::from_secs(1),
        };
        assert!(times(359, false).check().unwrap_err().to_string().contains("--reclaim-after"));
        assert!(times(360, false).check().is_ok() && times(1, true).check().is_ok());
    }
}
