use crate::ClientError;
use crate::client::Client;
use crate::memory::{Pieces, Room};
use bytes::Bytes;
use futures::{Stream, StreamExt};
use proto::datanode::{ReadChunk, ReadRequest};
use proto::messages::{self, Messages};
use proto::om::BlockPiece;
use proto::{Code, Failure, ReadPieces};
use rand::seq::SliceRandom;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;
use tracing::{info, warn};
use types::random::random;
use types::{BlockName, CRC_CHUNK_BYTES, RunningCrc};

/// A replica that has sent nothing for this long is late, and a second one is asked: a disk that hangs, or a
/// path that is broken on one side. Many times what a read takes, so that few are read twice.
const LATE_AFTER: Duration = Duration::from_millis(300);

impl Client {
    /// Waits until a read may begin, for a moment at most: who would be refused in the middle can be told so
    /// before.
    pub async fn may_read(&self) -> Result<(), ClientError> {
        Ok(self.memory().begin().await?)
    }

    /// The bytes `range` of a key made of `pieces`. Each byte is verified against its checksum before it is
    /// handed out; when a replica fails, the stream goes on from the next byte on another one. It ends after
    /// the last byte of the range or with an error, never early, and may be polled after its end.
    pub fn read(
        &self,
        pieces: &[BlockPiece],
        range: Range<u64>,
    ) -> impl Stream<Item = Result<Bytes, ClientError>> + Send + 'static + use<> {
        let reader = parts_of(pieces, range).map(|parts| Reader::new(self.clone(), parts));
        let bytes = futures::stream::unfold(Some(reader), |reader| async {
            match reader? {
                Ok(mut reader) => match reader.next().await {
                    Ok(Some(bytes)) => Some((Ok(bytes), Some(Ok(reader)))),
                    Ok(None) => None,
                    Err(error) => Some((Err(error), None)),
                },
                Err(error) => Some((Err(error), None)),
            }
        });
        bytes.fuse()
    }
}

/// A stretch of one block still to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    block: BlockName,
    offset: u64,
    end: u64,
    commit_index: u64,
    /// The checksum of a piece that is read from its beginning to its end, and that of what came so far.
    whole: Option<(u32, RunningCrc)>,
}

impl Part {
    /// Compares a piece that was read as a whole with the checksum it was written with: bytes that fit the
    /// checksums their replica sent with them may still be another block's.
    fn check_whole(&self) -> Result<(), Failure> {
        match self.whole {
            Some((written, sum)) if self.offset == self.end && sum.value() != written => {
                let (block, read) = (self.block, sum.value());
                let why =
                    format!("block {block} has the checksum {read:#010x}, what was written {written:#010x}");
                Err(Failure::new(Code::Corrupt, why))
            }
            _ => Ok(()),
        }
    }
}

/// Cuts a key's range into stretches of blocks.
fn parts_of(pieces: &[BlockPiece], range: Range<u64>) -> Result<VecDeque<Part>, ClientError> {
    let mut parts = VecDeque::new();
    let mut piece_start = 0;
    for piece in pieces {
        let block =
            piece.block.as_ref().ok_or_else(|| ClientError::Invalid("a piece names no block".to_owned()))?;
        let piece_end = piece_start + piece.length;
        let (start, end) = (range.start.max(piece_start), range.end.min(piece_end));
        if start < end {
            parts.push_back(Part {
                block: block.try_into()?,
                offset: piece.offset + (start - piece_start),
                end: piece.offset + (end - piece_start),
                commit_index: piece.commit_index,
                whole: ((start, end) == (piece_start, piece_end))
                    .then_some((piece.crc, RunningCrc::default())),
            });
        }
        piece_start = piece_end;
    }
    if range.end > piece_start {
        return Err(ClientError::Invalid(format!(
            "bytes {}..{} were asked of {piece_start}",
            range.start, range.end
        )));
    }
    Ok(parts)
}

struct Reader {
    client: Client,
    parts: VecDeque<Part>,
    open: Option<Open>,
    /// Bytes before those of the first part, checked and not handed out yet.
    verified: VecDeque<Bytes>,
    pieces: Pieces,
    /// The replicas that are not yet asked in this round.
    replicas: Vec<String>,
    rounds: u32,
    last_failure: Option<Failure>,
    /// The answers of those that were asked in this round.
    answers: Vec<Code>,
    /// The time since which nothing was received.
    since: Instant,
}

struct Open {
    address: String,
    /// The room for what its window may hold.
    _window: Option<Room>,
    chunks: Messages<ReadPieces>,
}

impl Open {
    async fn next(&mut self, part: &Part, stall: Duration) -> Result<ReadPieces, Failure> {
        let early = || format!("{} ended {} bytes early", self.address, part.end - part.offset);
        match tokio::time::timeout(stall, self.chunks.message()).await {
            Ok(Ok(Some(chunk))) => Ok(chunk),
            Ok(Ok(None)) => Err(Failure::new(Code::Unavailable, early())),
            Ok(Err(status)) => Err(status.into()),
            Err(_) => Err(silent(&self.address, stall)),
        }
    }
}

fn silent(address: &str, stall: Duration) -> Failure {
    Failure::new(Code::Unavailable, format!("{address} sent nothing for {stall:?}"))
}

/// Whether a failure says something about the replica's node, rather than about the block.
fn is_its_own(failure: &Failure) -> bool {
    matches!(failure.code, Code::Unavailable | Code::OutcomeUnknown | Code::DiskFailed)
}

/// Whether a replica that was reached cannot give the bytes.
fn denies(answer: &Code) -> bool {
    use Code::{Corrupt, DiskFailed, Internal, Invalid, NotFound};
    matches!(answer, Corrupt | DiskFailed | Internal | Invalid | NotFound)
}

/// Whether asking again changes nothing.
fn is_hopeless(answer: &Code) -> bool {
    matches!(answer, Code::Invalid | Code::Internal)
}

/// Opens a part at a replica and waits for its first bytes.
async fn open_and_hear(
    client: &Client,
    address: &str,
    part: &Part,
    pieces: Pieces,
) -> Result<(Open, ReadPieces), Failure> {
    let stall = client.options().read_stall;
    let heard = async {
        let channel = client.channels().to_read(address, pieces)?;
        let request = ReadRequest {
            block: Some(part.block.into()),
            offset: part.offset,
            length: part.end - part.offset,
            commit_index: part.commit_index,
            message_bytes_max: pieces.message_bytes() as u32,
        };
        let cluster = client.view().cluster.clone();
        let opened = messages::call(channel, messages::READ, &cluster, messages::one(request));
        let opened = tokio::time::timeout(stall, opened).await;
        let chunks = opened.map_err(|_| silent(address, stall))??;
        let mut open = Open { address: address.to_owned(), chunks, _window: None };
        let chunk = open.next(part, stall).await?;
        Ok((open, chunk))
    };
    let heard: Result<_, Failure> = heard.await;
    if let Err(failure) = &heard
        && is_its_own(failure)
    {
        client.avoided().avoid(address);
    }
    heard
}

impl Reader {
    fn new(client: Client, parts: VecDeque<Part>) -> Reader {
        Reader {
            client,
            parts,
            open: None,
            verified: VecDeque::new(),
            pieces: Pieces::Large,
            replicas: Vec::new(),
            rounds: 0,
            last_failure: None,
            answers: Vec::new(),
            since: Instant::now(),
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        // A reader that was slow itself must not hold that against the replicas.
        self.since = Instant::now();
        loop {
            if let Some(bytes) = self.verified.pop_front() {
                return Ok(Some(bytes));
            }
            let Some(part) = self.parts.front().cloned() else { return Ok(None) };
            if part.offset == part.end {
                self.parts.pop_front();
                self.next_part();
                continue;
            }
            let room = self.room(&part).await?;
            match self.next_chunk(&part, room).await {
                Ok((bytes, after)) => {
                    if let Err(failure) = after.check_whole() {
                        // What was handed out cannot be taken back.
                        if part.offset > 0 {
                            let replica = self.open.take().map(|open| open.address).unwrap_or_default();
                            warn!(block = %part.block, replica, why = %failure, "a replica sent what was not written");
                            self.client.avoided().avoid(&replica);
                            self.client.locations().forget(part.block.container);
                            self.client.counted().read_failed(&failure);
                            self.client.counted().unreadable.count();
                            let (block, offset, why) = (part.block, 0, failure.to_string());
                            return Err(ClientError::Unreadable { block, offset, why });
                        }
                        self.failed(&part, failure).await?;
                        continue;
                    }
                    self.begin_rounds();
                    *self.parts.front_mut().expect("it was there above") = after;
                    self.verified = bytes;
                }
                Err(failure) => self.failed(&part, failure).await?,
            }
        }
    }

    fn next_part(&mut self) {
        self.open = None;
        self.replicas.clear();
        self.begin_rounds();
    }

    fn begin_rounds(&mut self) {
        self.rounds = 0;
        self.answers.clear();
    }

    /// Room for the next bytes of a part, and for its stream if one is to be opened. A stream whose pieces
    /// are too large for the memory there is now, or needlessly small, is opened anew.
    async fn room(&mut self, part: &Part) -> Result<[Room; 2], ClientError> {
        let memory = self.client.memory();
        let pieces = memory.pieces(self.pieces);
        if pieces != self.pieces
            && let Some(open) = self.open.take()
        {
            // The replica has done nothing wrong, and may be asked again.
            self.replicas.push(open.address);
        }
        self.pieces = pieces;
        let left = usize::try_from(part.end - part.offset).unwrap_or(usize::MAX);
        let message = left.min(pieces.message_bytes());
        let window = if self.open.is_some() { 0 } else { (left - message).min(pieces.window_bytes()) };
        Ok(memory.room([message, window], self.client.options().read_deadline).await?)
    }

    /// The next bytes of a part, and what is left of it.
    async fn next_chunk(
        &mut self,
        part: &Part,
        [mut room, window]: [Room; 2],
    ) -> Result<(VecDeque<Bytes>, Part), Failure> {
        let chunk = match &mut self.open {
            Some(open) => open.next(part, self.client.options().read_stall).await,
            None => self.begin(part, window).await,
        };
        let (bytes, after) = verify(chunk?, part)?;
        Ok((bytes.into_iter().map(|bytes| room.split(bytes.len()).of(bytes)).collect(), after))
    }

    /// Opens a part at a replica, and at a second one when the first is late: whoever sends first is read on
    /// from.
    async fn begin(&mut self, part: &Part, window: Room) -> Result<ReadPieces, Failure> {
        let pieces = self.pieces;
        let client = self.client.clone();
        let first = self.next_replica(part).await?;
        let begun = Instant::now();
        let mut reading = Box::pin(open_and_hear(&client, &first, part, pieces));
        let in_time = tokio::time::timeout(LATE_AFTER, &mut reading).await;
        let read = match in_time {
            Ok(read) => read,
            Err(_) => match (self.replicas.pop(), client.avoided().second_reads.try_acquire()) {
                (Some(second), Ok(_permit)) => {
                    client.counted().reads_second.count();
                    let mut reading_second = Box::pin(open_and_hear(&client, &second, part, pieces));
                    tokio::select! {
                        biased;
                        read = &mut reading => match read {
                            Ok(read) => Ok(read),
                            Err(failure) => {
                                self.answers.push(failure.code);
                                reading_second.await
                            }
                        },
                        read = &mut reading_second => match read {
                            Ok(read) => {
                                client.avoided().avoid(&first);
                                Ok(read)
                            }
                            Err(failure) => {
                                self.answers.push(failure.code);
                                reading.await
                            }
                        },
                    }
                }
                (second, _) => {
                    self.replicas.extend(second);
                    reading.await
                }
            },
        };
        let (open, chunk) = read?;
        client.counted().read_begun(begun.elapsed());
        self.open = Some(Open { _window: Some(window), ..open });
        Ok(chunk)
    }

    /// A replica not asked in this round; rounds start with what SCM says, in random order to spread readers,
    /// those of this process first.
    async fn next_replica(&mut self, part: &Part) -> Result<String, Failure> {
        if self.replicas.is_empty() {
            let found = self.client.locations().of(part.block.container).await?;
            let mut first = found.first.clone();
            first.shuffle(&mut random());
            // They are taken from the end: what is in this process is read by a call.
            first.sort_by_key(|address| self.client.options().local.has(address));
            self.client.avoided().to_the_front(&mut first);
            self.replicas = found.last.iter().rev().cloned().chain(first).collect();
            if found.is_incomplete {
                // Whoever has yet to speak is one that does not answer.
                self.answers.push(Code::Unavailable);
            }
        }
        Ok(self.replicas.pop().expect("locations are never empty"))
    }

    /// Notes a failure, and waits before the next round when all replicas were asked.
    async fn failed(&mut self, part: &Part, failure: Failure) -> Result<(), ClientError> {
        self.client.counted().read_failed(&failure);
        self.answers.push(failure.code);
        let replica = self.open.take().map(|open| open.address).unwrap_or_default();
        if !replica.is_empty() && is_its_own(&failure) {
            self.client.avoided().avoid(&replica);
        }
        if failure.code == Code::Corrupt {
            warn!(block = %part.block, offset = part.offset, replica, why = %failure, "a replica failed verification");
        } else {
            info!(block = %part.block, offset = part.offset, replica, why = %failure, "read from another replica");
        }
        // Replicas move while locations are remembered: the next reader should not begin with one that
        // failed.
        if failure.code != Code::NotYet && failure.code != Code::Busy {
            self.client.locations().forget(part.block.container);
        }
        if self.replicas.is_empty() {
            self.client.locations().forget(part.block.container);
            self.rounds += 1;
            let answers = std::mem::take(&mut self.answers);
            let hopeless = self.rounds >= 3 && answers.iter().all(is_hopeless);
            if hopeless || self.since.elapsed() > self.client.options().read_deadline {
                let why = failure.to_string();
                // Replicas that did not answer may well have the bytes.
                if !answers.iter().all(denies) {
                    let block = part.block;
                    return Err(ClientError::Unavailable(format!("nobody answers for block {block}: {why}")));
                }
                self.client.counted().unreadable.count();
                return Err(ClientError::Unreadable { block: part.block, offset: part.offset, why });
            }
            let pause = Duration::from_millis(20 << self.rounds.min(5));
            tokio::time::sleep(pause).await;
        }
        self.last_failure = Some(failure);
        Ok(())
    }
}

/// The bytes of a message that `part` wants next, after checking all of them, and what is left of the part.
/// Checksummed pieces end at multiples of 64 KiB of the record they lie in, so only the first one has a
/// length that must be said.
fn verify(message: ReadPieces, part: &Part) -> Result<(Vec<Bytes>, Part), Failure> {
    let corrupt = |why: String| Failure::new(Code::Corrupt, why);
    let length = message.data_bytes();
    let ReadPieces { about: ReadChunk { offset, data_crcs, first_piece_bytes, .. }, data } = message;
    let first = (first_piece_bytes as usize).min(length);
    if first == 0 || first > CRC_CHUNK_BYTES {
        return Err(corrupt(format!("a piece of {first_piece_bytes} bytes in a chunk of {length}")));
    }
    let expected = 1 + types::crc_chunks(length - first);
    if data_crcs.len() != expected {
        let got = data_crcs.len();
        return Err(corrupt(format!("{length} bytes need {expected} checksums, got {got}")));
    }
    let sums = checksums(&data, first);
    for (n, ((computed, _), stored)) in sums.iter().zip(&data_crcs).enumerate() {
        if computed != stored {
            return Err(corrupt(format!(
                "piece {n} at {offset}: stored {stored:#010x}, computed {computed:#010x}"
            )));
        }
    }
    // A replica may send whole checksummed pieces around what was asked.
    let end = offset + length as u64;
    if offset > part.offset || end <= part.offset {
        return Err(corrupt(format!("bytes {offset}..{end} came where {} was next", part.offset)));
    }
    let skip = (part.offset - offset) as usize;
    let wanted = (end.min(part.end) - part.offset) as usize;
    let bytes = cut(data, skip, wanted);
    let mut after = Part { offset: part.offset + wanted as u64, ..part.clone() };
    if let Some((_, sum)) = &mut after.whole {
        if wanted == length {
            sums.iter().for_each(|(crc, bytes)| sum.push(*crc, *bytes));
        } else {
            bytes.iter().for_each(|bytes| sum.push(crc32c::crc32c(bytes), bytes.len()));
        }
    }
    Ok((bytes, after))
}

/// The checksum and the length of each checksummed piece, however the data are cut.
fn checksums(data: &[Bytes], first: usize) -> Vec<(u32, usize)> {
    let mut sums = Vec::new();
    let (mut crc, mut length, mut left) = (0, 0, first);
    for mut bytes in data.iter().map(|bytes| &bytes[..]) {
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(left));
            (crc, length, left) = (crc32c::crc32c_append(crc, now), length + now.len(), left - now.len());
            if left == 0 {
                sums.push((crc, length));
                (crc, length, left) = (0, 0, CRC_CHUNK_BYTES);
            }
            bytes = later;
        }
    }
    if length > 0 {
        sums.push((crc, length));
    }
    sums
}

/// The `wanted` bytes of the data that come after its first `skip`; it has as many.
fn cut(data: Vec<Bytes>, mut skip: usize, mut wanted: usize) -> Vec<Bytes> {
    let mut bytes = Vec::with_capacity(data.len());
    for piece in data {
        let from = skip.min(piece.len());
        let to = piece.len().min(from + wanted);
        (skip, wanted) = (skip - from, wanted - (to - from));
        if from < to {
            bytes.push(piece.slice(from..to));
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::{ContainerId, Nonce};

    fn piece(local: u64, offset: u64, length: u64) -> BlockPiece {
        let block = Some(BlockName { container: ContainerId(1), local, nonce: Nonce(7) }.into());
        BlockPiece { block, offset, length, commit_index: 9, crc: 1 }
    }

    #[test]
    fn ranges_are_cut_at_the_borders_of_pieces() {
        let pieces = [piece(1, 0, 10), piece(2, 100, 5), piece(3, 0, 10)];
        let check = |range: Range<u64>, expect: &[(u64, u64, u64)]| {
            let parts = parts_of(&pieces, range).unwrap();
            let parts: Vec<_> = parts.iter().map(|part| (part.block.local, part.offset, part.end)).collect();
            assert_eq!(parts, expect);
        };
        check(0..25, &[(1, 0, 10), (2, 100, 105), (3, 0, 10)]);
        check(9..11, &[(1, 9, 10), (2, 100, 101)]);
        check(10..15, &[(2, 100, 105)]);
        check(24..25, &[(3, 9, 10)]);
        check(7..7, &[]);
        assert!(parts_of(&pieces, 0..26).is_err());
    }

    /// A message as it may come: in pieces that end anywhere.
    fn chunk(offset: u64, data: &[u8], first: usize) -> ReadPieces {
        let pieces = std::iter::once(&data[..first]).chain(data[first..].chunks(CRC_CHUNK_BYTES));
        let about = ReadChunk {
            offset,
            data: Bytes::new(),
            data_crcs: pieces.map(crc32c::crc32c).collect(),
            first_piece_bytes: first as u32,
        };
        ReadPieces { about, data: data.chunks(29_999).map(Bytes::copy_from_slice).collect() }
    }

    fn part(offset: u64, end: u64) -> Part {
        let block = BlockName { container: ContainerId(1), local: 1, nonce: Nonce(7) };
        Part { block, offset, end, commit_index: 0, whole: None }
    }

    #[test]
    fn chunks_are_trimmed_to_what_is_wanted() {
        let data: Vec<u8> = (0..200_000u32).map(|n| (n % 253) as u8).collect();
        let (got, after) = verify(chunk(1000, &data, 500), &part(1500, 100_000)).unwrap();
        assert!(got.concat() == data[500..99_000]);
        assert_eq!((after.offset, after.end), (100_000, 100_000));
        assert!(verify(chunk(1000, &data, 500), &part(999, 2000)).is_err());
        assert!(verify(chunk(1000, &data, 500), &part(201_000, 202_000)).is_err());
    }

    /// Each replica's bytes fit the checksums that it sends with them: only what was written tells that they
    /// are another block's.
    #[test]
    fn a_whole_piece_has_the_checksum_it_was_written_with() {
        let data: Vec<u8> = (0..300_000u32).map(|n| (n % 251) as u8).collect();
        let written = crc32c::crc32c(&data[..250_000]);
        let whole = Part { whole: Some((written, RunningCrc::default())), ..part(0, 250_000) };
        // The block may go on after the piece.
        let cuts = [0, 131_072, 200_000, 300_000];
        let chunks = cuts.windows(2).map(|cut| {
            let first = CRC_CHUNK_BYTES.min(cut[1] - cut[0]);
            chunk(cut[0] as u64, &data[cut[0]..cut[1]], first)
        });
        let read = |mut part: Part, chunks: &mut dyn Iterator<Item = ReadPieces>| {
            for chunk in chunks {
                part = verify(chunk, &part)?.1;
            }
            part.check_whole()?;
            Ok::<_, Failure>(part.offset)
        };
        assert_eq!(read(whole.clone(), &mut chunks.clone()), Ok(250_000));
        let mut others = data.clone();
        others[100_000] ^= 1;
        let first = chunk(0, &others[..131_072], CRC_CHUNK_BYTES);
        let failure = read(whole, &mut [first].into_iter().chain(chunks.skip(1))).unwrap_err();
        assert!(failure.code == Code::Corrupt && failure.message.contains("what was written"), "{failure}");
    }

    #[test]
    fn any_wrong_byte_or_checksum_is_corruption() {
        let data = vec![7u8; 150_000];
        let good = chunk(0, &data, 30_000);
        assert!(verify(good.clone(), &part(0, 150_000)).is_ok());
        for at in [0, 29_999, 30_000, 95_536, 149_999] {
            let mut bad = good.clone();
            let mut bytes = data.clone();
            bytes[at] ^= 1;
            bad.data = vec![bytes.into()];
            assert_eq!(verify(bad, &part(0, 150_000)).unwrap_err().code, Code::Corrupt, "byte {at}");
        }
        let mut short = good.clone();
        short.about.data_crcs.pop();
        assert_eq!(verify(short, &part(0, 150_000)).unwrap_err().code, Code::Corrupt);
        assert_eq!(verify(ReadPieces::default(), &part(0, 1)).unwrap_err().code, Code::Corrupt);
    }
}
