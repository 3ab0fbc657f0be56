//! Reads, writes and syncs of one disk through an io_uring: one thread hands them to the kernel, many at a
//! time, and tells their callers.

mod kernel;
mod transfer;

use crate::IoFuture;
use crate::direct::DataFile;
use crate::health::{Health, Operation};
use crate::queue::{Gate, Kind, Queue, Slots};
use bytes::Bytes;
use kernel::{Bell, Kernel};
use std::fs::File;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};
use transfer::{Next, Round, Step};

/// The operations under way at a time. Each may occupy one of the kernel's workers, of which there are as
/// many: so a read finds one when all changes are syncs that take long. 64 logs can sync at the same time,
/// and a journaling file system makes one commit of that.
const SLOTS: Slots = Slots { reads: 16, changes: 64 };

/// An io_uring and the thread that owns it.
pub(crate) struct Ring {
    shared: Arc<Shared>,
    gate: Gate,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    bell: Arc<Bell>,
}

struct State {
    queue: Queue<(Next, Caller)>,
    /// Whether the thread is waiting, or about to: then whoever queues something wakes it.
    sleeping: bool,
    closed: bool,
}

/// The caller who waits for an operation, and what it is called in an error message.
struct Caller {
    kind: Kind,
    path: Arc<str>,
    reply: oneshot::Sender<io::Result<Bytes>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nothing panics under this lock")
    }

    fn push(&self, next: Next, caller: Caller, room: OwnedSemaphorePermit) {
        let mut state = self.lock();
        if state.closed {
            return; // drops the caller's sender: it reads "closed"
        }
        state.queue.push(caller.kind, (next, caller), room);
        let wake = std::mem::take(&mut state.sleeping);
        drop(state);
        if wake {
            self.bell.ring();
        }
    }
}

impl Ring {
    /// Starts a ring and its thread. Fails when the kernel offers no ring, or none that can do what we need;
    /// containers often refuse it.
    pub(crate) fn start(health: Arc<Health>) -> io::Result<Ring> {
        let (sender, started) = mpsc::channel();
        let thread = std::thread::Builder::new().name("disk-ring".to_owned()).spawn(move || {
            // The ring is made on its thread: the kernel takes what a thread submits for that thread's.
            match Kernel::new(SLOTS.reads + SLOTS.changes) {
                Ok(kernel) => {
                    let state = State { queue: Queue::new(SLOTS), sleeping: false, closed: false };
                    let shared = Arc::new(Shared { state: Mutex::new(state), bell: kernel.bell() });
                    if sender.send(Ok(shared.clone())).is_ok() {
                        Driver { kernel, shared, health }.run();
                    }
                }
                Err(error) => drop(sender.send(Err(error))),
            }
        })?;
        let shared = started.recv().map_err(|_| io::Error::other("the ring's thread panicked"))??;
        Ok(Ring { shared, gate: Gate::new(), thread: Some(thread) })
    }

    /// Writes all buffers one after another from `offset`, and syncs the file after that, if it is wanted.
    pub(crate) fn write(
        &self,
        file: &DataFile,
        path: &Arc<str>,
        offset: u64,
        buffers: Vec<Bytes>,
        sync: bool,
    ) -> IoFuture<()> {
        let written = self.run(Kind::Change, path, Next::write(file, offset, buffers, sync));
        Box::pin(async { written.await.map(drop) })
    }

    pub(crate) fn sync(&self, file: &Arc<File>, path: &Arc<str>) -> IoFuture<()> {
        let synced = self.run(Kind::Change, path, Next::Ask(Round::Sync { file: file.clone() }));
        Box::pin(async { synced.await.map(drop) })
    }

    /// Reads up to `bytes` bytes, fewer only at the end of the file. The first of them may have been read
    /// before: `begun`.
    pub(crate) fn read(
        &self,
        file: &Arc<File>,
        path: &Arc<str>,
        offset: u64,
        bytes: usize,
        begun: Vec<u8>,
    ) -> IoFuture<Bytes> {
        self.run(Kind::Read, path, Next::read(file.clone(), offset, bytes, begun))
    }

    fn run(&self, kind: Kind, path: &Arc<str>, next: Next) -> IoFuture<Bytes> {
        let (reply, result) = oneshot::channel();
        let caller = Caller { kind, path: path.clone(), reply };
        let shared = self.shared.clone();
        self.gate.enter(kind, move |room| shared.push(next, caller, room), result)
    }

    pub(crate) fn ends_nothing_for(&self) -> Duration {
        self.shared.lock().queue.ends_nothing_for()
    }
}

impl Drop for Ring {
    /// Finishes what is queued: when the last handle of a disk is gone, so is every operation on it.
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The driver, which runs on the ring's thread.
struct Driver {
    kernel: Kernel<Caller>,
    shared: Arc<Shared>,
    health: Arc<Health>,
}

impl Driver {
    fn run(mut self) {
        let mut finished = Vec::new();
        loop {
            let Some(starting) = self.starting(&mut finished) else { return };
            for (next, caller) in starting {
                let next = match self.health.check() {
                    Ok(()) => next,
                    Err(error) => Next::Refused(error),
                };
                self.go_on(next, caller, &mut finished);
            }
            if finished.is_empty()
                && let Err(error) = self.kernel.wait()
            {
                return self.give_up("wait for the ring", &error);
            }
            while let Some((round, answer, caller)) = self.kernel.completed() {
                self.go_on(round.next(answer), caller, &mut finished);
            }
        }
    }

    /// Gives the slots of what is finished to what waits; `None` when nothing is left to be done.
    fn starting(&mut self, finished: &mut Vec<Kind>) -> Option<Vec<(Next, Caller)>> {
        let mut state = self.shared.lock();
        finished.drain(..).for_each(|kind| state.queue.finish(kind));
        let starting: Vec<_> = std::iter::from_fn(|| state.queue.take()).map(|(_, what)| what).collect();
        state.sleeping = true;
        let over = state.closed && starting.is_empty() && self.kernel.is_idle();
        (!over).then_some(starting)
    }

    fn go_on(&mut self, next: Next, caller: Caller, finished: &mut Vec<Kind>) {
        let result = match next {
            Next::Ask(round) => return self.kernel.start(round, caller),
            Next::Done(bytes) => Ok(bytes),
            Next::Refused(error) => Err(error),
            Next::Failed(step, error) => {
                let (operation, name) = match step {
                    Step::Write => (Operation::Change, "write"),
                    Step::Sync => (Operation::Sync, "sync"),
                    Step::Read => (Operation::Read, "read"),
                };
                self.health.judge(operation, || format!("{name} {}", caller.path), &error);
                Err(error)
            }
        };
        finished.push(caller.kind);
        // The caller may have lost interest: the operation is done all the same.
        let _ = caller.reply.send(result);
    }

    /// Gives all operations up: what is under way has an unknown outcome; what waits, or comes later, is
    /// refused.
    fn give_up(&self, at: &str, error: &io::Error) {
        self.health.judge(Operation::Sync, || at.to_owned(), error);
        let mut state = self.shared.lock();
        state.closed = true;
        state.queue.clear();
    }
}

impl Drop for Driver {
    /// Gives all operations up when the thread panics: else nobody would ever answer those who wait for it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.give_up("drive the ring", &io::Error::other("its thread panicked"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::OwnedFd;

    /// `None`, and a word about it, where there is no ring to test.
    fn ring() -> Option<(Arc<Health>, Ring)> {
        let health = Arc::new(Health::default());
        match Ring::start(health.clone()) {
            Ok(ring) => Some((health, ring)),
            Err(error) => {
                eprintln!("not tested, this machine has no io_uring: {error}");
                None
            }
        }
    }

    fn name() -> Arc<str> {
        "x".into()
    }

    fn data(file: File) -> DataFile {
        DataFile::new(file, Arc::default())
    }

    /// A file into which nothing can be written until somebody reads from the other end.
    fn blocked() -> (DataFile, File) {
        let (reader, writer) = std::io::pipe().unwrap();
        (data(File::from(OwnedFd::from(writer))), File::from(OwnedFd::from(reader)))
    }

    const PIPE_BYTES: usize = 64 << 10;

    #[tokio::test]
    async fn neither_kind_waits_for_the_other() {
        let Some((_, ring)) = ring() else { return };
        let (full, mut other_end) = blocked();
        let writes: Vec<_> = (0..3000)
            .map(|_| ring.write(&full, &name(), 0, vec![Bytes::from(vec![1; PIPE_BYTES])], false))
            .collect();
        let file = data(tempfile::tempfile().unwrap());
        std::os::unix::fs::FileExt::write_at(&*file.file, b"hello", 0).unwrap();
        let read = ring.read(&file.file, &name(), 1, 10, vec![]);
        assert_eq!(tokio::time::timeout(Duration::from_secs(30), read).await.unwrap().unwrap(), b"ello"[..]);
        let drain = std::thread::spawn(move || {
            let mut sink = vec![0; 1 << 20];
            let mut drained = 0;
            while drained < 3000 * PIPE_BYTES {
                drained += other_end.read(&mut sink).unwrap();
            }
        });
        for write in writes {
            write.await.unwrap();
        }
        drain.join().unwrap();
    }

    #[tokio::test]
    async fn operations_finish_though_nobody_waits_and_before_the_ring_is_gone() {
        let Some((_, ring)) = ring() else { return };
        let file = data(tempfile::tempfile().unwrap());
        for n in 0..500u64 {
            drop(ring.write(&file, &name(), n, vec![Bytes::from(vec![n as u8])], n % 50 == 0));
        }
        drop(ring);
        let mut found = Vec::new();
        let mut file = &*file.file;
        file.read_to_end(&mut found).unwrap();
        assert_eq!(found, (0..500u64).map(|n| n as u8).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn operations_outlive_the_thread_that_began_them() {
        let Some((_, ring)) = ring() else { return };
        let (full, mut other_end) = blocked();
        let bytes = Bytes::from(vec![1; 3 * PIPE_BYTES]);
        let write = std::thread::scope(|scope| {
            scope.spawn(|| ring.write(&full, &name(), 0, vec![bytes.clone()], false)).join().unwrap()
        });
        let mut found = vec![0; bytes.len()];
        other_end.read_exact(&mut found).unwrap();
        write.await.unwrap();
        assert_eq!(found, bytes);
    }

    #[tokio::test]
    async fn a_failed_write_fails_the_disk_and_a_failed_read_does_not() {
        let Some((health, ring)) = ring() else { return };
        let dir = tempfile::tempdir().unwrap();
        let read_only = data(File::open(dir.path()).unwrap());
        let read = ring.read(&read_only.file, &name(), 0, 10, vec![]).await.unwrap_err();
        assert_eq!((read.kind(), health.failure()), (io::ErrorKind::IsADirectory, None));
        let negative = ring.write(&read_only, &name(), u64::MAX, vec![Bytes::from_static(b"x")], true).await;
        assert_eq!((negative.unwrap_err().kind(), health.failure()), (io::ErrorKind::InvalidInput, None));
        // A pipe cannot be synced: the writes are done, the sync fails.
        let (pipe, _other_end) = blocked();
        ring.write(&pipe, &name(), 0, vec![Bytes::from_static(b"x")], false).await.unwrap();
        let written = ring.write(&pipe, &name(), 0, vec![Bytes::from_static(b"x")], true).await;
        assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        assert!(health.failure().unwrap().contains("sync x"), "{:?}", health.failure());
        let later = ring.read(&read_only.file, &name(), 0, 10, vec![]).await.unwrap_err();
        assert!(later.to_string().contains("the disk failed earlier: sync x"), "{later}");
    }

    #[tokio::test]
    async fn a_panic_on_the_rings_thread_fails_the_disk_and_everybody_who_waits() {
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: Arc<Self>) {
                panic!("planted");
            }
        }
        let Some((health, ring)) = ring() else { return };
        let ((full, mut other_end), (full_too, its_other_end)) = (blocked(), blocked());
        let bytes = Bytes::from(vec![1; 2 * PIPE_BYTES]);
        let mut fatal = ring.write(&full, &name(), 0, vec![bytes.clone()], false);
        let waker = Arc::new(Panics).into();
        assert!(fatal.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_pending());
        // All slots, all room in the queue, and callers who wait outside.
        let mut under_way: Vec<_> =
            (0..1200).map(|_| ring.write(&full_too, &name(), 0, vec![bytes.clone()], false)).collect();
        let waiting = under_way.split_off(SLOTS.changes - 1);
        other_end.read_exact(&mut vec![0; bytes.len()]).unwrap();
        let answer = |write| async { tokio::time::timeout(Duration::from_secs(30), write).await.unwrap() };
        for write in waiting {
            assert!(answer(write).await.is_err());
        }
        assert!(health.failure().unwrap().contains("drive the ring"), "{:?}", health.failure());
        drop(its_other_end);
        for write in under_way {
            assert!(answer(write).await.is_err());
        }
        assert!(answer(ring.sync(&full.file, &name())).await.is_err());
    }

    #[tokio::test]
    async fn thousands_wait_their_turn() {
        let Some((_, ring)) = ring() else { return };
        let file = data(tempfile::tempfile().unwrap());
        let byte = |n: u64| vec![Bytes::from(vec![n as u8])];
        let writes: Vec<_> = (0..5000).map(|n| ring.write(&file, &name(), n, byte(n), false)).collect();
        for write in writes {
            write.await.unwrap();
        }
        let reads: Vec<_> = (0..5000).map(|n| ring.read(&file.file, &name(), n, 1, vec![])).collect();
        for (n, read) in reads.into_iter().enumerate() {
            assert_eq!(read.await.unwrap()[..], [n as u8]);
        }
    }
}
