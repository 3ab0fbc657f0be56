//! A device's time for operations. Its queue is exact; who waits is told at the next millisecond, which is as
//! fine as tokio's timers are. Where that matters, slow the world down: [`DeviceModel::slowed_by`].

use super::tree::NodeId;
use std::collections::{BTreeSet, VecDeque};
use std::time::Duration;
use tokio::time::Instant;

/// A device that positions itself and then transfers. Writes cost nothing before they are synced: they go to
/// the kernel's memory. A sync costs one positioning and the transfer of what was written since the one
/// before, in whole pages; one with nothing to do costs nothing. A read costs its transfer, and a positioning
/// unless it begins where the device ended last; nothing is cached. Waiting reads go first; what is under way
/// is finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceModel {
    pub positioning: Duration,
    /// The rate of the whole device: transfers follow one another.
    pub bytes_per_second: u64,
    /// Operations under way at the same time, whose positionings overlap.
    pub parallel: usize,
}

impl DeviceModel {
    /// A spinning disk: seek and half a turn, and one arm.
    pub const HDD: DeviceModel =
        DeviceModel { positioning: Duration::from_millis(8), bytes_per_second: 150_000_000, parallel: 1 };

    /// A middling NVMe drive. The latency is that of a read from flash.
    pub const SSD: DeviceModel =
        DeviceModel { positioning: Duration::from_micros(80), bytes_per_second: 1_000_000_000, parallel: 8 };

    /// The device in a world in which everything takes so many times as long: with 1000, a second of the
    /// clock stands for a millisecond, and what takes microseconds can be told apart.
    pub fn slowed_by(self, factor: u32) -> DeviceModel {
        DeviceModel {
            positioning: self.positioning * factor,
            bytes_per_second: (self.bytes_per_second / u64::from(factor)).max(1),
            ..self
        }
    }

    fn transfer(&self, bytes: u64) -> Duration {
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        Duration::from_nanos(nanoseconds.try_into().expect("nobody transfers for 500 years at once"))
    }
}

/// A device's work for an operation.
#[derive(Clone, Copy)]
pub(super) enum Work {
    Read {
        at: Place,
        bytes: u64,
    },
    /// A sync of `bytes`; the last of the written bytes, if there are any, ends at `end`.
    Sync {
        end: Option<Place>,
        bytes: u64,
    },
}

/// A file and an offset in it.
pub(super) type Place = (NodeId, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct WorkId(u64);

/// The device's queue. It is brought up to date by whoever looks at it: between two looks it did what it
/// would have done, at the moments when it would have.
pub(super) struct Device {
    model: DeviceModel,
    submitted: u64,
    reads: VecDeque<(WorkId, Work)>,
    syncs: VecDeque<(WorkId, Work)>,
    /// The work under way, with the moment when it ends: as much as the model allows, unless nothing waits.
    running: Vec<(Instant, WorkId)>,
    unfinished: BTreeSet<WorkId>,
    /// The time at which the transfers that were begun have ended.
    transferred: Option<Instant>,
    head: Option<Place>,
    busy: Duration,
    busy_since: Option<Instant>,
}

impl Device {
    pub(super) fn new(model: DeviceModel) -> Device {
        assert!(model.parallel > 0 && model.bytes_per_second > 0, "{model:?} never ends");
        Device {
            model,
            submitted: 0,
            reads: VecDeque::new(),
            syncs: VecDeque::new(),
            running: Vec::new(),
            unfinished: BTreeSet::new(),
            transferred: None,
            head: None,
            busy: Duration::ZERO,
            busy_since: None,
        }
    }

    pub(super) fn submit(&mut self, now: Instant, work: Work) -> WorkId {
        self.advance(now);
        let id = WorkId(self.submitted);
        self.submitted += 1;
        self.unfinished.insert(id);
        match work {
            Work::Read { .. } => self.reads.push_back((id, work)),
            Work::Sync { .. } => self.syncs.push_back((id, work)),
        }
        self.start(now);
        id
    }

    /// The time to look again, at the latest; `None` once the work is done.
    pub(super) fn poll(&mut self, now: Instant, id: WorkId) -> Option<Instant> {
        self.advance(now);
        self.unfinished.contains(&id).then(|| self.next_end().expect("what is not done is not idle").0)
    }

    /// The time for which something was under way.
    pub(super) fn busy(&mut self, now: Instant) -> Duration {
        self.advance(now);
        self.busy + self.busy_since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    fn next_end(&self) -> Option<(Instant, WorkId)> {
        self.running.iter().min().copied()
    }

    fn advance(&mut self, now: Instant) {
        while let Some((end, id)) = self.next_end().filter(|(end, _)| *end <= now) {
            self.running.retain(|(_, running)| *running != id);
            self.unfinished.remove(&id);
            self.start(end);
            if self.running.is_empty() {
                let since = self.busy_since.take().expect("set when the first of these was started");
                self.busy += end.duration_since(since);
            }
        }
    }

    fn start(&mut self, now: Instant) {
        while self.running.len() < self.model.parallel
            && let Some((id, work)) = self.reads.pop_front().or_else(|| self.syncs.pop_front())
        {
            let (positioning, bytes, head) = match work {
                Work::Read { at: (node, offset), bytes } => {
                    let sequential = self.head == Some((node, offset));
                    let positioning = if sequential { Duration::ZERO } else { self.model.positioning };
                    (positioning, bytes, Some((node, offset + bytes)))
                }
                Work::Sync { end, bytes } => (self.model.positioning, bytes, end),
            };
            let positioned = now + positioning;
            let begin = self.transferred.map_or(positioned, |transferred| transferred.max(positioned));
            let end = begin + self.model.transfer(bytes);
            if bytes > 0 {
                self.transferred = Some(end);
            }
            self.head = head;
            self.running.push((end, id));
            self.busy_since.get_or_insert(now);
        }
    }
}
