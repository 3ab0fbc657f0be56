//! Memory for chunks that were received and are not applied yet, of all write streams of a node together.

use raftlog::{Held, SharedMemory};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

#[derive(Clone)]
pub(crate) struct BodyMemory {
    free: Arc<Semaphore>,
    bytes_max: usize,
    shared: SharedMemory,
}

/// The room of a chunk, until it is dropped.
pub(super) struct BodyRoom {
    _of_bodies: OwnedSemaphorePermit,
    _of_all: Held,
}

impl BodyMemory {
    /// A limit of `bytes_max`, which is a part of `shared`.
    pub(crate) fn new(bytes_max: usize, shared: SharedMemory) -> BodyMemory {
        let bytes_max = bytes_max.min(Semaphore::MAX_PERMITS);
        BodyMemory { free: Arc::new(Semaphore::new(bytes_max)), bytes_max, shared }
    }

    /// `None`: there is no room now.
    pub(super) fn room(&self, bytes: u32) -> Option<BodyRoom> {
        let of_bodies = self.free.clone().try_acquire_many_owned(bytes).ok()?;
        Some(BodyRoom { _of_bodies: of_bodies, _of_all: self.shared.hold(bytes as usize) })
    }

    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub(crate) fn bytes_in_use(&self) -> usize {
        self.bytes_max - self.free.available_permits()
    }
}
