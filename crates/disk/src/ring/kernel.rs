//! The kernel's side of the ring: the only place that gives pointers away. What the kernel was given stays in
//! a slot until the kernel has answered, whatever happens to those who asked.

#![allow(unsafe_code)]

use super::transfer::{Answer, Durable, Round};
use crate::direct::Part;
use io_uring::squeue::{Entry, Flags};
use io_uring::{IoUring, Probe, opcode, types};
use std::fs::File;
use std::io::{self, Write as _};
use std::os::fd::{AsRawFd, FromRawFd};
use std::sync::Arc;

/// The most buffers that one `writev` takes on Linux.
const IOVECS_MAX: usize = 1024;

/// The most bytes that one read asks for: less than what it may transfer on Linux, and they fit its length
/// field.
const READ_BYTES_MAX: usize = 1 << 30;

/// Marks the answer to the read of the bell.
const BELL: u64 = u64::MAX;

/// A ring, owned by one thread: the kernel cancels what a thread has submitted when the thread ends.
pub(super) struct Kernel<T> {
    ring: IoUring,
    slots: Vec<Option<Slot<T>>>,
    free: Vec<usize>,
    bell: Arc<Bell>,
    /// Whether the kernel holds a pointer to `bell_count`.
    bell_armed: bool,
    bell_count: Vec<u8>,
    /// The slots of the writes with a linked sync that go with the next submission: should that be cut short,
    /// the kernel may have torn a write from its sync.
    beginning: Vec<usize>,
}

struct Slot<T> {
    round: Round,
    tag: T,
    /// The pointers into the buffers of `round` that the kernel was given.
    _iovecs: Vec<libc::iovec>,
    answers_missing: u8,
    answer: Answer,
    torn: bool,
}

/// The two things that a round with a sync asks for.
const FIRST: u64 = 0;
const LINKED_SYNC: u64 = 1;

/// Wakes the thread that waits for the ring.
pub(super) struct Bell {
    event: File,
}

impl Bell {
    fn new() -> io::Result<Bell> {
        // SAFETY: takes plain numbers.
        let descriptor = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor was just made and belongs to nobody else.
        Ok(Bell { event: unsafe { File::from_raw_fd(descriptor) } })
    }

    pub(super) fn ring(&self) {
        // The write blocks only when the bell was rung 2^64 times and never heard.
        (&self.event).write_all(&1u64.to_ne_bytes()).expect("an eventfd takes 8 bytes");
    }
}

impl<T> Kernel<T> {
    /// A ring with room for so many rounds under way, each of which may occupy one of the kernel's workers.
    pub(super) fn new(rounds_max: usize) -> io::Result<Kernel<T>> {
        // Two answers for each round and one of the bell fit into a queue that is twice as long as the other;
        // so neither ever overflows.
        let entries = (2 * rounds_max + 1).next_power_of_two() as u32;
        let ring = IoUring::new(entries)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        let needed =
            [("WRITEV", opcode::Writev::CODE), ("READ", opcode::Read::CODE), ("FSYNC", opcode::Fsync::CODE)];
        if let Some((name, _)) = needed.iter().find(|(_, code)| !probe.is_supported(*code)) {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                format!("the kernel's ring has no {name}"),
            ));
        }
        // A sync occupies a worker as long as it takes, and there are few by default. 0 leaves the other kind
        // as it is.
        ring.submitter().register_iowq_max_workers(&mut [rounds_max as u32, 0])?;
        let mut slots = Vec::new();
        slots.resize_with(rounds_max, || None);
        Ok(Kernel {
            ring,
            slots,
            free: (0..rounds_max).collect(),
            bell: Arc::new(Bell::new()?),
            bell_armed: false,
            bell_count: vec![0; size_of::<u64>()],
            beginning: Vec::new(),
        })
    }

    pub(super) fn bell(&self) -> Arc<Bell> {
        self.bell.clone()
    }

    /// Hands a round to the kernel with the next [`Kernel::wait`]. There must be room for it.
    pub(super) fn start(&mut self, round: Round, tag: T) {
        let slot = self.free.pop().expect("no more rounds are started than there are slots");
        let iovecs = match &round {
            Round::Write { part, .. } => part
                .buffers
                .iter()
                .take(IOVECS_MAX)
                .map(|buffer| libc::iovec {
                    iov_base: buffer.as_ptr() as *mut libc::c_void,
                    iov_len: buffer.len(),
                })
                .collect(),
            Round::Read { .. } | Round::Sync { .. } => Vec::new(),
        };
        // The round moves into its slot before the kernel gets pointers: to the heap, where it stays.
        let slot_ref = self.slots[slot].insert(Slot {
            round,
            tag,
            _iovecs: iovecs,
            answers_missing: 1,
            answer: Answer::default(),
            torn: false,
        });
        let first = (slot as u64) << 1 | FIRST;
        match &mut slot_ref.round {
            Round::Write { part: Part { file, offset, buffers, .. }, after, durable } => {
                let count = slot_ref._iovecs.len() as u32; // at most IOVECS_MAX
                let write = opcode::Writev::new(descriptor(file), slot_ref._iovecs.as_ptr(), count)
                    .offset(*offset)
                    .rw_flags(if *durable == Durable::ByItself { libc::RWF_DSYNC } else { 0 })
                    .build()
                    .user_data(first);
                // A sync is linked only to the write that ends it all: the kernel starts it when that write
                // has completed in full.
                if *durable == Durable::BySync && after.is_empty() && buffers.len() <= IOVECS_MAX {
                    slot_ref.answers_missing = 2;
                    self.beginning.push(slot);
                    let linked = sync_entry(descriptor(file)).user_data((slot as u64) << 1 | LINKED_SYNC);
                    self.push(&[write.flags(Flags::IO_LINK), linked]);
                } else if *durable == Durable::ByItself {
                    // Some file systems would sync within the call, and all of this ring with it.
                    self.push(&[write.flags(Flags::ASYNC)]);
                } else {
                    self.push(&[write]);
                }
            }
            Round::Read { file, offset, bytes, buffer } => {
                let filled = buffer.len();
                let rest = buffer.spare_capacity_mut();
                let bytes = (*bytes - filled).min(rest.len()).min(READ_BYTES_MAX) as u32;
                let read = opcode::Read::new(descriptor(file), rest.as_mut_ptr().cast(), bytes)
                    .offset(*offset + filled as u64)
                    .build();
                self.push(&[read.user_data(first)]);
            }
            Round::Sync { file } => {
                let sync = sync_entry(descriptor(file)).user_data(first);
                self.push(&[sync]);
            }
        }
    }

    fn push(&mut self, entries: &[Entry]) {
        // SAFETY: all that the entries point to (iovecs, buffers, the bell's count) is owned by `self.slots`
        // or `self.bell_count`, on the heap, and neither changed nor dropped before the kernel has answered:
        // `completed` empties a slot only then, and `drop` leaks what it cannot wait for. The kernel writes
        // only to the buffer of a `Round::Read`, which nobody else looks at. The descriptors are open because
        // the slot holds their files.
        let pushed = unsafe { self.ring.submission().push_multiple(entries) };
        pushed.expect("the queue has two entries for each slot");
    }

    /// Submits what was started, and waits until the kernel has answered something or the bell was rung.
    pub(super) fn wait(&mut self) -> io::Result<()> {
        if !self.bell_armed {
            let (count, bytes) = (self.bell_count.as_mut_ptr(), self.bell_count.len() as u32);
            let read = opcode::Read::new(descriptor(&self.bell.event), count, bytes).build();
            self.push(&[read.user_data(BELL)]);
            self.bell_armed = true;
        }
        self.submit(1)
    }

    fn submit(&mut self, wait_for: usize) -> io::Result<()> {
        let submitting = self.ring.submission().len();
        let submitted = self.ring.submit_and_wait(wait_for);
        let whole = matches!(submitted, Ok(submitted) if submitted == submitting);
        for slot in self.beginning.drain(..) {
            if let Some(slot) = &mut self.slots[slot] {
                slot.torn |= !whole;
            }
        }
        match submitted {
            Ok(_) => Ok(()),
            // The kernel takes no more now: the rest stays in the queue for the next time.
            Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY)) => {
                std::thread::yield_now();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// The next round that the kernel is done with.
    pub(super) fn completed(&mut self) -> Option<(Round, Answer, T)> {
        loop {
            let entry = self.ring.completion().next()?;
            if entry.user_data() == BELL {
                self.bell_armed = false;
                continue;
            }
            let at = (entry.user_data() >> 1) as usize;
            let slot = self.slots[at].as_mut().expect("the kernel answers what it was asked, once");
            match entry.user_data() & 1 {
                LINKED_SYNC => slot.answer.sync = Some(entry.result()),
                _ => slot.answer.first = entry.result(),
            }
            slot.answers_missing -= 1;
            if slot.answers_missing == 0 {
                let slot = self.slots[at].take().expect("seen just now");
                let Slot { mut round, tag, mut answer, torn, .. } = slot;
                self.free.push(at);
                lengthen(&mut round, answer);
                if torn && answer.sync.is_some_and(|result| result >= 0) {
                    answer.sync = Some(-libc::ECANCELED); // it may have come before the write
                }
                return Some((round, answer, tag));
            }
        }
    }

    pub(super) fn is_idle(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

impl<T> Drop for Kernel<T> {
    /// Waits until the kernel has answered for all that it was given, or leaks it: the kernel may still write
    /// to that.
    fn drop(&mut self) {
        if self.bell_armed {
            self.bell.ring();
        }
        while !self.is_idle() || self.bell_armed {
            if self.completed().is_none()
                && (!self.is_idle() || self.bell_armed)
                && let Err(error) = self.submit(1)
            {
                tracing::error!(%error, "the ring is lost; its buffers are leaked");
                std::mem::forget(std::mem::take(&mut self.bell_count));
                let leak = |Slot { round, tag, _iovecs, .. }| {
                    std::mem::forget((round, _iovecs));
                    tag
                };
                // The tags are dropped when all is leaked: that tells whoever waits, who may do anything.
                let _tags: Vec<T> = self.slots.drain(..).flatten().map(leak).collect();
                return;
            }
        }
    }
}

/// Lengthens the buffer of a read by what the kernel has written into its room.
fn lengthen(round: &mut Round, answer: Answer) {
    if let Round::Read { buffer, .. } = round
        && let Ok(read) = usize::try_from(answer.first)
    {
        let room = buffer.capacity() - buffer.len();
        assert!(read <= room, "the kernel read {read} bytes into room for {room}");
        // SAFETY: the kernel says that it has written so many bytes behind those that were there, and there
        // was room for them.
        unsafe { buffer.set_len(buffer.len() + read) };
    }
}

fn descriptor(file: &File) -> types::Fd {
    types::Fd(file.as_raw_fd())
}

fn sync_entry(descriptor: types::Fd) -> Entry {
    opcode::Fsync::new(descriptor).flags(types::FsyncFlags::DATASYNC).build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::OwnedFd;
    use tokio::sync::oneshot;

    #[test]
    fn whoever_waits_for_a_ring_that_is_lost_is_told_so() {
        let mut kernel = match Kernel::<oneshot::Sender<()>>::new(4) {
            Ok(kernel) => kernel,
            Err(error) => return eprintln!("not tested, this machine has no io_uring: {error}"),
        };
        let (empty, _other_end) = std::io::pipe().unwrap();
        let file = Arc::new(File::from(OwnedFd::from(empty)));
        let (tag, told) = oneshot::channel();
        kernel.start(Round::Read { file, offset: 0, bytes: 10, buffer: Vec::with_capacity(10) }, tag);
        kernel.bell().ring();
        kernel.wait().unwrap();
        let no_ring = tempfile::tempfile().unwrap();
        // SAFETY: takes plain numbers; the descriptor stays the ring's, who closes it.
        assert!(unsafe { libc::dup2(no_ring.as_raw_fd(), kernel.ring.as_raw_fd()) } >= 0);
        assert!(kernel.submit(1).is_err());
        drop(kernel);
        assert!(told.blocking_recv().is_err());
    }
}
