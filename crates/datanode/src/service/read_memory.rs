//! Memory for what is read and not sent yet, of all readers of a node together.
//!
//! A message has its room before it is read, and keeps it until its reader's connection asks for the next
//! one: by then gRPC holds next to nothing of it. As long as more than half is free messages are large; after
//! that they are as small as checksums allow, so that readers who take nothing, of whom there may be a
//! thousand, leave room to those who do.

use metrics::Counter;
use proto::{Code, Failure, Retry};
use raftlog::{Held, SharedMemory};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use types::CRC_CHUNK_BYTES;

/// Data of one message while there is plenty of room, and after that.
const LARGE_BYTES: u32 = 1 << 20;
const SMALL_BYTES: u32 = CRC_CHUNK_BYTES as u32;
const _: () = assert!(LARGE_BYTES.is_multiple_of(SMALL_BYTES));

/// Room is counted in small messages.
#[derive(Clone)]
pub(crate) struct ReadMemory {
    free: Arc<Semaphore>,
    all: usize,
    wait: Duration,
    refused: Arc<Counter>,
    shared: SharedMemory,
}

/// The memory that one message takes, until it is dropped.
pub(super) struct Room {
    _of_reads: OwnedSemaphorePermit,
    _of_all: Held,
}

/// Something to be sent, and its room.
pub(super) struct Roomy<T>(pub T, pub Room);

impl ReadMemory {
    /// A limit of `bytes`, which is a part of `shared`; who finds no room for `wait` is sent elsewhere.
    pub(crate) fn new(bytes: usize, shared: SharedMemory, wait: Duration) -> ReadMemory {
        let all = (bytes / CRC_CHUNK_BYTES).clamp(1, Semaphore::MAX_PERMITS);
        ReadMemory { free: Arc::new(Semaphore::new(all)), all, wait, refused: Arc::default(), shared }
    }

    /// The size of the next message of whoever reads now, and wants at most so much at once.
    pub(super) fn message_bytes(&self, wanted_max: u32) -> u32 {
        let large = (LARGE_BYTES / SMALL_BYTES) as usize;
        let has_plenty = self.free.available_permits() > (self.all / 2).max(large);
        if has_plenty && wanted_max >= LARGE_BYTES { LARGE_BYTES } else { SMALL_BYTES }
    }

    /// Room for a message of at most [`ReadMemory::message_bytes`].
    pub(super) async fn room(&self, bytes: u32) -> Result<Room, Failure> {
        let units = bytes.div_ceil(SMALL_BYTES);
        let room = self.free.clone().acquire_many_owned(units);
        match tokio::time::timeout(self.wait, room).await {
            Ok(room) => {
                let held = self.shared.hold(units as usize * CRC_CHUNK_BYTES);
                Ok(Room { _of_reads: room.expect("it is never closed"), _of_all: held })
            }
            Err(_) => {
                self.refused.count();
                let why = "this node's memory for reading is taken by readers who take nothing; try another";
                Err(Failure { retry: Retry::Elsewhere, ..Failure::new(Code::Busy, why) })
            }
        }
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }

    pub(crate) fn bytes_in_use(&self) -> usize {
        (self.all - self.free.available_permits()) * CRC_CHUNK_BYTES
    }
}

/// Messages as their connection takes them. One is read ahead, and the room of the last one goes when the
/// next is asked for.
pub(crate) struct Taken<T> {
    messages: mpsc::Receiver<Result<Roomy<T>, tonic::Status>>,
    last: Option<Room>,
}

impl<T> Taken<T> {
    pub(super) fn channel() -> (mpsc::Sender<Result<Roomy<T>, tonic::Status>>, Taken<T>) {
        let (sender, messages) = mpsc::channel(1);
        (sender, Taken { messages, last: None })
    }
}

impl<T> futures::Stream for Taken<T> {
    type Item = Result<T, tonic::Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.last = None;
        self.messages.poll_recv(cx).map(|next| {
            next.map(|message| {
                message.map(|Roomy(message, room)| {
                    self.last = Some(room);
                    message
                })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{FutureExt, StreamExt};

    const MIB: usize = 1 << 20;

    #[tokio::test]
    async fn messages_are_small_once_half_of_the_memory_is_taken() {
        let memory = ReadMemory::new(8 * MIB, SharedMemory::new(0), Duration::from_secs(1));
        let mut taken = Vec::new();
        assert_eq!(memory.message_bytes(LARGE_BYTES - 1), SMALL_BYTES, "as its reader wants");
        while memory.message_bytes(u32::MAX) == LARGE_BYTES {
            taken.push(memory.room(LARGE_BYTES).await.unwrap());
        }
        assert_eq!((taken.len(), memory.bytes_in_use()), (4, 4 * MIB));
        for _ in 0..4 * MIB / CRC_CHUNK_BYTES {
            taken.push(
                memory.room(memory.message_bytes(u32::MAX)).now_or_never().expect("there is room").unwrap(),
            );
        }
        assert_eq!(memory.bytes_in_use(), 8 * MIB);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_is_sent_elsewhere_or_waits_for_it() {
        let memory = ReadMemory::new(CRC_CHUNK_BYTES, SharedMemory::new(0), Duration::from_secs(1));
        let room = memory.room(1).await.unwrap();
        let refused = memory.room(1).await.err().expect("there is no room");
        assert_eq!((refused.code, refused.retry), (Code::Busy, Retry::Elsewhere));
        let waits = memory.room(1);
        drop(room);
        waits.await.unwrap();
    }

    /// gRPC has passed a message on when it asks for the next.
    #[tokio::test]
    async fn a_message_has_its_room_until_the_next_is_asked_for() {
        let memory = ReadMemory::new(4 * CRC_CHUNK_BYTES, SharedMemory::new(0), Duration::from_secs(1));
        let (sender, mut taken) = Taken::channel();
        let in_use = || memory.bytes_in_use() / CRC_CHUNK_BYTES;
        for message in 1..=2 {
            let room = memory.room(1).await.unwrap();
            assert!(sender.send(Ok(Roomy(message, room))).await.is_ok());
            assert_eq!(taken.next().await.unwrap().unwrap(), message);
            assert_eq!(in_use(), 1);
        }
        assert!(taken.next().now_or_never().is_none());
        assert_eq!(in_use(), 0);
    }
}
