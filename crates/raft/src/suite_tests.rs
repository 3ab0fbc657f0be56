//! openraft's own storage tests on our log store and state machine.

use crate::alive::Alive;
use crate::counts::Counts;
use crate::log_store::LogStore;
use crate::machine::Machine;
use crate::type_config::{RaftLogId, RaftStoredMembership, TypeConfig};
use crate::{Applied, Committed, Db, DbOptions, StateMachine};
use bytes::Bytes;
use disk::RealDisk;
use futures::Stream;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use openraft::{OptionalSend, RaftSnapshotBuilder, StorageError};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::io;
use std::sync::Arc;
use tempfile::TempDir;
use types::{OwnerId, ReplicaId};

/// A state machine that holds nothing but its position.
struct Position {
    db: Db,
}

impl StateMachine for Position {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.db.applied(b"applied")
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let mut write = rocksdb::WriteBatch::default();
        Db::put_applied(&mut write, b"applied", &applied);
        self.db.write(write)?;
        Ok(vec![Bytes::new(); batch.len()])
    }
}

/// Our machine with snapshots, which the suite wants to see and groups do not have: of a position there is nothing to
/// copy but itself.
struct WithSnapshots {
    machine: Machine,
    current: Arc<std::sync::Mutex<Option<SnapshotMetaOf<TypeConfig>>>>,
}

struct Builder {
    meta: SnapshotMetaOf<TypeConfig>,
    current: Arc<std::sync::Mutex<Option<SnapshotMetaOf<TypeConfig>>>>,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> Result<SnapshotOf<TypeConfig, ()>, io::Error> {
        *self.current.lock().unwrap() = Some(self.meta.clone());
        Ok(SnapshotOf::<TypeConfig, ()> { meta: self.meta.clone(), snapshot: () })
    }
}

impl RaftStateMachine<TypeConfig> for WithSnapshots {
    type SnapshotData = ();
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<RaftLogId>, RaftStoredMembership), io::Error> {
        self.machine.applied_state().await
    }

    async fn apply<Strm>(&mut self, entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        self.machine.apply(entries).await
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let (last_log_id, last_membership) = self.machine.applied_state().await.unwrap();
        Builder {
            meta: SnapshotMetaOf::<TypeConfig> { last_log_id, last_membership },
            current: self.current.clone(),
        }
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMetaOf<TypeConfig>, _: ()) -> Result<(), io::Error> {
        self.machine.set_position(meta.last_log_id, meta.last_membership.clone());
        *self.current.lock().unwrap() = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> Result<Option<SnapshotOf<TypeConfig, ()>>, io::Error> {
        let meta = self.current.lock().unwrap().clone();
        Ok(meta.map(|meta| SnapshotOf::<TypeConfig, ()> { meta, snapshot: () }))
    }
}

struct Stores;

impl StoreBuilder<TypeConfig, LogStore, WithSnapshots, TempDir> for Stores {
    async fn build(&self) -> Result<(TempDir, LogStore, WithSnapshots), StorageError<TypeConfig>> {
        let (alive, _) = Alive::new();
        let directory = TempDir::new().unwrap();
        let disk = RealDisk::open(&directory.path().join("disk"), 1).unwrap();
        let options =
            LogSpaceOptions { segment_bytes_max: 1 << 20, reserve_bytes: 0, ..LogSpaceOptions::default() };
        let spec = LogSpec {
            log: 1,
            dir: "groups/test".to_owned(),
            owners_dir: "containers".to_owned(),
            first_owner: OwnerId(1),
        };
        let log = LogSpace::new(Arc::new(disk), options).open(spec).await.unwrap();
        let db = Db::open(&directory.path().join("db"), &DbOptions::default()).unwrap();
        let counts = Arc::new(Counts::new(ReplicaId(1)));
        let (machine, _) = Machine::new(Box::new(Position { db }), alive.clone(), counts.clone()).unwrap();
        let machine = WithSnapshots { machine, current: Arc::default() };
        Ok((directory, LogStore::new(log, 4 << 20, alive, counts), machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openrafts_storage_suite_passes() {
    Suite::test_all(Stores).await.unwrap();
}
