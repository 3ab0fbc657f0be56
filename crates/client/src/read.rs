use crate::ClientError;
use crate::client::Client;
use bytes::Bytes;
use futures::Stream;
use proto::datanode::datanode_client::DatanodeClient;
use proto::datanode::{ReadChunk, ReadRequest};
use proto::om::BlockPiece;
use proto::{Code, Failure};
use rand::seq::SliceRandom;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use tokio::time::Instant;
use tonic::Request;
use tracing::{info, warn};
use types::{BlockId, CRC_CHUNK_BYTES};

impl Client {
    /// The bytes `range` of a key made of `pieces`. Each byte is verified against its checksum before it is handed
    /// out; when a replica fails, the stream goes on from the next byte on another one. It ends after the last byte
    /// of the range or with an error, never early.
    pub fn read(
        &self,
        pieces: &[BlockPiece],
        range: Range<u64>,
    ) -> impl Stream<Item = Result<Bytes, ClientError>> + Send + 'static + use<> {
        let reader = parts_of(pieces, range).map(|parts| Reader::new(self.clone(), parts));
        futures::stream::unfold(Some(reader), |reader| async {
            match reader? {
                Ok(mut reader) => match reader.next().await {
                    Ok(Some(bytes)) => Some((Ok(bytes), Some(Ok(reader)))),
                    Ok(None) => None,
                    Err(error) => Some((Err(error), None)),
                },
                Err(error) => Some((Err(error), None)),
            }
        })
    }
}

/// A stretch of one block still to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Part {
    block: BlockId,
    offset: u64,
    end: u64,
    commit_index: u64,
}

/// Cuts a key's range into stretches of blocks.
fn parts_of(pieces: &[BlockPiece], range: Range<u64>) -> Result<VecDeque<Part>, ClientError> {
    let mut parts = VecDeque::new();
    let mut piece_start = 0;
    for piece in pieces {
        let block = piece.block.ok_or_else(|| ClientError::Invalid("a piece names no block".to_owned()))?;
        let piece_end = piece_start + piece.length;
        let (start, end) = (range.start.max(piece_start), range.end.min(piece_end));
        if start < end {
            parts.push_back(Part {
                block: block.into(),
                offset: piece.offset + (start - piece_start),
                end: piece.offset + (end - piece_start),
                commit_index: piece.commit_index,
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
    /// Not yet asked in this round.
    replicas: Vec<String>,
    rounds: u32,
    last_failure: Option<Failure>,
    /// Since when nothing was received.
    since: Instant,
}

struct Open {
    address: String,
    chunks: tonic::Streaming<ReadChunk>,
}

impl Reader {
    fn new(client: Client, parts: VecDeque<Part>) -> Reader {
        Reader {
            client,
            parts,
            open: None,
            replicas: Vec::new(),
            rounds: 0,
            last_failure: None,
            since: Instant::now(),
        }
    }

    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        // A reader that was slow itself must not hold that against the replicas.
        self.since = Instant::now();
        loop {
            let Some(part) = self.parts.front().cloned() else { return Ok(None) };
            if part.offset == part.end {
                self.parts.pop_front();
                self.next_part();
                continue;
            }
            match self.next_chunk(&part).await {
                Ok(bytes) => {
                    self.rounds = 0;
                    self.parts.front_mut().expect("it was there above").offset += bytes.len() as u64;
                    return Ok(Some(bytes));
                }
                Err(failure) => self.failed(&part, failure).await?,
            }
        }
    }

    fn next_part(&mut self) {
        self.open = None;
        self.replicas.clear();
        self.rounds = 0;
    }

    async fn next_chunk(&mut self, part: &Part) -> Result<Bytes, Failure> {
        let stall = self.client.options().read_stall;
        let silent =
            |address: &str| Failure::new(Code::Unavailable, format!("{address} sent nothing for {stall:?}"));
        if self.open.is_none() {
            let address = self.next_replica(part).await?;
            let opened = tokio::time::timeout(stall, self.open(&address, part)).await;
            let chunks = opened.map_err(|_| silent(&address))??;
            self.open = Some(Open { address, chunks });
        }
        let open = self.open.as_mut().expect("opened above");
        match tokio::time::timeout(stall, open.chunks.message()).await {
            Ok(Ok(Some(chunk))) => verify(chunk, part),
            Ok(Ok(None)) => Err(Failure::new(
                Code::Unavailable,
                format!("{} ended {} bytes early", open.address, part.end - part.offset),
            )),
            Ok(Err(status)) => Err(status.into()),
            Err(_) => Err(silent(&open.address)),
        }
    }

    async fn open(&self, address: &str, part: &Part) -> Result<tonic::Streaming<ReadChunk>, Failure> {
        let mut datanode = DatanodeClient::new(self.client.channels().to(address)?)
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        let request = ReadRequest {
            block: Some(part.block.into()),
            offset: part.offset,
            length: part.end - part.offset,
            commit_index: part.commit_index,
        };
        let request = proto::in_cluster(Request::new(request), &self.client.view().cluster);
        Ok(datanode.read(request).await?.into_inner())
    }

    /// A replica not asked in this round; rounds start with what SCM says, in random order to spread readers.
    async fn next_replica(&mut self, part: &Part) -> Result<String, Failure> {
        if self.replicas.is_empty() {
            let found = self.client.locations().of(part.block.container).await?;
            self.replicas = found.to_vec();
            self.replicas.shuffle(&mut rand::rng());
        }
        Ok(self.replicas.pop().expect("locations are never empty"))
    }

    /// Notes a failure, and waits before the next round when all replicas were asked.
    async fn failed(&mut self, part: &Part, failure: Failure) -> Result<(), ClientError> {
        let replica = self.open.take().map(|open| open.address).unwrap_or_default();
        if failure.code == Code::Corrupt {
            warn!(block = %part.block, offset = part.offset, replica, why = %failure, "a replica failed verification");
        } else {
            info!(block = %part.block, offset = part.offset, replica, why = %failure, "read from another replica");
        }
        // Replicas move while locations are remembered: the next reader should not begin with one that failed.
        if failure.code != Code::NotYet && failure.code != Code::Busy {
            self.client.locations().forget(part.block.container);
        }
        if self.replicas.is_empty() {
            self.client.locations().forget(part.block.container);
            self.rounds += 1;
            let hopeless = matches!(failure.code, Code::Invalid | Code::Internal) && self.rounds >= 3;
            if hopeless || self.since.elapsed() > self.client.options().read_deadline {
                let why = failure.to_string();
                return Err(ClientError::Unreadable { block: part.block, offset: part.offset, why });
            }
            let pause = Duration::from_millis(20 << self.rounds.min(5));
            tokio::time::sleep(pause).await;
        }
        self.last_failure = Some(failure);
        Ok(())
    }
}

/// The bytes of a chunk that `part` wants next, after checking all of them. Checksummed pieces end at multiples of
/// 64 KiB of the record they lie in, so only the first one has a length that must be said.
fn verify(chunk: ReadChunk, part: &Part) -> Result<Bytes, Failure> {
    let corrupt = |why: String| Failure::new(Code::Corrupt, why);
    let ReadChunk { offset, data, data_crcs, first_piece_bytes } = chunk;
    let first = (first_piece_bytes as usize).min(data.len());
    if first == 0 || first > CRC_CHUNK_BYTES {
        return Err(corrupt(format!("a piece of {first_piece_bytes} bytes in a chunk of {}", data.len())));
    }
    let pieces = std::iter::once(&data[..first]).chain(data[first..].chunks(CRC_CHUNK_BYTES));
    let expected = 1 + types::crc_chunks(data.len() - first);
    if data_crcs.len() != expected {
        return Err(corrupt(format!(
            "{} bytes need {expected} checksums, got {}",
            data.len(),
            data_crcs.len()
        )));
    }
    for (n, (piece, &stored)) in pieces.zip(&data_crcs).enumerate() {
        let computed = crc32c::crc32c(piece);
        if computed != stored {
            return Err(corrupt(format!(
                "piece {n} at {offset}: stored {stored:#010x}, computed {computed:#010x}"
            )));
        }
    }
    // A replica may send whole checksummed pieces around what was asked.
    let end = offset + data.len() as u64;
    if offset > part.offset || end <= part.offset {
        return Err(corrupt(format!("bytes {offset}..{end} came where {} was next", part.offset)));
    }
    let skip = (part.offset - offset) as usize;
    let wanted = (end.min(part.end) - part.offset) as usize;
    Ok(data.slice(skip..skip + wanted))
}

#[cfg(test)]
mod tests {
    use super::*;
    use types::ContainerId;

    fn piece(local: u64, offset: u64, length: u64) -> BlockPiece {
        let block = BlockId { container: ContainerId(1), local };
        BlockPiece { block: Some(block.into()), offset, length, commit_index: 9 }
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

    fn chunk(offset: u64, data: &[u8], first: usize) -> ReadChunk {
        let pieces = std::iter::once(&data[..first]).chain(data[first..].chunks(CRC_CHUNK_BYTES));
        ReadChunk {
            offset,
            data: Bytes::copy_from_slice(data),
            data_crcs: pieces.map(crc32c::crc32c).collect(),
            first_piece_bytes: first as u32,
        }
    }

    fn part(offset: u64, end: u64) -> Part {
        Part { block: BlockId { container: ContainerId(1), local: 1 }, offset, end, commit_index: 0 }
    }

    #[test]
    fn chunks_are_trimmed_to_what_is_wanted() {
        let data: Vec<u8> = (0..200_000u32).map(|n| (n % 253) as u8).collect();
        let got = verify(chunk(1000, &data, 500), &part(1500, 100_000)).unwrap();
        assert!(got == data[500..99_000]);
        assert!(verify(chunk(1000, &data, 500), &part(999, 2000)).is_err());
        assert!(verify(chunk(1000, &data, 500), &part(201_000, 202_000)).is_err());
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
            bad.data = bytes.into();
            assert_eq!(verify(bad, &part(0, 150_000)).unwrap_err().code, Code::Corrupt, "byte {at}");
        }
        let mut short = good.clone();
        short.data_crcs.pop();
        assert_eq!(verify(short, &part(0, 150_000)).unwrap_err().code, Code::Corrupt);
        let none = ReadChunk { data: Bytes::new(), data_crcs: vec![], first_piece_bytes: 0, offset: 0 };
        assert_eq!(verify(none, &part(0, 1)).unwrap_err().code, Code::Corrupt);
    }
}
