//! The times after which unnamed data goes, as the command line gives them.

use anyhow::bail;
use clap::Args;
use std::str::FromStr;
use std::time::Duration;

use crate::duration::duration;

/// The least time before what was deleted goes. It is longer than OM remembers requests (five minutes): a
/// block that was given up is not named again by a request that comes late.
const RECLAIM_AFTER_MIN: Duration = Duration::from_secs(6 * 60);

#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ReclaimTimes {
    /// What was overwritten or deleted may be read for so long yet; then OM has its space given back. At
    /// least 6m
    #[arg(long, default_value = "10m", env = "FLOTILLA_RECLAIM_AFTER", value_parser = duration)]
    pub reclaim_after: Duration,
    /// For tests: what was deleted may go as soon as one likes
    #[arg(long, hide = true)]
    pub any_reclaim_after: bool,
    /// A container is looked through for blocks that no name ever had no earlier than it has been closed for
    /// so long. It must be longer than an upload of one object or part may take: what such an upload has
    /// written before is given up then, and it fails
    #[arg(long, default_value = "1d", env = "FLOTILLA_SWEEP_AFTER", value_parser = duration)]
    pub sweep_after: Duration,
    /// All containers are looked through by themselves once they have been closed for --sweep-after, and
    /// again after so long. `off`: only when `flotilla admin sweep run` asks for it
    #[arg(long, default_value = "7d", env = "FLOTILLA_SWEEP_EVERY")]
    pub sweep_every: SweepEvery,
}

/// The time between two sweeps of a container: `off`, or a duration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SweepEvery(pub Option<Duration>);

impl FromStr for SweepEvery {
    type Err = String;

    fn from_str(text: &str) -> Result<SweepEvery, String> {
        match text {
            "off" => Ok(SweepEvery(None)),
            _ => duration(text).map(|every| SweepEvery(Some(every))).map_err(|why| format!("{why}, or off")),
        }
    }
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
            sweep_every: SweepEvery(None),
        };
        assert!(times(359, false).check().unwrap_err().to_string().contains("--reclaim-after"));
        assert!(times(360, false).check().is_ok() && times(1, true).check().is_ok());
    }

    #[test]
    fn all_is_looked_through_each_week_unless_somebody_says_otherwise() {
        #[derive(clap::Parser)]
        struct Options {
            #[command(flatten)]
            times: ReclaimTimes,
        }
        let of = |given: &[&str]| {
            let given = std::iter::once(&"flotilla").chain(given);
            <Options as clap::Parser>::try_parse_from(given).map(|options| options.times.sweep_every.0)
        };
        assert_eq!(of(&[]).unwrap(), Some(Duration::from_secs(7 * 86_400)));
        assert_eq!(of(&["--sweep-every", "off"]).unwrap(), None);
        assert_eq!(of(&["--sweep-every", "2d"]).unwrap(), Some(Duration::from_secs(2 * 86_400)));
        assert!(of(&["--sweep-every", "never"]).is_err_and(|why| why.to_string().contains("or off")));
    }
}
