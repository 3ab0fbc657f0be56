//! Logs on one simulated disk, living from crash to crash.

use crate::driver::{Action, Driver};
use crate::history::History;
use crate::liar::Lie;
use crate::model::Model;
use disk::Disk;
use disk::sim::{CrashPoint, Loss, Random, SimDisk, SimOptions};
use planted::Bug;
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use types::OwnerId;

/// Purged entries looked at by place after each start.
const FORGOTTEN_CHECKED_MAX: usize = 20;

/// Lives told when a test fails: what went wrong is seldom in the last one alone.
const LIVES_TOLD_MAX: usize = 3;

pub(crate) struct World {
    pub(crate) disk: SimDisk,
    pub(crate) options: LogSpaceOptions,
    pub(crate) drivers: Vec<Driver>,
    pub(crate) lie: Lie,
    pub(crate) space: Option<Arc<LogSpace>>,
    /// The last lives, for the message of a failed test.
    past: VecDeque<String>,
    past_hash: DefaultHasher,
    /// The disk has been filled up: what waits for space is in order.
    is_full: bool,
}

/// The death by which one life ends and the next begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Death {
    Power(Loss),
    /// Only the process.
    Process,
}

pub(crate) fn sim(seed: u64, polls_max: u64) -> SimOptions {
    SimOptions { seed, polls_max, ..SimOptions::default() }
}

/// The `nth` log: of a pipeline, or every fourth of a metadata group.
pub(crate) fn spec(nth: u64) -> LogSpec {
    let log = nth + 1;
    if is_metadata(nth) {
        let owners_dir = format!("meta/log-{log}");
        return LogSpec { log, dir: format!("groups/log-{log}"), owners_dir, first_owner: OwnerId(0) };
    }
    LogSpec {
        log,
        dir: format!("groups/log-{log}"),
        owners_dir: "containers".into(),
        first_owner: OwnerId(log * 1_000_000),
    }
}

fn is_metadata(nth: u64) -> bool {
    nth % 4 == 3
}

/// A metadata group, to be had without pipelines before it.
pub(crate) const METADATA_LOG: u64 = 3;

impl World {
    pub(crate) fn new(
        logs: impl IntoIterator<Item = u64>,
        options: LogSpaceOptions,
        disk: SimOptions,
        lie: Lie,
    ) -> World {
        let drivers = logs.into_iter().map(|nth| {
            let spec = spec(nth);
            let model = Model::new(spec.first_owner, options.segment_bytes_max);
            Driver::new(spec, is_metadata(nth), History::new(model))
        });
        World {
            disk: SimDisk::new(disk),
            drivers: drivers.collect(),
            options,
            lie,
            space: None,
            past: VecDeque::new(),
            past_hash: DefaultHasher::new(),
            is_full: false,
        }
    }

    /// The disk's logs as they are now, with what this world lies about.
    pub(crate) fn open_space(&self) -> Arc<LogSpace> {
        planted::plant((self.lie == Lie::CarelessSpares).then_some(Bug::CarelessSpares));
        LogSpace::new(self.lie.wrap(self.disk.clone()), self.options.clone())
    }

    /// Opens all logs and checks what they hold. An error of a machine that went down on the way is no
    /// violation: then the answer is false.
    pub(crate) async fn start(&mut self) -> Result<bool, String> {
        let space = self.open_space();
        let mut found = Vec::new();
        for driver in &mut self.drivers {
            let opened = driver.open(&space).await;
            if self.disk.is_down() {
                return Ok(false);
            }
            let log = driver.spec.log;
            let observed =
                opened.map_err(|error| format!("log {log} does not open after a mere crash: {error}"))?;
            let explained = driver.history.explain(&observed);
            found.push(explained.map_err(|why| format!("log {log}: {why}"))?);
        }
        for (driver, model) in self.drivers.iter_mut().zip(found) {
            driver.history.begin_life(model);
            driver.check_deleted(&self.disk.files())?;
            if driver.is_metadata {
                continue;
            }
            let (dir, log) = (&driver.spec.owners_dir, driver.spec.log);
            for stored in driver.history.readable_forgotten().take(FORGOTTEN_CHECKED_MAX) {
                let read = space.read_body(dir, stored.place, 0..stored.place.body_bytes).await;
                if self.disk.is_down() {
                    return Ok(false);
                }
                match read {
                    Ok(pieces) if pieces.bytes == *stored.entry.body.bytes() => {}
                    Ok(_) => return Err(format!("log {log}: wrong bytes at {:?}", stored.place)),
                    Err(why) => return Err(format!("log {log}: purged entry {:?}: {why}", stored.entry.id)),
                }
            }
        }
        self.space = Some(space);
        Ok(true)
    }

    /// Starts, and when the machine goes down on the way starts again, as often as it takes. Counts those
    /// crashes.
    pub(crate) async fn start_through_crashes(
        &mut self,
        random: &mut Random,
        crashes_max: u64,
    ) -> Result<u64, String> {
        let mut crashes = 0;
        loop {
            if crashes < crashes_max && random.percent(40) {
                let step = random.below(4 + 4 * self.drivers.len() as u64);
                self.disk.crash_at(random_point(random, step));
            }
            if self.start().await? {
                return Ok(crashes);
            }
            crashes += 1;
            let (death, options) = (random_death(random), sim(random.next_u64(), random.below(4)));
            self.die(death, options).await;
        }
    }

    pub(crate) async fn act(&mut self, log: usize, action: &Action) -> Result<(), String> {
        let Some(space) = &self.space else { return Ok(()) };
        let driver = &mut self.drivers[log];
        let result = driver.act(action, space).await;
        if self.disk.failure().is_some() {
            return Ok(());
        }
        result?;
        if matches!(action, Action::Settle) && driver.history.is_waiting() && !self.is_full {
            return Err(format!("log {} does not go on, and has not failed", driver.spec.log));
        }
        Ok(())
    }

    /// Everything that was asked for is acknowledged or refused.
    pub(crate) async fn settle(&mut self) -> Result<(), String> {
        for log in 0..self.drivers.len() {
            self.act(log, &Action::Settle).await?;
        }
        Ok(())
    }

    pub(crate) fn fill_disk(&mut self, free_bytes: u64) {
        self.is_full = true;
        self.disk.set_free_bytes(free_bytes);
    }

    pub(crate) fn relieve_disk(&mut self) {
        self.is_full = false;
        self.disk.set_free_bytes(1 << 40);
    }

    /// No more space is kept in spares than was allowed.
    pub(crate) fn check_spares(&self) -> Result<(), String> {
        let files = self.disk.files();
        let spares: u64 =
            files.iter().filter(|(path, _)| path.starts_with("spares/")).map(|(_, bytes)| bytes).sum();
        let limit = self.options.spare_bytes_max;
        if self.is_over() || spares <= limit {
            return Ok(());
        }
        Err(format!("{spares} bytes in spares, at most {limit} are allowed"))
    }

    /// A hash of all steps of the disk in all lives.
    pub(crate) fn trace_hash(&self) -> u64 {
        let mut hash = self.past_hash.clone();
        self.disk.trace_hash().hash(&mut hash);
        hash.finish()
    }

    /// Whether the disk takes no more.
    pub(crate) fn is_over(&self) -> bool {
        self.disk.failure().is_some()
    }

    /// The story of what the disk was asked for in the last lives.
    pub(crate) fn story(&self) -> String {
        let now = self.disk.trace().join("\n  ");
        let lives: Vec<_> = self.past.iter().map(String::as_str).chain([now.as_str()]).collect();
        format!("steps of the disk:\n  {}", lives.join("\n  "))
    }

    /// A log that stopped for no reason that the disk gave it.
    pub(crate) fn unexpected(&self) -> Option<String> {
        if self.is_over() {
            return None;
        }
        self.drivers.iter().find_map(|driver| driver.history.acks.failure())
    }

    /// Ends the life; the next one finds what this leaves.
    pub(crate) async fn die(&mut self, death: Death, options: SimOptions) {
        if self.past.len() == LIVES_TOLD_MAX {
            self.past.pop_front();
        }
        self.disk.trace_hash().hash(&mut self.past_hash);
        self.past.push_back(format!("{}\n  {death:?}", self.disk.trace().join("\n  ")));
        let next = match death {
            Death::Power(loss) => self.disk.lose_power(loss, options),
            Death::Process => self.disk.kill(options),
        };
        // What was done before the end may still be acknowledged: it is durable.
        for driver in &mut self.drivers {
            driver.close().await;
        }
        self.space = None;
        self.disk = next;
        self.is_full = false;
    }
}

pub(crate) fn random_death(random: &mut Random) -> Death {
    match random.below(8) {
        0 | 1 => Death::Process,
        2 => Death::Power(Loss::AllUnsynced),
        3 => Death::Power(Loss::Nothing),
        _ => Death::Power(Loss::Random(random.next_u64())),
    }
}

pub(crate) fn random_point(random: &mut Random, step: u64) -> CrashPoint {
    if random.one_in(2) { CrashPoint::Before(step) } else { CrashPoint::After(step) }
}

/// Runs on one thread, with a clock that stands still while there is anything to do: the same seed gives the
/// same run.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}
