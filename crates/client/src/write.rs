use crate::ClientError;
use crate::block::{BlockEnd, BlockLimits, BlockWriter};
use crate::client::Client;
use crate::pipelines::Load;
use crate::source::Source;
use bytes::Bytes;
use futures::Stream;
use proto::datanode::Ack;
use proto::om::BlockPiece;
use proto::{Code, Failure};
use std::collections::BTreeSet;
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;
use tracing::info;
use types::Backoff;

/// A body that is on a majority of the replicas of its blocks, and in no key yet.
#[derive(Clone, Debug, PartialEq)]
pub struct Written {
    pub pieces: Vec<BlockPiece>,
    pub size: u64,
    pub md5: [u8; 16],
    /// The acknowledgement that each chunk has had: of all replicas only where that was asked for.
    pub reached: Ack,
}

impl Written {
    /// The ETag of an object written in one piece.
    pub fn etag(&self) -> String {
        self.md5.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Client {
    /// Writes a body as blocks. On return all of it is durable on a majority of replicas; what refers to it
    /// is the caller's to commit. When the future is dropped or fails, blocks written so far are orphans.
    pub async fn write_blocks<S, E>(&self, body: S) -> Result<Written, ClientError>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let written = self.write_blocks_somewhere(body).await;
        let is_full = |failure: &Failure| failure.code == Code::DiskFull;
        if matches!(&written, Err(ClientError::Unavailable(_)))
            || matches!(&written, Err(ClientError::Refused(failure)) if is_full(failure))
        {
            self.counted().writes_failed.count();
        }
        written
    }

    async fn write_blocks_somewhere<S, E>(&self, body: S) -> Result<Written, ClientError>
    where
        S: Stream<Item = Result<Bytes, E>>,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let options = self.options();
        self.memory().begin().await?;
        let limits = BlockLimits {
            chunk_bytes: options.chunk_bytes,
            block_bytes_max: options.block_bytes_max,
            stall: options.stall,
            ack_all_within: (self.ack() == Ack::All).then_some(options.ack_all_within),
        };
        let body = pin!(body);
        let (memory, md5_many) = (self.memory().clone(), self.md5_many().clone());
        let mut source = Source::new(body, options.chunk_bytes, memory, md5_many, options.write_deadline);
        let mut pieces = Vec::new();
        let mut reached = self.ack();
        let mut patience = Patience::new(options.write_deadline);
        let mut full = BTreeSet::new();
        while let Some(first) = source.next().await? {
            let load = if first.last { Load::Small(first.payload.len()) } else { Load::Large };
            let Some(pipeline) = self.pipelines().choose(load) else {
                source.give_back([first].into_iter());
                patience.wait(Failure::new(Code::Unavailable, "SCM has told of no pipeline")).await?;
                continue;
            };
            let begun = Instant::now();
            let BlockEnd { piece, more, failure, on_all } =
                BlockWriter::new(pipeline.clone(), limits, self.counted().clone())
                    .write(first, &mut source)
                    .await?;
            if piece.is_some() {
                patience.progress();
                full.clear();
                reached = if on_all { reached } else { Ack::Majority };
            }
            let length = piece.as_ref().map_or(0, |piece| piece.length);
            pieces.extend(piece);
            if let Some(failure) = failure {
                self.counted().pipelines_left.count();
                info!(pipeline = %pipeline.id, acknowledged = length, why = %failure, "go on with the rest of a body elsewhere");
                if failure.code == Code::DiskFull {
                    full.insert(pipeline.id);
                }
                if length == 0 {
                    pipeline.avoid(options.stall);
                    patience.trouble_since(begun);
                    if self.pipelines().are_full(&full) {
                        patience.wait_for_room().await?;
                    } else {
                        patience.wait(failure).await?;
                    }
                }
            }
            if !more {
                break;
            }
        }
        let (size, md5) = source.finish().await?;
        let written: u64 = pieces.iter().map(|piece| piece.length).sum();
        assert!(written == size, "{written} of {size} bytes are in blocks");
        Ok(Written { pieces, size, md5, reached })
    }
}

/// The time after which a full store is not waited for any more: room comes when somebody makes it, or with a
/// pipeline that SCM opens elsewhere, and a lack of room is known a heartbeat late.
const FULL_FOR: Duration = Duration::from_secs(3);

/// The time for which to go on trying without progress, and how often.
struct Patience {
    deadline: Duration,
    since: Option<Instant>,
    full_since: Option<Instant>,
    retry: Backoff,
}

impl Patience {
    fn new(deadline: Duration) -> Patience {
        let retry = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        Patience { deadline, since: None, full_since: None, retry }
    }

    fn progress(&mut self) {
        (self.since, self.full_since) = (None, None);
        self.retry.reset();
    }

    fn trouble_since(&mut self, begun: Instant) {
        self.since.get_or_insert(begun);
    }

    /// Waits a little before the next try, or says that there was enough waiting.
    async fn wait(&mut self, failure: Failure) -> Result<(), ClientError> {
        self.full_since = None;
        let since = *self.since.get_or_insert_with(Instant::now);
        if since.elapsed() + self.retry.next_pause() > self.deadline {
            return Err(ClientError::Unavailable(format!(
                "no pipeline took the data within {:?}: {failure}",
                self.deadline
            )));
        }
        tokio::time::sleep(self.retry.pause()).await;
        Ok(())
    }

    /// [`Patience::wait`] where all disks are full: other trouble before does not count.
    async fn wait_for_room(&mut self) -> Result<(), ClientError> {
        let since = *self.full_since.get_or_insert_with(Instant::now);
        if since.elapsed() > FULL_FOR.min(self.deadline) {
            let why = "the disks of every open pipeline are full";
            return Err(ClientError::Refused(Failure::new(Code::DiskFull, why)));
        }
        tokio::time::sleep(self.retry.pause()).await;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A node that was down for longer than a full store is waited for, and then a disk that is full for a
    /// moment.
    #[tokio::test(start_paused = true)]
    async fn a_store_is_full_only_once_it_has_been_so_for_a_while() {
        let mut patience = Patience::new(10 * FULL_FOR);
        patience.trouble_since(Instant::now());
        let begun = Instant::now();
        while begun.elapsed() < 2 * FULL_FOR {
            patience.wait(Failure::new(Code::Unavailable, "down")).await.unwrap();
        }
        let full = Instant::now();
        while full.elapsed() <= FULL_FOR {
            patience.wait_for_room().await.unwrap();
        }
        patience.wait_for_room().await.unwrap_err();
    }
}
