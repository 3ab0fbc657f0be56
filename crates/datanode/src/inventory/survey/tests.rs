use super::*;
use crate::container_end::ContainerEnd;
use crate::ending::Ender;
use crate::index::keys;
use crate::offline::tests::{FIRST, Left, SECOND, spec};
use crate::options::DatanodeOptions;
use crate::pipeline::PipelineOrder;
use crate::pipelines::StoppedPipeline;
use raft::{AddressBook, HostOptions, RaftHost};
use rocksdb::WriteBatch;
use types::LogIndex;

/// A node with one disk, of which nobody knows anything yet.
async fn surveyor(left: &Left) -> (Surveyor, Arc<DatanodeDisk>) {
    let options =
        DatanodeOptions { disks: vec![left.root()], scm: "127.0.0.1:1".to_owned(), ..Default::default() };
    let disks = crate::disks::Disks::open(&options).await.unwrap();
    let disk = disks.open[0].clone();
    (Surveyor::new(Arc::new(disks), Arc::default(), Workers::default()), disk)
}

fn ender(surveyor: &Surveyor) -> Ender {
    let host = RaftHost::new(HostOptions::default(), AddressBook::default());
    Ender { disks: surveyor.disks.clone(), pipelines: surveyor.pipelines.clone(), host }
}

fn states(surveyor: &Surveyor) -> Vec<(ContainerId, ReplicaState)> {
    surveyor.inventory.select(|(container, replica)| Some((*container, replica.state)))
}

/// A member that catches up rolls twice before anybody looks: the watch of its open container shows the last
/// one only.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_was_opened_and_closed_unseen_is_found_from_the_next() {
    let left = Left::new().await.copy();
    let (surveyor, disk) = surveyor(&left).await;
    surveyor.look_at(BTreeSet::from([(disk.id, SECOND)])).await;
    let expected = [(FIRST, ReplicaState::Closed), (SECOND, ReplicaState::Open)];
    assert_eq!(states(&surveyor), expected);
}

/// The roll is in the part of the log that is applied when the pipeline has stopped.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_the_rest_of_a_log_opens_is_found() {
    let template = Left::with_unconfirmed_roll().await;
    for is_let_go in [false, true] {
        let left = template.copy();
        let (surveyor, disk) = surveyor(&left).await;
        surveyor.look_at_all().await;
        assert_eq!(states(&surveyor), [(FIRST, ReplicaState::Open)]);
        let order = PipelineOrder::from_spec(&spec(), disk.id);
        let (ender, pipeline) = (ender(&surveyor), order.pipeline);
        let stopped = StoppedPipeline::new(order, disk, "it does not run".to_owned());
        surveyor.pipelines.stop(stopped);
        match is_let_go {
            true => ender.let_go_pipeline(pipeline).await.unwrap(),
            false => {
                ender.quasi_close_pipeline(pipeline).await.unwrap();
                // SCM waits for containers that reach so far.
                let told = surveyor.pipelines.stopped_report(pipeline).unwrap();
                assert!(told.has_ended());
                assert_eq!(told.end.map(|end| end.index), Some(9));
            }
        }
        let stale = std::mem::take(&mut surveyor.inventory.lock().stale);
        surveyor.look_at(stale).await;
        let expected = [(FIRST, ReplicaState::QuasiClosed), (SECOND, ReplicaState::QuasiClosed)];
        assert_eq!(states(&surveyor), expected, "let go: {is_let_go}");
    }
}

/// A member that says that it has ended, and not yet how its containers did, has proved nothing; SCM must not
/// take it for one that has.
#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_has_ended_once_its_containers_are_told() {
    let left = Left::with_unconfirmed_roll().await.copy();
    let (surveyor, disk) = surveyor(&left).await;
    surveyor.look_at_all().await;
    let (inventory, pipelines) = (surveyor.inventory.clone(), surveyor.pipelines.clone());
    let (ender, workers) = (ender(&surveyor), surveyor.workers.clone());
    workers.spawn(surveyor.run());
    let order = PipelineOrder::from_spec(&spec(), disk.id);
    let pipeline = order.pipeline;
    pipelines.stop(StoppedPipeline::new(order, disk.clone(), "it does not run".to_owned()));
    let has_ended = || pipelines.stopped_report(pipeline).is_some_and(|told| told.has_ended());

    // Whoever looks at a container that is over waits for this.
    let deleting = disk.deleting.lock().await;
    let ending = tokio::spawn(async move { ender.quasi_close_pipeline(pipeline).await });
    while !has_ended() && !inventory.is_being_looked_at() {
        tokio::task::yield_now().await;
    }
    assert!(!has_ended(), "its containers are as they were");
    drop(deleting);
    ending.await.unwrap().unwrap();
    assert!(has_ended());
    let told = inventory.select(|(container, replica)| Some((*container, replica.state)));
    assert_eq!(told, [(FIRST, ReplicaState::QuasiClosed), (SECOND, ReplicaState::QuasiClosed)]);
    workers.end().await;
}

/// A container that cannot be read when the node starts is told as open: else SCM could take it that nobody
/// has it.
#[tokio::test(flavor = "multi_thread")]
#[allow(clippy::disallowed_methods)] // the test plays the failing disk
async fn a_container_that_cannot_be_read_is_not_told_as_missing() {
    let left = Left::new().await.copy();
    let in_the_way = left.root().join(format!("containers/{:016x}/discarded", FIRST.0));
    std::fs::create_dir(&in_the_way).unwrap();
    let (surveyor, disk) = surveyor(&left).await;
    surveyor.look_at_all().await;
    assert_eq!(states(&surveyor), [(FIRST, ReplicaState::Open), (SECOND, ReplicaState::Open)]);
    std::fs::remove_dir(&in_the_way).unwrap();
    surveyor.look_at(BTreeSet::from([(disk.id, FIRST)])).await;
    assert_eq!(states(&surveyor)[0], (FIRST, ReplicaState::Closed));
}

/// The index was read when the disk was opened. A report without the disk's containers would say that they
/// are not here.
#[tokio::test(start_paused = true)]
async fn a_disk_that_cannot_be_listed_is_not_told_as_empty() {
    let left = Left::new().await.copy();
    for is_passing in [true, false] {
        let left = left.copy();
        let (surveyor, disk) = surveyor(&left).await;
        let change = |change: &dyn Fn(&mut WriteBatch)| {
            let mut batch = WriteBatch::default();
            change(&mut batch);
            disk.index.db().write(batch).unwrap();
        };
        let row = keys::container(ContainerId(1));
        change(&|batch| batch.put(row, "no record"));
        let looked = tokio::spawn(async move {
            surveyor.look_at_all().await;
            surveyor
        });
        if is_passing {
            tokio::time::sleep(Duration::from_millis(150)).await;
            assert!(!looked.is_finished(), "it is tried again");
            change(&|batch| batch.delete(row));
        }
        let surveyor = looked.await.unwrap();
        let (failure, told) = (disk.failure(), states(&surveyor).len());
        match is_passing {
            true => assert_eq!((failure, told), (None, 2)),
            false => assert!(failure.is_some_and(|why| why.contains("its containers")), "{told} are told"),
        }
    }
}

/// A container whose log runs, or is about to, is that log's: whatever is deleted of it meanwhile, the log
/// would miss.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_is_not_released_while_its_log_is_opened_or_stands_still() {
    let left = Left::new().await.copy();
    let (surveyor, disk) = surveyor(&left).await;
    let (pipelines, order) = (&surveyor.pipelines, PipelineOrder::from_spec(&spec(), disk.id));
    let closed = disk.index.container(FIRST).unwrap().unwrap();
    assert!(closed.state == ReplicaState::Closed && pipelines.has_released(&closed), "no log is here");
    let pipeline = order.pipeline;
    let opening = pipelines.begin_opening(pipeline);
    assert!(!pipelines.has_released(&closed), "its log is being opened");
    assert_eq!(pipelines.reports(), [], "which SCM hears once it is known what became of it");
    drop(opening);
    assert!(pipelines.has_released(&closed), "nothing came of it");

    pipelines.stop(StoppedPipeline::new(order.clone(), disk.clone(), "it does not run".to_owned()));
    assert!(!pipelines.has_released(&closed), "its log may run again");
    let opening = pipelines.begin_opening(pipeline);
    assert!(!pipelines.has_released(&closed) && pipelines.stopped_report(pipeline).is_some());
    drop(opening);
    assert!(!pipelines.has_released(&closed), "it stands still as before");
    pipelines.remove(pipeline);
    assert!(pipelines.has_released(&closed), "nobody here knows of it any more");
}

/// Nothing of a container can be read without its file `compacted`, and nothing but a copy of another replica
/// mends that.
#[tokio::test(flavor = "multi_thread")]
async fn a_container_whose_compaction_has_a_damaged_record_is_told_as_unhealthy() {
    let left = Left::of_small_blocks().await;
    {
        let disk = crate::compaction::tests::open(&left).await;
        crate::compaction::tests::delete(&disk, 10..40).await;
        crate::compaction::tests::compacted(&disk).await.unwrap().unwrap();
    }
    left.flip("containers/0000000000000064/compacted", 40);
    let (surveyor, disk) = surveyor(&left).await;
    crate::compaction::recover(&disk).await.unwrap();
    crate::deletion::recover(&disk).await.unwrap();
    surveyor.look_at_all().await;
    let replica = surveyor.inventory.get(FIRST).unwrap();
    assert!(replica.unhealthy.as_ref().is_some_and(|why| why.contains("compacted")), "{replica:?}");
    assert_eq!((replica.state, replica.released), (ReplicaState::Closed, true));
    assert_eq!(disk.index.unhealthy(FIRST).unwrap(), replica.unhealthy);
}

/// SCM compares these: without them it keeps the replica for ever.
#[tokio::test(flavor = "multi_thread")]
async fn of_a_replica_that_nobody_read_the_terms_up_to_what_is_committed_are_told() {
    let left = Left::new().await.copy();
    let (surveyor, disk) = surveyor(&left).await;
    let last = disk.index.container(FIRST).unwrap().unwrap().last;
    let end = ContainerEnd { state: ReplicaState::WithoutLog, last, committed: LogIndex(1) };
    disk.index.set_end(FIRST, end).unwrap();
    disk.mark_unhealthy(FIRST, "a record behind it is damaged".to_owned()).await;
    surveyor.look_at_all().await;
    let told = surveyor.inventory.get(FIRST).unwrap().to_proto(FIRST);
    assert_eq!((told.committed_index, told.committed_unread, told.terms.len()), (1, false, 0), "{told:?}");
    let last = told.terms_to_committed.last().map(|end| (end.term, end.last_index));
    assert_eq!(last, Some((told.committed_term, 1)), "{told:?}");
}
