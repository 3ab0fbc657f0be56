//! Reclaims what is unused in one group, as long as that is led from here.

use super::Reclaim;
use super::portion::{self, Deleted, OfContainer, Portion};
use super::waits::{Said, Waits};
use crate::blocks::BlockKey;
use crate::ops::{self, ForgetBlocks, Fresh, Operation, PIECES_AT_ONCE, SortDeleted, WalkDropped};
use crate::replica::Replica;
use crate::tables::{BucketNumber, DROPPED_PREFIX, deleted_key, entry_number, number_in};
use crate::upgrade::rows;
use bytes::Bytes;
use futures::future::try_join_all;
use proto::om::{ForgetBlocksCommand, SortDeletedCommand, WalkDroppedCommand};
use proto::scm::scm_client::ScmClient;
use proto::scm::{DiscardBlocksRequest, DiscardProgress, UnusedBlocks};
use proto::{Failure, RequestId, in_cluster};
use rand::RngExt;
use statedb::Db;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep};
use tonic::Request;
use tracing::{debug, error, info};
use types::Backoff;
use types::random::random;

/// The pauses after a round that failed.
const RETRY: Backoff = Backoff::new(Duration::from_millis(500), Duration::from_secs(10));
/// The limits of the pause between two looks at what there is.
const PAUSE_MIN: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// The number of looks in the time that what is deleted has to wait.
const LOOKS_WHILE_WAITING: u32 = 20;
/// The most blocks that one command forgets, which takes some milliseconds.
const FORGOTTEN_AT_ONCE: usize = 2048;
/// The most dropped buckets that are walked in a round.
const DROPPED_AT_ONCE: usize = 100;

pub(super) struct Worker {
    reclaim: Reclaim,
    replica: Arc<Replica>,
    waits: Arc<Waits>,
    /// The key up to which records of deleted pieces are sorted.
    sorted: Bytes,
    seen: Seen,
}

/// The keys up to which this leader has seen deleted pieces, and when. No wall clock decides how long a
/// record has waited, as clocks may be apart: it has once this leader has seen it for so long. Another leader
/// begins anew.
#[derive(Default)]
struct Seen(VecDeque<(Instant, Vec<u8>)>);

impl Seen {
    /// Notes that what is before this key is there by now, and returns the key before which all has waited.
    fn waited(&mut self, before: Vec<u8>, after: Duration, now: Instant) -> Vec<u8> {
        let step = after / LOOKS_WHILE_WAITING;
        if self.0.back().is_none_or(|(last, _)| *last + step <= now) {
            self.0.push_back((now, before));
        }
        let have_waited = self.0.iter().take_while(|(at, _)| *at + after <= now).count();
        self.0.drain(..have_waited.saturating_sub(1));
        match have_waited {
            0 => Vec::new(),
            _ => self.0[0].1.clone(),
        }
    }
}

impl Worker {
    pub(super) fn new(reclaim: Reclaim, replica: Arc<Replica>) -> Worker {
        let (waits, sorted, seen) = Default::default();
        Worker { reclaim, replica, waits, sorted, seen }
    }

    /// Reclaims what is unused until somebody else leads.
    pub(super) async fn run(mut self) {
        let group = self.replica.group.id();
        let _shown = self.reclaim.counts.clone().begin(group, self.waits.clone());
        let mut retry = RETRY;
        while self.check_leads().is_ok() {
            let pause = match self.round().await {
                Ok(is_all) => {
                    retry.reset();
                    if is_all { self.pause() } else { PAUSE_MIN }
                }
                Err(failure) => {
                    self.reclaim.counts.failed.count();
                    debug!(%group, %failure, "reclaim what is unused");
                    retry.pause()
                }
            };
            sleep(pause).await;
        }
    }

    fn check_leads(&self) -> Result<(), Failure> {
        self.replica.check_serves(&self.reclaim.addresses)
    }

    fn pause(&self) -> Duration {
        let look = (self.reclaim.after / LOOKS_WHILE_WAITING).min(PAUSE_MAX);
        let next = self.waits.next().map(|next| next.saturating_duration_since(Instant::now()));
        next.map_or(look, |next| next.min(look)).max(PAUSE_MIN)
    }

    /// Sorts what has waited, and has SCM discard what is unused; answers whether SCM was asked about all
    /// whose turn it is.
    async fn round(&mut self) -> Result<bool, Failure> {
        self.walk_dropped().await?;
        self.sort().await?;
        let (mut next, mut is_all) = (Some(0), true);
        while let Some(from) = next {
            let waits = self.waits.clone();
            let read = move |db: &Db| portion::unused(db, from, &waits, Instant::now());
            let portion = self.read(read).await?;
            next = portion.next;
            is_all &= self.discard(portion).await?;
        }
        Ok(is_all)
    }

    /// Ends what is left of uploads in buckets that were deleted.
    async fn walk_dropped(&self) -> Result<(), Failure> {
        let dropped = |db: &Db| {
            let numbers = rows(db, DROPPED_PREFIX).map(|row| number_in(&row?.0)).take(DROPPED_AT_ONCE);
            numbers.collect::<anyhow::Result<Vec<_>>>()
        };
        for BucketNumber(number) in self.read(dropped).await? {
            let mut after = Bytes::new();
            loop {
                let some = WalkDroppedCommand { number, after, pieces_max: PIECES_AT_ONCE as u32 };
                let walked = self.change::<WalkDropped>(some).await?;
                if walked.is_done {
                    break;
                }
                after = walked.last;
            }
            let group = self.replica.group.id();
            info!(%group, number, "ended the uploads to a bucket that was deleted");
        }
        Ok(())
    }

    /// Makes unused blocks of deleted pieces that have waited long enough.
    async fn sort(&mut self) -> Result<(), Failure> {
        let applied = self.replica.group.status().applied.unwrap_or_default();
        let next = self.read(move |db| entry_number(db, applied.next())).await?;
        let waited = self.seen.waited(deleted_key(next, 0), self.reclaim.after, Instant::now());
        loop {
            let (after, before) = (self.sorted.clone(), waited.clone());
            let last = match self.read(move |db| portion::deleted(db, &after, &before)).await? {
                Deleted::UpTo(last) => last,
                Deleted::Young { oldest_ms } => {
                    self.waits.note_deleted(oldest_ms);
                    return Ok(());
                }
            };
            let after = self.sorted.clone();
            let some = SortDeletedCommand { after, last, pieces_max: PIECES_AT_ONCE as u32 };
            self.sorted = self.change::<SortDeleted>(some).await?.after;
        }
    }

    /// Has SCM discard what was read, and forgets what is gone. Answers whether no more is to be asked for
    /// now.
    async fn discard(&self, portion: Portion) -> Result<bool, Failure> {
        for found in portion.containers.iter().filter(|found| !found.named.is_empty()) {
            self.report_named(found);
            self.forget(found.container, &[], &found.named).await?;
        }
        let (asked, rest): (Vec<_>, Vec<_>) =
            portion.containers.into_iter().partition(|found| !found.blocks.is_empty());
        for found in rest {
            // What is left of the container is looked at again.
            self.wait(&found, DiscardProgress::default());
        }
        if asked.is_empty() {
            return Ok(true);
        }
        self.check_leads()?;
        let (told, mut is_all) = (self.ask(&asked).await?, true);
        for (found, progress) in asked.iter().zip(told) {
            let gone = gone(found, &progress);
            self.forget(found.container, &gone, &[]).await?;
            self.reclaim.counts.forgotten.add(gone.len() as u64);
            if gone.len() < found.blocks.len() {
                self.wait(found, progress);
                continue;
            }
            self.waits.remove(found.container);
            is_all &= !found.is_part;
        }
        Ok(is_all)
    }

    fn report_named(&self, found: &OfContainer) {
        let (group, container, blocks) = (self.replica.group.id(), found.container, found.named.len());
        let first = found.named.first().map(|block| block.to_proto());
        error!(%group, container, blocks, ?first, "blocks were filed as unused, and keys name them: they stay");
    }

    fn wait(&self, found: &OfContainer, progress: DiscardProgress) {
        let said = Said::by_scm(progress, found.blocks.len() as u64, found.oldest_ms);
        self.waits.note(found.container, said, Instant::now());
    }

    /// Asks SCM to discard blocks of containers; returns what it says of each container, in their order.
    async fn ask(&self, asked: &[OfContainer]) -> Result<Vec<DiscardProgress>, Failure> {
        let cluster = self.reclaim.disk.stamp().cluster;
        let unused = |found: &OfContainer| UnusedBlocks {
            container: found.container,
            blocks: found.blocks.iter().map(|block| block.to_proto()).collect(),
            bytes: found.bytes,
        };
        let containers = asked.iter().map(unused).collect();
        let (group, replica) = (self.replica.group.id().number, self.replica.id().0);
        let request = DiscardBlocksRequest { group, replica, containers };
        let answer = self.reclaim.scm.ask(|channel| {
            let request = in_cluster(Request::new(request.clone()), &cluster);
            async move { ScmClient::new(channel).discard_blocks(request).await }
        });
        let told = answer.await?.containers;
        let is_of =
            |(found, progress): (&OfContainer, &DiscardProgress)| found.container == progress.container;
        match told.len() == asked.len() && asked.iter().zip(&told).all(is_of) {
            true => Ok(told),
            false => Err(Failure::internal("SCM answers for other containers than it was asked for")),
        }
    }

    async fn forget(&self, container: u64, gone: &[BlockKey], named: &[BlockKey]) -> Result<(), Failure> {
        let rests = |blocks: &[BlockKey]| -> Bytes {
            blocks.iter().flat_map(|block| block.rest()).copied().collect()
        };
        let gone = gone.chunks(FORGOTTEN_AT_ONCE).map(|some| (rests(some), Bytes::new()));
        let named = named.chunks(FORGOTTEN_AT_ONCE).map(|some| (Bytes::new(), rests(some)));
        let commands = gone
            .chain(named)
            .map(|(gone, named)| self.change::<ForgetBlocks>(ForgetBlocksCommand { container, gone, named }));
        try_join_all(commands).await.map(drop)
    }

    async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Db) -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let db = self.replica.dbs.current();
        let read = raft::blocking(move || read(&db)).await;
        let read = read.map_err(|error| Failure::internal(format!("read what is unused: {error}")))?;
        read.map_err(|error| Failure::internal(format!("read what is unused: {error:#}")))
    }

    async fn change<O: Operation>(&self, what: O::Request) -> Result<O::Response, Failure> {
        let fresh = Fresh { random: 0, now_ms: self.reclaim.clock.now_ms() };
        let command = ops::prepare::<O>(RequestId(random().random()), None, what, fresh)?;
        self.replica.change::<O>(command).await
    }
}

/// The blocks of which SCM says that they are gone.
fn gone(found: &OfContainer, progress: &DiscardProgress) -> Vec<BlockKey> {
    let blocks = found.blocks.iter().enumerate();
    blocks.filter(|(at, _)| progress.is_gone(*at)).map(|(_, block)| *block).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_deleted_waits_by_no_clock() {
        let (mut seen, begun) = (Seen::default(), Instant::now());
        let after = Duration::from_secs(600);
        let mut waited = |second: u64| {
            let key = seen.waited(deleted_key(second, 0), after, begun + Duration::from_secs(second));
            (0..=second).find(|at| deleted_key(*at, 0) == key)
        };
        for second in 0..600 {
            assert_eq!(waited(second), None, "{second}");
        }
        for second in 600..2000 {
            let waited = waited(second).unwrap();
            assert!((second.saturating_sub(630)..=second - 600).contains(&waited), "{waited} at {second}");
        }
        assert!(seen.0.len() <= 22, "{}", seen.0.len());
        let key = deleted_key(7, 0);
        assert_eq!(Seen::default().waited(key.clone(), Duration::ZERO, begun), key, "nothing has to wait");
    }
}
