use crate::ops;
use crate::registry::Feed;
use crate::tables::{APPLIED_KEY, Tables, TablesMut};
use anyhow::Context;
use bytes::Bytes;
use disk::Disk;
use futures::future::BoxFuture;
use prost::Message;
use proto::registry::Event;
use proto::scm::ScmCommand;
use proto::scm::scm_command::Command;
use raft::{Applied, Committed, Snapshots, StateMachine};
use statedb::{Db, GroupDb};
use std::sync::{Arc, RwLock};
use tokio::sync::watch;

/// The tables as this replica has applied them, shared with the readers in this process.
#[derive(Clone)]
pub(crate) struct SharedTables {
    tables: Arc<RwLock<Tables>>,
    /// Counts the batches that changed something.
    changes: Arc<watch::Sender<u64>>,
    /// The registry's last changes.
    feed: Arc<Feed>,
}

impl SharedTables {
    pub(crate) fn new(tables: Tables) -> SharedTables {
        let feed = Arc::new(Feed::new(tables.revision()));
        SharedTables { tables: Arc::new(RwLock::new(tables)), changes: Arc::new(watch::Sender::new(0)), feed }
    }

    /// Reads the tables under their lock; `read` is quick and takes no other lock.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Tables) -> R) -> R {
        read(&self.tables.read().expect("no holder of the tables panics"))
    }

    pub(crate) fn feed(&self) -> Arc<Feed> {
        self.feed.clone()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// SCM's replicated state: tables in memory, and in a RocksDB that has Raft's log for its WAL.
pub(crate) struct ScmStateMachine {
    pub(crate) dbs: Arc<dyn GroupDb>,
    pub(crate) shared: SharedTables,
}

impl StateMachine for ScmStateMachine {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.dbs.current().applied(APPLIED_KEY)
    }

    fn lacks_room(&self, failed: &anyhow::Error) -> bool {
        Db::is_no_room(failed)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        apply(&self.dbs.current(), &self.shared, batch, &applied)
    }

    /// Notes a forced reset. Numbers that the lost members gave out are on disks of datanodes and in OM: they
    /// are never given out again.
    fn reset(&mut self, applied: Applied) -> anyhow::Result<()> {
        {
            let mut tables = self.shared.tables.write().expect("no holder of the tables panics");
            let reset = |change: &mut TablesMut<'_>| {
                change.reset();
                Ok(())
            };
            write(&self.dbs.current(), &mut tables, &applied, reset).context("write a reset")?;
            // Whoever follows the registry lists it again.
            self.shared.feed.reset(tables.revision());
        }
        self.shared.changes.send_modify(|changes| *changes += 1);
        Ok(())
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        Some(Arc::new(ScmSnapshots { dbs: self.dbs.clone(), shared: self.shared.clone() }))
    }
}

fn apply(
    db: &Db,
    shared: &SharedTables,
    batch: Vec<Committed>,
    applied: &Applied,
) -> anyhow::Result<Vec<Bytes>> {
    let mut replies = Vec::with_capacity(batch.len());
    {
        let mut tables = shared.tables.write().expect("no holder of the tables panics");
        let commands = |change: &mut TablesMut<'_>| {
            for committed in &batch {
                let command = decode(committed)?;
                replies.push(Bytes::from(ops::apply(change, command, committed.id.term).encode_to_vec()));
            }
            Ok(())
        };
        let events = write(db, &mut tables, applied, commands)?;
        // The events are pushed under the lock: whoever reads a revision in the tables finds its event in the
        // feed.
        shared.feed.push(events);
    }
    if !batch.is_empty() {
        shared.changes.send_modify(|changes| *changes += 1);
    }
    Ok(replies)
}

/// Changes the tables, and answers the registry's changes. A change comes into memory first: where the
/// database does not take it, the tables are loaded again, and are as they were.
fn write(
    db: &Db,
    tables: &mut Tables,
    applied: &Applied,
    change: impl FnOnce(&mut TablesMut<'_>) -> anyhow::Result<()>,
) -> anyhow::Result<Vec<Event>> {
    let mut changed = TablesMut::new(tables);
    let done = change(&mut changed).and_then(|()| {
        Db::put_applied(&mut changed.batch, APPLIED_KEY, applied);
        db.write(changed.batch).context("write the tables")
    });
    let events = changed.events;
    if done.is_err() {
        *tables = Tables::load(db).context("load the tables again after a change that was not written")?;
    }
    done.map(|()| events)
}

/// Snapshots of SCM's state: RocksDB has all of it; the tables in memory follow an install.
struct ScmSnapshots {
    dbs: Arc<dyn GroupDb>,
    shared: SharedTables,
}

impl Snapshots for ScmSnapshots {
    fn disk(&self) -> Arc<dyn Disk> {
        self.dbs.disk()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        self.dbs.write(dir)
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        self.dbs.check(dir)
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let installed = self.dbs.install(dir);
        let (dbs, shared) = (self.dbs.clone(), self.shared.clone());
        Box::pin(async move {
            installed.await?;
            let tables = Tables::load(&dbs.current()).context("load SCM's tables from a snapshot")?;
            let revision = tables.revision();
            {
                let mut current = shared.tables.write().expect("no holder of the tables panics");
                *current = tables;
                shared.feed.reset(revision);
            }
            shared.changes.send_modify(|changes| *changes += 1);
            Ok(())
        })
    }
}

fn decode(committed: &Committed) -> anyhow::Result<Command> {
    let index = committed.id.index;
    let command =
        ScmCommand::decode(committed.meta.clone()).with_context(|| format!("decode command {index}"))?;
    let is_known =
        |command: &Command| !matches!(command, Command::Registry(registry) if registry.command.is_none());
    let command = command.command.filter(is_known);
    command.with_context(|| format!("command {index} is unknown; a newer flotilla wrote it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{create, register};
    use raftlog::Place;
    use statedb::DbState;
    use std::path::Path;
    use testkit::FullTables;
    use types::{LogId, LogIndex, OwnerId, Term};

    /// The state machine's parts, on a database of their own.
    struct Machine {
        db: Db,
        shared: SharedTables,
    }

    fn open(path: &Path) -> Machine {
        let db = Db::open(path, &statedb::DbOptions::default()).unwrap();
        let shared = SharedTables::new(Tables::load(&db).unwrap());
        Machine { db, shared }
    }

    fn log() -> Vec<Committed> {
        let commands = [register(1), register(2), register(3), create([1, 2, 3]), create([2, 1, 3])];
        let committed = |(index, command): (usize, Command)| Committed {
            id: LogId { term: Term(1), index: LogIndex(index as u64) },
            meta: Bytes::from(ScmCommand { command: Some(command) }.encode_to_vec()),
            place: Place { owner: OwnerId(0), segment: 0, offset: 0, body_bytes: 0 },
            roll_to: None,
        };
        commands.into_iter().enumerate().map(committed).collect()
    }

    fn apply(machine: &Machine, batch: &[Committed]) {
        let applied = Applied { id: batch.last().unwrap().id, membership: Bytes::new() };
        super::apply(&machine.db, &machine.shared, batch.to_vec(), &applied).unwrap();
    }

    #[test]
    fn replay_from_any_stored_position_gives_the_same_tables() {
        let log = log();
        let dir = tempfile::tempdir().unwrap();
        let whole = open(&dir.path().join("whole"));
        apply(&whole, &log);
        for cut in 1..log.len() {
            let path = dir.path().join(cut.to_string());
            let first = open(&path);
            apply(&first, &log[..cut]);
            first.db.flush().unwrap();
            drop(first);
            let again = open(&path);
            let from = again.db.applied(APPLIED_KEY).unwrap().unwrap().id.index.next().0 as usize;
            assert_eq!(from, cut);
            apply(&again, &log[from..]);
            whole.shared.read(|expected| again.shared.read(|tables| assert_eq!(tables, expected)));
            assert_eq!(Tables::load(&again.db).unwrap(), Tables::load(&whole.db).unwrap());
        }
    }

    #[test]
    fn a_command_of_a_newer_version_stops_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(dir.path());
        let mut command = log().remove(0);
        command.meta = Bytes::new();
        let applied = Applied { id: command.id, membership: Bytes::new() };
        let error =
            super::apply(&machine.db, &machine.shared, vec![command], &applied).unwrap_err().to_string();
        assert!(error.contains("newer flotilla"), "{error}");
    }

    #[test]
    fn commands_for_which_there_is_no_room_are_applied_once_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let (machine, log) = (open(dir.path()), log());
        apply(&machine, &log[..2]);
        let tables = FullTables::of(dir.path());
        machine.db.flush().unwrap_err();
        let applied = Applied { id: log[4].id, membership: Bytes::new() };
        let failed = super::apply(&machine.db, &machine.shared, log[2..].to_vec(), &applied).unwrap_err();
        assert!(Db::is_no_room(&failed), "{failed:#}");
        // Nobody reads what is not written.
        machine.shared.read(|tables| assert_eq!(*tables, Tables::load(&machine.db).unwrap()));
        tables.make_room(|| machine.db.probe() == DbState::Well);
        apply(&machine, &log[2..]);
        let whole = open(&dir.path().join("whole"));
        apply(&whole, &log);
        whole.shared.read(|expected| machine.shared.read(|tables| assert_eq!(tables, expected)));
    }

    #[tokio::test]
    async fn an_installed_snapshot_is_what_readers_see() {
        let dir = tempfile::tempdir().unwrap();
        let open = async |name: &str| {
            let disk = Arc::new(disk::RealDisk::open(&dir.path().join(name), 1).unwrap());
            let dbs =
                statedb::DbGenerations::open(disk, "db-scm", &statedb::DbOptions::default(), APPLIED_KEY)
                    .await
                    .unwrap();
            let shared = SharedTables::new(Tables::load(&dbs.current()).unwrap());
            ScmStateMachine { dbs: Arc::new(dbs), shared }
        };
        let (mut from, mut to) = (open("from").await, open("to").await);
        let log = log();
        let applied = |n: usize| Applied { id: log[n].id, membership: Bytes::new() };
        from.apply(log.clone(), applied(4)).unwrap();
        to.apply(log[..1].to_vec(), applied(0)).unwrap();
        let mut changes = to.shared.changes();

        let written = from.snapshots().unwrap().write("snapshot".to_owned()).await.unwrap();
        assert_eq!(written, applied(4));
        // The snapshot comes as a transfer would bring it.
        disk::link_dir(&dir.path().join("from/snapshot"), &dir.path().join("to/snapshot"), |_| true).unwrap();
        to.snapshots().unwrap().install("snapshot".to_owned()).await.unwrap();
        assert_eq!(to.applied().unwrap(), Some(applied(4)));
        from.shared.read(|expected| to.shared.read(|tables| assert_eq!(tables, expected)));
        assert!(changes.has_changed().unwrap(), "watchers hear of it");
        changes.mark_unchanged();
    }
}
