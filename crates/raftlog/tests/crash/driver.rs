//! Carries out actions on a log and writes them into its history.

use crate::history::{History, Removal};
use crate::model::{Change, Observed, log_id};
use bytes::Bytes;
use raftlog::{AppendError, Entry, HardState, Log, LogSpace, LogSpec, ReadError};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use types::{LogIndex, OwnerId, Payload};

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Append {
        bodies: Vec<usize>,
    },
    Roll {
        body: usize,
    },
    /// A roll to an earlier owner, which changes nothing.
    StaleRoll,
    /// Removes up to this many entries at the end.
    Truncate {
        count: u64,
    },
    /// Forgets up to this many entries at the start.
    Purge {
        count: u64,
    },
    /// Forgets everything and so many entries that the log never had.
    PurgePast {
        count: u64,
    },
    Vote,
    Committed,
    DeletePurged,
    /// Deletes an owner whose entries are all purged.
    DeleteOwner,
    /// Removes the log and its owners, and begins it anew.
    Remove,
    /// Closes the log and opens it again.
    Reopen,
    /// Waits until everything is acknowledged.
    Settle,
    /// Lets others run.
    Pause {
        turns: u64,
    },
    TimePasses {
        millis: u64,
    },
}

/// Longer than whatever is under way takes, by a clock that goes on only when nothing else is to be done.
const SETTLE_TIME_MAX: Duration = Duration::from_secs(5);

pub(crate) struct Driver {
    pub(crate) spec: LogSpec,
    pub(crate) is_metadata: bool,
    pub(crate) history: History,
    log: Option<Log>,
    term: u64,
    /// Makes every entry's bytes different from those of all others.
    serial: u64,
}

impl Driver {
    pub(crate) fn new(spec: LogSpec, is_metadata: bool, history: History) -> Driver {
        Driver { spec, is_metadata, history, log: None, term: 1, serial: 0 }
    }

    /// Opens the log and sees what is there. A removal that a crash interrupted is completed, if it came so
    /// far that the log is no longer there.
    pub(crate) async fn open(&mut self, space: &Arc<LogSpace>) -> Result<Observed, String> {
        if self.history.removal != Removal::None {
            let names = space.disk().list(&self.spec.dir).await.map_err(|error| error.to_string())?;
            if names.iter().any(|name| name == "hard-state") {
                if self.history.removal == Removal::Acknowledged {
                    return Err("a log came back that was removed".to_owned());
                }
                self.history.removal = Removal::None;
            } else {
                self.remove(space).await?;
            }
        }
        self.open_log(space).await
    }

    /// Removes the log, once more if a crash was in between, and what it leaves, the first owner last: until
    /// then it cannot be created again.
    async fn remove(&mut self, space: &Arc<LogSpace>) -> Result<(), String> {
        let removed = space.remove(&self.spec).await;
        removed.map_err(|error| format!("remove the log: {error}"))?;
        self.history.removal = Removal::Acknowledged;
        let (first, last) = (self.spec.first_owner.0, self.history.last_owner.0);
        for owner in (first..=last).rev().map(OwnerId) {
            let segments = owner_dir(&self.spec, self.spec.first_owner);
            let names = space.disk().list(&segments).await.map_err(|error| error.to_string())?;
            let has_segments = names.iter().any(|name| name.ends_with(".seg"));
            if has_segments && space.open(self.spec.clone()).await.is_ok() {
                return Err(format!("a new log was created over the segments in {segments}"));
            }
            let deleted = space.delete_owner(&self.spec.owners_dir, owner).await;
            deleted.map_err(|error| format!("delete owner {owner:?}: {error}"))?;
        }
        self.history.begin_again(self.spec.first_owner);
        Ok(())
    }

    /// Checks that what was deleted, and acknowledged, is not there.
    pub(crate) fn check_deleted(&self, files: &[(String, u64)]) -> Result<(), String> {
        for owner in &self.history.gone {
            let dir = owner_dir(&self.spec, *owner);
            if let Some((path, _)) = files.iter().find(|(path, _)| path.starts_with(&format!("{dir}/"))) {
                return Err(format!("{path} is of an owner that was deleted"));
            }
        }
        if let Some((owner, segment)) = self.history.now.deleted_before {
            let dir = owner_dir(&self.spec, owner);
            for gone in (0..segment).map(|segment| format!("{dir}/{segment:08x}.seg")) {
                if files.iter().any(|(path, _)| *path == gone) {
                    return Err(format!("{gone} held only purged entries and was deleted"));
                }
            }
        }
        Ok(())
    }

    async fn open_log(&mut self, space: &Arc<LogSpace>) -> Result<Observed, String> {
        let log = space.open(self.spec.clone()).await.map_err(|error| error.to_string())?;
        let observed = observe(&log).await.map_err(|error| error.to_string());
        self.log = Some(log);
        observed
    }

    pub(crate) async fn close(&mut self) {
        if let Some(log) = self.log.take() {
            log.close().await;
        }
    }

    /// Starts an action. What an unexpected error means is for the caller to say: it is in the history's
    /// acks.
    pub(crate) async fn act(&mut self, action: &Action, space: &Arc<LogSpace>) -> Result<(), String> {
        let Some(log) = self.log.clone() else { return Ok(()) };
        match action {
            Action::Append { bodies } => {
                let first = self.history.now.end();
                let entries =
                    bodies.iter().zip(first..).map(|(bytes, index)| self.entry(index, *bytes, None));
                let entries = entries.collect();
                self.append(&log, entries);
            }
            Action::Roll { body } => {
                // After a truncation that undid a roll this is the same owner again.
                let owner = OwnerId(self.history.now.tail().owner.0 + 1);
                let roll = self.entry(self.history.now.end(), *body, Some(owner));
                self.append(&log, vec![roll]);
            }
            Action::StaleRoll => {
                let stale = self.entry(self.history.now.end(), 10, Some(self.spec.first_owner));
                self.append(&log, vec![stale]);
            }
            Action::Truncate { count } => {
                let end = self.history.now.end().saturating_sub(*count).max(self.history.now.first());
                if end == self.history.now.end() {
                    return Ok(()); // nothing to do is done at once, whatever is still under way
                }
                self.term += 1;
                let last = end.checked_sub(1).map(LogIndex);
                self.change(Change::Truncate { end }, async move { log.truncate_after(last).await }).await;
            }
            Action::Purge { count } => {
                let entries = self.history.now.entries.values();
                let Some(to) = entries.take(*count as usize).last().map(|stored| stored.entry.id) else {
                    return Ok(());
                };
                self.change(Change::Purge { to }, async move { log.purge(to).await }).await;
            }
            Action::PurgePast { count } => {
                self.term += 1;
                let to = log_id(self.term, self.history.now.end() + count);
                self.change(Change::Purge { to }, async move { log.purge(to).await }).await;
            }
            Action::Vote => {
                self.term += 1;
                let vote = HardState {
                    vote_term: self.term,
                    vote_replica: 3,
                    vote_committed: self.term.is_multiple_of(2),
                };
                self.change(Change::Vote(vote), async move { log.save_hard_state(vote).await }).await;
            }
            Action::Committed => {
                let committed = self.history.now.last();
                self.history.committed(committed);
                log.save_committed(committed);
            }
            Action::DeletePurged => {
                let change = Change::DeletePurged;
                self.change(change, async move { log.delete_purged_segments().await }).await;
            }
            Action::DeleteOwner => {
                let owner = OwnerId(self.history.deleted_end.0.max(self.spec.first_owner.0));
                if !self.history.is_acknowledged() || owner >= self.history.now.start.owner {
                    return Ok(()); // entries in it are not purged, or not known to be
                }
                self.history.deleted_end = OwnerId(owner.0 + 1);
                let deleted = space.delete_owner(&self.spec.owners_dir, owner).await;
                deleted.map_err(|error| format!("delete owner {owner:?}: {error}"))?;
                self.history.gone.insert(owner);
            }
            Action::Remove => {
                self.log = None;
                drop(log);
                self.history.removal = Removal::Asked;
                self.remove(space).await?;
                let differs = self.open_log(space).await?.differs(&self.history.now);
                return differs.map_or(Ok(()), |why| Err(format!("after a removal: {why}")));
            }
            Action::Reopen => {
                self.close().await;
                drop(log);
                if self.history.acks.failure().is_some() {
                    return Ok(()); // it stopped with an error, and stays closed for this life
                }
                // A clean stop finishes what was asked for; what is found is checked by the next life.
                let observed = self.open(space).await?;
                let differs = observed.differs(&self.history.now);
                return differs.map_or(Ok(()), |why| Err(format!("after a clean stop: {why}")));
            }
            Action::Settle => {
                let end = Instant::now() + SETTLE_TIME_MAX;
                while self.history.is_waiting() && Instant::now() < end {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            }
            Action::TimePasses { millis } => tokio::time::advance(Duration::from_millis(*millis)).await,
            Action::Pause { turns } => {
                for _ in 0..*turns {
                    tokio::task::yield_now().await;
                }
            }
        }
        Ok(())
    }

    fn append(&mut self, log: &Log, entries: Vec<Entry>) {
        match log.append(entries.clone()) {
            Ok(token) => {
                let mut asked = self.history.asked();
                for entry in entries {
                    asked = self.history.push(Change::Append(entry));
                }
                let acks = self.history.acks.clone();
                token.on_durable(move |outcome| {
                    acks.resolved_in_order(asked, outcome.map_err(|error| error.to_string()));
                });
            }
            Err(error) => self.history.acks.resolved(0, Err(error.to_string())),
        }
    }

    /// Queues a change now; its acknowledgement comes later.
    async fn change(
        &mut self,
        change: Change,
        carry_out: impl Future<Output = Result<(), AppendError>> + Send + 'static,
    ) {
        let asked = self.history.push(change);
        let acks = self.history.acks.clone();
        let mut carried_out = Box::pin(async move {
            let outcome = carry_out.await;
            acks.resolved(asked, outcome.map_err(|error| error.to_string()));
        });
        if futures::poll!(&mut carried_out).is_pending() {
            tokio::spawn(carried_out);
        }
    }

    fn entry(&mut self, index: u64, body_bytes: usize, roll_to: Option<OwnerId>) -> Entry {
        self.serial += 1;
        let serial = self.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (self.spec.log << 56);
        // Never zero, so that a lost sector cannot pass for the right bytes.
        let body: Bytes = (0..body_bytes).map(|n| (serial.rotate_left(n as u32 % 64) as u8) | 1).collect();
        Entry {
            id: log_id(self.term, index),
            kind: (index % 5) as u8,
            meta: Bytes::from(format!("{serial:x}")),
            body: Payload::checksummed(body),
            roll_to,
        }
    }
}

fn owner_dir(spec: &LogSpec, owner: OwnerId) -> String {
    format!("{}/{:016x}", spec.owners_dir, owner.0)
}

pub(crate) async fn observe(log: &Log) -> Result<Observed, ReadError> {
    let state = log.state();
    let first = state.purged.map_or(0, |id| id.index.0 + 1);
    let end = state.last.map_or(0, |id| id.index.0 + 1);
    let (mut entries, mut places) = (Vec::new(), Vec::new());
    while first + (entries.len() as u64) < end {
        let rest = LogIndex(first + entries.len() as u64)..LogIndex(end);
        entries.extend(log.read(rest, 1 << 20).await?);
    }
    while first + (places.len() as u64) < end {
        let rest = LogIndex(first + places.len() as u64)..LogIndex(end);
        places.extend(log.read_meta(rest, 1 << 20).await?.into_iter().map(|meta| meta.place));
    }
    Ok(Observed {
        entries,
        places,
        purged: state.purged,
        last: state.last,
        vote: state.hard_state,
        committed: state.committed,
        owner: state.owner,
        owner_bytes: state.owner_bytes,
    })
}
