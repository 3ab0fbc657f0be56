//! Sweeps, as long as the root is led from here.

use super::counts::{Look, Requested};
use super::fences::{Lacks, New, as_seen, container_in};
use super::queue::Queue;
use super::root::Root;
use super::{Sweep, Times};
use crate::ops::{FENCED_AT_ONCE, StopSweep};
use crate::replica::Replica;
use crate::tables::{FENCED_PREFIX, ROOT, decode};
use crate::upgrade::rows;
use futures::future::join_all;
use planted::Bug;
use proto::Failure;
use proto::om::{FenceContainersResponse, GroupSeen, StopSweepCommand, SweepStop, SweptContainer};
use proto::scm::ContainerState;
use statedb::Db;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};
use types::Backoff;

/// The pauses after a round that failed.
const RETRY: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60));
/// The limits of the time between two looks at all containers.
const LOOK_MIN: Duration = Duration::from_millis(200);
const LOOK_MAX: Duration = Duration::from_secs(15 * 60);
/// The number of looks in the time after which a container is swept.
const LOOKS_WHILE_WAITING: u32 = 4;
/// The time between questions to SCM whether the sweep may go on, each of which costs SCM a look at all
/// containers.
const ASKED_EVERY: Duration = Duration::from_secs(5);
/// The longest pause while the sweep may not go on.
const PAUSED: Duration = Duration::from_secs(30);
/// The most containers that are swept before a look whether others are due, or are wanted.
const SWEPT_AT_ONCE: usize = 64;

pub(super) struct Worker {
    pub(super) sweep: Sweep,
    pub(super) root: Root,
    queue: Queue,
    /// The moment when SCM was asked whether the sweep may go on, and why it may not.
    asked: Option<(Instant, Option<&'static str>)>,
    looked: Option<Instant>,
    /// The moment when names of containers that there are not were looked for, and whether there were none.
    sought: Option<(Instant, bool)>,
    /// Whether an operator wants such names looked for now.
    seeks: bool,
    /// Groups that have said that they lack a fence.
    pub(super) lacking: Mutex<BTreeSet<u64>>,
}

impl Worker {
    pub(super) fn new(sweep: Sweep, replica: Arc<Replica>) -> Worker {
        let (queue, lacking) = Default::default();
        let root = Root { replica, others: sweep.others.clone(), clock: sweep.clock.clone() };
        Worker { sweep, root, queue, asked: None, looked: None, sought: None, seeks: false, lacking }
    }

    /// Sweeps until somebody else leads.
    pub(super) async fn run(mut self) {
        let _shown = self.sweep.counts.clone().begin();
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
    }

    fn check_leads(&self) -> Result<(), Failure> {
        self.root.replica.check_serves(&self.sweep.addresses)
    }

    pub(super) fn fail(&self, failure: &Failure) {
        debug!(%failure, "sweep for blocks that nobody knows");
        self.sweep.counts.note_failure(failure.to_string(), self.sweep.clock.now_ms());
    }

    /// Does what is due, and returns for how long nothing is to be done after it.
    async fn round(&mut self) -> Result<Duration, Failure> {
        let paused = self.paused().await?;
        let is_wanted = self.sweep.counts.is_requested() || !self.lacking().is_empty();
        if is_wanted && paused.is_none() || is_over(self.looked, self.look_every()) {
            if let Some(why) = self.sweep.another_release().await? {
                self.sweep.counts.pause(&why);
                return Ok(PAUSED.min(self.look_every()));
            }
            self.look(paused.is_none()).await?;
            self.looked = Some(Instant::now());
        }
        if let Some(why) = paused {
            self.sweep.counts.pause(why);
            return Ok(PAUSED.min(self.look_every()));
        }
        let is_stopped = self.root.stop().await?.is_some();
        self.sweep.counts.note_stopped(is_stopped);
        if is_stopped {
            // What was fenced before names were put back is to be as old once an operator goes on.
            self.queue.wait_again(Instant::now());
            self.sweep.counts.pause("");
            return Ok(self.look_every());
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

    /// The reason why nothing is to be swept, as SCM says now or said lately.
    async fn paused(&mut self) -> Result<Option<&'static str>, Failure> {
        if let Some((at, why)) = self.asked
            && at.elapsed() < ASKED_EVERY
        {
            return Ok(why);
        }
        self.asked = None;
        let why = self.sweep.paused().await?;
        self.asked = Some((Instant::now(), why));
        Ok(why)
    }

    /// The word for what the sweep waits for, for operators.
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
                // The names that were lost may have been written again, or a disk may have come back.
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

    /// Sweeps a container, and then rests for as long: a sweep works half of the time at most.
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

    /// Asks all groups how far they are, and has them fence the containers whose turn it is; none, if none
    /// may be swept.
    async fn look(&mut self, may_sweep: bool) -> Result<(), Failure> {
        if !may_sweep || self.root.stop().await?.is_some() {
            return self.fence(&[]).await;
        }
        let counts = self.sweep.counts.clone();
        let taken = counts.take_requested();
        let due = self.due(&taken.requested).await?;
        let fenced = self.fence(&due).await;
        taken.done();
        if let Err(failure) = fenced {
            due.iter().for_each(|container| self.queue.again(*container));
            return Err(failure);
        }
        let now = Instant::now();
        due.iter().for_each(|container| self.queue.fence(*container, now));
        self.sweep.counts.note_queue(self.queue.waiting(), 0);
        Ok(())
    }

    /// The containers whose turn it is.
    async fn due(&mut self, requested: &Requested) -> Result<Vec<u64>, Failure> {
        let closed = self.closed_containers().await?;
        // A container that is asked for and not closed may be one that there is not.
        self.seeks |= requested.all || !requested.some.is_subset(&closed);
        let swept = self.root.read(fenced).await?;
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
        Ok(due)
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

    /// Fences containers: from here on no group takes a block of them that it does not name. Where none are
    /// due, all groups are asked all the same how far they are.
    async fn fence(&mut self, due: &[u64]) -> Result<(), Failure> {
        let (first, rest) = due.split_at(due.len().min(FENCED_AT_ONCE));
        self.fence_some(first).await?;
        for some in rest.chunks(FENCED_AT_ONCE) {
            self.fence_some(some).await?;
        }
        Ok(())
    }

    async fn fence_some(&mut self, containers: &[u64]) -> Result<(), Failure> {
        let known = self.sweep.fences_known().await?;
        let fenced = self.root.fence(containers, known).await?;
        let FenceContainersResponse { before, number, .. } = fenced;
        if !containers.is_empty() {
            info!(containers = containers.len(), "fence containers, to sweep them");
        }
        self.tell_scm(before, number).await?;
        let groups = self.root.groups().await?.into_iter().filter(|group| *group != ROOT);
        let others = self.sweep.others.groups.clone();
        let _hearing = others.hearing.lock().await;
        let said = join_all(groups.map(|group| self.root.ask(group))).await;
        let heard = said.iter().flatten().copied().chain([as_seen(ROOT, &fenced)]);
        self.note_groups(number, heard.collect()).await?;
        let (lacking, new) = (self.lacking(), New { before, number, containers });
        let told = said.into_iter().map(async |said| {
            let said = said?;
            let lacks = if lacking.contains(&said.group) { Lacks::All } else { Lacks::New(new) };
            self.root.send(said, lacks).await
        });
        let told = join_all(told).await;
        self.note_groups(number, told.iter().flatten().map(|told| told.seen).collect()).await?;
        if !told.iter().all(|told| told.as_ref().is_ok_and(|told| !told.is_all)) {
            self.queue.wait_again(Instant::now());
        }
        told.into_iter().collect::<Result<Vec<_>, _>>()?;
        self.lacking.lock().expect("no holder panics").retain(|group| !lacking.contains(group));
        Ok(())
    }

    /// Tells SCM of the root's fences, unless the sweep is stopped: this root may have been put back, and the
    /// right one is to find SCM as it left it.
    async fn tell_scm(&self, before: u64, number: u64) -> Result<(), Failure> {
        if self.root.stop().await?.is_some() {
            return Ok(());
        }
        let known = self.sweep.tell_fences(before, number).await?;
        if known <= before || planted::has(Bug::LessIsOverlooked) {
            return Ok(());
        }
        let why = format!(
            "two roots of names run: SCM was told of fences {known} beside those of this one, {before}"
        );
        self.root.change::<StopSweep>(StopSweepCommand { why, number }).await.map(drop)
    }

    async fn note_groups(&self, number: u64, groups: Vec<GroupSeen>) -> Result<(), Failure> {
        if let Some(SweepStop { why, .. }) = self.root.note(number, groups).await? {
            warn!(why, "the sweep is stopped: flotilla admin sweep status");
        }
        Ok(())
    }

    fn lacking(&self) -> BTreeSet<u64> {
        self.lacking.lock().expect("no holder panics").clone()
    }
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
