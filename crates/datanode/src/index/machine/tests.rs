use super::*;
use crate::index::Piece;
use crate::index::records::{BlockRecord, ReplicaState, log_end};
use bytes::Bytes;
use proptest::prelude::*;
use proto::datanode::{ChunkCommand, PipelineCommand, PipelineReply, RollCommand, pipeline_command};
use proto::{Code, Failure, Retry};
use raftlog::Place;
use rocksdb::IteratorMode;
use statedb::DbOptions;
use std::sync::Arc;
use types::{BlockId, LogId, LogIndex, Nonce, OwnerId, Term};

const PIPELINE: PipelineId = PipelineId(7);
const FIRST: ContainerId = ContainerId(10);
const WAKE_BYTES: u64 = 1000;

type Row = (Box<[u8]>, Box<[u8]>);

/// A state machine on an index of its own.
struct Replica {
    dir: Arc<tempfile::TempDir>,
    machine: PipelineMachine,
    open: watch::Receiver<OpenContainer>,
}

impl Replica {
    fn new() -> Replica {
        let dir = tempfile::tempdir().unwrap();
        let options =
            DbOptions { block_cache_bytes: 1 << 20, write_buffer_bytes: 1 << 20, ..DbOptions::default() };
        let db = Arc::new(Db::open(&dir.path().join("db"), &options).unwrap());
        let (machine, open) = PipelineMachine::new(Index::new(db), PIPELINE, FIRST, WAKE_BYTES).unwrap();
        Replica { dir: Arc::new(dir), machine, open }
    }

    /// A new replica on the same, emptied index: opening a RocksDB takes longer than most tests.
    fn emptied(&self) -> Replica {
        let index = self.machine.index.clone();
        for (key, _) in self.contents() {
            index.db.rocks().delete_opt(key, &without_wal()).unwrap();
        }
        let (machine, open) = PipelineMachine::new(index, PIPELINE, FIRST, WAKE_BYTES).unwrap();
        Replica { dir: self.dir.clone(), machine, open }
    }

    fn apply(&mut self, batch: &[Committed]) -> Vec<PipelineReply> {
        let last = batch.last().expect("a batch has commands").id;
        let applied = Applied { id: last, membership: Bytes::from_static(b"members") };
        let replies = self.machine.apply(batch.to_vec(), applied).unwrap();
        replies.into_iter().map(|reply| PipelineReply::decode(reply).unwrap()).collect()
    }

    fn apply_one(&mut self, command: Committed) -> Result<(BlockId, u64), Failure> {
        let reply = self.apply(&[command]).pop().unwrap();
        match reply.error {
            None => Ok((reply.block.unwrap().into(), reply.length)),
            Some(error) => Err(error.into()),
        }
    }

    fn reopen(self) -> Replica {
        let index = self.machine.index.clone();
        let (machine, open) = PipelineMachine::new(index, PIPELINE, FIRST, WAKE_BYTES).unwrap();
        Replica { machine, open, ..self }
    }

    fn block(&self, block: BlockId) -> Option<BlockRecord> {
        self.machine.index.block_record(block).unwrap()
    }

    /// Length and chunks of a block that is there, by its nonce, and whether nothing can be added to it.
    fn looks(&self, block: BlockId) -> (u64, u32, Nonce, bool) {
        let BlockRecord { length, chunks, nonce, sealed, .. } = self.block(block).unwrap();
        let container = self.machine.index.container(block.container).unwrap().unwrap();
        (length, chunks, nonce, sealed || container.state.is_over())
    }

    fn pieces(&self, block: BlockId, range: std::ops::Range<u64>) -> Vec<Piece> {
        self.machine.index.pieces(block, range, usize::MAX).unwrap()
    }

    /// Every key and value.
    fn contents(&self) -> Vec<Row> {
        self.machine.index.db.rocks().iterator(IteratorMode::Start).map(Result::unwrap).collect()
    }
}

/// Makes the entries of one log.
struct LogOfTest {
    index: u64,
    owner: ContainerId,
    offset: u64,
}

impl LogOfTest {
    fn new() -> LogOfTest {
        LogOfTest { index: 0, owner: FIRST, offset: 0 }
    }

    fn entry(
        &mut self,
        command: pipeline_command::Command,
        body_bytes: u32,
        roll_to: Option<ContainerId>,
    ) -> Committed {
        self.index += 1;
        let place = Place { owner: OwnerId::from(self.owner), segment: 1, offset: self.offset, body_bytes };
        self.offset += 128 + u64::from(body_bytes);
        self.owner = roll_to.unwrap_or(self.owner);
        Committed {
            id: LogId { term: Term(1), index: LogIndex(self.index) },
            meta: PipelineCommand { command: Some(command) }.encode_to_vec().into(),
            place,
            roll_to: roll_to.map(OwnerId::from),
        }
    }

    fn chunk(&mut self, nonce: u128, seq: u32, offset: u64, length: u32, seal: bool) -> Committed {
        let nonce = Bytes::copy_from_slice(&Nonce(nonce).0.to_be_bytes());
        let chunk = ChunkCommand { nonce, seq, offset, length: u64::from(length), seal };
        self.entry(pipeline_command::Command::Chunk(chunk), length, None)
    }

    fn roll(&mut self, next: u64) -> Committed {
        self.roll_command(RollCommand { next_container: next, ends_pipeline: false })
    }

    fn end(&mut self, end: u64) -> Committed {
        self.roll_command(RollCommand { next_container: end, ends_pipeline: true })
    }

    fn roll_command(&mut self, roll: RollCommand) -> Committed {
        let next = roll.next_container;
        // The log only ever goes forward, and so does this one.
        let next = ContainerId(next).max(self.owner);
        let mut entry = self.entry(pipeline_command::Command::Roll(roll), 0, Some(next));
        entry.roll_to = Some(OwnerId(roll.next_container));
        entry
    }
}

fn id(container: u64, local: u64) -> BlockId {
    BlockId { container: ContainerId(container), local }
}

#[test]
fn a_small_object_costs_two_rows_beside_the_counters() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply_one(log.chunk(1, 0, 0, 10, true)).unwrap();
    let before = replica.contents().len();
    let block = replica.apply_one(log.chunk(2, 0, 0, 4096, true)).unwrap();
    assert_eq!(block, (id(10, 2), 4096));
    assert_eq!(replica.contents().len(), before + 2);
    assert_eq!(replica.looks(id(10, 2)), (4096, 1, Nonce(2), true));
}

#[test]
fn chunks_of_a_block_line_up_and_are_found_by_range() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap();
    replica.apply_one(log.chunk(9, 0, 0, 7, true)).unwrap();
    replica.apply_one(log.chunk(1, 1, 100, 50, false)).unwrap();
    let block = replica.apply_one(log.chunk(1, 2, 150, 30, false)).unwrap();
    assert_eq!(block, (id(10, 1), 180));
    assert_eq!(replica.apply_one(log.chunk(1, 3, 180, 0, true)).unwrap(), (id(10, 1), 180));
    assert_eq!(replica.looks(id(10, 1)), (180, 4, Nonce(1), true));

    let offsets =
        |range| replica.pieces(id(10, 1), range).iter().map(|piece| piece.offset).collect::<Vec<_>>();
    assert_eq!(offsets(0..180), [0, 100, 150]);
    assert_eq!(offsets(99..101), [0, 100]);
    assert_eq!(offsets(100..150), [100]);
    assert_eq!(offsets(149..151), [100, 150]);
    assert_eq!(offsets(179..180), [150]);
    assert!(replica.machine.index.pieces(id(10, 1), 0..181, 100).is_err());
    assert_eq!(replica.machine.index.pieces(id(10, 1), 0..180, 2).unwrap().len(), 2);
}

#[test]
fn a_chunk_sent_again_is_answered_again_and_changes_nothing() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    let first = replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap();
    replica.apply_one(log.chunk(1, 1, 100, 50, false)).unwrap();
    replica.apply_one(log.chunk(1, 2, 150, 0, true)).unwrap();
    let index_of = |replica: &Replica| {
        replica.contents().into_iter().filter(|(key, _)| key[0] != 0x02).collect::<Vec<_>>()
    };
    let before = index_of(&replica);
    assert_eq!(replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap(), first);
    assert_eq!(replica.apply_one(log.chunk(1, 1, 100, 50, false)).unwrap(), (first.0, 150));
    assert_eq!(replica.apply_one(log.chunk(1, 2, 150, 0, true)).unwrap(), (first.0, 150));
    assert_eq!(index_of(&replica), before);
}

#[test]
fn what_does_not_fit_the_block_is_refused_and_changes_nothing() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap();
    replica.apply_one(log.chunk(1, 1, 100, 50, false)).unwrap();
    replica.apply_one(log.chunk(2, 0, 0, 5, true)).unwrap();
    let before = replica.contents().into_iter().filter(|(key, _)| key[0] != 0x02).collect::<Vec<_>>();
    let mut check = |command: Committed, code: Code, retry: Retry| {
        let message = format!("{command:?}");
        let failure = replica.apply_one(command).expect_err(&message);
        assert_eq!((failure.code, failure.retry), (code, retry), "{message} → {failure}");
    };
    check(log.chunk(3, 1, 0, 5, false), Code::Closed, Retry::Elsewhere);
    check(log.chunk(3, 0, 1, 5, false), Code::Invalid, Retry::No);
    check(log.chunk(1, 3, 150, 5, false), Code::Invalid, Retry::Elsewhere);
    check(log.chunk(1, 2, 151, 5, false), Code::Invalid, Retry::No);
    check(log.chunk(1, 2, 150, 0, false), Code::Invalid, Retry::No);
    check(log.chunk(2, 1, 5, 5, true), Code::Invalid, Retry::No);
    check(log.chunk(1, 2, 150, (256 << 20) - 149, false), Code::TooLarge, Retry::Elsewhere);
    // Known chunks with another face.
    check(log.chunk(1, 0, 0, 99, false), Code::Invalid, Retry::No);
    check(log.chunk(1, 0, 1, 100, false), Code::Invalid, Retry::No);
    check(log.chunk(1, 1, 100, 51, false), Code::Invalid, Retry::No);
    check(log.chunk(1, 1, 100, 50, true), Code::Invalid, Retry::No);
    check(log.chunk(1, 1, 150, 0, true), Code::Invalid, Retry::No);
    let mut short = log.chunk(4, 0, 0, 5, true);
    short.place.body_bytes = 4;
    check(short, Code::Invalid, Retry::No);
    let after = replica.contents().into_iter().filter(|(key, _)| key[0] != 0x02).collect::<Vec<_>>();
    assert_eq!(after, before);
}

#[test]
fn a_block_may_be_as_long_as_the_limit() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    let quarter = 64 << 20;
    for seq in 0..4 {
        replica.apply_one(log.chunk(1, seq, u64::from(seq) * u64::from(quarter), quarter, false)).unwrap();
    }
    let failure = replica.apply_one(log.chunk(1, 4, 256 << 20, 1, true)).unwrap_err();
    assert_eq!(failure.code, Code::TooLarge);
    assert_eq!(replica.apply_one(log.chunk(1, 4, 256 << 20, 0, true)).unwrap().1, BLOCK_BYTES_MAX);
}

#[test]
fn a_roll_closes_the_container_and_its_blocks() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap();
    assert_eq!(replica.apply(&[log.roll(12)])[0], PipelineReply::default());
    assert_eq!(replica.open.borrow().container, ContainerId(12));
    // The block that was being written ends where it is; its writer is told where that is.
    let reply = replica.apply(&[log.chunk(1, 1, 100, 5, false)]).pop().unwrap();
    assert_eq!(Failure::from(reply.error.unwrap()).code, Code::Closed);
    assert_eq!((BlockId::from(reply.block.unwrap()), reply.length), (id(10, 1), 100));
    assert_eq!(replica.looks(id(10, 1)), (100, 1, Nonce(1), true));
    // A chunk that was acknowledged before the roll is acknowledged again after it.
    assert_eq!(replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap(), (id(10, 1), 100));
    // New blocks begin in the new container.
    assert_eq!(replica.apply_one(log.chunk(2, 0, 0, 1, true)).unwrap(), (id(12, 5), 1));
    // After the next roll the first container's writers are strangers.
    replica.apply(&[log.roll(20)]);
    assert_eq!(replica.apply_one(log.chunk(1, 1, 100, 5, false)).unwrap_err().code, Code::Closed);
    assert_eq!(replica.apply_one(log.chunk(2, 0, 0, 1, true)).unwrap(), (id(12, 5), 1));
    assert_eq!(replica.machine.index.pipeline_of(ContainerId(10)).unwrap(), Some(PIPELINE));
}

#[test]
fn the_last_roll_ends_the_pipeline() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap();
    let end = log.end(20);
    assert_eq!(replica.apply(&[end])[0], PipelineReply::default());
    let index = replica.machine.index.clone();
    let closed = index.container(FIRST).unwrap().unwrap();
    let last = Some(LogId { term: Term(1), index: LogIndex(2) });
    assert_eq!((closed.state, closed.last), (ReplicaState::Closed, last));
    let end = index.container(ContainerId(20)).unwrap().unwrap();
    assert_eq!((end.state, end.last, end.blocks), (ReplicaState::Closed, None, 0));
    let ended = closed.last.map(|last| log_end(FIRST, last, last));
    assert_eq!(replica.open.borrow().ended, ended);
    // Before and after a restart: nothing new is taken, what was acknowledged is acknowledged again.
    for _ in 0..2 {
        assert_eq!(replica.apply_one(log.chunk(2, 0, 0, 5, true)).unwrap_err().code, Code::Closed);
        let reply = replica.apply(&[log.chunk(1, 1, 100, 5, false)]).pop().unwrap();
        assert_eq!(Failure::from(reply.error.unwrap()).code, Code::Closed);
        assert_eq!((BlockId::from(reply.block.unwrap()), reply.length), (id(10, 1), 100));
        assert_eq!(replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap(), (id(10, 1), 100));
        // The end told again, and a roll that was decided before it.
        replica.apply(&[log.end(20), log.roll(15)]);
        assert_eq!(
            *replica.open.borrow(),
            OpenContainer { container: ContainerId(20), used_bytes: 0, ended }
        );
        replica = replica.reopen();
    }
}

#[test]
fn an_old_roll_changes_nothing() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply(&[log.roll(12)]);
    replica.apply_one(log.chunk(1, 0, 0, 1, false)).unwrap();
    for old in [10, 11, 12] {
        replica.apply(&[log.roll(old)]);
        assert_eq!(replica.open.borrow().container, ContainerId(12));
    }
    assert_eq!(replica.apply_one(log.chunk(1, 1, 1, 1, true)).unwrap(), (id(12, 2), 2));
}

#[test]
fn a_record_outside_the_open_container_stops_the_pipeline() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    let mut stray = log.chunk(1, 0, 0, 1, true);
    stray.place.owner = OwnerId(9);
    let applied = Applied { id: stray.id, membership: Bytes::new() };
    let before = replica.contents();
    let failure = replica.machine.apply(vec![stray], applied).unwrap_err();
    assert!(failure.to_string().contains("container 9, but 10 is open"), "{failure}");
    assert_eq!(replica.contents(), before);
}

#[test]
fn a_command_of_a_newer_version_stops_the_pipeline() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    let mut newer = log.chunk(1, 0, 0, 1, true);
    newer.meta = Bytes::from_static(&[0x7a, 0]); // field 15, which this version does not know
    let applied = Applied { id: newer.id, membership: Bytes::new() };
    assert!(replica.machine.apply(vec![newer], applied).is_err());
}

#[test]
fn watchers_wake_when_the_container_fills_not_at_each_chunk() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply_one(log.chunk(1, 0, 0, 100, true)).unwrap();
    assert!(!replica.open.has_changed().unwrap());
    assert!(replica.open.borrow().used_bytes > 100);
    replica.apply_one(log.chunk(2, 0, 0, 1000, true)).unwrap();
    assert!(replica.open.has_changed().unwrap());
}

#[test]
fn a_reopened_replica_goes_on_where_it_was() {
    let (mut replica, mut log) = (Replica::new(), LogOfTest::new());
    replica.apply_one(log.chunk(1, 0, 0, 100, false)).unwrap();
    replica.apply(&[log.roll(12)]);
    replica.apply_one(log.chunk(2, 0, 0, 100, false)).unwrap();
    let open = *replica.open.borrow();
    let mut replica = replica.reopen();
    assert_eq!(*replica.open.borrow(), open);
    assert_eq!(replica.machine.applied().unwrap().unwrap().id.index, LogIndex(3));
    assert_eq!(replica.apply_one(log.chunk(2, 1, 100, 1, true)).unwrap(), (id(12, 3), 101));
    assert_eq!(replica.apply_one(log.chunk(1, 1, 100, 5, false)).unwrap_err().code, Code::Closed);
}

/// A writer's next step, in small numbers so that things meet.
#[derive(Clone, Debug)]
enum Step {
    Next { nonce: u128, length: u32, seal: bool },
    Again { earlier: prop::sample::Index },
    Wild { nonce: u128, seq: u32, offset: u64, length: u32, seal: bool },
    Roll { by: u64 },
    OldRoll,
    End { by: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0u128..5, 0u32..300, prop::bool::weighted(0.2)).prop_map(|(nonce, length, seal)| Step::Next { nonce, length, seal }),
        4 => any::<prop::sample::Index>().prop_map(|earlier| Step::Again { earlier }),
        2 => (0u128..5, 0u32..4, 0u64..300, 0u32..300, any::<bool>())
            .prop_map(|(nonce, seq, offset, length, seal)| Step::Wild { nonce, seq, offset, length, seal }),
        1 => (1u64..3).prop_map(|by| Step::Roll { by }),
        1 => Just(Step::OldRoll),
        1 => (1u64..3).prop_map(|by| Step::End { by }),
    ]
}

/// A log as writers with lost acks, impatience and bugs make it.
fn log_of(steps: Vec<Step>) -> Vec<Committed> {
    let mut log = LogOfTest::new();
    let mut is_ended = false;
    let mut entries: Vec<(Committed, Step)> = Vec::new();
    let mut writers = std::collections::BTreeMap::<u128, (u32, u64)>::new();
    for step in steps {
        let entry = match &step {
            Step::Next { nonce, length, seal } => {
                let (seq, offset) = writers.get(nonce).copied().unwrap_or_default();
                writers.insert(*nonce, (seq + 1, offset + u64::from(*length)));
                log.chunk(*nonce, seq, offset, *length, *seal)
            }
            Step::Again { earlier } if !entries.is_empty() => {
                let (_, step) = earlier.get(&entries).clone();
                let chunk = match &step {
                    Step::Wild { nonce, seq, offset, length, seal } => {
                        (*nonce, *seq, *offset, *length, *seal)
                    }
                    _ => continue,
                };
                log.chunk(chunk.0, chunk.1, chunk.2, chunk.3, chunk.4)
            }
            Step::Again { .. } => continue,
            Step::Wild { nonce, seq, offset, length, seal } => {
                log.chunk(*nonce, *seq, *offset, *length, *seal)
            }
            Step::OldRoll => log.roll(log.owner.0),
            // Nothing but old rolls follows an end.
            Step::Roll { .. } | Step::End { .. } if is_ended => log.roll(log.owner.0),
            Step::Roll { by } => log.roll(log.owner.0 + by),
            Step::End { by } => {
                is_ended = true;
                log.end(log.owner.0 + by)
            }
        };
        // The step is remembered as what was sent, so that it can be sent again word for word.
        let sent = match PipelineCommand::decode(entry.meta.clone()).unwrap().command.unwrap() {
            pipeline_command::Command::Chunk(chunk) => Step::Wild {
                nonce: u128::from_be_bytes(chunk.nonce.as_ref().try_into().unwrap()),
                seq: chunk.seq,
                offset: chunk.offset,
                length: u32::try_from(chunk.length).unwrap(),
                seal: chunk.seal,
            },
            pipeline_command::Command::Roll(_) | pipeline_command::Command::Forget(_) => step,
        };
        entries.push((entry, sent));
    }
    entries.into_iter().map(|(entry, _)| entry).collect()
}

/// Cuts the log into batches of the given lengths, over and over.
fn apply_in_batches(replica: &mut Replica, log: &[Committed], batches: &[usize]) -> Vec<PipelineReply> {
    let (mut replies, mut rest) = (Vec::new(), log);
    for &count in batches.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (batch, after) = rest.split_at(count.min(rest.len()));
        replies.extend(replica.apply(batch));
        rest = after;
    }
    replies
}

/// Replicas that cut the log into different batches, one of them restarted half way, answer the same and end
/// with the same index, key for key and byte for byte; and what was acknowledged is what the index holds.
#[test]
fn replicas_agree_whatever_the_log_and_however_it_is_cut() {
    let bases = [Replica::new(), Replica::new(), Replica::new()];
    let config = ProptestConfig { cases: 200, ..ProptestConfig::default() };
    let steps = prop::collection::vec(step(), 1..60);
    let batches = prop::collection::vec(1usize..20, 1..8);
    proptest!(config, |(steps in steps, batches in batches)| {
        let log = log_of(steps);
        prop_assume!(!log.is_empty());
        let [mut one_by_one, mut in_batches, mut at_once] = bases.each_ref().map(Replica::emptied);
        let replies = apply_in_batches(&mut one_by_one, &log, &[1]);
        let half = log.len() / 2;
        let mut replies_in_batches = apply_in_batches(&mut in_batches, &log[..half], &batches);
        in_batches = in_batches.reopen();
        replies_in_batches.extend(apply_in_batches(&mut in_batches, &log[half..], &batches));
        let replies_at_once = at_once.apply(&log);
        prop_assert_eq!(&replies_in_batches, &replies);
        prop_assert_eq!(&replies_at_once, &replies);
        prop_assert_eq!(in_batches.contents(), one_by_one.contents());
        prop_assert_eq!(at_once.contents(), one_by_one.contents());
        check_acknowledged(&one_by_one, &log, &replies)?;
    });
}

/// Every acknowledged chunk is in its block, and the block's pieces follow each other from its start.
fn check_acknowledged(
    replica: &Replica,
    log: &[Committed],
    replies: &[PipelineReply],
) -> Result<(), TestCaseError> {
    for (entry, reply) in log.iter().zip(replies) {
        let Some(block) = reply.block.filter(|_| reply.error.is_none()) else { continue };
        let (block, length) = (BlockId::from(block), reply.length);
        let info = replica.block(block);
        prop_assert!(info.is_some_and(|info| info.length >= length), "{:?} {:?}", entry, info);
        if length > 0 {
            let pieces = replica.pieces(block, 0..length);
            prop_assert_eq!(pieces[0].offset, 0);
            prop_assert!(pieces.windows(2).all(|pair| pair[0].end() == pair[1].offset));
            prop_assert!(pieces.last().expect("checked above").end() >= length);
        }
    }
    Ok(())
}

fn without_wal() -> rocksdb::WriteOptions {
    let mut options = rocksdb::WriteOptions::default();
    options.disable_wal(true);
    options
}
