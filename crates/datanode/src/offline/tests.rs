use super::*;
use crate::container_end::ContainerEnd;
use crate::index::keys;
use crate::index::machine::PipelineMachine;
use crate::index::records::{BlockRecord, ContainerRecord, ReplicaState};
use crate::spec_file;
use disk::sim::Random;
use prost::Message;
use proto::datanode::{
    ChunkCommand, PipelineCommand, PipelineSpec, PipelineSpecMember, RollCommand, pipeline_command,
};
use proto::uuid_bytes;
use raft::{Replay, StateMachine};
use raftlog::{Entry, Log, LogSpace, LogSpaceOptions, LogSpec, Place};
use rocksdb::WriteBatch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use types::{BlockId, ContainerId, GroupId, LogId, LogIndex, OwnerId, Payload, PipelineId, Term};

pub(crate) const PIPELINE: PipelineId = PipelineId(3);
pub(crate) const FIRST: ContainerId = ContainerId(100);
pub(crate) const SECOND: ContainerId = ContainerId(101);
pub(crate) const END: ContainerId = ContainerId(900);

/// The entry up to which the log is known to be committed; one more is in the log.
const COMMITTED: u64 = 8;

/// A data directory as a datanode left it: pipeline 3 with a closed container of two segments, and an open
/// one.
pub(crate) struct Left {
    dir: tempfile::TempDir,
}

type Row = (Box<[u8]>, Box<[u8]>);

fn id(index: u64) -> LogId {
    LogId { term: Term(1), index: LogIndex(index) }
}

fn body(index: u64, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|n| (n as u64 * 31 + index) as u8).collect()
}

fn command(index: u64, command: pipeline_command::Command, body: Vec<u8>, roll_to: Option<OwnerId>) -> Entry {
    let meta = PipelineCommand { command: Some(command) }.encode_to_vec().into();
    Entry { id: id(index), kind: 2, meta, body: Payload::checksummed(body.into()), roll_to }
}

fn chunk(index: u64, nonce: u128, seq: u32, offset: u64, bytes: usize, seal: bool) -> Entry {
    let chunk = ChunkCommand { nonce: uuid_bytes(nonce), seq, offset, length: bytes as u64, seal };
    command(index, pipeline_command::Command::Chunk(chunk), body(index, bytes), None)
}

fn entries() -> Vec<Entry> {
    let members =
        [(5u64, 1u64)].map(|(replica, node)| proto::raft::Member { replica, node, address: "h:1".into() });
    let voters = vec![proto::raft::VoterSet { replicas: vec![5] }];
    let membership = proto::raft::Membership { voter_sets: voters, members: members.to_vec() };
    let meta = membership.encode_to_vec().into();
    let roll =
        pipeline_command::Command::Roll(RollCommand { next_container: SECOND.0, ends_pipeline: false });
    vec![
        Entry { id: id(0), kind: 3, meta, body: Payload::default(), roll_to: None },
        Entry { id: id(1), kind: 1, meta: Default::default(), body: Payload::default(), roll_to: None },
        chunk(2, 1, 0, 0, 10, true),
        chunk(3, 2, 0, 0, 300_000, false),
        chunk(4, 2, 1, 300_000, 200_000, true),
        // A chunk that is refused: its record stands in the container and is no block's.
        chunk(5, 2, 2, 500_000, 100_000, true),
        command(6, roll, Vec::new(), Some(OwnerId(SECOND.0))),
        chunk(7, 3, 0, 0, 70_000, true),
        chunk(8, 4, 0, 0, 5, false),
        chunk(9, 5, 0, 0, 5, true),
    ]
}

/// Blocks of one small chunk in [`Left::of_small_blocks`]: they begin with these entries, and the number of
/// each is its writer's nonce.
pub(crate) const SMALL_BLOCKS: std::ops::Range<u64> = 10..70;
/// The block of two chunks, of which the first is no small one.
pub(crate) const LARGE_BLOCK: u64 = 70;
pub(crate) const SMALL_BYTES: usize = 4096;

fn small_blocks() -> Vec<Entry> {
    let mut entries = entries()[..2].to_vec();
    let blank = |index| Entry { id: id(index), ..entries[1].clone() };
    let blanks: Vec<_> = (2..SMALL_BLOCKS.start).map(blank).collect();
    entries.extend(blanks);
    entries.extend(SMALL_BLOCKS.map(|index| chunk(index, index.into(), 0, 0, SMALL_BYTES, true)));
    let roll =
        pipeline_command::Command::Roll(RollCommand { next_container: SECOND.0, ends_pipeline: false });
    entries.extend([
        chunk(70, 70, 0, 0, 200_000, false),
        // A chunk that is sent again begins no block, though it looks like it.
        Entry { id: id(71), ..chunk(20, 20, 0, 0, SMALL_BYTES, true) },
        Entry { id: id(72), ..chunk(21, 21, 0, 0, SMALL_BYTES, true) },
        chunk(73, 70, 1, 200_000, 90_000, true),
        // Two chunks that are refused: their blocks are sealed.
        chunk(74, 70, 2, 290_000, 5000, true),
        chunk(75, 22, 3, 5000, 5000, true),
        command(76, roll, Vec::new(), Some(OwnerId(SECOND.0))),
        Entry { id: id(77), ..chunk(23, 23, 0, 0, SMALL_BYTES, true) },
        chunk(78, 78, 0, 0, 5, true),
    ]);
    entries
}

/// The bytes of a block in [`Left::of_small_blocks`].
pub(crate) fn bytes_of(local: u64) -> Vec<u8> {
    match local {
        LARGE_BLOCK => [body(70, 200_000), body(73, 90_000)].concat(),
        local => body(local, SMALL_BYTES),
    }
}

/// Blocks of one to three chunks, some never sealed, whose writers take turns, send chunks again and send
/// such as are refused, under several leaders; and the bytes of each block.
fn random_blocks(random: &mut Random) -> (Vec<Entry>, BTreeMap<u64, Vec<u8>>) {
    struct Writing {
        local: u64,
        chunks: u32,
        bytes: u64,
    }
    const SIZES: [usize; 7] = [1, 100, 4096, 4096, 5000, 40_000, 130_000];
    let mut entries = entries()[..2].to_vec();
    let (mut blocks, mut writing) = (BTreeMap::<u64, Vec<u8>>::new(), Vec::<Writing>::new());
    let mut term = 1;
    for _ in 0..10 + random.below(90) {
        let index = entries.len() as u64;
        let chunks: Vec<usize> = (2..entries.len()).filter(|at| entries[*at].kind == 2).collect();
        let mut entry = match random.below(12) {
            0 => {
                term += random.below(3);
                entries[1].clone()
            }
            // A chunk is sent again, be it of a block that goes on or one that is refused.
            1 | 2 if !chunks.is_empty() => entries[*random.pick(&chunks)].clone(),
            3 if !chunks.is_empty() => {
                let nonce = *blocks.keys().next().expect("the first chunk of all begins a block");
                chunk(index, nonce.into(), 9, 1 << 30, 5000, true)
            }
            4..=6 if !writing.is_empty() => {
                let at = random.below(writing.len() as u64) as usize;
                let (size, is_last) = (*random.pick(&SIZES), random.one_in(2));
                let Writing { local, chunks, bytes } = &mut writing[at];
                let entry = chunk(index, (*local).into(), *chunks, *bytes, size, is_last);
                blocks.get_mut(local).expect("it was begun").extend(body(index, size));
                (*chunks, *bytes) = (*chunks + 1, *bytes + size as u64);
                if is_last {
                    writing.swap_remove(at);
                }
                entry
            }
            _ => {
                let (size, is_whole) = (*random.pick(&SIZES), !random.one_in(4));
                blocks.insert(index, body(index, size));
                if !is_whole {
                    writing.push(Writing { local: index, chunks: 1, bytes: size as u64 });
                }
                chunk(index, index.into(), 0, 0, size, is_whole)
            }
        };
        entry.id = LogId { term: Term(term), index: LogIndex(index) };
        entries.push(entry);
    }
    let roll =
        pipeline_command::Command::Roll(RollCommand { next_container: SECOND.0, ends_pipeline: false });
    for mut entry in [
        command(0, roll, Vec::new(), Some(OwnerId(SECOND.0))),
        // A chunk of the first container comes again in the second one.
        entries.iter().rfind(|entry| entry.kind == 2).cloned().unwrap_or_else(|| entries[1].clone()),
        chunk(0, 1 << 40, 0, 0, 5, true),
    ] {
        entry.id = LogId { term: Term(term), index: LogIndex(entries.len() as u64) };
        entries.push(entry);
    }
    (entries, blocks)
}

pub(crate) fn spec() -> PipelineSpec {
    let members = vec![PipelineSpecMember {
        replica: 5,
        node: 1,
        address: "h:1".to_owned(),
        disk: bytes::Bytes::default(),
    }];
    PipelineSpec { pipeline: PIPELINE.0, replica: 5, first_container: FIRST.0, members }
}

/// The manifests of databases in the directories of a disk, and their lengths: each change makes one longer,
/// or begins another.
#[allow(clippy::disallowed_methods)]
fn manifests(root: &Path) -> BTreeMap<PathBuf, u64> {
    let entries = |dir: &Path| std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let dirs = entries(root).filter(|path| path.is_dir());
    let files = dirs.flat_map(|dir| entries(&dir).collect::<Vec<_>>());
    let is_manifest = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().starts_with("MANIFEST");
    let found = files.filter(is_manifest);
    found.filter_map(|path| Some((path.clone(), path.metadata().ok()?.len()))).collect()
}

/// Copies a directory; an error if one of its files goes meanwhile. A manifest comes before all that it may
/// name.
#[allow(clippy::disallowed_methods)]
pub(crate) fn copy(from: &std::path::Path, to: &std::path::Path) -> std::io::Result<()> {
    std::fs::create_dir_all(to)?;
    let names = || -> std::io::Result<Vec<std::ffi::OsString>> {
        std::fs::read_dir(from)?.map(|entry| Ok(entry?.file_name())).collect()
    };
    let is_manifest = |name: &std::ffi::OsStr| {
        name.to_str().is_some_and(|name| name == "CURRENT" || name.starts_with("MANIFEST"))
    };
    for name in names()?.iter().filter(|name| is_manifest(name)) {
        std::fs::copy(from.join(name), to.join(name))?;
    }
    for name in names()?.iter().filter(|name| !is_manifest(name)) {
        let (from, to) = (from.join(name), to.join(name));
        match from.is_dir() {
            true => copy(&from, &to)?,
            false => drop(std::fs::copy(&from, &to)?),
        }
    }
    Ok(())
}

impl Left {
    pub(crate) async fn new() -> Left {
        Left::with(entries(), COMMITTED).await
    }

    /// A directory whose pipeline has ended, which is applied.
    pub(crate) async fn ended() -> Left {
        Left::ended_with_index_of(11).await
    }

    /// [`Left::ended`], and the index is as it was when so much was applied.
    pub(crate) async fn ended_with_index_of(applied: u64) -> Left {
        let mut entries = entries();
        let roll = RollCommand { next_container: END.0, ends_pipeline: true };
        entries.push(command(10, pipeline_command::Command::Roll(roll), Vec::new(), Some(OwnerId(END.0))));
        entries.push(chunk(11, 6, 0, 0, 7, true));
        Left::with(entries, applied).await
    }

    /// The roll to the second container is in the log, and not known to be committed.
    pub(crate) async fn with_unconfirmed_roll() -> Left {
        Left::with_index_of(5).await
    }

    /// The index is as it was when so much was applied.
    pub(crate) async fn with_index_of(applied: u64) -> Left {
        Left::with(entries(), applied).await
    }

    /// A directory whose first container has small blocks ([`SMALL_BLOCKS`] of them) and larger ones, chunks
    /// that were sent again and such as were refused; no log reads it any more. In the second one a chunk of
    /// the first is sent again.
    pub(crate) async fn of_small_blocks() -> Left {
        Left::of_small(small_blocks()).await
    }

    /// [`Left::of_small_blocks`] by another leader of the same term: it ends alike, and one block is another.
    pub(crate) async fn of_another_history() -> Left {
        let mut entries = small_blocks();
        let local = SMALL_BLOCKS.start;
        let other = chunk(local, 1000, 0, 0, SMALL_BYTES, true);
        entries[local as usize] = other;
        Left::of_small(entries).await
    }

    /// A directory whose first container has random blocks, as [`Left::of_small_blocks`] has, and their
    /// bytes.
    pub(crate) async fn of_random_blocks(random: &mut Random) -> (Left, BTreeMap<u64, Vec<u8>>) {
        let (entries, blocks) = random_blocks(random);
        (Left::of_small(entries).await, blocks)
    }

    async fn of_small(entries: Vec<Entry>) -> Left {
        let roll = entries.iter().find(|entry| entry.roll_to.is_some()).unwrap().id;
        let last = entries.last().unwrap().id.index.0;
        Left::with_purged(entries, last, Some(roll)).await
    }

    async fn with(entries: Vec<Entry>, committed: u64) -> Left {
        Left::with_purged(entries, committed, None).await
    }

    async fn with_purged(entries: Vec<Entry>, committed: u64, purged: Option<LogId>) -> Left {
        let left = Left { dir: tempfile::tempdir().unwrap() };
        let disk = Arc::new(RealDisk::open(&left.root(), 1).unwrap());
        let options =
            LogSpaceOptions { segment_bytes_max: 400_000, reserve_bytes: 0, ..LogSpaceOptions::default() };
        let log_spec = LogSpec {
            log: GroupId::pipeline(PIPELINE).to_u64(),
            dir: "groups/pipeline-3".to_owned(),
            owners_dir: "containers".to_owned(),
            first_owner: OwnerId(FIRST.0),
        };
        let log = LogSpace::new(disk.clone(), options).open(log_spec).await.unwrap();
        let committed_id = entries[committed as usize].id;
        log.append(entries).unwrap().durable().await.unwrap();
        log.save_committed(Some(committed_id));
        left.apply(&log, committed).await;
        if let Some(purged) = purged {
            log.purge(purged).await.unwrap();
        }
        spec_file::write(&*disk, &spec()).await.unwrap();
        log.close().await;
        left
    }

    /// Fills the index as a running pipeline does, two entries at a time.
    async fn apply(&self, log: &Log, committed: u64) {
        let db = Arc::new(Db::open(&self.root().join("db"), &DbOptions::default()).unwrap());
        let index = Index::new(db);
        index.save_pipeline_spec(&spec()).unwrap();
        let (mut machine, _) = PipelineMachine::new(index, PIPELINE, FIRST, u64::MAX).unwrap();
        let mut replay = Replay::new(None).unwrap();
        for meta in log.read_meta(LogIndex(0)..LogIndex(committed + 1), usize::MAX).await.unwrap() {
            let is_due = meta.id.index.0 % 2 == 0 || meta.id.index.0 == committed;
            replay.push(meta).unwrap();
            if is_due {
                let (batch, applied) = replay.take().unwrap();
                machine.apply(batch, applied).unwrap();
            }
        }
    }

    /// A copy of the disk as a process leaves it that is killed now: what its index has in memory is not
    /// here.
    pub(crate) fn copy(&self) -> Left {
        // RocksDB may be at work, and remove what the manifest names that was copied.
        for _ in 0..1000 {
            let (left, before) = (Left { dir: tempfile::tempdir().unwrap() }, manifests(&self.root()));
            match copy(&self.root(), &left.root()) {
                Ok(()) if manifests(&self.root()) == before => return left,
                Ok(()) => {}
                Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}"),
            }
        }
        panic!("{} does not come to rest", self.root().display());
    }

    /// A copy of the containers on another disk of the node.
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn copy_to_another_disk(&self) -> Left {
        let left = self.copy();
        let stamp = left.root().join("VERSION");
        let mut text = std::fs::read_to_string(&stamp).unwrap();
        text.truncate(text.find("crc32c ").unwrap());
        let id = text.find("\ndisk ").unwrap() + "\ndisk ".len();
        let digit = if text[id..].starts_with('0') { "1" } else { "0" };
        text.replace_range(id..=id, digit);
        std::fs::write(&stamp, format!("{text}crc32c {:08x}\n", crc32c::crc32c(text.as_bytes()))).unwrap();
        left
    }

    pub(crate) fn root(&self) -> PathBuf {
        self.dir.path().join("disk")
    }

    fn open(&self) -> OfflineDisk {
        OfflineDisk::open(&self.root()).unwrap()
    }

    pub(crate) fn index(&self) -> Index {
        Index::new(Arc::new(Db::open(&self.root().join("db"), &DbOptions::default()).unwrap()))
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut WriteBatch)) {
        let mut batch = WriteBatch::default();
        change(&mut batch);
        self.index().db().write(batch).unwrap();
    }

    fn rows(&self) -> Vec<Row> {
        self.index().db().rocks().iterator(rocksdb::IteratorMode::Start).map(Result::unwrap).collect()
    }

    #[allow(clippy::disallowed_methods)] // the test plays the disk that loses things
    pub(crate) fn lose(&self, path: &str) {
        let path = self.root().join(path);
        if path.is_dir() { std::fs::remove_dir_all(path) } else { std::fs::remove_file(path) }.unwrap();
    }

    pub(crate) fn bytes_of_file(&self, path: &str) -> u64 {
        self.root().join(path).metadata().unwrap().len()
    }

    #[allow(clippy::disallowed_methods)]
    pub(crate) fn resize(&self, path: &str, bytes: usize) {
        let file = std::fs::OpenOptions::new().write(true).open(self.root().join(path)).unwrap();
        file.set_len(bytes as u64).unwrap();
    }

    /// Makes a file look as if it had been longer in an earlier life: whole records stand behind its own.
    #[allow(clippy::disallowed_methods)]
    pub(crate) fn double(&self, path: &str) {
        let path = self.root().join(path);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(path, [&bytes[..], &bytes[..]].concat()).unwrap();
    }

    #[allow(clippy::disallowed_methods)]
    pub(crate) fn flip(&self, path: &str, at: usize) {
        let path = self.root().join(path);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[at] ^= 4;
        std::fs::write(path, bytes).unwrap();
    }

    /// Everything that verifying finds, as text.
    async fn findings(&self) -> Vec<String> {
        let report = self.open().verify(None).await.unwrap();
        let of_containers = report.containers.values().flat_map(|verdict| &verdict.findings);
        let told = report.findings.iter().chain(of_containers);
        let told: Vec<_> = told.map(|finding| format!("{}: {}", finding.kind.name(), finding.what)).collect();
        assert_eq!(report.is_whole(), told.is_empty());
        told
    }

    /// Checks that exactly so many things are found, and what is said of them.
    pub(crate) async fn check(&self, says: &[&str]) {
        let findings = self.findings().await;
        for expected in says {
            assert!(findings.iter().any(|it| it.contains(expected)), "`{expected}` is not in {findings:#?}");
        }
        assert_eq!(findings.len(), says.len(), "{findings:#?}");
    }
}

pub(crate) const SEGMENT: &str = "containers/0000000000000064/00000000.seg";

#[tokio::test]
async fn what_a_datanode_left_is_whole_and_rebuilt_the_same() {
    let left = Left::new().await;
    left.check(&[]).await;
    let before = left.rows();
    let report = left.open().verify(None).await.unwrap();
    let closed = &report.containers[&FIRST];
    assert_eq!((closed.records, closed.pipeline), (7, Some(PIPELINE)));
    assert_eq!(closed.hash.as_ref().unwrap().len(), 64);
    assert_eq!(report.containers[&SECOND].hash, None, "more may come");

    for lost in [true, false] {
        if lost {
            left.lose("db");
            left.check(&["lost: the index is missing"]).await;
        }
        let rebuilt = left.open().rebuild(RebuildOptions::default()).await.unwrap();
        assert!(rebuilt.is_whole() && rebuilt.nobodys.is_empty());
        let [pipeline] = &rebuilt.pipelines[..] else { panic!("{rebuilt:?}") };
        assert_eq!((pipeline.applied, pipeline.log), (Some(LogIndex(COMMITTED)), RebuiltLog::Opens));
        // Row for row, the spec and the applied position too.
        assert!(left.rows() == before);
        left.check(&[]).await;
    }
    let again = left.open().verify(Some(FIRST)).await.unwrap();
    assert_eq!(again.containers.keys().collect::<Vec<_>>(), [&FIRST]);
    assert_eq!(again.containers[&FIRST].hash, closed.hash);
}

#[tokio::test]
async fn every_kind_of_wrong_row_is_found() {
    let block = |local| BlockId { container: FIRST, local };
    let check = async |says: &[&str], change: &dyn Fn(&mut WriteBatch)| {
        let left = Left::new().await;
        left.change(change);
        left.check(says).await;
    };
    check(&["missing-row: the index misses block 100/3"], &|batch| batch.delete(keys::block(block(3)))).await;
    check(&["missing-row: the index misses the chunk at byte 300000 of block 100/3"], &|batch| {
        batch.delete(keys::chunk(block(3), 300_000));
    })
    .await;
    check(&["extra-row: the index has block 100/5, the segments have not"], &|batch| {
        batch.put(keys::block(block(5)), record(5).encode());
    })
    .await;
    check(
        &["wrong-row: the index is wrong about block 100/2: it says length 5, 1 chunks, sealed false"],
        &|batch| {
            batch.put(keys::block(block(2)), record(5).encode());
        },
    )
    .await;
    check(&["wrong-row: the index is wrong about container 100: it says Open of pipeline 3"], &|batch| {
        batch.put(keys::container(FIRST), ContainerRecord::opened(PIPELINE, ContainerId(0)).encode());
    })
    .await;
    check(&["missing-row: the index misses the open container of pipeline 3"], &|batch| {
        batch.delete(keys::open_container(PIPELINE));
    })
    .await;
    check(&["missing-row: the index misses the nonce 00000000000000000000000000000001"], &|batch| {
        batch.delete(keys::nonce(FIRST, types::Nonce(1)));
    })
    .await;
}

fn record(length: u64) -> BlockRecord {
    let place = Place { owner: OwnerId(FIRST.0), segment: 0, offset: 0, body_bytes: length as u32 };
    let first = crate::index::records::ChunkPlace::of(place);
    BlockRecord { sealed: false, chunks: 1, length, first, nonce: types::Nonce(1) }
}

#[tokio::test]
async fn damaged_bytes_are_found_and_their_place_is_told() {
    let left = Left::new().await;
    let hash = async || left.open().verify(None).await.unwrap().containers[&FIRST].hash.clone();
    assert!(hash().await.is_some());
    left.flip(SEGMENT, 200_000);
    left.check(&["damage: containers/0000000000000064/00000000.seg"]).await;
    assert_eq!(hash().await, None, "a hash of damaged records says nothing");
    // A body does not matter to the index.
    assert!(left.open().rebuild(RebuildOptions::default()).await.unwrap().is_whole());
    left.flip(SEGMENT, 200_000);
    left.check(&[]).await;

    // A head: what comes after it cannot be applied, and an index that knows more is not replaced.
    let before = left.rows();
    left.flip(SEGMENT, 50);
    assert!(!left.findings().await.is_empty());
    let refused = left.open().rebuild(RebuildOptions::default()).await.unwrap_err().to_string();
    assert!(refused.contains("the index in db stays") && refused.contains("--accept-loss"), "{refused}");
    assert!(left.rows() == before);
    let rebuilt = left.open().rebuild(RebuildOptions { accept_loss: true }).await.unwrap();
    assert!(rebuilt.pipelines[0].stopped.is_some(), "{rebuilt:?}");
}

#[tokio::test]
#[allow(clippy::disallowed_methods)] // the test plays the disk that damages things
async fn what_cannot_be_recreated_is_said() {
    let left = Left::new().await;
    // A spec that cannot be read is taken for none.
    let spec = left.root().join("groups/pipeline-3/spec");
    std::fs::write(&spec, "no spec").unwrap();
    let log_of = async || left.open().rebuild(RebuildOptions::default()).await.unwrap().pipelines[0].log;
    for _ in 0..2 {
        assert_eq!(log_of().await, RebuiltLog::WithoutSpec);
        assert!(left.index().pipeline_specs().unwrap().is_empty());
        assert!(!spec.exists(), "the index would seem to have forgotten it");
    }
    left.lose("groups/pipeline-3");
    assert_eq!(log_of().await, RebuiltLog::Gone);
    // Everything there is can be looked at, but nobody says that it was committed.
    let index = left.index();
    assert!(index.block_record(BlockId { container: SECOND, local: 9 }).unwrap().is_some());
    let second = index.container(SECOND).unwrap().unwrap();
    assert!(!index.has_applied(&second, LogIndex(2)).unwrap());
    drop(index);
    left.check(&[]).await;
}

/// The state of a container, its last record, and up to where it is known to be committed.
fn end_of(left: &Left, container: ContainerId) -> (ReplicaState, Option<LogId>, LogIndex) {
    let record = left.index().container(container).unwrap().unwrap();
    (record.state, record.last, record.committed)
}

/// A log that was cut off at a roll that nobody acknowledged would have ended a container for all: SCM
/// believes whatever is CLOSED.
#[tokio::test]
async fn what_is_rebuilt_without_its_log_closes_nothing_and_proves_nothing() {
    for lost in ["groups/pipeline-3", "groups/pipeline-3/hard-state"] {
        let left = Left::with_unconfirmed_roll().await;
        left.lose("db");
        left.lose(lost);
        for _ in 0..2 {
            let rebuilt = left.open().rebuild(RebuildOptions::default()).await.unwrap();
            assert_eq!(rebuilt.pipelines[0].log, RebuiltLog::Gone, "without {lost}");
            let nothing = LogIndex(0);
            assert_eq!(end_of(&left, FIRST), (ReplicaState::WithoutLog, Some(id(6)), nothing));
            assert_eq!(end_of(&left, SECOND), (ReplicaState::WithoutLog, Some(id(9)), nothing));
        }
        assert!(
            !left.root().join("groups/pipeline-3/spec").exists(),
            "the index would seem to have forgotten it"
        );
        if lost == "groups/pipeline-3" {
            left.check(&[]).await;
        }
    }
}

#[tokio::test]
#[allow(clippy::disallowed_methods)] // the test plays the crash
async fn a_log_whose_creation_a_crash_divided_has_lost_nothing() {
    let left = Left::ended().await;
    let begun = left.root().join("groups/pipeline-77");
    std::fs::create_dir_all(&begun).unwrap();
    std::fs::write(begun.join("hard-state.tmp"), b"").unwrap();
    left.check(&[]).await;
}

/// Small records beside segments are damaged as those are, and cost no other container its index.
#[tokio::test]
#[allow(clippy::disallowed_methods)] // the test plays the disk that damages things
async fn what_is_damaged_beside_the_segments_of_one_container_keeps_none_of_the_others() {
    let left = Left::new().await;
    let real = RealDisk::open(&left.root(), 1).unwrap();
    ContainerEnd::closed(Some(id(9))).write(&real, SECOND).await.unwrap();
    drop(real);
    left.flip("containers/0000000000000065/end", 20);
    left.lose("db");
    left.lose("groups/pipeline-3");
    let rebuilt = left.open().rebuild(RebuildOptions::default()).await.unwrap();
    assert_eq!(rebuilt.pipelines[0].containers, [FIRST, SECOND]);
    assert_eq!(end_of(&left, SECOND), (ReplicaState::WithoutLog, Some(id(9)), LogIndex(0)));

    std::fs::write(left.root().join("containers/0000000000000065/imported"), "no manifest").unwrap();
    left.lose("db");
    let rebuilt = left.open().rebuild(RebuildOptions::default()).await.unwrap();
    let RebuiltPipeline { containers, damaged, .. } = &rebuilt.pipelines[0];
    assert_eq!((&containers[..], damaged.len(), damaged[0].container), (&[FIRST][..], 1, SECOND));
    assert_eq!(end_of(&left, SECOND), (ReplicaState::WithoutLog, None, LogIndex(0)));
    assert!(left.index().unhealthy(SECOND).unwrap().is_some(), "it has no rows, and answers for nothing");
}

/// A container that its log has forgotten may have been deleted; one that is here was not.
#[tokio::test(flavor = "multi_thread")]
async fn what_is_damaged_and_forgotten_by_its_log_is_told_of_and_kept() {
    use crate::compaction::tests::{compacted, delete, open};
    let block = BlockId { container: FIRST, local: SMALL_BLOCKS.end - 1 };
    for harmed in ["head", "first head", "first segment", "compacted"] {
        let left = Left::of_small_blocks().await;
        let disk = open(&left).await;
        if harmed == "compacted" {
            delete(&disk, SMALL_BLOCKS.start..SMALL_BLOCKS.start + 20).await;
            compacted(&disk).await.unwrap().unwrap();
        }
        let place = disk.index.places(block).unwrap()[0];
        drop(disk);
        match harmed {
            "head" => left.flip(SEGMENT, place.offset as usize + 20),
            "first head" => left.flip(SEGMENT, 20),
            "first segment" => left.lose(SEGMENT),
            file => left.flip(&format!("containers/{:016x}/{file}", FIRST.0), 30),
        }
        assert_eq!(left.open().list().await.unwrap().len(), 2, "{harmed}");
        if harmed != "compacted" {
            assert!(!left.findings().await.is_empty(), "{harmed}");
        }
        let refused = left.open().rebuild(RebuildOptions::default()).await.map_err(|why| format!("{why:#}"));
        assert!(matches!(&refused, Err(why) if why.contains("--accept-loss")), "{harmed}: {refused:?}");
        left.lose("db");
        let rebuilt = left.open().rebuild(RebuildOptions::default()).await.unwrap();
        assert!(!rebuilt.is_whole() && rebuilt.nobodys.is_empty(), "{harmed}: {rebuilt:?}");
        let damaged = &rebuilt.pipelines[0].damaged;
        assert_eq!(damaged.iter().map(|it| it.container).collect::<Vec<_>>(), [FIRST], "{harmed}");
        assert_eq!(end_of(&left, FIRST).0, ReplicaState::WithoutLog, "{harmed}");
        let index = left.index();
        assert!(index.unhealthy(FIRST).unwrap().is_some(), "{harmed}");
        assert_eq!(index.open_container(PIPELINE).unwrap(), Some(SECOND), "{harmed}");
        let before = BlockId { local: block.local - 1, ..block };
        let places = index.places(before).unwrap();
        assert_eq!(!places.is_empty(), harmed == "head", "what was read is kept");
    }
}

/// The files of a container are gone, or are zeros: its directory would be in the way of any copy.
#[tokio::test]
#[allow(clippy::disallowed_methods)] // the test plays the disk that loses things
async fn a_container_without_a_record_is_a_loss_and_out_of_the_way_of_a_copy() {
    for is_known in [true, false] {
        let left = Left::of_small_blocks().await;
        let dir = format!("containers/{:016x}", FIRST.0);
        for file in std::fs::read_dir(left.root().join(&dir)).unwrap() {
            let path = file.unwrap().path();
            if path.ends_with("00000000.seg") {
                let bytes = path.metadata().unwrap().len() as usize;
                std::fs::write(path, vec![0; bytes]).unwrap();
            } else {
                std::fs::remove_file(path).unwrap();
            }
        }
        if !is_known {
            left.change(|batch| batch.delete(crate::index::keys::container(FIRST)));
        }
        let refused = left.open().rebuild(RebuildOptions::default()).await.map_err(|why| format!("{why:#}"));
        assert_eq!(refused.is_err(), is_known, "{refused:?}");
        let rebuilt = match refused {
            Ok(rebuilt) => rebuilt,
            Err(_) => left.open().rebuild(RebuildOptions { accept_loss: true }).await.unwrap(),
        };
        let lost: Vec<_> = rebuilt.lost.iter().map(|(container, _)| *container).collect();
        assert_eq!((lost, rebuilt.is_whole()), (if is_known { vec![FIRST] } else { vec![] }, !is_known));
        assert!(!left.root().join(&dir).exists(), "a copy can be made here");
        let aside = left.root().join(format!("lost/{:016x}/00000000.seg", FIRST.0));
        assert!(aside.exists());
        assert_eq!(left.index().container(FIRST).unwrap(), None);
        assert_eq!(left.index().open_container(PIPELINE).unwrap(), Some(SECOND));
        // What was put aside is not given up for the next one of its number.
        std::fs::create_dir(left.root().join(&dir)).unwrap();
        let again = left.open().rebuild(RebuildOptions::default()).await.map_err(|why| format!("{why:#}"));
        assert!(again.is_err_and(|why| why.contains("take it away")) && aside.exists());
    }
}

/// Somewhere in the middle a directory was lost with the index. That nothing is said of it would be a vote
/// for there being nothing.
#[tokio::test]
async fn what_is_missing_between_two_containers_is_told_as_lost() {
    let left = Left::ended().await;
    left.lose("groups/pipeline-3");
    left.lose("containers/0000000000000065");
    for _ in 0..2 {
        left.open().rebuild(RebuildOptions::default()).await.unwrap();
        assert_eq!(end_of(&left, SECOND), (ReplicaState::WithoutLog, None, LogIndex(0)));
        left.check(&[]).await;
    }
}

/// The roll that says which container is open goes with the one that it ended: the log would go on in the
/// pipeline's first one, and stop at the first entry.
#[tokio::test]
async fn what_is_open_stays_open_where_all_before_it_was_deleted() {
    for is_written in [true, false] {
        let left = Left::of_small_blocks().await;
        left.lose(&format!("containers/{:016x}", FIRST.0));
        if !is_written {
            left.lose(&format!("containers/{:016x}", SECOND.0));
        }
        left.open().rebuild(RebuildOptions { accept_loss: !is_written }).await.unwrap();
        assert_eq!(left.index().open_container(PIPELINE).unwrap(), Some(SECOND));
        if is_written {
            left.check(&[]).await;
        }
    }
}

/// The container that the pipeline ended with is told to nobody: those before it say that the log is lost.
#[tokio::test]
async fn what_ended_with_its_pipeline_proves_nothing_without_its_log() {
    let left = Left::ended().await;
    left.lose("groups/pipeline-3");
    left.open().rebuild(RebuildOptions::default()).await.unwrap();
    assert_eq!(end_of(&left, FIRST).0, ReplicaState::WithoutLog);
    assert_eq!(end_of(&left, SECOND), (ReplicaState::WithoutLog, Some(id(10)), LogIndex(0)));
    left.check(&[]).await;
}

#[tokio::test]
async fn a_directory_in_use_and_one_that_is_none_are_refused() {
    let left = Left::new().await;
    let held = left.open();
    let refused = OfflineDisk::open(&left.root()).err().unwrap().to_string();
    assert!(refused.contains("is in use by another process"), "{refused}");
    drop(held);
    let refused = OfflineDisk::open(left.dir.path()).err().unwrap().to_string();
    assert!(refused.contains("is no data directory"), "{refused}");
}
