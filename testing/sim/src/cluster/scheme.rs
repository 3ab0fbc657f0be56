//! A scheme and its steps: what is decided before a run takes them.

use super::harm::{Harm, IndexHarm};
use super::planted::Planted;
use crate::world::{Crash, SILENCE_MAX};
use disk::sim::Random;
use proto::scm::Pipeline;
use std::time::Duration;
use types::PipelineId;

/// The shortest time for which a member lags: one that is cut off for less is sent what others had under way
/// for it, be it that they are dead by then, because connections last that long.
const LAG_MS_MIN: u64 = SILENCE_MAX.as_millis() as u64 + 300;

/// The time after which the two members that are left have ended and let go, and SCM decides without the
/// third: it is dead (6 s), nobody leads (6 s), a member without a log had time to end (3 s), the pipeline is
/// over, and what they then say is believed (a few heartbeats, and 2 s twice).
const DECIDED_MS: u64 = 26_000;

/// The harm that a run does to one pipeline, once all is well.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scheme {
    /// A leader is cut off with chunks that nobody acknowledges, and dies. The others elect and acknowledge
    /// other ones in their places, and leave. It comes back alone, and ends by itself.
    ///
    /// ```text
    /// leader   ──cut off, `tail` chunks──x           ┌──alone: quasi-closes, is asked for everything──
    /// others   ─────────────────elect, acknowledge──x          one is back ──┐  the other ──┐
    /// ```
    Diverge {
        tail: u64,
        cut: Duration,
        others: Duration,
        away: Duration,
        third: Duration,
        /// Whether one of the records of how a replica ended is damaged, once all is well again.
        then_harmed: bool,
    },
    /// A member lags, cut off from the others for so long that nothing is on its way to it any more; another
    /// one loses its log, while the third one is away, or worse.
    ///
    /// ```text
    /// lags     ──cut off────────────back──────────────────────────────
    /// harmed   ──acknowledges──x  its log is harmed ┌──
    /// third    ──acknowledges──x                        (see `Third`)
    /// ```
    LoseLog { harm: Harm, third: Third, lag: Duration, down: Duration },
    /// A member loses its index, and serves nothing until an operator has it recreated. Its log is whole:
    /// nothing may be lost, be another one away or lost meanwhile.
    LoseIndex {
        harm: IndexHarm,
        other: Other,
        down: Duration,
        rebuilt_after: Duration,
        power_lost_after: Option<Duration>,
    },
    /// A disk is full and stays so. A moment later another member is lost, or not.
    FullForGood { free_bytes: u64, leader: bool, lost_after: Option<Duration> },
    /// A member of SCM lags while containers are begun; then the others lose their disks, and it is made the
    /// only one.
    ResetScm { lag: Duration },
    /// A member stands still for minutes, while another one is emptied: whatever it was told, asked or
    /// promised is long over when it goes on.
    Pause { leader: bool, after: Duration, lasts: Duration },
}

/// The fate of the third member beside one that loses its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Third {
    Stays,
    /// The member is away, mostly for longer than `dead_after`, and comes back.
    Away(Duration),
    /// The member is lost for good.
    Lost,
    /// The member's log is harmed too.
    Harmed(Harm, Duration),
}

/// The fate of another member beside one that loses its index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Other {
    Stays,
    Away(Duration),
    /// The member is lost for good.
    Lost,
    /// The index of the member's disk is harmed too.
    Harmed(IndexHarm),
}

fn ms(random: &mut Random, from: u64, below: u64) -> Duration {
    Duration::from_millis(from + random.below(below - from))
}

impl Scheme {
    pub(super) fn random(random: &mut Random, planted: Option<Planted>) -> Option<Scheme> {
        let kind = match planted {
            None => random.below(8),
            Some(Planted::TailsAreRead) => 0,
            Some(Planted::LogsNeedNoProof | Planted::BegunIsForgotten) => 1,
            Some(Planted::ComingForEver) => 4,
            Some(Planted::NumbersDrawnAgain) => 5,
            Some(_) => return None,
        };
        Some(match kind {
            0 => Scheme::Diverge {
                tail: 10 + random.below(50),
                cut: ms(random, 700, 2500),
                others: ms(random, 1500, 3500),
                away: ms(random, 16_000, 24_000),
                third: ms(random, 0, 8000),
                then_harmed: planted.is_none() && random.one_in(2),
            },
            1..=3 => {
                // A planted bug gets a harm that the member always finds.
                let harm = match planted {
                    Some(Planted::BegunIsForgotten) => Harm::AllLost,
                    Some(_) => Harm::SegmentLost,
                    None => Harm::random(random),
                };
                let third = match random.below(6) {
                    _ if planted.is_some() => Third::Away(ms(random, DECIDED_MS, DECIDED_MS + 10_000)),
                    0 => Third::Stays,
                    1 => Third::Lost,
                    2 => Third::Harmed(Harm::random(random), ms(random, 100, 12_000)),
                    _ => Third::Away(ms(random, 7000, DECIDED_MS + 10_000)),
                };
                let (lag, down) = (ms(random, LAG_MS_MIN, LAG_MS_MIN + 4000), ms(random, 100, 4000));
                Scheme::LoseLog { harm, third, lag, down }
            }
            4 => Scheme::FullForGood {
                free_bytes: random.below(300_000),
                leader: random.one_in(3),
                lost_after: (planted.is_none() && random.one_in(2)).then(|| ms(random, 500, 20_000)),
            },
            5 => Scheme::ResetScm { lag: ms(random, 2000, 8000) },
            6 => Scheme::LoseIndex {
                harm: IndexHarm::random(random),
                other: match random.below(4) {
                    0 => Other::Stays,
                    1 => Other::Lost,
                    2 => Other::Harmed(IndexHarm::random(random)),
                    _ => Other::Away(ms(random, 7000, DECIDED_MS)),
                },
                down: ms(random, 100, 4000),
                rebuilt_after: if random.one_in(2) {
                    ms(random, 100, 5000)
                } else {
                    ms(random, 5000, DECIDED_MS)
                },
                power_lost_after: random.one_in(2).then(|| ms(random, 1, 1500)),
            },
            _ if random.one_in(2) => {
                let leader = random.one_in(2);
                Scheme::Pause { leader, after: ms(random, 300, 8000), lasts: ms(random, 90_000, 240_000) }
            }
            _ => return None,
        })
    }
}

/// Where a bit flips, of a container that is closed.
#[derive(Clone, Copy, Debug)]
pub(super) enum Flipped {
    Records,
    /// The file that says how a replica ended, if it ended by itself.
    End,
}

/// The step that a scheme takes at some moment.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// So many clients write a block each.
    Write {
        pipeline: Pipeline,
        blocks: u64,
        tries: usize,
    },
    Crash {
        machine: usize,
        crash: Crash,
        down: Duration,
    },
    /// A machine crashes, and while it is down, its replica of a pipeline is harmed, ...
    CrashHarmed {
        machine: usize,
        crash: Crash,
        down: Duration,
        pipeline: PipelineId,
        harm: Harm,
    },
    /// ... or the index of the disk that has it.
    CrashIndex {
        machine: usize,
        crash: Crash,
        down: Duration,
        pipeline: PipelineId,
        harm: IndexHarm,
        rebuilt_after: Duration,
        power_lost_after: Option<Duration>,
    },
    Lose {
        machine: usize,
        crash: Crash,
    },
    /// All acknowledged blocks of a pipeline are read from one node.
    Probe {
        machine: usize,
        pipeline: PipelineId,
    },
    /// Everything on a machine stands still.
    Pause {
        machine: usize,
        until: Duration,
    },
    /// A bit flips as soon as something may be harmed, but no later than this.
    Flip {
        what: Flipped,
        until: Duration,
    },
    /// All members of SCM but this one lose their disks.
    LoseScm {
        survivor: usize,
    },
    /// A process that reported a failed disk is restarted by its service manager, ...
    Restart {
        machine: usize,
    },
    /// ... and its machine loses power a little later.
    LosePower {
        machine: usize,
    },
    /// An operator stops a machine, has its indexes recreated that are waiting for it, and starts it.
    Rebuild {
        machine: usize,
    },
}
