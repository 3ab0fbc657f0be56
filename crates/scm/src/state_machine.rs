use crate::ops;
use crate::tables::{APPLIED_KEY, Tables, TablesMut};
use anyhow::Context;
use bytes::Bytes;
use prost::Message;
use proto::scm::ScmCommand;
use raft::{Applied, Committed, Db, StateMachine};
use std::sync::{Arc, RwLock};
use tokio::sync::watch;

/// The tables as this replica has applied them, shared with the readers in this process.
#[derive(Clone)]
pub(crate) struct SharedTables {
    tables: Arc<RwLock<Tables>>,
    /// Counts the batches that changed something.
    changes: Arc<watch::Sender<u64>>,
}

impl SharedTables {
    pub(crate) fn new(tables: Tables) -> SharedTables {
        SharedTables { tables: Arc::new(RwLock::new(tables)), changes: Arc::new(watch::Sender::new(0)) }
    }

    /// Reads under the lock; `read` is quick and takes no other lock.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&Tables) -> R) -> R {
        read(&self.tables.read().expect("no holder of the tables panics"))
    }

    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }
}

/// SCM's replicated state: tables in memory, and in a RocksDB that has Raft's log for its WAL.
pub(crate) struct ScmStateMachine {
    pub(crate) db: Arc<Db>,
    pub(crate) shared: SharedTables,
}

impl StateMachine for ScmStateMachine {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.db.applied(APPLIED_KEY)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let mut replies = Vec::with_capacity(batch.len());
        {
            // An error below leaves memory ahead of the batch; the group stops on it, and a restart loads the tables.
            let mut tables = self.shared.tables.write().expect("no holder of the tables panics");
            let mut change = TablesMut::new(&mut tables);
            for committed in &batch {
                let command = decode(committed)?;
                replies.push(Bytes::from(ops::apply(&mut change, command).encode_to_vec()));
            }
            Db::put_applied(&mut change.batch, APPLIED_KEY, &applied);
            self.db.write(change.batch).context("write applied commands")?;
        }
        if !batch.is_empty() {
            self.shared.changes.send_modify(|changes| *changes += 1);
        }
        Ok(replies)
    }
}

fn decode(committed: &Committed) -> anyhow::Result<proto::scm::scm_command::Command> {
    let index = committed.id.index;
    let command =
        ScmCommand::decode(committed.meta.clone()).with_context(|| format!("decode command {index}"))?;
    command.command.with_context(|| format!("command {index} is unknown; a newer flotilla wrote it"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{create, register};
    use proto::scm::scm_command::Command;
    use raftlog::Place;
    use std::path::Path;
    use types::{LogId, LogIndex, OwnerId, Term};

    fn open(path: &Path) -> ScmStateMachine {
        let db = Arc::new(Db::open(path, &raft::DbOptions::default()).unwrap());
        let shared = SharedTables::new(Tables::load(&db).unwrap());
        ScmStateMachine { db, shared }
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

    fn apply(machine: &mut ScmStateMachine, batch: &[Committed]) {
        let applied = Applied { id: batch.last().unwrap().id, membership: Bytes::new() };
        machine.apply(batch.to_vec(), applied).unwrap();
    }

    #[test]
    fn replay_from_any_stored_position_gives_the_same_tables() {
        let log = log();
        let dir = tempfile::tempdir().unwrap();
        let mut whole = open(&dir.path().join("whole"));
        apply(&mut whole, &log);
        for cut in 1..log.len() {
            let path = dir.path().join(cut.to_string());
            let mut first = open(&path);
            apply(&mut first, &log[..cut]);
            first.db.flush().unwrap();
            drop(first);
            let mut again = open(&path);
            let from = again.applied().unwrap().unwrap().id.index.next().0 as usize;
            assert_eq!(from, cut);
            apply(&mut again, &log[from..]);
            whole.shared.read(|expected| again.shared.read(|tables| assert_eq!(tables, expected)));
            assert_eq!(Tables::load(&again.db).unwrap(), Tables::load(&whole.db).unwrap());
        }
    }

    #[test]
    fn a_command_of_a_newer_version_stops_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = open(dir.path());
        let mut command = log().remove(0);
        command.meta = Bytes::new();
        let applied = Applied { id: command.id, membership: Bytes::new() };
        let error = machine.apply(vec![command], applied).unwrap_err().to_string();
        assert!(error.contains("newer flotilla"), "{error}");
    }
}
