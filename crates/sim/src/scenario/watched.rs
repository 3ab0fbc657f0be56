use super::oracle::Oracle;
use bytes::Bytes;
use disk::Disk;
use futures::FutureExt;
use futures::future::BoxFuture;
use kv::{decode_ops, decode_outcomes};
use raft::{Applied, Committed, Snapshots, StateMachine, Tables};
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
}

impl<M: StateMachine> StateMachine for Watched<M> {
    /// Asked when the state was opened or replaced as a whole, so it is looked at as a whole.
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        let applied = self.inner.applied()?;
        let at = applied.as_ref().map(|applied| applied.id.index);
        let found = kv::records(&*self.tables)?.into_iter().collect();
        self.oracle.check_tables(self.group, &self.name, at, &found);
        if let Some(applied) = &applied {
            self.oracle.members(self.group, applied, &self.name);
        }
        *self.applied.lock().expect("no holder panics") = at;
        Ok(applied)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let commands: Vec<_> = batch.iter().map(|command| (command.id, command.meta.clone())).collect();
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
        *self.applied.lock().expect("no holder panics") = Some(id.index);
        Ok(replies)
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        self.inner.snapshots()
    }
}

/// Snapshots that are counted.
pub(super) struct WatchedSnapshots {
    pub(super) inner: Arc<dyn Snapshots>,
    pub(super) oracle: Oracle,
}

impl Snapshots for WatchedSnapshots {
    fn disk(&self) -> Arc<dyn Disk> {
        self.inner.disk()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let (written, oracle) = (self.inner.write(dir), self.oracle.clone());
        written.inspect(move |_| oracle.count(|counts| counts.snapshots_written += 1)).boxed()
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        self.inner.check(dir)
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let (installed, oracle) = (self.inner.install(dir), self.oracle.clone());
        installed.inspect(move |_| oracle.count(|counts| counts.snapshots_installed += 1)).boxed()
    }
}
