//! The times of a run in which what no key names goes.

use super::planted::Planted;
use disk::sim::Random;
use std::time::Duration;

/// The times of a run that sweeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sweeps {
    pub(super) reclaim_after: Duration,
    pub(super) after: Duration,
    pub(super) every: Duration,
    /// The time within which a client that is late names a block.
    pub(super) late_ms_max: u64,
    /// The longest pause between two moves of the bucket.
    pub(super) move_pause_ms_max: u64,
    /// The first of the groups among which the bucket moves. What a sweep files stands in the root, which
    /// takes nothing for unused that it names.
    pub(super) first_group: u64,
    /// The time within which all groups are asked the same; less than whoever asks waits for an answer.
    pub(super) asks_within: Duration,
    /// Whether some blocks have two names. Where a bucket moves, such a block stays only if neither name is
    /// deleted, so there are none.
    pub(super) shares_blocks: bool,
    /// The time when the directory of the only OM is copied, to run for a while when all is quiet.
    pub(super) copied_at: Option<Duration>,
}

impl Sweeps {
    pub(super) fn random(
        random: &mut Random,
        (oms, groups): (usize, usize),
        planted: Option<Planted>,
    ) -> Sweeps {
        let drawn = Sweeps {
            reclaim_after: Duration::from_secs(2),
            after: Duration::from_secs(*random.pick(&[1, 3])),
            every: Duration::from_secs(*random.pick(&[2, 10])),
            late_ms_max: *random.pick(&[6_000, 16_000]),
            move_pause_ms_max: *random.pick(&[300, 2000]),
            first_group: if groups > 1 { random.below(2) } else { 0 },
            asks_within: Duration::from_millis(*random.pick(&[0, 300, 900])),
            shares_blocks: groups == 1,
            copied_at: (oms == 1).then(|| Duration::from_secs(8 + random.below(10))),
        };
        let soon = Duration::from_secs(1);
        match planted {
            None => drawn,
            // Containers are swept again and again, while the bucket is now here, now there.
            Some(Planted::MovesOverlooked) => {
                let moves = Sweeps { move_pause_ms_max: 100, first_group: 1, copied_at: None, ..drawn };
                let asks_within = soon / 3;
                Sweeps { reclaim_after: soon / 2, after: soon, every: soon / 2, asks_within, ..moves }
            }
            Some(planted) => Sweeps {
                after: soon,
                every: 10 * soon,
                late_ms_max: 16_000,
                asks_within: Duration::ZERO,
                copied_at: (planted == Planted::LessIsOverlooked).then_some(8 * soon),
                ..drawn
            },
        }
    }
}
