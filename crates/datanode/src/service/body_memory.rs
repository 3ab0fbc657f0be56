//! Memory for chunks that were received and are not applied yet, of all write streams of a node together.
//!
//! A pipeline may have as much of it as it leaves to others: half where it is alone. Pipelines that cannot
//! commit keep what they have for as long as that lasts: `n` that fill up side by side leave one part of
//! `n + 1` to the rest, and one of `2^n` where one after the other does.

use raftlog::{Held, SharedMemory};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone)]
pub(crate) struct BodyMemory {
    free: Arc<Semaphore>,
    bytes_max: usize,
    shared: SharedMemory,
}

/// The bytes of a pipeline's chunks that are received and not applied yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct BodiesOfOne(Arc<AtomicUsize>);

/// The room of a chunk, until it is dropped.
pub(super) struct BodyRoom {
    of_all: OwnedSemaphorePermit,
    of_one: BodiesOfOne,
    _of_data: Held,
}

/// The reason why a chunk has to wait.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NoRoom {
    #[error("this node has {limit} bytes of chunks under way, its limit")]
    Full { limit: usize },
    #[error(
        "its pipeline has {of_one} bytes of chunks under way, and leaves {free} to others: it has its share"
    )]
    ShareTaken { of_one: usize, free: usize },
}

impl BodyMemory {
    /// A limit of `bytes_max`, which is a part of `shared`.
    pub(crate) fn new(bytes_max: usize, shared: SharedMemory) -> BodyMemory {
        let bytes_max = bytes_max.min(Semaphore::MAX_PERMITS);
        BodyMemory { free: Arc::new(Semaphore::new(bytes_max)), bytes_max, shared }
    }

    /// Takes room for a chunk of the pipeline that has `of_one`. A pipeline's first chunk may be as large as
    /// all there is.
    pub(super) fn room(&self, bytes: u32, of_one: &BodiesOfOne) -> Result<BodyRoom, NoRoom> {
        let full = |_| NoRoom::Full { limit: self.bytes_max };
        let of_all = self.free.clone().try_acquire_many_owned(bytes).map_err(full)?;
        let (free, others) = (self.free.available_permits(), of_one.0.load(Relaxed));
        if others > free {
            return Err(NoRoom::ShareTaken { of_one: others, free });
        }
        of_one.0.fetch_add(bytes as usize, Relaxed);
        Ok(BodyRoom { of_all, of_one: of_one.clone(), _of_data: self.shared.hold(bytes as usize) })
    }

    pub(crate) fn bytes_in_use(&self) -> usize {
        self.bytes_max - self.free.available_permits()
    }
}

impl Drop for BodyRoom {
    fn drop(&mut self) {
        self.of_one.0.fetch_sub(self.of_all.num_permits(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{BodiesOfOne, BodyMemory, BodyRoom, NoRoom};
    use raftlog::SharedMemory;

    const MIB: u32 = 1 << 20;

    fn fill(memory: &BodyMemory, of_one: &BodiesOfOne) -> Vec<BodyRoom> {
        std::iter::from_fn(|| memory.room(MIB, of_one).ok()).collect()
    }

    #[test]
    fn pipelines_that_cannot_commit_leave_a_share_to_the_next_one() {
        let memory = BodyMemory::new(64 * MIB as usize, SharedMemory::new(256 * MIB as usize));
        let stuck: Vec<_> = (0..4).map(|_| fill(&memory, &BodiesOfOne::default())).collect();
        assert_eq!(stuck.iter().map(Vec::len).collect::<Vec<_>>(), [32, 16, 8, 4]);

        let healthy = BodiesOfOne::default();
        for _ in 0..100 {
            let room = memory.room(2 * MIB, &healthy).expect("what the others leave");
            let more = memory.room(MIB, &healthy);
            assert_eq!(more.err(), Some(NoRoom::ShareTaken { of_one: 2 << 20, free: 1 << 20 }));
            drop(room);
        }
        drop(stuck);
        assert_eq!((memory.bytes_in_use(), fill(&memory, &healthy).len()), (0, 32));
    }

    #[test]
    fn the_first_chunk_of_a_pipeline_may_take_all_there_is() {
        let memory = BodyMemory::new(MIB as usize, SharedMemory::new(4 * MIB as usize));
        let (one, other) = (BodiesOfOne::default(), BodiesOfOne::default());
        let room = memory.room(MIB, &one).expect("it is free");
        assert_eq!(memory.room(1, &other).err(), Some(NoRoom::Full { limit: 1 << 20 }));
        drop(room);
        assert!(memory.room(1, &other).is_ok());
    }
}
