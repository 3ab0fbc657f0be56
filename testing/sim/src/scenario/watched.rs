use super::oracle::{Oracle, digest};
use bytes::Bytes;
use disk::Disk;
use futures::FutureExt;
use futures::future::BoxFuture;
use kv::{decode_ops, decode_outcomes};
use raft::{Applied, Committed, Snapshots, StateMachine};
use raftlog::{LogSpace, ReadError};
use statedb::Tables;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use types::{GroupId, LogIndex};

/// A state machine that tells the oracle what it does.
pub(super) struct Watched<M> {
    pub(super) inner: M,
    pub(super) tables: Arc<dyn Tables>,
    pub(super) oracle: Oracle,
    pub(super) group: GroupId,
    pub(super) name: String,
    pub(super) applied: Arc<Mutex<Option<LogIndex>>>,
    pub(super) bodies: Bodies,
}

/// The place where the bodies of commands stand, as long as this is not dropped: after that they may be
/// deleted at any time.
pub(super) struct Bodies {
    pub(super) space: Arc<LogSpace>,
    pub(super) owners_dir: String,
    pub(super) is_there: Arc<()>,
}

impl Bodies {
    /// Reads a body where the state machine was told that it stands. The task ends by itself, or with its
    /// process.
    fn look_at(&self, command: &Committed, group: GroupId, oracle: Oracle, by: String) {
        let (id, place) = (command.id, command.place);
        if place.body_bytes == 0 {
            return oracle.body(group, id, digest(&[][..] as &[u8]), &by);
        }
        let (space, owners_dir) = (self.space.clone(), self.owners_dir.clone());
        let is_there = Arc::downgrade(&self.is_there);
        tokio::spawn(async move {
            match space.read_body(&owners_dir, place, 0..place.body_bytes).await {
                Ok(body) => oracle.body(group, id, digest(&body.bytes[..]), &by),
                Err(error @ ReadError::Damaged { .. }) if is_there.strong_count() > 0 => {
                    oracle.fail(format!("{group:?}: {by} has no body of {id:?} at {place:?}: {error}"));
                }
                // The body was purged or deleted meanwhile, or the disk refuses: other checks see to that.
                Err(_) => {}
            }
        });
    }
}

impl<M: StateMachine> StateMachine for Watched<M> {
    /// The position is asked for when the state was opened or replaced as a whole, so that is looked at as a
    /// whole.
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        let applied = self.inner.applied()?;
        let at = applied.as_ref().map(|applied| applied.id.index);
        self.look_at_tables(at)?;
        if let Some(applied) = &applied {
            self.oracle.members(self.group, applied, &self.name);
        }
        *self.applied.lock().expect("no holder panics") = at;
        Ok(applied)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let commands: Vec<_> = batch.iter().map(|command| (command.id, command.meta.clone())).collect();
        for command in &batch {
            self.bodies.look_at(command, self.group, self.oracle.clone(), self.name.clone());
        }
        let id = applied.id;
        self.oracle.members(self.group, &applied, &self.name);
        let replies = self.inner.apply(batch, applied)?;
        let mut after = *self.applied.lock().expect("no holder panics");
        for ((id, meta), reply) in commands.into_iter().zip(&replies) {
            let (ops, outcomes) = (decode_ops(meta)?, decode_outcomes(reply.clone())?);
            self.oracle.applied(self.group, &self.name, after, id, &ops, &outcomes);
            after = Some(id.index);
        }
        self.oracle.committed(self.group, id, &self.name);
        self.look_at_tables(Some(id.index))?;
        *self.applied.lock().expect("no holder panics") = Some(id.index);
        Ok(replies)
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        self.inner.snapshots()
    }
}

impl<M> Watched<M> {
    fn look_at_tables(&self, at: Option<LogIndex>) -> anyhow::Result<()> {
        let found = kv::records(&*self.tables)?.into_iter().collect();
        self.oracle.check_tables(self.group, &self.name, at, &found);
        Ok(())
    }
}

/// Snapshots that are counted.
pub(super) struct WatchedSnapshots {
    pub(super) inner: Arc<dyn Snapshots>,
    pub(super) oracle: Oracle,
    pub(super) work: Arc<SnapshotWork>,
}

/// The work on snapshots that is under way.
#[derive(Default)]
pub(super) struct SnapshotWork {
    pub(super) is_writing: AtomicBool,
    pub(super) is_installing: AtomicBool,
}

impl Snapshots for WatchedSnapshots {
    fn disk(&self) -> Arc<dyn Disk> {
        self.inner.disk()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let (written, oracle, work) = (self.inner.write(dir), self.oracle.clone(), self.work.clone());
        async move {
            work.is_writing.store(true, Ordering::Relaxed);
            let written = written.await;
            work.is_writing.store(false, Ordering::Relaxed);
            oracle.count(|counts| counts.snapshots_written += 1);
            written
        }
        .boxed()
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        self.inner.check(dir)
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let (installed, oracle, work) = (self.inner.install(dir), self.oracle.clone(), self.work.clone());
        async move {
            work.is_installing.store(true, Ordering::Relaxed);
            let installed = installed.await;
            work.is_installing.store(false, Ordering::Relaxed);
            oracle.count(|counts| counts.snapshots_installed += 1);
            installed
        }
        .boxed()
    }
}
