//! One queue of what is to be hashed in a process, as a log has one of what is to be written: what comes
//! while a thread hashes goes together in its next pass. Nobody waits for others to come.

use crate::Md5;
use crate::compress::{BLOCK_BYTES, SIDE_BY_SIDE_MAX, Work, side_by_side};
use bytes::{Buf, Bytes};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::thread::available_parallelism;
use tokio::sync::oneshot;

/// The most blocks of each body that a pass takes in, 32 KiB: after so many, bodies that came meanwhile go
/// along.
const PASS_BLOCKS_MAX: usize = 512;

/// Hashes bodies side by side, on threads that may block; cheap to clone.
#[derive(Clone, Debug)]
pub struct Md5Many {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    threads_max: usize,
    counts: Md5Counts,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Job>,
    threads: usize,
}

/// Bytes that a body's MD5 is to take in.
#[derive(Debug)]
struct Job {
    md5: Md5,
    bytes: Bytes,
    answer: oneshot::Sender<Md5>,
}

/// The MD5 that has taken in what it was given; an error when the process is stopping.
#[derive(Debug)]
pub struct Pending(oneshot::Receiver<Md5>);

/// Bytes that were hashed, by how many bodies went side by side.
#[derive(Debug, Default)]
pub struct Md5Counts {
    alone: AtomicU64,
    up_to_4: AtomicU64,
    up_to_8: AtomicU64,
    up_to_16: AtomicU64,
}

impl Default for Md5Many {
    fn default() -> Md5Many {
        let threads_max = available_parallelism().map_or(1, usize::from);
        let shared = Shared { queue: Mutex::default(), threads_max, counts: Md5Counts::default() };
        Md5Many { shared: Arc::new(shared) }
    }
}

impl Md5Many {
    pub fn counts(&self) -> &Md5Counts {
        &self.shared.counts
    }

    /// Has a body's MD5 take in more bytes. Each caller waits for the bytes that it has given, so the queue
    /// has no limit of its own.
    pub fn update(&self, mut md5: Md5, mut bytes: Bytes) -> Pending {
        bytes.advance(md5.fill_rest(&bytes));
        let (answer, pending) = oneshot::channel();
        let mut queue = self.shared.lock();
        queue.waiting.push_back(Job { md5, bytes, answer });
        let is_more_than_one_can = queue.waiting.len() >= SIDE_BY_SIDE_MAX;
        if queue.threads == 0 || (is_more_than_one_can && queue.threads < self.shared.threads_max) {
            queue.threads += 1;
            let shared = self.shared.clone();
            tokio::task::spawn_blocking(move || shared.hash());
        }
        Pending(pending)
    }
}

impl Future for Pending {
    type Output = Option<Md5>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Md5>> {
        Pin::new(&mut self.0).poll(context).map(Result::ok)
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hashes what waits, until nothing does.
    fn hash(&self) {
        let mut jobs = Vec::with_capacity(SIDE_BY_SIDE_MAX);
        while self.take_more(&mut jobs) {
            let blocks = jobs.iter().map(Job::blocks).min().unwrap_or(0).min(PASS_BLOCKS_MAX);
            self.counts.count(jobs.len(), blocks * BLOCK_BYTES);
            side_by_side(jobs.iter_mut().map(|job| job.work(blocks)).collect());
            jobs.iter_mut().for_each(|job| job.advance(blocks));
            jobs.extract_if(.., |job| job.blocks() == 0).for_each(Job::end);
        }
    }

    /// Has the next jobs join; `false` when there is none, and this thread ends.
    fn take_more(&self, jobs: &mut Vec<Job>) -> bool {
        let mut queue = self.lock();
        while jobs.len() < SIDE_BY_SIDE_MAX
            && let Some(job) = queue.waiting.pop_front()
        {
            // A job whose answer nobody waits for any more is dropped.
            if !job.answer.is_closed() {
                jobs.push(job);
            }
        }
        if jobs.is_empty() {
            queue.threads -= 1;
        }
        !jobs.is_empty()
    }
}

impl Job {
    fn blocks(&self) -> usize {
        self.bytes.len() / BLOCK_BYTES
    }

    fn work(&mut self, blocks: usize) -> Work<'_> {
        Work { state: &mut self.md5.state, bytes: &self.bytes[..blocks * BLOCK_BYTES] }
    }

    fn advance(&mut self, blocks: usize) {
        self.md5.count(blocks);
        self.bytes.advance(blocks * BLOCK_BYTES);
    }

    fn end(mut self) {
        self.md5.take_rest(&self.bytes);
        let _ = self.answer.send(self.md5);
    }
}

impl Md5Counts {
    /// The bytes that were hashed, by how many bodies at most went side by side.
    pub fn bytes(&self) -> [(&'static str, u64); 4] {
        [("1", &self.alone), ("4", &self.up_to_4), ("8", &self.up_to_8), ("16", &self.up_to_16)]
            .map(|(bodies, bytes)| (bodies, bytes.load(Ordering::Relaxed)))
    }

    fn count(&self, bodies: usize, bytes_of_each: usize) {
        let counter = match bodies {
            0..=1 => &self.alone,
            2..=4 => &self.up_to_4,
            5..=8 => &self.up_to_8,
            _ => &self.up_to_16,
        };
        counter.fetch_add((bodies * bytes_of_each) as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn body(of: usize, bytes: usize) -> Bytes {
        (0..bytes).map(|at| (of * 131 + at * 7 + (at >> 8)) as u8).collect()
    }

    /// The MD5 of bytes that come in parts of this length.
    async fn in_parts(many: &Md5Many, mut bytes: Bytes, part: usize) -> [u8; 16] {
        let mut md5 = Md5::default();
        while !bytes.is_empty() {
            md5 = many.update(md5, bytes.split_to(part.min(bytes.len()))).await.unwrap();
        }
        md5.finish()
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn bodies_of_all_lengths_at_once_get_their_own_md5() {
        let many = Md5Many::default();
        let mut under_way = tokio::task::JoinSet::new();
        for of in 0..100 {
            let many = many.clone();
            let bytes = body(of, of * of * 13 % 100_000);
            under_way.spawn(async move {
                let found = in_parts(&many, bytes.clone(), 1 + of * 997).await;
                assert_eq!(found, Md5::digest(&bytes), "body {of}");
            });
        }
        under_way.join_all().await;
        assert_eq!(many.shared.lock().threads, 0, "a thread without work ends");
    }

    #[tokio::test]
    async fn what_waits_goes_side_by_side_and_who_gave_up_does_not_go_along() {
        let many = Md5Many::default();
        let bytes = body(1, 1 << 20);
        let expected = Md5::digest(&bytes);
        // As if threads were busy: nobody takes what is there until this ends.
        many.shared.lock().threads = many.shared.threads_max;
        let mut waiting: Vec<Pending> =
            (0..SIDE_BY_SIDE_MAX + 1).map(|_| many.update(Md5::default(), bytes.clone())).collect();
        drop(waiting.pop());
        let shared = many.shared.clone();
        tokio::task::spawn_blocking(move || shared.hash());
        for pending in waiting {
            assert_eq!(pending.await.unwrap().finish(), expected);
        }
        let counts = many.counts().bytes();
        let [.., (_, side_by_side)] = counts;
        assert!(side_by_side > 15 << 20, "{counts:?}");
        assert_eq!(counts.iter().map(|(_, bytes)| bytes).sum::<u64>(), 16 << 20, "the last one gave up");
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_long_body_does_not_hold_up_short_ones() {
        let many = Md5Many::default();
        let long = tokio::spawn(many.update(Md5::default(), body(1, 32 << 20)));
        for of in 0..50 {
            let bytes = body(of, 100);
            let short = many.update(Md5::default(), bytes.clone());
            let found = tokio::time::timeout(Duration::from_secs(60), short).await.unwrap().unwrap();
            assert_eq!(found.finish(), Md5::digest(&bytes));
        }
        assert!(!long.is_finished(), "fifty short ones took as long as a thousand passes");
        long.await.unwrap().unwrap();
    }
}
