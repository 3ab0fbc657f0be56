//! openraft's own storage tests on our log store and on a state machine of files, with its snapshots.

use crate::adapter::alive::Alive;
use crate::adapter::machine::{Builder, Machine};
use crate::adapter::type_config::{RaftLogId, RaftStoredMembership, TypeConfig};
use crate::counts::Counts;
use crate::group::parked::ApplyWaits;
use crate::log::log_store::LogStore;
use crate::snapshot::testing::{FileState, carry};
use crate::snapshot::{SnapshotData, SnapshotStore};
use disk::{Disk, RealDisk};
use futures::Stream;
use openraft::OptionalSend;
use openraft::StorageError;
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::testing::log::{StoreBuilder, Suite};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use std::io;
use std::sync::Arc;
use tempfile::TempDir;
use types::{GroupId, OwnerId, ReplicaId};

/// Our machine. The suite hands the snapshot of one machine to another as it is; here it goes the way of a
/// transfer, from disk to disk.
struct Carried {
    machine: Machine,
    store: Arc<SnapshotStore>,
}

impl RaftStateMachine<TypeConfig> for Carried {
    type SnapshotData = SnapshotData;
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

    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        self.machine.try_create_snapshot_builder(force).await
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        self.machine.get_snapshot_builder().await
    }

    async fn install_snapshot(
        &mut self,
        meta: &SnapshotMetaOf<TypeConfig>,
        snapshot: SnapshotData,
    ) -> Result<(), io::Error> {
        let SnapshotData::Stored(stored) = snapshot else { panic!("an empty snapshot is installed") };
        let here = carry(&stored, &self.store).await;
        self.machine.install_snapshot(meta, SnapshotData::Received(Arc::new(here))).await
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<SnapshotOf<TypeConfig, SnapshotData>>, io::Error> {
        self.machine.get_current_snapshot().await
    }
}

struct Stores;

impl StoreBuilder<TypeConfig, LogStore, Carried, TempDir> for Stores {
    async fn build(&self) -> Result<(TempDir, LogStore, Carried), StorageError<TypeConfig>> {
        let (alive, _) = Alive::new();
        let directory = TempDir::new().unwrap();
        let disk = Arc::new(RealDisk::open(&directory.path().join("disk"), 1).unwrap());
        let options =
            LogSpaceOptions { segment_bytes_max: 1 << 20, reserve_bytes: 0, ..LogSpaceOptions::default() };
        let spec = LogSpec {
            log: 1,
            dir: "groups/test".to_owned(),
            owners_dir: "containers".to_owned(),
            first_owner: OwnerId(1),
        };
        let log = LogSpace::new(disk.clone(), options).open(spec).await.unwrap();
        let disk: Arc<dyn Disk> = disk;
        let state = FileState::open(&disk, 0).await.unwrap();
        let store = state.store().await.unwrap();
        let counts = Arc::new(Counts::new(ReplicaId(1)));
        let machine = Box::new(state);
        let waits = ApplyWaits::new(parking::ParkingLot::new(1), GroupId::om(1));
        let (machine, _) = Machine::new(
            machine,
            Some(store.clone()),
            alive.clone(),
            counts.clone(),
            waits,
            Default::default(),
        )
        .unwrap();
        let machine = Carried { machine, store };
        // The suite purges what no snapshot has.
        Ok((directory, LogStore::new(log, 4 << 20, None, alive, counts, None, Default::default()), machine))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openrafts_storage_suite_passes() {
    Suite::test_all(Stores).await.unwrap();
}
