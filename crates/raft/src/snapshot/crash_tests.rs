//! A member that loses power at every step of receiving and installing a snapshot.

use crate::adapter::alive::Alive;
use crate::adapter::encoding::{applied_to, first_membership};
use crate::adapter::type_config::RaftStoredMembership;
use crate::snapshot::manifest::{Manifest, PIECE_BYTES, Piece};
use crate::snapshot::reception::{ReceiveError, Reception};
use crate::snapshot::stored::{PieceReader, Stored};
use crate::snapshot::testing::{begin, carry, carry_pieces};
use crate::snapshot::{Limits, SnapshotStore, Snapshots, root};
use crate::{Applied, HostOptions, Member};
use anyhow::Context;
use bytes::Bytes;
use disk::Disk;
use disk::sim::{CrashPoint, Loss, SimDisk, SimOptions};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::sync::Arc;
use types::{GroupId, LogId, LogIndex, NodeId, ReplicaId, Term};

const OLD: u8 = 1;
const NEW: u8 = 2;
const FILE_BYTES: usize = 2 * PIECE_BYTES + 1000;

/// A state of one byte, in a file that is replaced whole; its snapshots are larger.
struct ByteState {
    disk: SimDisk,
}

fn applied(state: u8) -> Applied {
    let member = Member { replica: ReplicaId(1), node: NodeId(1), address: "a:1".to_owned() };
    let membership = RaftStoredMembership::new(None, first_membership(&[member]).unwrap());
    applied_to(LogId { term: Term(1), index: LogIndex(u64::from(state) * 100) }, &membership)
}

impl ByteState {
    async fn read(&self) -> u8 {
        self.disk.open("state", false).await.unwrap().read_at(0, 1).await.unwrap()[0]
    }
}

async fn write_state(disk: &SimDisk, state: u8) -> anyhow::Result<()> {
    disk.open("state.new", true).await?.write_and_sync(0, vec![Bytes::from(vec![state])]).await?;
    disk.rename("state.new", "state").await?;
    Ok(disk.sync_dir("").await?)
}

impl Snapshots for ByteState {
    fn disk(&self) -> Arc<dyn Disk> {
        Arc::new(self.disk.clone())
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let disk = self.disk.clone();
        async move {
            let state = disk.open("state", false).await?.read_at(0, 1).await?[0];
            disk.create_dir_all(&dir).await?;
            for (name, bytes) in [("a", 0), ("b", FILE_BYTES), ("c", 10)] {
                let file = disk.open(&format!("{dir}/{name}"), true).await?;
                file.write_and_sync(0, vec![Bytes::from(vec![state; bytes])]).await?;
            }
            disk.sync_dir(&dir).await?;
            Ok(applied(state))
        }
        .boxed()
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let disk = self.disk.clone();
        async move { Ok(applied(disk.open(&format!("{dir}/b"), false).await?.read_at(0, 1).await?[0])) }
            .boxed()
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let disk = self.disk.clone();
        async move {
            let file = disk.open(&format!("{dir}/b"), false).await?;
            let content = file.read_at(0, FILE_BYTES).await?;
            anyhow::ensure!(content.len() == FILE_BYTES && content.iter().all(|byte| *byte == content[0]));
            write_state(&disk, content[0]).await
        }
        .boxed()
    }
}

async fn open(disk: &SimDisk) -> anyhow::Result<Arc<SnapshotStore>> {
    let limits = Arc::new(Limits::new(&HostOptions::default()));
    let state = Arc::new(ByteState { disk: disk.clone() });
    let (alive, _) = Alive::new();
    Ok(Arc::new(SnapshotStore::open(GroupId::om(1), state, limits, Arc::default(), alive).await?))
}

/// A snapshot of the new state, on a disk that is well.
async fn offered() -> Arc<Stored> {
    let disk = SimDisk::new(SimOptions::default());
    write_state(&disk, NEW).await.unwrap();
    open(&disk).await.unwrap().write().await.unwrap()
}

/// The same files, of a state that has come further.
fn at(stored: &Arc<Stored>, state: u8) -> Arc<Stored> {
    let manifest = Manifest { applied: applied(state), ..stored.manifest.clone() };
    let encoded = manifest.encode();
    Arc::new(Stored::new(stored.disk.clone(), stored.dir.clone(), manifest, encoded).unwrap())
}

#[derive(Clone, Copy, PartialEq)]
enum Bug {
    None,
    NotSynced,
}

/// Receives an offer as a follower does.
async fn receive(disk: &SimDisk, offered: &Arc<Stored>, bug: Bug) -> anyhow::Result<()> {
    let store = open(disk).await?;
    if let Some(current) = store.current() {
        // As openraft does at its start.
        store.install(&current).await?;
        if current.id() == offered.id() {
            return Ok(());
        }
    }
    let mut reception = begin(offered, &store).await?;
    carry_pieces(offered, &mut reception, usize::MAX).await?;
    let here = match bug {
        Bug::None => reception.finish().await?,
        Bug::NotSynced => reception.finish_planted(),
    };
    store.install(&here.stored).await
}

/// Checks that the new state is there, and a snapshot of it that can be sent on.
async fn check_installed(disk: &SimDisk) -> anyhow::Result<()> {
    let state = ByteState { disk: disk.clone() }.read().await;
    anyhow::ensure!(state == NEW, "the state is {state}");
    let store = open(disk).await?;
    let current = store.current().context("the installed snapshot is gone")?;
    let mut reader = PieceReader::new(current.clone());
    for piece in current.manifest.pieces_from(Piece { file: 0, number: 0 }) {
        reader.read(piece).await?;
    }
    let dirs = disk.list(&root(GroupId::om(1))).await?;
    anyhow::ensure!(dirs.len() == 1, "old snapshots stay: {dirs:?}");
    Ok(())
}

async fn fresh() -> SimDisk {
    let disk = SimDisk::new(SimOptions::default());
    write_state(&disk, OLD).await.unwrap();
    disk
}

/// Loses power at every step, with every kind of loss, and receives again.
async fn crash_everywhere(bug: Bug) -> anyhow::Result<u64> {
    let offered = offered().await;
    let undisturbed = fresh().await;
    let first = undisturbed.steps();
    receive(&undisturbed, &offered, bug).await?;
    let last = undisturbed.steps();
    let losses = [Loss::AllUnsynced, Loss::Nothing, Loss::Random(1), Loss::Random(2)];
    for step in first..last {
        for point in [CrashPoint::Before(step), CrashPoint::After(step)] {
            for loss in losses {
                let disk = fresh().await;
                disk.crash_at(point);
                let acknowledged = receive(&disk, &offered, bug).await.is_ok();
                let what = format!("{point:?}, {loss:?}");
                let disk = disk.lose_power(loss, SimOptions::default());
                let state = ByteState { disk: disk.clone() }.read().await;
                anyhow::ensure!(state == OLD || state == NEW, "{what}: the state is {state}");
                if acknowledged {
                    check_installed(&disk).await.with_context(|| format!("acknowledged, {what}"))?;
                }
                receive(&disk, &offered, Bug::None).await.with_context(|| format!("again, {what}"))?;
                check_installed(&disk).await.with_context(|| format!("again, {what}"))?;
            }
        }
    }
    // The last moment: all was acknowledged.
    for loss in losses {
        let disk = fresh().await;
        receive(&disk, &offered, bug).await?;
        let disk = disk.lose_power(loss, SimOptions::default());
        check_installed(&disk).await.with_context(|| format!("after the end, {loss:?}"))?;
    }
    Ok(last - first)
}

#[tokio::test(start_paused = true)]
async fn a_crash_at_any_step_leaves_the_old_state_or_the_new_one() {
    let steps = crash_everywhere(Bug::None).await.unwrap();
    assert!(steps >= 15, "only {steps} steps");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_counts_before_it_is_durable_is_found() {
    let found = crash_everywhere(Bug::NotSynced).await;
    assert!(found.is_err(), "a planted bug was not found");
}

#[tokio::test(start_paused = true)]
async fn a_restart_goes_on_with_what_was_received() {
    let offered = offered().await;
    let disk = fresh().await;
    let store = open(&disk).await.unwrap();
    let mut reception = begin(&offered, &store).await.unwrap();
    assert_eq!(carry_pieces(&offered, &mut reception, 2).await.unwrap(), 2);
    drop((reception, store));

    // The process dies; what it wrote is in the system's memory.
    let disk = disk.kill(SimOptions::default());
    let store = open(&disk).await.unwrap();
    let mut reception = begin(&offered, &store).await.unwrap();
    assert_eq!(carry_pieces(&offered, &mut reception, usize::MAX).await.unwrap(), 2, "two of four are left");
    let here = reception.finish().await.unwrap();
    store.install(&here.stored).await.unwrap();
    drop((here, store));
    check_installed(&disk).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn another_snapshot_takes_the_place_of_one_that_is_half_here() {
    let (offered, other) = (offered().await, offered().await);
    let disk = fresh().await;
    let store = open(&disk).await.unwrap();
    let mut reception = begin(&offered, &store).await.unwrap();
    carry_pieces(&offered, &mut reception, 1).await.unwrap();
    assert!(matches!(begin(&offered, &store).await, Err(ReceiveError::Busy)), "one at a time");
    drop(reception);
    let newer = at(&other, 3);
    let here = carry(&newer, &store).await;
    assert_eq!(here.stored.id(), applied(3).id);
    assert_eq!(disk.list(&root(GroupId::om(1))).await.unwrap().len(), 1);
}

/// Whoever offers may go away at any moment, and come back with something else.
#[tokio::test(start_paused = true)]
async fn a_reception_that_is_broken_off_anywhere_leaves_nothing_behind() {
    let offered = offered().await;
    let mut polls = 0;
    loop {
        let disk = fresh().await;
        let store = open(&disk).await.unwrap();
        let mut reception = begin(&offered, &store).await.unwrap();
        carry_pieces(&offered, &mut reception, 1).await.unwrap();
        drop(reception);
        let second = at(&offered, 3);
        let mut carrying = Box::pin(carry(&second, &store));
        let mut is_done = false;
        for _ in 0..polls {
            is_done = is_done || futures::poll!(&mut carrying).is_ready();
        }
        drop(carrying);
        let here = carry(&at(&offered, 4), &store).await;
        store.install(&here.stored).await.unwrap();
        store.sweep_unused().await;
        let dirs = disk.list(&root(GroupId::om(1))).await.unwrap();
        assert_eq!(dirs.len(), 1, "broken off after {polls} polls: {dirs:?}");
        if is_done {
            break;
        }
        polls += 1;
    }
    assert!(polls > 20, "only {polls} polls");
}

#[tokio::test(start_paused = true)]
async fn a_snapshot_that_cannot_be_completed_leaves_nothing_behind() {
    let offered = offered().await;
    let disk = fresh().await;
    let store = open(&disk).await.unwrap();
    let no_members = Applied { membership: Bytes::from_static(b"\xff"), ..applied(NEW) };
    let manifest = Manifest { applied: no_members, ..offered.manifest.clone() };
    let encoded = manifest.encode();
    let mut reception = Reception::begin(&store, manifest, encoded).await.unwrap();
    carry_pieces(&offered, &mut reception, usize::MAX).await.unwrap();
    let refused = reception.finish().await.map(drop);
    assert!(matches!(refused, Err(ReceiveError::Refused(_))), "{refused:?}");
    store.sweep().await;
    assert!(disk.list(&root(GroupId::om(1))).await.unwrap().is_empty());
    carry(&offered, &store).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_else_is_received_until_a_snapshot_is_installed() {
    let offered = offered().await;
    let disk = fresh().await;
    let store = open(&disk).await.unwrap();
    let received = carry(&offered, &store).await;
    let next = at(&offered, 3);
    assert!(matches!(begin(&next, &store).await, Err(ReceiveError::Busy)), "it is to be installed");
    let installing = received.into_openraft();
    assert!(matches!(begin(&next, &store).await, Err(ReceiveError::Busy)), "it is being installed");
    store.install(installing.snapshot.stored().unwrap()).await.unwrap();
    drop(installing);
    let reception = begin(&next, &store).await.unwrap();
    // What is half here is dropped when the state has come further by itself.
    drop(reception);
    let here = carry(&at(&offered, 4), &store).await;
    store.install(&here.stored).await.unwrap();
    store.sweep_unused().await;
    assert_eq!(disk.list(&root(GroupId::om(1))).await.unwrap().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_full_disk_is_told_and_leaves_nothing_behind() {
    let offered = offered().await;
    let disk = fresh().await;
    let store = open(&disk).await.unwrap();
    disk.set_free_bytes(1 << 20);
    let refused = begin(&offered, &store).await;
    assert!(matches!(refused, Err(ReceiveError::DiskFull { .. })), "{:?}", refused.err());

    disk.set_free_bytes(1 << 30);
    let mut reception = begin(&offered, &store).await.unwrap();
    disk.set_free_bytes(1000);
    let full = carry_pieces(&offered, &mut reception, usize::MAX).await;
    assert!(matches!(full, Err(ReceiveError::DiskBecameFull)), "{full:?}");
    reception.discard();
    store.sweep().await;
    assert!(disk.list(&root(GroupId::om(1))).await.unwrap().is_empty());
    assert_eq!(ByteState { disk: disk.clone() }.read().await, OLD);

    disk.set_free_bytes(1 << 30);
    let here = carry(&offered, &store).await;
    store.install(&here.stored).await.unwrap();
    assert_eq!(ByteState { disk }.read().await, NEW);
}

#[tokio::test(start_paused = true)]
async fn a_damaged_piece_is_neither_written_nor_sent() {
    let offered = offered().await;
    let disk = fresh().await;
    let store = open(&disk).await.unwrap();
    let mut reception = begin(&offered, &store).await.unwrap();
    let at = reception.cursor();
    let mut damaged = PieceReader::new(offered.clone()).read(at).await.unwrap().to_vec();
    damaged[7] ^= 1;
    assert!(reception.write(damaged.into()).await.unwrap().is_err());
    assert_eq!(reception.cursor(), at, "it is asked for again");
    carry_pieces(&offered, &mut reception, usize::MAX).await.unwrap();
    let here = reception.finish().await.unwrap().stored;

    disk.flip_stored_bit(&format!("{}/c", here.files_dir()), 3, 0).unwrap();
    let last = here.manifest.pieces_from(Piece { file: 2, number: 0 }).next().unwrap();
    assert!(PieceReader::new(here.clone()).read(last).await.is_err());
    assert!(here.needs_next(), "the keeper writes another");
}
