use crate::ClientError;
use crate::memory::{Memory, Pieces, Room};
use bytes::{Bytes, BytesMut};
use futures::{Stream, StreamExt};
use md5many::{Md5, Md5Many, Pending};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use types::{CRC_CHUNK_BYTES, Payload};

/// A chunk on its way into a block.
#[derive(Clone, Debug)]
pub(crate) struct Chunk {
    pub(crate) payload: Payload,
    /// Whether nothing of the body follows the chunk.
    pub(crate) last: bool,
}

/// A body, cut into chunks, with its MD5 on the way. Chunks that a broken block gave back come first.
pub(crate) struct Source<S> {
    body: Option<S>,
    chunk_bytes: usize,
    memory: Memory,
    /// The time for which room is waited for.
    wait: Duration,
    /// The room for what is in the frames.
    room: Option<Room>,
    frames: VecDeque<Bytes>,
    /// The small frames that came last, put together; they follow all others.
    small: BytesMut,
    frame_bytes: usize,
    md5_many: Md5Many,
    hashing: Hashing,
    returned: VecDeque<Chunk>,
    bytes: u64,
}

/// The MD5 of what was taken: it is here, or away to take in a chunk, which is on its way meanwhile.
enum Hashing {
    Here(Md5),
    Away(Pending),
}

/// The most bytes of a chunk that is hashed here: hashing them takes less than handing the work to another
/// thread and back.
const HASH_HERE_BYTES_MAX: usize = 32 * 1024;
/// The bytes below which a frame is copied: kept as it is, a frame of a single byte would cost forty bytes,
/// and hold what it is a part of.
const SMALL_FRAME_BYTES: usize = 4 * 1024;

impl<S, E> Source<S>
where
    S: Stream<Item = Result<Bytes, E>> + Unpin,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) fn new(
        body: S,
        chunk_bytes: usize,
        memory: Memory,
        md5_many: Md5Many,
        wait: Duration,
    ) -> Self {
        Source {
            body: Some(body),
            chunk_bytes,
            memory,
            wait,
            room: None,
            frames: VecDeque::new(),
            small: BytesMut::new(),
            frame_bytes: 0,
            md5_many,
            hashing: Hashing::Here(Md5::default()),
            returned: VecDeque::new(),
            bytes: 0,
        }
    }

    /// The next chunk; `None` after the last one, at once for an empty body. Cancellation safe: what was read
    /// stays.
    pub(crate) async fn next(&mut self) -> Result<Option<Chunk>, ClientError> {
        if let Some(chunk) = self.returned.pop_front() {
            return Ok(Some(chunk));
        }
        // One byte more than a chunk, or the end: only then is it known whether this chunk is the last one,
        // and the last one seals its block without an entry of its own.
        while self.frame_bytes <= self.gathered_bytes_max()
            && let Some(body) = &mut self.body
        {
            match body.next().await {
                Some(Ok(frame)) if frame.is_empty() => {}
                Some(Ok(frame)) => self.push(frame),
                Some(Err(err)) => return Err(ClientError::Body(Arc::from(err.into()))),
                None => self.body = None,
            }
            self.hold().await?;
        }
        // A call that was given up while it waited for room has left that to the next one.
        self.hold().await?;
        if self.frame_bytes == 0 {
            return Ok(None);
        }
        self.hashed().await?;
        let bytes = self.take_chunk();
        let last = self.body.is_none() && self.frame_bytes == 0;
        self.hash(&bytes);
        Ok(Some(Chunk { payload: Payload::checksummed(bytes), last }))
    }

    /// Gives chunks back that no block took, in their order.
    pub(crate) fn give_back(&mut self, chunks: impl DoubleEndedIterator<Item = Chunk>) {
        for chunk in chunks.rev() {
            self.returned.push_front(chunk);
        }
    }

    /// Bytes and MD5 of the whole body; after `next` has answered `None` or the last chunk.
    pub(crate) async fn finish(mut self) -> Result<(u64, [u8; 16]), ClientError> {
        let md5 = self.hashed().await?.clone();
        Ok((self.bytes, md5.finish()))
    }

    /// The bytes that are gathered before they are sent: a chunk, or less where memory is short, so that a
    /// client that stops holds little.
    fn gathered_bytes_max(&self) -> usize {
        match self.memory.pieces(Pieces::Large) {
            Pieces::Large => self.chunk_bytes,
            Pieces::Small => self.chunk_bytes.min(CRC_CHUNK_BYTES),
        }
    }

    /// Waits until there is room for all that came, before more is asked for.
    async fn hold(&mut self) -> Result<(), ClientError> {
        let held = self.room.as_ref().map_or(0, Room::bytes);
        if self.frame_bytes > held {
            let [more] = self.memory.room([self.frame_bytes - held], self.wait).await?;
            match &mut self.room {
                Some(room) => room.add(more),
                None => self.room = Some(more),
            }
        }
        Ok(())
    }

    /// Takes all that has gathered, or a chunk of it. Something stays behind unless this is the end.
    fn take_chunk(&mut self) -> Bytes {
        let count = match &self.body {
            _ if self.frame_bytes > self.chunk_bytes => self.chunk_bytes,
            None => self.frame_bytes,
            Some(_) => (self.frame_bytes - 1) / CRC_CHUNK_BYTES * CRC_CHUNK_BYTES,
        };
        let bytes = self.take(count);
        let room = self.room.as_mut().expect("what is gathered has room").split(count);
        room.of(bytes)
    }

    fn push(&mut self, frame: Bytes) {
        self.frame_bytes += frame.len();
        if frame.len() < SMALL_FRAME_BYTES {
            self.small.extend_from_slice(&frame);
            return;
        }
        self.push_small();
        self.frames.push_back(frame);
    }

    fn push_small(&mut self) {
        if !self.small.is_empty() {
            self.frames.push_back(std::mem::take(&mut self.small).freeze());
        }
    }

    /// Cuts `count` bytes off the front; copies only when they lie in several frames.
    fn take(&mut self, count: usize) -> Bytes {
        self.push_small();
        self.frame_bytes -= count;
        self.bytes += count as u64;
        let front = self.frames.front_mut().expect("count is at most what the frames hold");
        if front.len() > count {
            return front.split_to(count);
        }
        if front.len() == count {
            return self.frames.pop_front().expect("it was there a line ago");
        }
        let mut joined = BytesMut::with_capacity(count);
        while joined.len() < count {
            let front = self.frames.front_mut().expect("count is at most what the frames hold");
            let part = front.split_to(front.len().min(count - joined.len()));
            joined.extend_from_slice(&part);
            if front.is_empty() {
                self.frames.pop_front();
            }
        }
        joined.freeze()
    }

    /// The MD5 of all that was taken, once it has taken in the last chunk.
    async fn hashed(&mut self) -> Result<&mut Md5, ClientError> {
        if let Hashing::Away(pending) = &mut self.hashing {
            let md5 = pending.await;
            let md5 = md5.ok_or_else(|| ClientError::Unavailable("the process is stopping".to_owned()))?;
            self.hashing = Hashing::Here(md5);
        }
        match &mut self.hashing {
            Hashing::Here(md5) => Ok(md5),
            Hashing::Away(_) => unreachable!("it is here since a line ago"),
        }
    }

    /// Hashes a small chunk here; a large one elsewhere, together with those of other bodies.
    fn hash(&mut self, bytes: &Bytes) {
        let Hashing::Here(md5) = &mut self.hashing else { unreachable!("the chunk before is hashed") };
        if bytes.len() <= HASH_HERE_BYTES_MAX {
            md5.update(bytes);
        } else {
            let pending = self.md5_many.update(std::mem::take(md5), bytes.clone());
            self.hashing = Hashing::Away(pending);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn source<S, E>(body: S, chunk_bytes: usize, memory: &Memory) -> Source<S>
    where
        S: Stream<Item = Result<Bytes, E>> + Unpin,
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Source::new(body, chunk_bytes, memory.clone(), Md5Many::default(), Duration::from_millis(100))
    }

    /// Bodies that stop after 900 KiB each, and the lengths of the chunks that were made of them, which are
    /// acknowledged at once.
    async fn stopped(count: usize, memory: &Memory) -> Vec<(Vec<usize>, impl Sized)> {
        let mut stopped = Vec::new();
        for _ in 0..count {
            let frames = (0..9).map(|_| Ok::<_, std::io::Error>(Bytes::from(vec![7; 100 << 10])));
            let body = futures::stream::iter(frames).chain(futures::stream::pending());
            let mut source = source(body, MIB, memory);
            let mut lengths = Vec::new();
            while let Ok(chunk) = tokio::time::timeout(Duration::from_millis(50), source.next()).await {
                let chunk = chunk.unwrap().unwrap();
                assert!(!chunk.last);
                lengths.push(chunk.payload.len());
            }
            stopped.push((lengths, source));
        }
        stopped
    }

    #[tokio::test(start_paused = true)]
    async fn who_stops_holds_little_once_half_of_the_memory_is_taken() {
        let memory = Memory::new(8 * MIB);
        let first = stopped(5, &memory).await;
        assert!(first[..4].iter().all(|(chunks, _)| chunks.is_empty()), "there is room to gather a chunk");
        // How much the fifth holds depends on when its hash was done.
        let half = 4 * MIB as u64;
        assert!(memory.bytes_in_use() > half - MIB as u64, "nearly half: {}", memory.bytes_in_use());
        let more = stopped(16, &memory).await;
        for (chunks, _) in &more {
            assert!(!chunks.is_empty());
            assert!(chunks.iter().all(|length| *length > 0 && length % CRC_CHUNK_BYTES == 0), "{chunks:?}");
        }
        let each = memory.bytes_in_use().saturating_sub(half) / 16;
        assert!(each <= 64 << 10, "{each}");
        drop((first, more));
        assert_eq!(memory.bytes_in_use(), 0);
    }

    async fn check(frames: &[usize], chunk_bytes: usize, expect: &[usize]) {
        let whole: Vec<u8> = (0..frames.iter().sum::<usize>()).map(|n| (n % 251) as u8).collect();
        let mut rest = Bytes::from(whole.clone());
        let frames: Vec<Result<Bytes, std::io::Error>> =
            frames.iter().map(|&n| Ok(rest.split_to(n))).collect();
        let memory = Memory::new(1 << 30);
        let mut source = source(futures::stream::iter(frames), chunk_bytes, &memory);
        let (mut joined, mut lengths) = (Vec::new(), Vec::new());
        while let Some(chunk) = source.next().await.unwrap() {
            joined.extend_from_slice(chunk.payload.bytes());
            lengths.push(chunk.payload.len());
            assert_eq!(chunk.last, lengths.len() == expect.len(), "chunk {} of {expect:?}", lengths.len());
        }
        assert_eq!(lengths, expect);
        assert!(joined == whole);
        let (bytes, md5) = source.finish().await.unwrap();
        assert_eq!(bytes, whole.len() as u64);
        assert_eq!(md5, Md5::digest(&whole));
    }

    #[tokio::test]
    async fn bodies_are_cut_into_full_chunks_and_the_last_one_is_known() {
        check(&[], 4, &[]).await;
        check(&[0, 0], 4, &[]).await;
        check(&[1], 4, &[1]).await;
        check(&[4], 4, &[4]).await;
        check(&[4, 0], 4, &[4]).await;
        check(&[9], 4, &[4, 4, 1]).await;
        check(&[1, 2, 3, 4], 4, &[4, 4, 2]).await;
        check(&[1, 1, 5000, 1, 4096, 2, 0, 3], 5001, &[5001, 4103]).await;
        check(&[300_000, 5, 100_000], 100_000, &[100_000, 100_000, 100_000, 100_000, 5]).await;
    }

    #[tokio::test]
    async fn given_back_chunks_come_first_and_are_not_hashed_again() {
        let frames = vec![Ok::<_, std::io::Error>(Bytes::from_static(b"abcdef"))];
        let mut source = source(futures::stream::iter(frames), 2, &Memory::new(1 << 30));
        let one = source.next().await.unwrap().unwrap();
        let two = source.next().await.unwrap().unwrap();
        source.give_back([one, two].into_iter());
        let mut all = Vec::new();
        while let Some(chunk) = source.next().await.unwrap() {
            all.extend_from_slice(chunk.payload.bytes());
        }
        assert_eq!(all, b"abcdef");
        assert_eq!(source.finish().await.unwrap(), (6, Md5::digest(b"abcdef")));
    }

    #[tokio::test]
    async fn an_error_of_the_body_is_handed_on() {
        let frames = vec![Ok(Bytes::from_static(b"abc")), Err(std::io::Error::other("torn"))];
        let mut source = source(futures::stream::iter(frames), 2, &Memory::new(1 << 30));
        source.next().await.unwrap().unwrap();
        match source.next().await {
            Err(ClientError::Body(err)) => assert_eq!(err.to_string(), "torn"),
            other => panic!("{other:?}"),
        }
    }
}
