use disk::sim::Random;
use std::time::Duration;

/// The quality of a way from one process to another. Each direction of a pair has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    pub delay_min: Duration,
    pub delay_max: Duration,
    /// The frames of a thousand that are lost. As with TCP, what is lost is sent again later, and all behind
    /// it waits; sometimes the connection breaks instead.
    pub lost_per_mille: u64,
    /// Whether nothing comes through.
    pub is_cut: bool,
}

impl Link {
    pub const FAST: Link = Link {
        delay_min: Duration::from_millis(1),
        delay_max: Duration::from_millis(1),
        lost_per_mille: 0,
        is_cut: false,
    };

    pub(super) fn delay(&self, random: &mut Random) -> Duration {
        let spread = self.delay_max.saturating_sub(self.delay_min).as_micros() as u64;
        self.delay_min + Duration::from_micros(random.below(spread + 1))
    }

    pub(super) fn loses(&self, random: &mut Random) -> bool {
        self.lost_per_mille > 0 && random.below(1000) < self.lost_per_mille
    }
}
