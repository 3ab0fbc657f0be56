//! A transfer without a network, and a state machine that stands on any disk.

use crate::adapter::alive::Alive;
use crate::adapter::encoding::{applied_to, first_membership, log_id_from};
use crate::adapter::type_config::RaftStoredMembership;
use crate::snapshot::reception::{ReceiveError, Reception};
use crate::snapshot::stored::{PieceReader, Received, Stored};
use crate::snapshot::{Counters, Limits, SnapshotStore, Snapshots};
use crate::{Applied, Committed, HostOptions, Member, StateMachine};
use anyhow::{Context, ensure};
use bytes::Bytes;
use disk::Disk;
use futures::FutureExt;
use futures::future::BoxFuture;
use std::io;
use std::sync::{Arc, Mutex};
use types::{GroupId, LogId, NodeId, ReplicaId};

pub(crate) const GROUP: GroupId = GroupId { kind: types::GroupKind::Om, number: 9 };

/// Replicas 1, 2 and 3.
pub(crate) fn members() -> Vec<Member> {
    let member =
        |n: u64| Member { replica: ReplicaId(n), node: NodeId(n), address: "127.0.0.1:1".to_owned() };
    (1..=3).map(member).collect()
}

pub(crate) fn applied_at(id: LogId) -> Applied {
    let first = Some(log_id_from(LogId::default()));
    let membership = first_membership(&members()).expect("three members");
    applied_to(id, &RaftStoredMembership::new(first, membership))
}

const DIR: &str = "machine";
const STATE: &str = "machine/state";
const SMALL_BYTES: usize = 1 << 10;

/// A state machine whose state is its position, durable when a snapshot was written or installed. Its
/// snapshots have that and as many bytes more as the test wants.
#[derive(Clone)]
pub(crate) struct FileState {
    disk: Arc<dyn Disk>,
    filler_bytes: usize,
    applied: Arc<Mutex<Option<Applied>>>,
}

impl FileState {
    pub(crate) async fn open(disk: &Arc<dyn Disk>, filler_bytes: usize) -> io::Result<FileState> {
        let applied = read(disk, STATE).await?.map(|bytes| Applied::decode(&bytes).expect("written whole"));
        Ok(FileState { disk: disk.clone(), filler_bytes, applied: Arc::new(Mutex::new(applied)) })
    }

    pub(crate) fn set(&self, id: LogId) {
        *self.applied.lock().unwrap() = Some(applied_at(id));
    }

    /// The state's snapshots, as a host opens them.
    pub(crate) async fn store(&self) -> anyhow::Result<Arc<SnapshotStore>> {
        let (alive, _) = Alive::new();
        let limits = Arc::new(Limits::new(&HostOptions::default()));
        let counters = Arc::new(Counters::default());
        let store = SnapshotStore::open(GROUP, Arc::new(self.clone()), limits, counters, alive).await?;
        Ok(Arc::new(store))
    }

    fn now(&self) -> anyhow::Result<Applied> {
        self.applied.lock().unwrap().clone().context("nothing is applied")
    }
}

async fn read(disk: &Arc<dyn Disk>, path: &str) -> io::Result<Option<Bytes>> {
    match disk.open(path, false).await {
        Ok(file) => file.read_at(0, SMALL_BYTES).await.map(Some),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn write(disk: &Arc<dyn Disk>, path: &str, bytes: Vec<u8>) -> io::Result<()> {
    let file = disk.open(path, true).await?;
    file.set_len(bytes.len() as u64).await?;
    file.write_and_sync(0, vec![bytes.into()]).await
}

async fn store_state(disk: &Arc<dyn Disk>, applied: &Applied) -> io::Result<()> {
    disk.create_dir_all(DIR).await?;
    write(disk, "machine/new", applied.encode()).await?;
    disk.rename("machine/new", STATE).await?;
    disk.sync_dir(DIR).await
}

impl StateMachine for FileState {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        Ok(self.applied.lock().unwrap().clone())
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        *self.applied.lock().unwrap() = Some(applied);
        Ok(vec![Bytes::new(); batch.len()])
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        Some(Arc::new(self.clone()))
    }
}

/// Bytes that differ between places.
fn filler(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 8) ^ (at >> 16)) as u8).collect()
}

impl Snapshots for FileState {
    fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let state = self.clone();
        async move {
            let applied = state.now()?;
            state.disk.create_dir_all(&dir).await?;
            write(&state.disk, &format!("{dir}/filler"), filler(state.filler_bytes)).await?;
            write(&state.disk, &format!("{dir}/state"), applied.encode()).await?;
            state.disk.sync_dir(&dir).await?;
            store_state(&state.disk, &applied).await?;
            Ok(applied)
        }
        .boxed()
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let disk = self.disk.clone();
        async move { Applied::decode(&read(&disk, &format!("{dir}/state")).await?.context("no state")?) }
            .boxed()
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let state = self.clone();
        async move {
            let filler_read = state.disk.open(&format!("{dir}/filler"), false).await?;
            let filler_read = filler_read.read_at(0, state.filler_bytes + 1).await?;
            ensure!(
                filler_read == filler(state.filler_bytes),
                "the snapshot has other bytes than were written"
            );
            let applied = read(&state.disk, &format!("{dir}/state")).await?.context("no state")?;
            let applied = Applied::decode(&applied)?;
            store_state(&state.disk, &applied).await?;
            *state.applied.lock().unwrap() = Some(applied);
            Ok(())
        }
        .boxed()
    }
}

/// Receives `stored` into another store, whole.
pub(crate) async fn carry(stored: &Arc<Stored>, to: &Arc<SnapshotStore>) -> Received {
    let mut reception = begin(stored, to).await.unwrap();
    carry_pieces(stored, &mut reception, usize::MAX).await.unwrap();
    reception.finish().await.unwrap()
}

pub(crate) async fn begin(stored: &Arc<Stored>, to: &Arc<SnapshotStore>) -> Result<Reception, ReceiveError> {
    Reception::begin(to, stored.manifest.clone(), stored.encoded.clone()).await
}

/// Receives up to so many of the pieces that are missing; answers how many they were.
pub(crate) async fn carry_pieces(
    stored: &Arc<Stored>,
    reception: &mut Reception,
    count_max: usize,
) -> Result<usize, ReceiveError> {
    let mut reader = PieceReader::new(stored.clone());
    let missing: Vec<_> = stored.manifest.pieces_from(reception.cursor()).take(count_max).collect();
    for &piece in &missing {
        let data = reader.read(piece).await.unwrap();
        reception.write(data).await?.unwrap();
    }
    Ok(missing.len())
}
