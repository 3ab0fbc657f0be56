//! Memory for data on its way through this process: read from replicas and not taken yet by who asked for it,
//! or taken of a body and not yet with a pipeline. One number for all readers and writers of a
//! [`Client`](crate::Client).
//!
//! ```text
//! replica --> window of its stream --> chunk --> who reads        a room for both before they can fill,
//!                                                                 the chunk's until its last byte is dropped
//! body --> frames --> chunk --> pipeline, until acknowledged      a room for what came, before more is asked for
//! ```
//!
//! As long as more than half is free, pieces are large. After that they are as small as checksums allow, so
//! that those who take or send nothing, of whom there may be a thousand, leave room to those who do.

use bytes::Bytes;
use metrics::Counter;
use proto::{Code, Failure};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use types::CRC_CHUNK_BYTES;

/// The unit in which memory is counted; less takes as much.
const UNIT_BYTES: usize = 4096;

/// The time for which a read that has not begun waits for room: a store that is only busy has
/// some sooner.
const BEGIN_WAIT: Duration = Duration::from_secs(1);

/// The size of reads: how much is read at once, and how much may be on its way meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pieces {
    Large,
    Small,
}

impl Pieces {
    pub(crate) const fn message_bytes(self) -> usize {
        match self {
            Pieces::Large => 1 << 20,
            Pieces::Small => CRC_CHUNK_BYTES,
        }
    }

    /// The window of the stream by which such pieces come. The pause for an update of the window is short
    /// against a quarter of a chunk.
    pub(crate) const fn window_bytes(self) -> usize {
        match self {
            Pieces::Large => 256 << 10,
            // One small piece as a whole, with what goes with it: its sender holds what does not fit.
            Pieces::Small => 68 << 10,
        }
    }
}

/// The memory of a process for data under way. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Memory {
    free: Arc<Semaphore>,
    all: usize,
    refused: Arc<Counter>,
}

/// Part of the memory, until dropped.
pub(crate) struct Room(OwnedSemaphorePermit);

impl Memory {
    pub(crate) fn new(bytes: usize) -> Memory {
        let all = (bytes / UNIT_BYTES).clamp(1, u32::MAX as usize);
        Memory { free: Arc::new(Semaphore::new(all)), all, refused: Arc::default() }
    }

    /// The pieces with which a reader goes on that had `before`. Large again only with some room to spare, so
    /// that it does not change each time.
    pub(crate) fn pieces(&self, before: Pieces) -> Pieces {
        let free = self.free.available_permits();
        match before {
            Pieces::Large if free * 2 > self.all => Pieces::Large,
            Pieces::Small if free * 4 > self.all * 3 => Pieces::Large,
            Pieces::Large | Pieces::Small => Pieces::Small,
        }
    }

    /// Waits until there is room for a small piece and its stream, for a moment at most: who has not begun
    /// can still be told to come later.
    pub(crate) async fn begin(&self) -> Result<(), Failure> {
        const LEAST: usize = Pieces::Small.message_bytes() + Pieces::Small.window_bytes();
        if self.free.available_permits() >= units(LEAST) {
            return Ok(());
        }
        self.room([LEAST], BEGIN_WAIT).await.map(|_| ())
    }

    /// Room for bytes of one or several kinds, for all of them at once. Cancellation safe.
    pub(crate) async fn room<const N: usize>(
        &self,
        bytes: [usize; N],
        wait: Duration,
    ) -> Result<[Room; N], Failure> {
        let mut left = self.all;
        let each = bytes.map(|bytes| {
            let taken = units(bytes).min(left);
            left -= taken;
            taken
        });
        let all = u32::try_from(each.iter().sum::<usize>()).expect("the memory has no more units");
        let mut room = match self.free.clone().try_acquire_many_owned(all) {
            Ok(room) => room,
            Err(_) => {
                let room = tokio::time::timeout(wait, self.free.clone().acquire_many_owned(all)).await;
                room.map_err(|_| self.refuse())?.expect("it is never closed")
            }
        };
        Ok(each.map(|units| Room(room.split(units).expect("the sum is there"))))
    }

    fn refuse(&self) -> Failure {
        self.refused.count();
        Failure::new(Code::Busy, "the memory for data under way is taken by those who take or send nothing")
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        (self.all * UNIT_BYTES) as u64
    }

    pub(crate) fn bytes_in_use(&self) -> u64 {
        ((self.all - self.free.available_permits()) * UNIT_BYTES) as u64
    }

    pub(crate) fn refused(&self) -> u64 {
        self.refused.get()
    }
}

fn units(bytes: usize) -> usize {
    bytes.div_ceil(UNIT_BYTES)
}

impl Room {
    pub(crate) fn bytes(&self) -> usize {
        self.0.num_permits() * UNIT_BYTES
    }

    pub(crate) fn add(&mut self, other: Room) {
        self.0.merge(other.0);
    }

    /// Splits off room for so many bytes, or all that there is if it has room for fewer.
    pub(crate) fn split(&mut self, bytes: usize) -> Room {
        let units = units(bytes).min(self.0.num_permits());
        Room(self.0.split(units).expect("it has as many"))
    }

    /// Bytes that have their room until the last slice of them is dropped.
    pub(crate) fn of(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(Roomy { bytes, _room: self })
    }
}

struct Roomy {
    bytes: Bytes,
    _room: Room,
}

impl AsRef<[u8]> for Roomy {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::FutureExt;

    const MIB: usize = 1 << 20;
    const WAIT: Duration = Duration::from_secs(1);

    #[tokio::test]
    async fn pieces_are_small_once_half_is_taken_and_large_again_with_room_to_spare() {
        let memory = Memory::new(8 * MIB);
        assert_eq!(memory.pieces(Pieces::Large), Pieces::Large);
        let [first, second, third] = memory.room([2 * MIB - UNIT_BYTES, MIB, MIB], WAIT).await.unwrap();
        assert_eq!(memory.pieces(Pieces::Large), Pieces::Large);
        let [last] = memory.room([1], WAIT).await.unwrap();
        assert_eq!(memory.pieces(Pieces::Large), Pieces::Small);
        drop((second, last));
        assert_eq!(
            (memory.pieces(Pieces::Large), memory.pieces(Pieces::Small)),
            (Pieces::Large, Pieces::Small)
        );
        drop((first, third));
        assert_eq!(memory.pieces(Pieces::Small), Pieces::Large);
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_is_refused_or_waits_for_it() {
        let memory = Memory::new(MIB);
        let [room] = memory.room([5 * MIB], WAIT).await.unwrap();
        assert_eq!((room.bytes(), memory.bytes_in_use()), (MIB, MIB as u64));
        let refused = memory.room([1], WAIT).await.err().expect("there is no room");
        assert_eq!((refused.code, memory.refused()), (Code::Busy, 1));
        assert_eq!(memory.begin().await.unwrap_err().code, Code::Busy);
        let waits = memory.room([1], WAIT);
        drop(room);
        waits.await.unwrap();
        memory.begin().await.unwrap();
    }

    #[tokio::test]
    async fn bytes_have_their_room_until_the_last_slice_of_them_is_dropped() {
        let memory = Memory::new(MIB);
        let [mut room, window] =
            memory.room([3 * UNIT_BYTES, UNIT_BYTES], WAIT).now_or_never().unwrap().unwrap();
        room.add(window);
        let mut rest = room.split(2 * UNIT_BYTES).of(Bytes::from_static(b"abcdef"));
        drop(room);
        let first = rest.split_to(4);
        assert_eq!((&first[..], &rest[..]), (&b"abcd"[..], &b"ef"[..]));
        drop(first);
        assert_eq!(memory.bytes_in_use(), 2 * UNIT_BYTES as u64);
        drop(rest);
        assert_eq!(memory.bytes_in_use(), 0);
    }
}
