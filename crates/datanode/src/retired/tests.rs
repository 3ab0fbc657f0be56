use super::*;
use crate::import::imported_file;
use crate::index::{keys, records};
use crate::inventory::Inventory;
use crate::offline::tests::{END, FIRST, Left, SECOND, copy};
use crate::offline::{OfflineDisk, RebuildOptions};
use crate::opening::machine;
use crate::options::DatanodeOptions;
use crate::orders::close::close_on;
use crate::pipeline::PipelineError;
use crate::spec_file;
use disk::{Disk, RealDisk};
use diskhooks::{Act, HookedDisk, Operation};
use proto::datanode::{ContainerFile, ContainerManifest};
use raft::{AddressBook, HostOptions, ReplicaStage, Timing};
use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use types::{BlockId, PipelineId, Term};

const PIPELINE: PipelineId = PipelineId(3);

fn id(index: u64) -> LogId {
    LogId { term: Term(1), index: LogIndex(index) }
}

/// A disk that takes so many changes and then none: what a process does that is killed there.
fn fragile(disk: Arc<dyn Disk>, changes: usize) -> HookedDisk {
    let left = AtomicUsize::new(changes);
    HookedDisk::new(disk, move |call| {
        let take = || left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        match call.operation.is_change() && take().is_err() {
            true => Act::Fail(io::Error::other("the process was killed")),
            false => Act::Pass,
        }
    })
}

/// The replica on a disk that takes `changes` more.
async fn retired(left: &Left, changes: usize) -> Retired {
    on_disk(&left.root(), changes).await
}

async fn on_disk(root: &Path, changes: usize) -> Retired {
    on_hooked_disk(root, |real| fragile(real, changes)).await
}

/// The replica on a disk with such hooks.
async fn on_hooked_disk(root: &Path, hook: impl Fn(Arc<dyn Disk>) -> HookedDisk) -> Retired {
    let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
    let disk = loop {
        match open(root, &hook).await {
            Ok(disk) => break Arc::new(disk),
            // Whoever had the disk before lets go of its last file in the background.
            Err(failure) if tokio::time::Instant::now() > deadline => panic!("{failure:#}"),
            Err(_) => tokio::time::sleep(std::time::Duration::from_millis(5)).await,
        }
    };
    let order = PipelineOrder::from_spec(&crate::offline::tests::spec(), disk.id);
    Retired { disk, order, loss_is_told: true }
}

async fn open(root: &Path, hook: impl Fn(Arc<dyn Disk>) -> HookedDisk) -> anyhow::Result<DatanodeDisk> {
    let real = Arc::new(RealDisk::open(root, 1)?);
    let hooked = Arc::new(hook(real.clone()));
    DatanodeDisk::open_over(real, hooked, &DatanodeOptions::default(), Inventory::default()).await
}

fn host() -> RaftHost {
    RaftHost::new(HostOptions::default(), AddressBook::default())
}

impl Retired {
    /// An order to create it that a crash interrupts before its log begins.
    async fn begin_creation(&self) {
        let spec = self.order.group_spec(String::new(), Timing::PIPELINE);
        host().announce(&spec, &self.disk.space, &self.order.log_spec()).await.unwrap();
        machine(&self.disk, &self.order, u64::MAX, false).await.unwrap();
    }

    /// Opens the group, as an order to create it would.
    async fn open_group(&self) -> Result<(), PipelineError> {
        self.open_group_until(None).await
    }

    /// [`Retired::open_group`]; closes it once it has applied so much.
    async fn open_group_until(&self, applied: Option<LogIndex>) -> Result<(), PipelineError> {
        let (host, spec) = (host(), self.order.group_spec(String::new(), Timing::PIPELINE));
        host.announce(&spec, &self.disk.space, &self.order.log_spec()).await?;
        let (machine, _) = machine(&self.disk, &self.order, u64::MAX, false).await.unwrap();
        let group = host.open(spec, &self.disk.space, self.order.log_spec(), machine).await?;
        if let Some(applied) = applied {
            group.wait_applied(applied, std::time::Duration::from_secs(60)).await.unwrap();
        }
        drop(group);
        host.close(self.group()).await;
        Ok(())
    }

    fn record(&self, container: ContainerId) -> Option<ContainerRecord> {
        self.disk.index.container(container).unwrap()
    }

    /// Reads all there is of all blocks.
    async fn read_all(&self) -> Vec<(BlockId, u64)> {
        let mut read = Vec::new();
        for container in [FIRST, SECOND] {
            let blocks: Vec<_> = self.disk.index.block_rows(container, 0).map(Result::unwrap).collect();
            for (block, record) in blocks {
                let pieces = self.disk.index.pieces(block, 0..record.length, usize::MAX).unwrap();
                for piece in pieces {
                    let all = 0..piece.place.body_bytes;
                    self.disk.space.read_body(OWNERS_DIR, piece.place, all).await.unwrap();
                }
                read.push((block, record.length));
            }
        }
        read
    }

    /// The states of the containers, and up to where they are known to be committed.
    fn ends(&self) -> Vec<(ContainerId, ReplicaState, LogIndex)> {
        let containers = self.disk.index.containers().unwrap().into_iter();
        containers.map(|(container, record)| (container, record.state, record.committed)).collect()
    }

    /// The containers, and how far each, that are served to readers who say how much they know.
    fn served(&self) -> BTreeSet<(ContainerId, u64)> {
        let index = &self.disk.index;
        let serves = |container, at| {
            let record = index.container(container).unwrap();
            record.is_some_and(|record| index.has_applied(&record, LogIndex(at)).unwrap())
        };
        // Where their records stand.
        let asked = [(FIRST, 1..7), (SECOND, 7..20)].into_iter();
        let asked = asked.flat_map(|(container, entries)| entries.map(move |at| (container, at)));
        asked.filter(|&(container, at)| serves(container, at)).collect()
    }

    fn is_forgotten(&self) -> bool {
        let index = &self.disk.index;
        let applied = index.applied(PIPELINE).unwrap();
        index.pipeline_specs().unwrap().is_empty()
            && applied.is_none()
            && index.open_container(PIPELINE).unwrap().is_none()
    }

    async fn its_record(&self) -> Option<ReplicaRecord> {
        ReplicaRecord::read_unless_damaged(self.group(), self.disk.space.disk()).await.unwrap()
    }

    async fn is_removed(&self) -> bool {
        let is_its = |record: ReplicaRecord| record.replica == self.order.replica;
        self.its_record().await.is_some_and(|record| is_its(record) && record.stage == ReplicaStage::Removed)
    }
}

/// The part of the index's memory that a crash leaves.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Memory {
    Lost,
    /// The memory is all on disk: another pipeline of the disk had the index flushed just before.
    Flushed,
}

/// The replica as a process leaves it that lets go of it and takes so many changes, and whether that was all.
async fn cut_short(template: &Left, changes: usize, memory: Memory) -> (Left, Retired, bool) {
    let left = template.copy();
    let first = retired(&left, changes).await;
    let is_done = first.let_go(&host()).await.is_ok();
    if memory == Memory::Flushed {
        first.disk.index.flush().unwrap();
    }
    (left, first, is_done)
}

/// Kills the process at each change of the disk in turn, and checks that the next one finds the replica as it
/// was, or finishes what was begun; `check` says whether the containers are as they must be at the end.
async fn crash_everywhere(template: &Left, memory: Memory, check: impl Fn(&Retired)) {
    let whole = template.copy();
    let blocks = retired(&whole, usize::MAX).await;
    blocks.quasi_close(&host()).await.unwrap();
    let expected = blocks.read_all().await;
    assert!(expected.len() >= 4, "{expected:?}");
    let (ends, served) = (blocks.ends(), blocks.served());
    let mut furthest = None;
    for changes in 0.. {
        let (left, first, is_done) = cut_short(template, changes, memory).await;
        assert!(first.served().is_subset(&served), "after {changes} changes: {:?}", first.served());
        let after = left.copy();
        drop(first);
        let second = retired(&after, usize::MAX).await;
        assert!(second.served().is_subset(&served), "after {changes} changes: {:?}", second.served());
        let stage = second.its_record().await.map(|record| record.stage);
        assert!(stage >= furthest, "after {changes} changes it is {stage:?}, and was {furthest:?}");
        furthest = stage;
        if stage.is_some_and(ReplicaStage::has_ended) {
            let opened = second.open_group().await;
            assert!(opened.is_err(), "after {changes} changes it is {stage:?}, and its group opens");
        } else {
            assert!(!is_done, "after {changes} changes it was let go, and is as before");
        }
        second.let_go(&host()).await.unwrap_or_else(|failure| panic!("after {changes} changes: {failure:#}"));
        assert!(second.is_forgotten(), "after {changes} changes");
        assert_eq!(second.read_all().await, expected, "after {changes} changes");
        let told: Vec<_> = ends.iter().copied().filter(|(container, ..)| *container != END).collect();
        assert_eq!(second.ends(), told, "after {changes} changes");
        assert!(second.is_removed().await);
        assert!(second.open_group().await.is_err(), "after {changes} changes its group opens");
        check(&second);
        drop(second);
        check_offline(&after, &expected, &check).await;
        if is_done {
            assert!(changes > 10, "only {changes} changes");
            return;
        }
    }
}

/// Checks that a lost index is rebuilt the same, from the segments and what is beside them.
async fn check_offline(left: &Left, expected: &[(BlockId, u64)], check: impl Fn(&Retired)) {
    left.check(&[]).await;
    left.lose("db");
    let rebuilt = OfflineDisk::open(&left.root()).unwrap().rebuild(RebuildOptions::default()).await.unwrap();
    assert!(rebuilt.is_whole(), "{rebuilt:?}");
    left.check(&[]).await;
    let again = retired(left, usize::MAX).await;
    assert!(again.is_forgotten());
    assert_eq!(again.read_all().await, expected);
    check(&again);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_ended_alone_is_let_go_whatever_crashes() {
    let template = Left::new().await;
    crash_everywhere(&template, Memory::Lost, |retired| {
        let first = retired.record(FIRST).unwrap();
        assert_eq!((first.state, first.last), (ReplicaState::Closed, Some(id(6))));
        let second = retired.record(SECOND).unwrap();
        assert_eq!((second.state, second.last), (ReplicaState::QuasiClosed, Some(id(9))));
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_ended_with_its_pipeline_is_let_go_whatever_crashes() {
    let template = Left::ended().await;
    crash_everywhere(&template, Memory::Lost, |retired| {
        let second = retired.record(SECOND).unwrap();
        assert_eq!((second.state, second.last), (ReplicaState::Closed, Some(id(10))));
        assert_eq!(retired.record(END), None);
    })
    .await;
}

/// The index is lost after the replica ended and before it was let go of: the rest of the log is applied
/// again, which a container that is over would not take.
#[tokio::test(flavor = "multi_thread")]
async fn what_has_ended_is_whole_again_after_its_index_was_rebuilt() {
    let left = Left::new().await;
    let before = retired(&left, usize::MAX).await;
    before.quasi_close(&host()).await.unwrap();
    let (blocks, ends) = (before.read_all().await, before.ends());
    drop(before);
    left.lose("db");
    OfflineDisk::open(&left.root()).unwrap().rebuild(RebuildOptions::default()).await.unwrap();
    left.check(&[]).await;
    let after = retired(&left, usize::MAX).await;
    after.quasi_close(&host()).await.unwrap();
    assert_eq!((after.read_all().await, after.ends()), (blocks, ends));
}

/// The applied part of the tail proves nothing, wherever the process was killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_with_an_unconfirmed_roll_is_let_go_whatever_crashes() {
    let template = Left::with_unconfirmed_roll().await;
    crash_everywhere(&template, Memory::Flushed, |retired| {
        let first = retired.record(FIRST).unwrap();
        assert_eq!((first.state, first.committed), (ReplicaState::QuasiClosed, LogIndex(5)));
        let second = retired.record(SECOND).unwrap();
        // What is known to be committed stands in the first.
        assert_eq!((second.state, second.committed), (ReplicaState::QuasiClosed, LogIndex(0)));
    })
    .await;
}

/// The log ends with a roll that this member does not know to be committed.
#[tokio::test(flavor = "multi_thread")]
async fn an_unconfirmed_roll_quasi_closes_its_container() {
    let left = Left::with_unconfirmed_roll().await;
    let retired = retired(&left, usize::MAX).await;
    for _ in 0..2 {
        retired.quasi_close(&host()).await.unwrap();
        let first = retired.record(FIRST).unwrap();
        assert_eq!((first.state, first.last), (ReplicaState::QuasiClosed, Some(id(6))));
        // Entries that are not known to be committed here are answered by those who know.
        let serves = |index| retired.disk.index.has_applied(&first, index).unwrap();
        assert!(first.committed < LogIndex(6), "{first:?}");
        assert!(serves(first.committed) && !serves(first.committed.next()));
        let second = retired.record(SECOND).unwrap();
        assert_eq!((second.state, second.last), (ReplicaState::QuasiClosed, Some(id(9))));
    }
    retired.let_go(&host()).await.unwrap();
    drop(retired);
    left.check(&[]).await;
}

/// The leader of a pipeline had a damaged record, which opening its log does not read; its log was the
/// longest, and the container ended there. Or it had appended the pipeline's last roll, and nobody else had
/// that: of its container, which was full, nothing was read either.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods)]
async fn what_is_damaged_is_known_before_its_replica_says_how_it_ended() {
    let (body, head) = ("checksum", "breaks off");
    for (left, container, at, found) in [
        (Left::new().await, SECOND, 40_000, body),
        (Left::with_unconfirmed_roll().await, FIRST, 100_000, body),
        (Left::with_unconfirmed_roll().await, FIRST, 40, head),
    ] {
        let segment = left.root().join(format!("containers/{:016x}/00000000.seg", container.0));
        let mut bytes = std::fs::read(&segment).unwrap();
        bytes[at] ^= 1;
        std::fs::write(&segment, bytes).unwrap();
        let retired = retired(&left, usize::MAX).await;
        for _ in 0..2 {
            retired.quasi_close(&host()).await.unwrap();
            assert_eq!(retired.record(container).unwrap().state, ReplicaState::QuasiClosed);
            let why = retired.disk.index.unhealthy(container).unwrap().unwrap_or_default();
            assert!(why.contains(found), "byte {at} of container {container}: {why:?}");
        }
        let other = if container == FIRST { SECOND } else { FIRST };
        assert_eq!(retired.disk.index.unhealthy(other).unwrap(), None);
    }
}

/// A node that came back to fifty pipelines of a lost majority read all they have before it said a word.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_read_before_its_end_was_written_down_is_not_read_again() {
    let left = Left::with_unconfirmed_roll().await;
    let reads = Arc::new(AtomicUsize::new(0));
    let counting = |real| {
        let counted = reads.clone();
        HookedDisk::new(real, move |call| {
            let is_read = call.operation == Operation::ReadAt && call.path.ends_with(".seg");
            counted.fetch_add(usize::from(is_read), Ordering::SeqCst);
            Act::Pass
        })
    };
    let retired = on_hooked_disk(&left.root(), counting).await;
    let mut read = Vec::new();
    for _ in 0..2 {
        reads.store(0, Ordering::SeqCst);
        retired.quasi_close(&host()).await.unwrap();
        read.push(reads.load(Ordering::SeqCst));
    }
    let bodies = read[0] - read[1];
    assert!(bodies >= 4, "{read:?}: four chunks of two containers are not small");
}

/// The index says how it ended as well: that the file beside it is damaged keeps nobody from ending, nor from
/// letting go.
#[tokio::test(flavor = "multi_thread")]
async fn an_end_that_is_damaged_is_written_down_again() {
    for left in [Left::new().await, Left::with_unconfirmed_roll().await] {
        let retired = retired(&left, usize::MAX).await;
        retired.quasi_close(&host()).await.unwrap();
        let disk = retired.disk.space.disk().clone();
        let ends = async || {
            let ends = [FIRST, SECOND].map(|container| ContainerEnd::read(&*disk, container));
            futures::future::try_join_all(ends).await.unwrap()
        };
        let before = ends().await;
        let damage = || {
            for (container, _) in [FIRST, SECOND].iter().zip(&before).filter(|(_, end)| end.is_some()) {
                left.flip(&format!("containers/{:016x}/end", container.0), 20);
            }
        };
        damage();
        retired.quasi_close(&host()).await.unwrap();
        assert_eq!(ends().await, before);
        damage();
        retired.let_go(&host()).await.unwrap();
        assert_eq!(ends().await, before);
    }
}

/// The roll that ends the container stands in its segments; that it was not known to be committed stood in
/// the file beside them.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_end_closes_nothing_of_a_log_that_was_let_go() {
    let left = Left::with_unconfirmed_roll().await;
    let before = retired(&left, usize::MAX).await;
    before.quasi_close(&host()).await.unwrap();
    before.let_go(&host()).await.unwrap();
    assert_eq!(before.record(FIRST).unwrap().state, ReplicaState::QuasiClosed);
    drop(before);
    left.flip("containers/0000000000000064/end", 20);
    for _ in 0..2 {
        left.lose("db");
        OfflineDisk::open(&left.root()).unwrap().rebuild(RebuildOptions::default()).await.unwrap();
        let after = retired(&left, usize::MAX).await.record(FIRST).unwrap();
        let nothing = LogIndex(0);
        assert_eq!(
            (after.state, after.last, after.committed),
            (ReplicaState::WithoutLog, Some(id(6)), nothing)
        );
    }
}

/// SCM has the container closed while the replica still says how it ended: they took each other's temporary
/// file away, and it could say QUASI_CLOSED after it was CLOSED.
#[tokio::test(flavor = "multi_thread")]
async fn what_closes_a_container_and_what_says_how_it_ended_take_turns() {
    let left = Left::new().await;
    let retired = Arc::new(retired(&left, usize::MAX).await);
    retired.quasi_close(&host()).await.unwrap();
    let disk = retired.disk.space.disk().clone();
    let alone = ContainerEnd::read(&*disk, SECOND).await.unwrap().unwrap();
    for _ in 0..50 {
        disk.remove_file("containers/0000000000000065/end").await.unwrap();
        retired.disk.index.set_end(SECOND, alone).unwrap();
        let marking = retired.clone();
        let marking = tokio::spawn(async move { marking.mark_ends().await });
        close_on(&retired.disk, SECOND, alone.last).await.unwrap();
        marking.await.unwrap().unwrap();
        let closed = ContainerEnd::closed(alone.last);
        assert_eq!(ContainerEnd::read(&*disk, SECOND).await.unwrap(), Some(closed));
        assert_eq!(retired.record(SECOND).unwrap().state, ReplicaState::Closed);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_log_says_nothing_of_its_end_and_can_be_let_go() {
    let left = Left::new().await;
    left.lose("groups/pipeline-3");
    let retired = retired(&left, usize::MAX).await;
    let failure = retired.quasi_close(&host()).await.unwrap_err();
    assert!(failure.to_string().contains("the log is missing"), "{failure}");
    assert!(matches!(failure, EndFailure::LogLost(_)));
    assert_eq!(retired.record(SECOND).unwrap().state, ReplicaState::Open);
    // The replica is not let go of before SCM knows.
    let untold = Retired { loss_is_told: false, disk: retired.disk.clone(), order: retired.order.clone() };
    let failure = untold.let_go(&host()).await.unwrap_err();
    assert!(matches!(failure, EndFailure::LogLost(_)), "{failure}");
    assert_eq!(retired.record(SECOND).unwrap().state, ReplicaState::Open);
    retired.let_go(&host()).await.unwrap();
    let second = retired.record(SECOND).unwrap();
    assert_eq!(
        (second.state, second.last, second.committed),
        (ReplicaState::WithoutLog, Some(id(9)), LogIndex(8))
    );
    assert!(spec_file::read(&*retired.disk.real, PIPELINE).await.unwrap().is_none());
}

/// Rows are flushed when a log is forgotten, and that waits while a member is away: what the lost log had
/// acknowledged stands in the containers.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_log_has_what_stands_in_its_containers_however_old_its_rows_are() {
    let whole = retired(&Left::with_index_of(9).await, usize::MAX).await.read_all().await;
    // The first container, and up to where the second one is known to be committed.
    let cases = [
        // The roll need not have been committed.
        (1, ReplicaState::WithoutLog, 0),
        (5, ReplicaState::WithoutLog, 0),
        // SCM keeps what is known to be committed: the roll that opened the second one stands in the first.
        (6, ReplicaState::Closed, 0),
        (8, ReplicaState::Closed, 8),
    ];
    for (applied, of_first, committed) in cases {
        let left = Left::with_index_of(applied).await;
        left.lose("groups/pipeline-3");
        let retired = retired(&left, usize::MAX).await;
        retired.let_go(&host()).await.unwrap();
        let (first, second) = (retired.record(FIRST).unwrap(), retired.record(SECOND).unwrap());
        assert_eq!((first.state, first.last), (of_first, Some(id(6))), "{applied}");
        assert_eq!((second.state, second.last), (ReplicaState::WithoutLog, Some(id(9))), "{applied}");
        assert_eq!(second.committed, LogIndex(committed), "{applied}");
        assert_eq!(retired.read_all().await, whole, "{applied}");
        for container in [FIRST, SECOND] {
            assert_eq!(retired.disk.index.unhealthy(container).unwrap(), None, "{applied}");
        }
    }
}

/// Also where the log that is lost ended with its pipeline, and where the first try is cut short.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_log_says_so_whatever_crashes() {
    let lost = async |left: Left| {
        left.lose("groups/pipeline-3");
        left
    };
    let cases = [
        (lost(Left::with_index_of(5).await).await, 9, Memory::Lost),
        (lost(Left::with_index_of(5).await).await, 9, Memory::Flushed),
        (lost(Left::ended_with_index_of(5).await).await, 10, Memory::Flushed),
        (lost(Left::ended_with_index_of(8).await).await, 10, Memory::Lost),
    ];
    for (template, last, memory) in cases {
        let copy = template.copy();
        let whole = retired(&copy, usize::MAX).await;
        whole.let_go(&host()).await.unwrap();
        let expected = (whole.read_all().await, whole.ends());
        assert_eq!(whole.record(END), None);
        let second = whole.record(SECOND).unwrap();
        assert_eq!((second.state, second.last), (ReplicaState::WithoutLog, Some(id(last))));
        for changes in 0.. {
            let (left, first, is_done) = cut_short(&template, changes, memory).await;
            let after = left.copy();
            drop(first);
            let second = retired(&after, usize::MAX).await;
            second.let_go(&host()).await.unwrap_or_else(|failure| panic!("after {changes}: {failure:#}"));
            assert_eq!((second.read_all().await, second.ends()), expected, "after {changes} changes");
            assert!(second.is_forgotten(), "after {changes} changes");
            if is_done {
                assert!(changes > 5, "only {changes} changes");
                break;
            }
        }
    }
}

/// What is behind the damage may have been acknowledged: nobody takes what is left for a whole replica.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_log_says_what_is_damaged_of_it() {
    let place = {
        let left = Left::with_index_of(9).await;
        let whole = retired(&left, usize::MAX).await;
        let block = BlockId { container: SECOND, local: 8 };
        whole.disk.index.pieces(block, 0..5, usize::MAX).unwrap()[0].place
    };
    // A body, and the head of another record.
    for (at, last) in [(30_000, 9), (place.offset as usize + 20, 7)] {
        let left = Left::with_index_of(5).await;
        left.lose("groups/pipeline-3");
        left.flip(&format!("containers/{:016x}/00000000.seg", SECOND.0), at);
        let retired = retired(&left, usize::MAX).await;
        retired.let_go(&host()).await.unwrap();
        let second = retired.record(SECOND).unwrap();
        assert_eq!((second.state, second.last), (ReplicaState::WithoutLog, Some(id(last))), "{at}");
        assert!(retired.disk.index.unhealthy(SECOND).unwrap().is_some(), "{at}");
    }
}

/// The index has no log of its own: rows that were not flushed are gone with the process, and the log that
/// would apply them again is lost.
/// Nobody was told that a torn record is durable. What is damaged before others, or was applied, is no torn
/// one.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_without_its_log_ends_before_a_record_that_a_crash_has_torn() {
    const SEGMENT: &str = "containers/0000000000000065/00000000.seg";
    let place_of = async |local| {
        let left = Left::with_index_of(9).await;
        let whole = retired(&left, usize::MAX).await;
        let block = BlockId { container: SECOND, local };
        whole.disk.index.pieces(block, 0..5, 1).unwrap()[0].place.offset as usize
    };
    let [before, last] = [place_of(8).await, place_of(9).await];
    type Harm = fn(&Left, usize, usize);
    let cases: [(&str, Harm, u64, u64, bool); 6] = [
        ("its body is torn", |left, _, last| left.flip(SEGMENT, last + 106), 5, 8, true),
        ("its head is torn", |left, _, last| left.flip(SEGMENT, last + 50), 5, 8, true),
        ("it is cut", |left, _, last| left.resize(SEGMENT, last + 100), 5, 8, true),
        ("what a recycled segment held", |left, _, _| left.double(SEGMENT), 5, 9, true),
        ("one before others", |left, before, _| left.flip(SEGMENT, before + 50), 5, 7, false),
        ("one that was applied", |left, _, last| left.flip(SEGMENT, last + 50), 9, 9, false),
    ];
    for (harm, strike, applied, ends, is_healthy) in cases {
        let left = Left::with_index_of(applied).await;
        left.lose("groups/pipeline-3");
        strike(&left, before, last);
        let bytes_before = left.bytes_of_file(SEGMENT);
        let retired = retired(&left, usize::MAX).await;
        retired.let_go(&host()).await.unwrap();
        let second = retired.record(SECOND).unwrap();
        assert_eq!((second.state, second.last), (ReplicaState::WithoutLog, Some(id(ends))), "{harm}");
        let unhealthy = retired.disk.index.unhealthy(SECOND).unwrap();
        assert_eq!(unhealthy.is_none(), is_healthy, "{harm}: {unhealthy:?}");
        let is_cut = left.bytes_of_file(SEGMENT) < bytes_before;
        assert_eq!(is_cut, is_healthy, "{harm}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_row_was_never_flushed_is_filed_when_its_log_is_lost() {
    for begun in [false, true] {
        let left = Left::new().await;
        left.lose("groups/pipeline-3");
        left.change(|batch| {
            batch.delete(keys::container(SECOND));
            batch.put(keys::open_container(PIPELINE), records::encode_local(FIRST.0));
        });
        let retired = retired(&left, usize::MAX).await;
        if begun {
            host().retire(retired.group(), retired.order.replica, &retired.disk.space).await.unwrap();
            host().remove(retired.group(), &retired.disk.space, &retired.order.log_spec()).await.unwrap();
        }
        retired.let_go(&host()).await.unwrap();
        let second = retired.record(SECOND).unwrap();
        assert_eq!(
            (second.pipeline, second.state, second.last),
            (PIPELINE, ReplicaState::WithoutLog, Some(id(9)))
        );
        assert!(
            retired.disk.index.unhealthy(SECOND).unwrap().is_some(),
            "it has records, and answers for none"
        );
        drop(retired);
        let real = Arc::new(RealDisk::open(&left.root(), 1).unwrap());
        DatanodeDisk::open(real, &DatanodeOptions::default(), Inventory::default()).await.unwrap();
    }
}

/// A disk on which nothing is remembered of the pipeline.
async fn new_disk(root: &Path) -> Retired {
    let real = Arc::new(RealDisk::open(root, 1).unwrap());
    let disk = DatanodeDisk::open(real, &DatanodeOptions::default(), Inventory::default()).await.unwrap();
    let order = PipelineOrder::from_spec(&crate::offline::tests::spec(), disk.id);
    Retired { disk: Arc::new(disk), order, loss_is_told: true }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_stays_of_a_creation_that_ended_before_its_log_began() {
    let dir = tempfile::tempdir().unwrap();
    let left = new_disk(dir.path()).await;
    let container = left.order.first_container;
    left.begin_creation().await;
    assert_eq!(left.record(container).unwrap().state, ReplicaState::Open);
    for _ in 0..2 {
        left.let_go(&host()).await.unwrap();
        assert!(left.is_forgotten());
        assert_eq!(left.record(container), None);
        assert_eq!(left.disk.index.unhealthy(container).unwrap(), None);
        assert!(left.is_removed().await);
    }
    assert!(left.open_group().await.is_err(), "what ended is not created again");
}

/// Whatever a disk has of a pipeline, its record says so, and its stage never goes back.
#[tokio::test(flavor = "multi_thread")]
async fn a_creation_is_recorded_before_anything_of_it_is_there_whatever_crashes() {
    let mut furthest = None;
    for changes in 0.. {
        let dir = tempfile::tempdir().unwrap();
        drop(new_disk(dir.path()).await);
        let first = on_disk(dir.path(), changes).await;
        let done = first.open_group().await;
        // Another pipeline of the disk may have it flushed at any moment.
        first.disk.index.flush().unwrap();
        let stage = first.its_record().await.map(|record| record.stage);
        assert!(stage >= furthest, "after {changes} changes it is {stage:?}, and was {furthest:?}");
        furthest = stage;
        let has_log = !first.disk.real.list(GROUPS_DIR).await.unwrap().is_empty();
        let is_noted = first.record(first.order.first_container).is_some() || !first.is_forgotten();
        assert!(stage.is_some() || !has_log && !is_noted, "after {changes} changes nothing says whose it is");
        if done.is_ok() {
            assert_eq!(stage, Some(ReplicaStage::InUse));
            assert!(changes > 5, "only {changes} changes");
            return;
        }
        drop(first);
        let second = on_disk(dir.path(), usize::MAX).await;
        let opened = second.open_group().await;
        opened.unwrap_or_else(|failure| panic!("it does not go on after {changes} changes: {failure}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_ended_before_its_log_began_ends_alone_as_often_as_one_likes() {
    let dir = tempfile::tempdir().unwrap();
    let left = new_disk(dir.path()).await;
    let container = left.order.first_container;
    left.begin_creation().await;
    for _ in 0..2 {
        let end = left.quasi_close(&host()).await.expect("there was never a log");
        assert_eq!(end, log_end(container, LogId::default(), LogId::default()));
    }
    left.let_go(&host()).await.unwrap();
    assert!(left.is_forgotten());
    assert_eq!(left.record(container), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_creation_that_began_its_log_ends_like_any_replica() {
    let dir = tempfile::tempdir().unwrap();
    let left = new_disk(dir.path()).await;
    let container = left.order.first_container;
    left.open_group().await.unwrap();
    left.let_go(&host()).await.unwrap();
    assert!(left.is_forgotten());
    assert_eq!(left.record(container).unwrap().state, ReplicaState::QuasiClosed);
    assert_eq!(left.disk.index.unhealthy(container).unwrap(), None);
}

/// A replica acknowledges from the moment at which its log runs, and its spec is kept only after that.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_a_crash_left_without_its_spec_is_told_of_by_its_first_container() {
    let (running, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let left = new_disk(running.path()).await;
    let first = left.order.first_container;
    left.open_group_until(Some(LogIndex(1))).await.unwrap();
    // While the disk is open: closing it would write what a killed process does not.
    copy(running.path(), after.path()).unwrap();
    let after = on_disk(after.path(), usize::MAX).await;
    assert_eq!(after.disk.index.left_open(PIPELINE).unwrap(), [first]);
    let end = after.quasi_close(&host()).await.expect("its log is there");
    assert!(end.log_index >= 1, "{end:?}");
}

/// One bad sector under what is not applied yet kept a member between having its log and having lost it: it
/// was told to end for ever, and its node could not be decommissioned.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_the_medium_does_not_give_back_is_a_lost_one() {
    const EIO: i32 = 5;
    const EMFILE: i32 = 24;
    for (code, is_lost) in [(EIO, true), (EMFILE, false)] {
        let left = Left::new().await;
        let failing = move |real| {
            HookedDisk::new(real, move |call| match call.operation {
                Operation::ReadAt if call.path.starts_with("containers/0000000000000065") => {
                    Act::Fail(io::Error::from_raw_os_error(code))
                }
                _ => Act::Pass,
            })
        };
        let retired = Retired { loss_is_told: false, ..on_hooked_disk(&left.root(), failing).await };
        let failure = retired.quasi_close(&host()).await.expect_err("its log cannot be read");
        assert_eq!(matches!(failure, EndFailure::LogLost(_)), is_lost, "{failure}");
        assert_eq!(retired.record(SECOND).unwrap().state, ReplicaState::Open, "SCM is to hear it first");
        let told = Retired { loss_is_told: true, ..retired };
        assert_eq!(told.let_go(&host()).await.is_ok(), is_lost);
        if is_lost {
            assert_eq!(told.record(SECOND).unwrap().state, ReplicaState::WithoutLog);
        }
    }
}

/// What a replica acknowledged before all of it was lost, nobody may take for nothing.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_of_which_its_record_alone_is_left_has_lost_its_log() {
    let dir = tempfile::tempdir().unwrap();
    let left = new_disk(dir.path()).await;
    let container = left.order.first_container;
    left.open_group().await.unwrap();
    left.disk.real.remove_dir_all(&format!("{GROUPS_DIR}/pipeline-3")).await.unwrap();
    left.disk.real.remove_dir_all("containers").await.unwrap();
    let failure = left.quasi_close(&host()).await.expect_err("its log is lost");
    assert!(matches!(failure, EndFailure::LogLost(_)), "{failure}");
    left.let_go(&host()).await.unwrap();
    assert_eq!(left.record(container).unwrap().state, ReplicaState::WithoutLog);
}

/// A replica that ended came back, voted and appended, when the 32 bytes were lost that said so.
#[tokio::test(flavor = "multi_thread")]
async fn a_log_of_which_no_record_tells_is_not_opened() {
    let dir = tempfile::tempdir().unwrap();
    let left = new_disk(dir.path()).await;
    // Its log knows of a vote: one without is refused for that.
    left.open_group_until(Some(LogIndex(1))).await.unwrap();
    left.quasi_close(&host()).await.unwrap();
    left.disk.real.remove_file("replicas/pipeline-3").await.unwrap();
    let refused = left.open_group().await.expect_err("it opens").to_string();
    assert!(refused.contains("nothing says which replica it is of"), "{refused}");
    left.quasi_close(&host()).await.unwrap();
    assert_eq!(left.its_record().await.map(|record| record.stage), Some(ReplicaStage::Retired));
}

/// The files of the container tell that there was a log.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_log_is_lost_is_no_interrupted_creation() {
    let dir = tempfile::tempdir().unwrap();
    let left = new_disk(dir.path()).await;
    let container = left.order.first_container;
    left.open_group().await.unwrap();
    left.disk.real.remove_dir_all(&format!("{GROUPS_DIR}/pipeline-3")).await.unwrap();
    left.let_go(&host()).await.unwrap();
    assert_eq!(left.record(container).unwrap().state, ReplicaState::WithoutLog);
}

/// An index that was rebuilt may say that such a container is open.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_is_open_after_its_pipeline_is_gone_proves_nothing() {
    let left = Left::ended().await;
    retired(&left, usize::MAX).await.let_go(&host()).await.unwrap();
    left.change(|batch| {
        batch.put(keys::container(SECOND), ContainerRecord::opened(PIPELINE, FIRST).encode())
    });
    for with_its_pipeline in [true, false] {
        let left = left.copy();
        let again = retired(&left, usize::MAX).await;
        match with_its_pipeline {
            true => again.let_go(&host()).await.unwrap(),
            false => drop(again.quasi_close(&host()).await.unwrap()),
        }
        let second = again.record(SECOND).unwrap();
        let last = Some(LogId { term: Term(1), index: LogIndex(10) });
        assert_eq!((second.state, second.last), (ReplicaState::WithoutLog, last));
        assert!(
            again.disk.index.unhealthy(SECOND).unwrap().is_some(),
            "it has records, and answers for none"
        );
        assert_eq!(again.record(FIRST).unwrap().state, ReplicaState::Closed);
        assert!(again.is_removed().await);
    }
}

/// A replica of the second container was deleted here, and copied here again: what was left and what was
/// copied are two histories.
#[tokio::test(flavor = "multi_thread")]
async fn an_index_is_rebuilt_around_a_copy_that_stands_in_place_of_what_was_deleted() {
    let left = Left::ended().await;
    retired(&left, usize::MAX).await.let_go(&host()).await.unwrap();
    // The copy stands by itself: what came before it may be elsewhere.
    let second = left.index().container(SECOND).unwrap();
    let copied = second.map(|record| ContainerRecord { previous: ContainerId(0), ..record });
    let report = OfflineDisk::open(&left.root()).unwrap().verify(None).await.unwrap();
    let manifest = ContainerManifest {
        container: SECOND.0,
        pipeline: PIPELINE.0,
        last_term: 1,
        last_index: 10,
        hash: report.containers[&SECOND].hash.clone().unwrap(),
        files: vec![ContainerFile { name: "00000000.seg".to_owned(), bytes: 1 << 20 }],
        ..ContainerManifest::default()
    };
    let dir = "containers/0000000000000065";
    imported_file::write(&RealDisk::open(&left.root(), 1).unwrap(), dir, &manifest).await.unwrap();
    // Nobody can say whether a replica that is not here was deleted, or lost with the index.
    let (state, lost) = (ReplicaState::WithoutLog, ContainerRecord::opened(PIPELINE, FIRST));
    for (is_there, expected) in [(true, copied), (false, Some(ContainerRecord { state, ..lost }))] {
        if !is_there {
            left.lose(dir);
        }
        left.lose("db");
        let rebuilt =
            OfflineDisk::open(&left.root()).unwrap().rebuild(RebuildOptions::default()).await.unwrap();
        assert!(rebuilt.is_whole(), "{rebuilt:?}");
        left.check(&[]).await;
        assert_eq!(left.index().container(SECOND).unwrap(), expected);
        assert_eq!(left.index().left_open(PIPELINE).unwrap(), []);
    }
}
