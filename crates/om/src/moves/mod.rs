//! Buckets that move to other groups, while they are used (docs/adr/0014-names-on-several-groups.md).
//!
//! ```text
//! the root          the group that has it            the other group            the root
//! moving ─────────► sends what is there ───────────► rows of no bucket
//!                   and what changes meanwhile ────►
//!                   freezes, sends the rest ───────► and the bucket's record
//!                   asks ──────────────────────────────────────────────────────► moved, or stays
//! moved ──────────► lets go of it ─────────────────► holds it ─────────────────► live
//! stays ──────────► thaws it ──────────────────────► lets go of what came ─────► live
//! ```
//!
//! The leader of the group that has the bucket drives it up to the question ([`sender`]); the root's leader
//! before and after that ([`root`]). Each step may be repeated, by whoever leads by then. A leader
//! that has been replaced is of no account: its run has a lower number than the next one's. The root says
//! once what becomes of an attempt, and until it has, a frozen bucket stays frozen.
//!
//! What is left of a bucket in a group that does not have it is deleted in the background ([`leftovers`]).

mod counts;
mod leftovers;
#[cfg(test)]
mod model;
mod parts;
pub(crate) mod root;
mod sender;

pub(crate) use counts::MoveCounts;
#[cfg(test)]
pub(crate) use parts::Parts;

use crate::led_tasks::LedTasks;
use crate::others::Others;
use crate::replica::Replica;
use crate::replicas::Replicas;
use crate::tables::{BucketNumber, LEFT_PREFIX, SENDING_PREFIX, decode, number_in};
use crate::upgrade::rows;
use anyhow::Context;
use proto::om::SendingBucket;
use raft::AddressBook;
use sender::Sender;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};
use tokio::time::sleep;
use tracing::warn;
use types::Clock;

/// The time after which what a leader before this one has begun is gone on with.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Buckets that an OM sends at a time. Each has a part under way, which takes its share of the memory in
/// which changes wait at the other group's OM.
pub(crate) const SENT_AT_A_TIME: usize = 8;

/// The way of buckets from one group to another.
#[derive(Clone)]
pub(crate) struct Moves {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) others: Others,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) counts: Arc<MoveCounts>,
    /// Notified when there is something to send.
    pub(crate) wanted: Arc<Notify>,
    /// One permit per bucket that is sent.
    pub(crate) slots: Arc<Semaphore>,
}

/// Work on what a group has of a bucket.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    Send(u64),
    Clear(u64),
}

/// Sends buckets that are to move, and sweeps what buckets have left, in all groups that are led from here.
pub(crate) async fn go_on_always(moves: Moves) {
    let mut tasks = LedTasks::default();
    loop {
        tokio::select! {
            biased;
            () = sleep(LOOK_EVERY) => {}
            () = moves.wanted.notified() => {}
        }
        let answering = moves.replicas.answering(&moves.addresses);
        // Where SCM has the group leave this OM, what was begun goes on for as long as it leads: writers may
        // wait for the end.
        tasks.keep(&answering);
        for replica in answering.iter().filter(|replica| moves.replicas.wants(replica)) {
            if let Err(error) = moves.begin(replica, &mut tasks) {
                let group = replica.group.id();
                warn!(%group, error = format!("{error:#}"), "read which buckets move");
            }
        }
    }
}

impl Moves {
    fn begin(&self, replica: &Arc<Replica>, tasks: &mut LedTasks<Work>) -> anyhow::Result<()> {
        let db = replica.dbs.current();
        for row in rows(&db, SENDING_PREFIX) {
            let (key, value) = row?;
            let sending: SendingBucket = decode(&key, &value)?;
            let moved = sending.moved.context("a bucket that is sent somewhere")?;
            let sender = Sender::new(self.clone(), replica.clone(), moved);
            tasks.begin(replica, Work::Send(moved.number), || sender.run());
        }
        for row in rows(&db, LEFT_PREFIX) {
            let BucketNumber(number) = number_in(&row?.0)?;
            let (moves, of) = (self.clone(), replica.clone());
            tasks.begin(replica, Work::Clear(number), || leftovers::run(moves, of, number));
        }
        Ok(())
    }
}
