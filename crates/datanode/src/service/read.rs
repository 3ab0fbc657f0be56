//! Reading a range of a block, from whatever replica is asked.

use super::read_memory::{ReaderMemory, Room};
use super::{ReadCounts, Served};
use crate::blocking::blocking;
use crate::datanode_disk::DatanodeDisk;
use crate::index::records::{BlockRecord, ContainerRecord};
use crate::index::{Index, Piece};
use crate::layout::OWNERS_DIR;
use crate::pipelines::Pipelines;
use crate::repeats::chunk_in;
use crate::verdict::condemns;
use crate::workers::Workers;
use futures::stream::{self, BoxStream, StreamExt};
use planted::Bug;
use proto::datanode::{ChunkCommand, HeadRequest, HeadResponse, ReadChunk, ReadRequest};
use proto::{Code, Failure, Retry};
use raft::WaitError;
use raftlog::{BodyPieces, ReadError};
use std::collections::VecDeque;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::Status;
use tracing::{error, info, warn};
use types::{BlockId, BlockName, ContainerId, LogIndex, Nonce};

/// The most places that are looked up in the index at once.
const PIECES_MAX: usize = 64;

/// A read whose block and range are known to be good.
pub(super) struct Read {
    disk: Arc<DatanodeDisk>,
    block: BlockId,
    /// The nonce of the block that was found.
    nonce: Nonce,
    /// The range that is yet to be read.
    range: Range<u64>,
    /// The places of the range's first bytes.
    pieces: VecDeque<Piece>,
    memory: ReaderMemory,
    counts: Arc<ReadCounts>,
    /// The most bytes that the reader wants in one message.
    message_bytes_max: u32,
}

/// Finds the block, once this replica knows as much as the reader does, and reads the first message. What is
/// in memory is found and read by whoever calls this: up to a chunk of a block, that is all that is read.
/// `None` for an empty range. `from`: the address in whose share of the memory it is read.
pub(super) async fn begin(
    served: &Served,
    request: ReadRequest,
    from: Option<IpAddr>,
) -> Result<Option<(Message, Read)>, Failure> {
    let first = async { prepare(served, request, from).await?.next().await };
    served.reads.count(first).await
}

/// A message that is read, and its room.
pub(super) struct Message {
    chunk: ReadChunk,
    room: Room,
}

impl Message {
    fn handed_over(self) -> ReadChunk {
        let Message { chunk, room } = self;
        ReadChunk { data: room.handed_over(chunk.data), ..chunk }
    }
}

/// The message that comes next in an answer.
enum Next {
    /// A message that is read.
    Here(Message, Read),
    /// A message that is being read, while the one before is on its way.
    Soon(oneshot::Receiver<Result<Option<(Message, Read)>, Failure>>),
    /// A message that is read when it is asked for: a reader that takes nothing takes no memory.
    Later(Read),
}

/// The messages of a read that has begun, as their reader takes them. An error ends them.
pub(super) fn messages(
    first: Option<(Message, Read)>,
    workers: Workers,
) -> BoxStream<'static, Result<ReadChunk, Status>> {
    let first = first.map(|(message, read)| Next::Here(message, read));
    let messages = stream::unfold(first, move |next| {
        let workers = workers.clone();
        async move {
            match next?.message().await {
                Ok(Some((message, read))) => Some((Ok(message.handed_over()), read.go_on(&workers))),
                Ok(None) => None,
                Err(failure) => Some((Err(failure.into()), None)),
            }
        }
    });
    messages.boxed()
}

impl Next {
    async fn message(self) -> Result<Option<(Message, Read)>, Failure> {
        match self {
            Next::Here(message, read) => Ok(Some((message, read))),
            Next::Soon(reading) => reading.await.unwrap_or_else(|_| {
                let why = "this node is stopping";
                Err(Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, why) })
            }),
            Next::Later(read) => read.counted().await,
        }
    }
}

async fn prepare(served: &Served, request: ReadRequest, from: Option<IpAddr>) -> Result<Read, Failure> {
    let block = parse_block(request.block.as_ref())?;
    let range = request.offset..request.offset.saturating_add(request.length);
    let (disk, (record, pieces)) = match find_at_once(served, block, &range, request.commit_index).await? {
        Some(found) => found,
        None => find_waiting(served, block, &range, request.commit_index).await?,
    };
    if range.end > record.length {
        let ReadRequest { offset, length, .. } = request;
        let message = format!(
            "{length} bytes from {offset} of block {block} are more than its {} bytes",
            record.length
        );
        return Err(Failure::invalid(message));
    }
    let message_bytes_max = match request.message_bytes_max {
        0 => u32::MAX,
        bytes => bytes,
    };
    let (memory, counts) = (served.read_memory.of(from), served.reads.clone());
    let (block, nonce, pieces) = (block.id(), record.nonce, pieces.into());
    Ok(Read { disk, block, nonce, range, pieces, memory, counts, message_bytes_max })
}

/// A block, and the places of the first bytes that are asked for.
type Found = (BlockRecord, Vec<Piece>);

/// The block, where nothing has to be waited for: in place, or in one step on a thread that may block.
/// `None`: look again, step by step.
async fn find_at_once(
    served: &Served,
    block: BlockName,
    range: &Range<u64>,
    commit_index: u64,
) -> Result<Option<(Arc<DatanodeDisk>, Found)>, Failure> {
    let in_memory = served.disks.holding_in_memory(block.container).and_then(|(disk, container)| {
        let index = disk.index.in_memory();
        let found = look_if_applied(&index, &served.pipelines, &container, block, range, commit_index);
        Some((disk, Some(found.ok()???)))
    });
    if let Some((disk, found)) = in_memory {
        return Ok(Some((disk.clone(), named(disk, block, commit_index, Ok(found))?)));
    }
    let (disks, pipelines, range) = (served.disks.clone(), served.pipelines.clone(), range.clone());
    let found = blocking(move || {
        let Some((disk, container)) = disks.holding(block.container)? else { return Ok(None) };
        let found = look_if_applied(&disk.index, &pipelines, &container, block, &range, commit_index)?;
        Ok(found.map(|found| (disk.clone(), found)))
    });
    // Whatever is wrong comes up again where it is told apart.
    let Ok(Some((disk, found))) = found.await else { return Ok(None) };
    let found = named(&disk, block, commit_index, Ok(found))?;
    Ok(Some((disk, found)))
}

/// Looks the block up, whatever has its number, if enough is applied. `None`: this replica has not applied
/// what the reader knows of.
fn look_if_applied(
    index: &Index,
    pipelines: &Pipelines,
    container: &ContainerRecord,
    block: BlockName,
    range: &Range<u64>,
    commit_index: u64,
) -> anyhow::Result<Option<Option<Found>>> {
    // What is applied is looked up before the block, as by a read that waits.
    let has_applied = match pipelines.open(container.pipeline) {
        Some(open) => commit_index == 0 || open.group.has_applied(LogIndex(commit_index)),
        None => index.has_applied(container, of_an_ended_pipeline(commit_index))?,
    };
    has_applied.then(|| index.find(block.id(), range.clone(), PIECES_MAX)).transpose()
}

async fn find_waiting(
    served: &Served,
    block: BlockName,
    range: &Range<u64>,
    commit_index: u64,
) -> Result<(Arc<DatanodeDisk>, Found), Failure> {
    let (disk, container) = match served.find_container(block.container).await? {
        Some(found) => found,
        None => await_container(served, block.container, commit_index).await?,
    };
    wait_applied(served, &disk, container, LogIndex(commit_index)).await?;
    let found = find_block(&disk, block, range.clone(), commit_index).await?;
    Ok((disk, found))
}

pub(super) async fn head(served: &Served, request: HeadRequest) -> Result<HeadResponse, Failure> {
    let block = parse_block(request.block.as_ref())?;
    let found = served.find_container(block.container).await?;
    let (disk, container) = found.ok_or_else(|| not_here(block.container))?;
    wait_applied(served, &disk, container, LogIndex(0)).await?;
    let (BlockRecord { length, sealed, chunks, .. }, _) = find_block(&disk, block, 0..0, 0).await?;
    // Nothing is added to a block of a container that is over.
    Ok(HeadResponse { length, sealed: sealed || container.state.is_over(), chunks })
}

impl Read {
    /// Reads the next message ahead, as long as there is plenty of memory. `None`: that was all.
    fn go_on(self, workers: &Workers) -> Option<Next> {
        if self.range.is_empty() {
            return None;
        }
        if !self.memory.has_plenty() {
            return Some(Next::Later(self));
        }
        let (sender, reading) = oneshot::channel();
        workers.spawn_until_stop(async move {
            let _ = sender.send(self.counted().await); // nobody may want it any more
        });
        Some(Next::Soon(reading))
    }

    async fn counted(self) -> Result<Option<(Message, Read)>, Failure> {
        let counts = self.counts.clone();
        counts.count(self.next()).await
    }

    /// The next message, after which the range begins later.
    async fn next(mut self) -> Result<Option<(Message, Read)>, Failure> {
        if self.range.is_empty() {
            return Ok(None);
        }
        if self.pieces.is_empty() {
            self.pieces = self.look_up_pieces().await?.into();
        }
        let Some(piece) = self.pieces.front() else { return Err(not_found(self.block, Retry::Elsewhere)) };
        let part = next_part(piece, &self.range, self.message_bytes());
        let message = self.read_part(piece, part.clone()).await?;
        self.range.start += u64::from(part.end - part.start);
        if self.range.start >= piece.end() {
            self.pieces.pop_front();
        }
        Ok(Some((message, self)))
    }

    fn message_bytes(&self) -> u32 {
        self.memory.message_bytes(self.message_bytes_max)
    }

    /// Looks up the places of what comes next: in place, where the index has them in memory.
    async fn look_up_pieces(&self) -> Result<Vec<Piece>, Failure> {
        let (block, range) = (self.block, self.range.clone());
        if let Ok(pieces) = self.disk.index.in_memory().pieces(block, range.clone(), PIECES_MAX) {
            return Ok(pieces);
        }
        let pieces = self.disk.index.with(move |index| index.pieces(block, range, PIECES_MAX)).await;
        pieces.map_err(|failure| self.broken_index(&failure))
    }

    async fn read_part(&self, piece: &Piece, part: Range<u32>) -> Result<Message, Failure> {
        let room = self.memory.room(part.end - part.start).await?;
        let offset = piece.offset + u64::from(part.start);
        let BodyPieces { bytes, crcs, first_piece_bytes, .. } = self.read_body(*piece, part).await?;
        Ok(Message { chunk: ReadChunk { offset, data: bytes, data_crcs: crcs, first_piece_bytes }, room })
    }

    /// Reads where the index says, until what is there is this chunk, or the index says the same again. The
    /// places may be old: a compaction moves records, and in a replica that was deleted and copied here again
    /// another block's may stand there.
    async fn read_body(&self, mut piece: Piece, part: Range<u32>) -> Result<BodyPieces, Failure> {
        let mut is_confirmed = false;
        loop {
            let failure = match self.read_at(&piece, part.clone()).await {
                Ok(body) => return Ok(body),
                Err(failure) if failure.condemns() => failure,
                Err(failure) => return Err(self.unreadable(&failure)),
            };
            let now = self.look_again(&piece).await?;
            if now.place == piece.place && is_confirmed {
                return Err(self.damaged(&failure).await);
            }
            // Once more also where it is the same: what was read may be what stood there before.
            is_confirmed = now.place == piece.place;
            piece = now;
        }
    }

    /// Reads at a place what must be the block's chunk.
    async fn read_at(&self, piece: &Piece, part: Range<u32>) -> Result<BodyPieces, ReadError> {
        let body = self.disk.space.read_body(OWNERS_DIR, piece.place, part).await?;
        let is_of_block = |chunk: ChunkCommand| {
            chunk.nonce[..] == self.nonce.0.to_be_bytes() && chunk.offset == piece.offset
        };
        if chunk_in(body.meta.clone()).is_some_and(is_of_block) {
            return Ok(body);
        }
        let (file, offset) = (format!("segment {}", piece.place.segment), piece.place.offset);
        let why = format!("the record is not the chunk of block {} at its byte {}", self.block, piece.offset);
        Err(ReadError::Damaged { file, offset, why })
    }

    /// Finds the same bytes of the block, in the place that the index has for them by now.
    async fn look_again(&self, piece: &Piece) -> Result<Piece, Failure> {
        let (block, range) = (self.block, piece.offset..piece.offset + 1);
        let found = self.disk.index.with(move |index| index.find(block, range, PIECES_MAX)).await;
        let found = found.map_err(|failure| self.broken_index(&failure))?;
        // A block that was deleted since its places were looked up reads as zeros, and nothing is wrong with
        // that.
        let found = found.filter(|(record, _)| record.nonce == self.nonce);
        let (_, pieces) = found.ok_or_else(|| not_found(block, Retry::Elsewhere))?;
        let is_same = |now: &Piece| (now.offset, now.end()) == (piece.offset, piece.end());
        pieces.into_iter().find(is_same).ok_or_else(|| not_found(block, Retry::Elsewhere))
    }

    /// Tells a reader of a read that may succeed when it is tried again.
    fn unreadable(&self, failure: &ReadError) -> Failure {
        let block = self.block;
        error!(disk = %self.disk.real.root().display(), %block, %failure, "cannot read a block");
        let message = format!("read block {block}: {failure}");
        Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Unavailable, message) }
    }

    /// Tells a reader of bytes that do not check, or that the medium cannot give back: they make this replica
    /// of the container unhealthy.
    async fn damaged(&self, failure: &ReadError) -> Failure {
        let block = self.block;
        error!(disk = %self.disk.real.root().display(), %block, %failure, "a block is damaged");
        self.disk.mark_unhealthy(block.container, failure.to_string()).await;
        Failure::new(Code::Corrupt, format!("read block {block}: {failure}"))
    }

    fn broken_index(&self, failure: &anyhow::Error) -> Failure {
        broken_index(&self.disk, self.block.container, failure)
    }
}

/// The beginning of the range that lies in this piece, as a range of the piece's record; cut where the
/// record's own 64 KiB pieces end, so that sums can be passed on as they are.
fn next_part(piece: &Piece, range: &Range<u64>, message_bytes: u32) -> Range<u32> {
    let in_body = |offset: u64| u32::try_from(offset - piece.offset).expect("a record's body is below 4 GiB");
    let (start, end) = (in_body(range.start), in_body(range.end.min(piece.end())));
    start..end.min((start / message_bytes + 1).saturating_mul(message_bytes))
}

fn parse_block(block: Option<&proto::datanode::BlockName>) -> Result<BlockName, Failure> {
    block.ok_or_else(|| Failure::invalid("the request names no block"))?.try_into()
}

/// Waits for a container, for a reader that knows a commit index: it may know of a container that this
/// replica has yet to roll to.
async fn await_container(
    served: &Served,
    container: ContainerId,
    commit_index: u64,
) -> Result<(Arc<DatanodeDisk>, ContainerRecord), Failure> {
    let deadline = Instant::now() + served.options.read_wait;
    while commit_index > 0 && served.pipelines.container_arrives(container, deadline).await {
        if let Some(found) = served.find_container(container).await? {
            return Ok(found);
        }
    }
    Err(not_here(container))
}

fn not_here(container: ContainerId) -> Failure {
    let message = format!("container {container} is not on this node");
    Failure { retry: Retry::Elsewhere, ..Failure::new(Code::NotFound, message) }
}

/// Waits a little until this replica has applied what the reader knows of. A pipeline that is not open here
/// any more has what its index has.
async fn wait_applied(
    served: &Served,
    disk: &DatanodeDisk,
    container: ContainerRecord,
    index: LogIndex,
) -> Result<(), Failure> {
    let pipeline = container.pipeline;
    let applied = match served.pipelines.open(pipeline) {
        Some(_) if index == LogIndex(0) => true,
        Some(pipeline) => match pipeline.group.wait_applied(index, served.options.read_wait).await {
            Err(busy @ WaitError::Busy { .. }) => return Err(Failure::new(Code::Busy, busy.to_string())),
            waited => waited.is_ok(),
        },
        None => {
            let index = of_an_ended_pipeline(index.0);
            let applied = disk.index.with(move |of_disk| of_disk.has_applied(&container, index)).await;
            applied.unwrap_or_else(|failure| {
                warn!(%pipeline, error = format!("{failure:#}"), "cannot tell how far a pipeline is applied");
                false
            })
        }
    };
    if applied {
        return Ok(());
    }
    let message =
        format!("this replica of pipeline {pipeline} has not applied entry {index} yet; try another");
    Err(Failure { retry: Retry::Elsewhere, ..Failure::new(Code::NotYet, message) })
}

/// The index that a reader of an ended pipeline must have asked for: where not all is known to be committed,
/// one that does not say how much it knows gets nothing.
fn of_an_ended_pipeline(commit_index: u64) -> LogIndex {
    LogIndex(if commit_index == 0 { u64::MAX } else { commit_index })
}

/// A block, and where the first bytes of `range` are, if it has that range: one step on a thread that may
/// block.
async fn find_block(
    disk: &DatanodeDisk,
    name: BlockName,
    range: Range<u64>,
    commit_index: u64,
) -> Result<Found, Failure> {
    let block = name.id();
    let found = disk.index.with(move |index| index.find(block, range, PIECES_MAX)).await;
    named(disk, name, commit_index, found)
}

/// Answers what was found, if it is the block of that name.
fn named(
    disk: &DatanodeDisk,
    name: BlockName,
    commit_index: u64,
    found: anyhow::Result<Option<Found>>,
) -> Result<Found, Failure> {
    let block = name.id();
    match found {
        Ok(Some(found)) if found.0.nonce == name.nonce || planted::has(Bug::TailsAreRead) => Ok(found),
        Ok(Some(_)) => {
            info!(disk = %disk.real.root().display(), block = %name, "somebody asks for another block than has this id here");
            Err(not_this_block(name))
        }
        Ok(None) => {
            // A reader that did not say how much it knows may know of a block this replica has yet to hear
            // of.
            let retry = if commit_index == 0 { Retry::Elsewhere } else { Retry::No };
            Err(not_found(block, retry))
        }
        Err(failure) => Err(broken_index(disk, block.container, &failure)),
    }
}

/// The refusal of a block that is another one here: this replica's log went another way than the one the
/// reader's block was acknowledged in, or the id was given out twice.
fn not_this_block(name: BlockName) -> Failure {
    let message = format!("block {} is another one here than {name}", name.id());
    Failure { retry: Retry::Elsewhere, ..Failure::new(Code::NotFound, message) }
}

fn not_found(block: BlockId, retry: Retry) -> Failure {
    let message = format!("container {} has no block {block}", block.container);
    Failure { retry, ..Failure::new(Code::NotFound, message) }
}

fn broken_index(disk: &DatanodeDisk, container: ContainerId, failure: &anyhow::Error) -> Failure {
    error!(disk = %disk.real.root().display(), %container, error = format!("{failure:#}"), "read the block index");
    let code = if condemns(failure) { Code::Corrupt } else { Code::Unavailable };
    let message = format!("the index of container {container} on this node: {failure:#}");
    Failure { retry: Retry::Elsewhere, ..Failure::new(code, message) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compaction::tests::{compacted, delete, open};
    use crate::offline::tests::{FIRST, Left, SMALL_BYTES, bytes_of};
    use crate::service::ReadMemory;
    use raftlog::{Place, SharedMemory};
    use std::time::Duration;
    use types::OwnerId;

    #[tokio::test(flavor = "multi_thread")]
    async fn a_read_that_a_compaction_overtakes_looks_its_place_up_again() {
        let left = Left::of_small_blocks().await;
        let disk = open(&left).await;
        let find = |local| {
            let (block, range) = (BlockId { container: FIRST, local }, 0..SMALL_BYTES as u64);
            let (record, pieces) = disk.index.find(block, range.clone(), PIECES_MAX).unwrap().unwrap();
            let memory = ReadMemory::new(16 << 20, SharedMemory::new(0), Duration::from_secs(60)).of(None);
            let (nonce, pieces, counts) = (record.nonce, pieces.into(), Arc::default());
            let (disk, message_bytes_max) = (disk.clone(), u32::MAX);
            Read { disk, block, nonce, range, pieces, memory, counts, message_bytes_max }
        };
        let (stays, goes) = (find(60), find(20));
        delete(&disk, 10..50).await;
        compacted(&disk).await.unwrap().unwrap();
        let old = disk.space.read_body(OWNERS_DIR, stays.pieces[0].place, 0..9).await;
        assert!(matches!(old, Err(ReadError::NotFound { .. })), "{old:?}");
        let (read, after) = stays.next().await.unwrap().expect("it is there");
        assert!(after.range.is_empty());
        assert_eq!(read.chunk.data[..], bytes_of(60));
        let gone = goes.next().await.map(drop).unwrap_err();
        assert_eq!(gone.code, Code::NotFound, "{gone}");

        // Another block's record stands where this one was, as in a replica that was copied here meanwhile.
        let (mut stale, other) = (find(60), find(61));
        stale.pieces = other.pieces.clone();
        let (read, _) = stale.next().await.unwrap().expect("it is there");
        assert_eq!(read.chunk.data[..], bytes_of(60));
        // A place where no record begins is looked up again, too.
        let mut stale = find(60);
        stale.pieces[0].place.offset += 8;
        let (read, _) = stale.next().await.unwrap().expect("it is there");
        assert_eq!(read.chunk.data[..], bytes_of(60));
        assert_eq!(disk.index.unhealthy(FIRST).unwrap(), None);
    }

    #[test]
    fn messages_end_where_pieces_of_the_record_end() {
        const MIB: u32 = 1 << 20;
        let place = Place { owner: OwnerId(1), segment: 0, offset: 64, body_bytes: 3 << 20 };
        let piece = Piece { offset: 1000, place };
        let check = |mut range: Range<u64>, message_bytes: u32, expect: &[(u32, u32)]| {
            let mut parts = Vec::new();
            while !range.is_empty() {
                let part = next_part(&piece, &range, message_bytes);
                parts.push((part.start, part.end));
                range.start += u64::from(part.end - part.start);
            }
            assert_eq!(parts, expect);
        };
        check(1000..1000, MIB, &[]);
        check(1007..1010, MIB, &[(7, 10)]);
        check(1000..1000 + (3 << 20), MIB, &[(0, MIB), (MIB, 2 * MIB), (2 * MIB, 3 * MIB)]);
        check(1005..1001 + (1 << 20), MIB, &[(5, MIB), (MIB, MIB + 1)]);
        check(
            1005..1001 + (128 << 10),
            64 << 10,
            &[(5, 64 << 10), (64 << 10, 128 << 10), (128 << 10, (128 << 10) + 1)],
        );
    }
}
