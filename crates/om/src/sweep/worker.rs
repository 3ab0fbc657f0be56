//! Sweeps, as long as the root is led from here.

use super::counts::{Look, Requested};
use super::fences::{Lacks, New, ask, bring, container_in};
use super::queue::Queue;
use super::{Sweep, Times};
use crate::ops::{self, FENCED_AT_ONCE, FenceContainers, Fresh, Operation};
use crate::replica::Replica;
use crate::tables::{FENCED_PREFIX, NAMES_PREFIX, ROOT, decode, fences};
use crate::upgrade::rows;
use futures::future::try_join_all;
use proto::om::{BucketEntry, FenceContainersRequest, SweptContainer};
use proto::scm::ContainerState;
use proto::{Failure, RequestId};
use rand::RngExt;
use statedb::Db;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info};
use types::Backoff;
use types::random::random;

/// The pauses after a round that failed.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// Between two looks at all containers: no shorter than this, and no longer than that.
const LOOK_MIN: Duration = Duration::from_millis(200);
const LOOK_MAX: Duration = Duration::from_secs(15 * 60);
/// A look each so many parts of the time after which a container is swept.
const LOOKS_WHILE_WAITING: u32 = 4;
/// The time between questions whether it is to go on, each of which costs SCM a look at all containers,
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// and whether it is to go on again.
const PAUSED: Duration = Duration::from_secs(30);
/// Containers that are swept before it is looked whether others are due, or are wanted.
const SWEPT_AT_ONCE: usize = 64;

pub(super) struct Worker {
    pub(super) sweep: Sweep,
    pub(super) root: Arc<Replica>,
    queue: Queue,
    /// When SCM has said that it is to go on.
    may: Option<Instant>,
    looked: Option<Instant>,
    /// When names of containers that there are not were looked for, and whether there were none.
    sought: Option<(Instant, bool)>,
    /// An operator wants that.
    seeks: bool,
    /// Groups that have said that they lack a fence.
    pub(super) lacking: Mutex<BTreeSet<u64>>,
}

impl Worker {
    pub(super) fn new(sweep: Sweep, root: Arc<Replica>) -> Worker {
        let (queue, lacking) = Default::default();
        Worker { sweep, root, queue, may: None, looked: None, sought: None, seeks: false, lacking }
    }

    /// Until somebody else leads.
    pub(super) async fn run(mut self) {
        self.sweep.counts.begin();
        let mut retry = RETRY;
        while self.check_leads().is_ok() {
            let pause = match self.round().await {
                Ok(pause) => {
                    retry.reset();
                    pause
                }
                Err(failure) => {
                    self.fail(&failure);
                    retry.pause()
                }
            };
            let counts = self.sweep.counts.clone();
            let _ = timeout(pause, counts.wanted.notified()).await;
        }
        self.sweep.counts.end();
    }

    fn check_leads(&self) -> Result<(), Failure> {
        self.root.check_serves(&self.sweep.addresses)
    }

    pub(super) fn fail(&self, failure: &Failure) {
        debug!(%failure, "sweep for blocks that nobody knows");
        self.sweep.counts.note_failure(failure.to_string(), self.sweep.clock.now_ms());
    }

    /// And how long nothing is to be done after it.
    async fn round(&mut self) -> Result<Duration, Failure> {
        if is_over(self.may, ASKED_EVERY) {
            self.may = None;
            if let Some(why) = self.sweep.paused().await? {
                self.sweep.counts.pause(why);
                return Ok(self.look_every().min(PAUSED));
            }
            self.may = Some(Instant::now());
        }
        let is_wanted = self.sweep.counts.is_requested() || !self.lacking().is_empty();
        if is_wanted || is_over(self.looked, self.look_every()) {
            let requested = self.sweep.counts.take_requested();
            if let Err(failure) = self.look(&requested).await {
                self.sweep.counts.give_back(requested);
                return Err(failure);
            }
            self.looked = Some(Instant::now());
        }
        self.sweep.counts.pause(self.waits_for());
        if self.is_to_seek() {
            let is_well = self.find_unknown().await?;
            self.sought = Some((Instant::now(), is_well));
            self.seeks = false;
        }
        for _ in 0..SWEPT_AT_ONCE {
            let Some(container) = self.queue.next(&self.sweep.times, Instant::now()) else { break };
            self.check_leads()?;
            self.sweep_next(container).await;
        }
        Ok(self.pause())
    }

    /// What it waits for, for operators.
    fn waits_for(&self) -> &'static str {
        match self.sweep.times.every {
            None if self.queue.is_idle() => "--sweep-every is off: flotilla admin sweep run",
            _ => "",
        }
    }

    fn is_to_seek(&self) -> bool {
        let Times { after, every, .. } = self.sweep.times;
        self.seeks
            || match self.sought {
                None => every.is_some(),
                // They may have been written again, or a disk may have come back.
                Some((at, false)) => at.elapsed() >= after,
                Some((at, true)) => every.is_some_and(|every| at.elapsed() >= every),
            }
    }

    fn look_every(&self) -> Duration {
        (self.sweep.times.after / LOOKS_WHILE_WAITING).clamp(LOOK_MIN, LOOK_MAX)
    }

    fn pause(&self) -> Duration {
        if self.queue.next(&self.sweep.times, Instant::now()).is_some() {
            return Duration::ZERO;
        }
        let look = self.look_every();
        let next = self.queue.next_at(&self.sweep.times);
        next.map_or(look, |next| next.saturating_duration_since(Instant::now()).min(look))
    }

    /// It works half of the time at most.
    async fn sweep_next(&mut self, container: u64) {
        let begun = Instant::now();
        self.sweep.counts.note_queue(self.queue.waiting(), container);
        match self.sweep_container(container).await {
            Ok(()) if self.queue.remove(container) => self.sweep.counts.note_first(),
            Ok(()) => {}
            Err(failure) => {
                let failure = Failure { message: format!("container {container}: {failure}"), ..failure };
                self.fail(&failure);
                self.queue.again(container);
            }
        }
        self.sweep.counts.note_queue(self.queue.waiting(), 0);
        sleep(begun.elapsed()).await;
    }

    /// Finds the containers whose turn it is, and has all groups fence them.
    async fn look(&mut self, requested: &Requested) -> Result<(), Failure> {
        let closed = self.closed_containers().await?;
        // One that is not closed may be one that there is not.
        self.seeks |= requested.all || !requested.some.is_subset(&closed);
        let swept = self.read(fenced).await?;
        let now = (Instant::now(), self.sweep.clock.now_ms());
        let times = self.sweep.times;
        self.queue.retain(&closed);
        self.queue.want(requested, &closed);
        let mut due = Vec::new();
        for container in &closed {
            let swept = swept.get(container);
            if self.queue.has_room() && self.queue.is_due(*container, swept, &times, now) {
                due.push(*container);
            }
        }
        self.note_look(&closed, &swept);
        if let Err(failure) = self.fence(&due).await {
            due.iter().for_each(|container| self.queue.again(*container));
            return Err(failure);
        }
        let now = Instant::now();
        due.iter().for_each(|container| self.queue.fence(*container, now));
        self.sweep.counts.note_queue(self.queue.waiting(), 0);
        Ok(())
    }

    fn note_look(&self, closed: &BTreeSet<u64>, swept: &BTreeMap<u64, SweptContainer>) {
        let swept: Vec<u64> = closed
            .iter()
            .filter_map(|container| swept.get(container))
            .map(|swept| swept.swept_ms)
            .filter(|swept_ms| *swept_ms != 0)
            .collect();
        self.sweep.counts.note_look(Look {
            closed: closed.len() as u64,
            unswept: (closed.len() - swept.len()) as u64,
            swept: swept.len() as u64,
            oldest_swept_ms: swept.iter().min().copied().unwrap_or_default(),
            looked_ms: self.sweep.clock.now_ms(),
        });
    }

    async fn closed_containers(&self) -> Result<BTreeSet<u64>, Failure> {
        let (mut closed, mut after) = (BTreeSet::new(), 0);
        loop {
            let (containers, more) =
                self.sweep.containers(after, Some(ContainerState::ContainerClosed)).await?;
            let last = containers.last().map(|info| info.container);
            closed.extend(containers.into_iter().map(|info| info.container));
            match last.filter(|_| more) {
                Some(last) => after = last,
                None => return Ok(closed),
            }
        }
    }

    /// From here on no group takes a block of these that it does not name.
    async fn fence(&mut self, due: &[u64]) -> Result<(), Failure> {
        self.bring_what_lacks().await?;
        for some in due.chunks(FENCED_AT_ONCE) {
            self.fence_some(some).await?;
        }
        Ok(())
    }

    async fn fence_some(&mut self, due: &[u64]) -> Result<(), Failure> {
        let containers = due.to_vec();
        let fence = FenceContainersRequest { group: ROOT, containers, complete_to: 0, history: 0 };
        let fenced = self.change::<FenceContainers>(fence).await?;
        info!(containers = due.len(), "fence containers, to sweep them");
        let new = New { before: fenced.before, number: fenced.number, containers: due };
        self.bring(|_| Lacks::New(new)).await
    }

    /// Asks each group, at each look, how far it is: one that was reset takes what was given up until it has its fences again.
    async fn bring_what_lacks(&mut self) -> Result<(), Failure> {
        let lacking = self.lacking();
        if self.read(|root| Ok(fences(root)?.number)).await? == 0 {
            return Ok(());
        }
        let lacks = |group| if lacking.contains(&group) { Lacks::All } else { Lacks::ByNumber };
        self.bring(lacks).await?;
        self.lacking.lock().expect("no holder panics").retain(|group| !lacking.contains(group));
        Ok(())
    }

    fn lacking(&self) -> BTreeSet<u64> {
        self.lacking.lock().expect("no holder panics").clone()
    }

    async fn bring<'a>(&mut self, lacks: impl Fn(u64) -> Lacks<'a>) -> Result<(), Failure> {
        let (root, others) = (self.root.dbs.current(), self.sweep.others.clone());
        let groups = self.groups().await?;
        let told = groups.iter().filter(|group| **group != ROOT);
        let told = told.map(|group| bring(root.clone(), *group, lacks(*group), |some| ask(&others, some)));
        let told = try_join_all(told).await;
        if !told.as_ref().is_ok_and(|told| told.iter().all(|told| !told.is_all)) {
            self.queue.wait_again(Instant::now());
        }
        told.map(drop)
    }

    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Db) -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let db = self.root.dbs.current();
        let read = raft::blocking(move || read(&db)).await;
        read.map_err(|error| Failure::internal(format!("read the root: {error}")))?.map_err(broken)
    }

    pub(super) async fn change<O: Operation>(&self, what: O::Request) -> Result<O::Response, Failure> {
        let fresh = Fresh { random: 0, now_ms: self.sweep.clock.now_ms() };
        let command = ops::prepare::<O>(RequestId(random().random()), None, what, fresh)?;
        self.root.change::<O>(command).await
    }
}

pub(super) fn broken(error: anyhow::Error) -> Failure {
    Failure::internal(format!("read the root: {error:#}"))
}

fn is_over(since: Option<Instant>, pause: Duration) -> bool {
    since.is_none_or(|since| since.elapsed() >= pause)
}

/// All containers that the root has fenced, and what came of their last sweep.
fn fenced(root: &Db) -> anyhow::Result<BTreeMap<u64, SweptContainer>> {
    let row = |row: anyhow::Result<crate::upgrade::Row>| {
        let (key, value) = row?;
        Ok((container_in(&key)?, decode(&key, &value)?))
    };
    rows(root, FENCED_PREFIX).map(row).collect()
}

/// The groups that buckets are in, or move to.
pub(super) fn groups_of_buckets(root: &Db) -> anyhow::Result<BTreeSet<u64>> {
    let mut groups = BTreeSet::new();
    for row in rows(root, NAMES_PREFIX) {
        let (key, value) = row?;
        let entry: BucketEntry = decode(&key, &value)?;
        groups.insert(entry.group);
        groups.extend(entry.last_move.and_then(|last| last.moved).map(|moved| moved.to));
    }
    Ok(groups)
}
