use super::contents::{Keeping, SMALL_FILE_BYTES_MAX};
use super::device::{Device, DeviceModel, Work};
use super::inode::{Change, Flushed, Losing, Loss};
use super::page_set::PAGE_BYTES;
use super::random::Random;
use super::tree::{NodeId, Tree};
use crate::health::{Health, Operation};
use crate::{Disk, File, IoFuture, Space};
use bytes::Bytes;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hasher};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;
use std::time::Duration;
use tokio::time::{Instant, sleep_until};

/// The most steps that are remembered for [`SimDisk::trace`].
const TRACE_STEPS_MAX: usize = 64;

#[derive(Clone, Copy, Debug)]
pub struct SimOptions {
    /// Decides all that happens by chance while the disk runs.
    pub seed: u64,
    pub capacity_bytes: u64,
    /// An operation's future is pending up to this many polls after the operation took place, so that others
    /// come in between.
    pub polls_max: u64,
    /// The device, which says how long operations take; `None`: no time at all.
    pub device: Option<DeviceModel>,
    pub keeping: Keeping,
}

impl Default for SimOptions {
    fn default() -> Self {
        SimOptions {
            seed: 0,
            capacity_bytes: 1 << 40,
            polls_max: 2,
            device: None,
            keeping: Keeping::Contents,
        }
    }
}

/// The end of a run: steps are counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The step does not take place. Whoever waited for the one before it has been told.
    Before(u64),
    /// The step takes place, and nobody learns of it.
    After(u64),
}

/// A simulated disk; a cheap handle.
#[derive(Clone)]
pub struct SimDisk {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    health: Health,
}

struct State {
    tree: Tree,
    options: SimOptions,
    random: Random,
    device: Option<Device>,
    bytes_written: u64,
    steps: u64,
    crash_at: Option<CrashPoint>,
    fail_at: Option<u64>,
    fail_sync_from: Option<u64>,
    flip_one_in: Option<u64>,
    down: bool,
    trace: VecDeque<String>,
    trace_hash: DefaultHasher,
}

/// The course of a step: it takes place as a whole, or is to end in an I/O error, and then any part of it
/// may.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Course {
    Whole,
    Failing,
}

impl SimDisk {
    pub fn new(options: SimOptions) -> SimDisk {
        SimDisk::over(Tree::new(options.keeping), options)
    }

    fn over(tree: Tree, options: SimOptions) -> SimDisk {
        let state = State {
            tree,
            options,
            random: Random::new(options.seed),
            device: options.device.map(Device::new),
            bytes_written: 0,
            steps: 0,
            crash_at: None,
            fail_at: None,
            fail_sync_from: None,
            flip_one_in: None,
            down: false,
            trace: VecDeque::new(),
            trace_hash: DefaultHasher::new(),
        };
        SimDisk { shared: Arc::new(Shared { state: Mutex::new(state), health: Health::default() }) }
    }

    /// Stops the machine at a point: from then on every call fails, and nothing more takes place.
    pub fn crash_at(&self, point: CrashPoint) {
        self.shared.lock().crash_at = Some(point);
    }

    /// Has the step with this number fail with EIO, and with it the disk, like a real one. Any part of a
    /// write may have taken place; what a failed sync was to cover is kept or lost on the spot, and all of it
    /// goes on being read until power is lost or the file settles.
    pub fn fail_at(&self, step: u64) {
        self.shared.lock().fail_at = Some(step);
    }

    /// [`SimDisk::fail_at`] for the first sync from a step on.
    pub fn fail_sync_from(&self, step: u64) {
        self.shared.lock().fail_sync_from = Some(step);
    }

    /// Makes one read in so many return a flipped bit, from now on; what is stored stays as it is.
    pub fn flip_bits_on_read(&self, one_in: Option<u64>) {
        self.shared.lock().flip_one_in = one_in;
    }

    /// Leaves so much space free; files that are there keep theirs.
    pub fn set_free_bytes(&self, bytes: u64) {
        let mut state = self.shared.lock();
        state.options.capacity_bytes = state.options.capacity_bytes - state.free_bytes() + bytes;
    }

    /// Damages what is stored.
    pub fn flip_stored_bit(&self, path: &str, offset: u64, bit: u8) -> io::Result<()> {
        let mut state = self.shared.lock();
        let node = state.tree.find(path)?;
        state.tree.file_mut(node)?.flip_bit(offset, bit);
        Ok(())
    }

    /// Loses what is stored under a path and below it, for good.
    pub fn lose_stored(&self, path: &str) -> io::Result<()> {
        let tree = &mut self.shared.lock().tree;
        let node = tree.find(path)?;
        let lost = match tree.file(node) {
            Ok(_) => vec![path.to_owned()],
            Err(_) => tree.below(path)?,
        };
        for name in lost {
            tree.unlink(&name)?;
            tree.sync_dir(name.rsplit_once('/').map_or("", |(dir, _)| dir))?;
        }
        Ok(())
    }

    /// The contents of a file, as the running system sees them.
    pub fn stored(&self, path: &str) -> io::Result<Bytes> {
        let state = self.shared.lock();
        let contents = &state.tree.file(state.tree.find(path)?)?.seen;
        Ok(contents.read(0, contents.len() as usize))
    }

    /// The number of changes that took place, or began to.
    pub fn steps(&self) -> u64 {
        self.shared.lock().steps
    }

    /// Whether the crash point was reached.
    pub fn is_down(&self) -> bool {
        self.shared.lock().down
    }

    /// The time for which the device was at work; zero without a [`DeviceModel`]. By the time that has
    /// passed, it is utilization.
    pub fn busy(&self) -> Duration {
        self.shared.lock().device.as_mut().map_or(Duration::ZERO, |device| device.busy(Instant::now()))
    }

    /// Bytes that syncs brought to the device, in whole pages; names and lengths are not counted.
    pub fn bytes_written(&self) -> u64 {
        self.shared.lock().bytes_written
    }

    /// The last steps, for the message of a failed test.
    pub fn trace(&self) -> Vec<String> {
        self.shared.lock().trace.iter().cloned().collect()
    }

    /// A hash of all steps so far: the same for the same run, and hardly for another.
    pub fn trace_hash(&self) -> u64 {
        self.shared.lock().trace_hash.finish()
    }

    /// Paths and lengths of all files, sorted.
    pub fn files(&self) -> Vec<(String, u64)> {
        let state = self.shared.lock();
        let mut files: Vec<_> =
            state.tree.files().into_iter().map(|(path, inode)| (path, inode.seen.len())).collect();
        files.sort();
        files
    }

    /// Names and lengths of the files in a directory, sorted; none where there is no such directory.
    pub fn files_in(&self, dir: &str) -> Vec<(String, u64)> {
        let state = self.shared.lock();
        let names = state.tree.list(dir).unwrap_or_default().into_iter();
        let bytes = |name: &str| {
            let node = state.tree.find(&format!("{dir}/{name}")).ok()?;
            state.tree.file(node).ok().map(|inode| inode.seen.len())
        };
        names.filter_map(|name| bytes(&name).map(|bytes| (name, bytes))).collect()
    }

    /// The disk as a machine finds it that loses power now and starts again. This one is down from now on.
    pub fn lose_power(&self, loss: Loss, options: SimOptions) -> SimDisk {
        let mut tree = self.take_tree();
        tree.lose_power(&mut Losing::from(loss));
        SimDisk::over(tree, options)
    }

    /// Kills only the process: the next one finds all that this one did, synced or not; a later loss of power
    /// may still take what was not synced. This disk is down from now on.
    pub fn kill(&self, options: SimOptions) -> SimDisk {
        let mut tree = self.take_tree();
        tree.outlive_process();
        SimDisk::over(tree, options)
    }

    fn take_tree(&self) -> Tree {
        let mut state = self.shared.lock();
        state.down = true;
        let empty = Tree::new(state.tree.keeping);
        std::mem::replace(&mut state.tree, empty)
    }
}

impl State {
    fn check_up(&self) -> io::Result<()> {
        if self.down { Err(down()) } else { Ok(()) }
    }

    fn free_bytes(&self) -> u64 {
        self.options.capacity_bytes.saturating_sub(self.tree.allocated_bytes())
    }

    /// The part of `bytes` from `offset` that fits on the disk.
    fn fitting(&self, node: NodeId, offset: u64, bytes: u64) -> io::Result<u64> {
        let contents = &self.tree.file(node)?.seen;
        if contents.missing_bytes(offset, bytes) == 0 {
            return Ok(bytes);
        }
        let free = self.free_bytes();
        let mut fitting = bytes;
        while contents.missing_bytes(offset, fitting) > free {
            // The end goes back to the page boundary before it, until what is left fits.
            let end = offset + fitting;
            let boundary = (end - 1) / PAGE_BYTES * PAGE_BYTES;
            fitting = boundary.saturating_sub(offset);
        }
        Ok(fitting)
    }
}

fn down() -> io::Error {
    io::Error::other("the simulated machine is down")
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the simulated disk panics")
    }

    /// Carries out one change, which is counted.
    fn step<T>(
        &self,
        operation: Operation,
        what: &str,
        path: &str,
        effect: impl FnOnce(&mut State, Course) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut state = self.lock();
        state.check_up()?;
        self.health.check()?;
        let step = state.steps;
        state.steps += 1;
        if state.trace.len() == TRACE_STEPS_MAX {
            state.trace.pop_front();
        }
        let line = format!("{step}: {what} {path}");
        state.trace_hash.write(line.as_bytes());
        state.trace.push_back(line);
        if state.crash_at == Some(CrashPoint::Before(step)) {
            state.down = true;
            return Err(down());
        }
        let name = || format!("{what} {path}");
        let result = self.health.run(operation, name, || {
            let sync_fails =
                operation == Operation::Sync && state.fail_sync_from.is_some_and(|from| from <= step);
            if state.fail_at == Some(step) || sync_fails {
                let _ = effect(&mut state, Course::Failing);
                return Err(io::Error::from_raw_os_error(libc::EIO));
            }
            effect(&mut state, Course::Whole)
        });
        if state.crash_at == Some(CrashPoint::After(step)) {
            state.down = true;
            return Err(down());
        }
        result
    }

    fn look<T>(&self, effect: impl FnOnce(&mut State) -> io::Result<T>) -> io::Result<T> {
        let mut state = self.lock();
        state.check_up()?;
        self.health.check()?;
        effect(&mut state)
    }

    /// Hands the outcome of an operation that took place to its caller, some polls later.
    fn deliver<T: Send + 'static>(&self, delivered: Arc<AtomicBool>, result: io::Result<T>) -> IoFuture<T> {
        let mut polls = {
            let mut state = self.lock();
            let polls_max = state.options.polls_max;
            state.random.below(polls_max + 1)
        };
        let mut result = Some(result);
        Box::pin(std::future::poll_fn(move |context| {
            if polls > 0 {
                polls -= 1;
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            delivered.store(true, Ordering::Relaxed);
            Poll::Ready(result.take().expect("a future is not polled after it is ready"))
        }))
    }

    /// [`Shared::deliver`] once the device, if there is one, has done the work. The device does it whether or
    /// not anybody waits.
    fn deliver_after<T: Send + 'static>(
        self: &Arc<Shared>,
        work: Option<Work>,
        delivered: Arc<AtomicBool>,
        result: io::Result<T>,
    ) -> IoFuture<T> {
        let delivery = self.deliver(delivered, result);
        let mut state = self.lock();
        let (Some(device), Some(work)) = (&mut state.device, work) else { return delivery };
        let id = device.submit(Instant::now(), work);
        let shared = self.clone();
        Box::pin(async move {
            while let Some(look_again) = shared.poll_device(|device| device.poll(Instant::now(), id)) {
                sleep_until(look_again).await;
            }
            delivery.await
        })
    }

    fn poll_device<T>(&self, poll: impl FnOnce(&mut Device) -> Option<T>) -> Option<T> {
        self.lock().device.as_mut().and_then(poll)
    }

    /// Ends a sync of names that had something to do, or not.
    fn done_with_names(self: &Arc<Shared>, synced: io::Result<bool>) -> IoFuture<()> {
        let work = matches!(synced, Ok(true)).then_some(Work::Sync { end: None, bytes: 0 });
        self.deliver_after(work, Arc::default(), synced.map(drop))
    }

    fn done<T: Send + 'static>(&self, result: io::Result<T>) -> IoFuture<T> {
        self.deliver(Arc::default(), result)
    }
}

/// An operation on names that fails does nothing, or all of it.
fn all_or_nothing<T: Default>(
    effect: impl FnOnce(&mut State) -> io::Result<T>,
) -> impl FnOnce(&mut State, Course) -> io::Result<T> {
    move |state, course| {
        if course == Course::Whole || state.random.one_in(2) { effect(state) } else { Ok(T::default()) }
    }
}

fn missing_is_fine(error: io::Error) -> io::Result<()> {
    if error.kind() == ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

impl Disk for SimDisk {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        let found = self.shared.look(|state| {
            let node = state.tree.find(path)?;
            state.tree.file(node).map(|_| node)
        });
        let opened = match found {
            Err(error) if error.kind() == ErrorKind::NotFound && create => {
                self.shared.step(Operation::Change, "create", path, |state, _| state.tree.create_file(path))
            }
            found => found,
        };
        let keeping = self.shared.lock().tree.keeping;
        let file = opened.map(|node| {
            Arc::new(SimFile { shared: self.shared.clone(), node, path: path.into(), keeping })
                as Arc<dyn File>
        });
        self.shared.done(file)
    }

    fn create_dir_all(&self, path: &str) -> IoFuture<()> {
        let create = || {
            self.shared.look(|state| state.tree.find(path).map(drop).or_else(missing_is_fine))?;
            let ends = path.match_indices('/').map(|(end, _)| end).chain([path.len()]);
            for dir in ends.map(|end| &path[..end]) {
                if !self.shared.look(|state| Ok(state.tree.is_directory(dir)))? {
                    let effect = all_or_nothing(|state| state.tree.create_dir(dir));
                    self.shared.step(Operation::Change, "create directory", dir, effect)?;
                }
            }
            let effect = all_or_nothing(|state| state.tree.sync_path(path));
            self.shared.step(Operation::Change, "sync created directory", path, effect)
        };
        self.shared.done_with_names(create())
    }

    fn sync_dir(&self, path: &str) -> IoFuture<()> {
        let effect = all_or_nothing(|state| state.tree.sync_dir(path));
        self.shared.done_with_names(self.shared.step(Operation::Sync, "sync directory", path, effect))
    }

    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        self.shared.done(self.shared.look(|state| state.tree.list(path)))
    }

    fn rename(&self, from: &str, to: &str) -> IoFuture<()> {
        let effect = all_or_nothing(|state| state.tree.rename(from, to));
        self.shared.done(self.shared.step(Operation::Change, "rename", from, effect))
    }

    fn remove_file(&self, path: &str) -> IoFuture<()> {
        let effect = all_or_nothing(|state| state.tree.remove_file(path));
        self.shared.done(self.shared.step(Operation::Change, "remove", path, effect))
    }

    fn remove_dir_all(&self, path: &str) -> IoFuture<()> {
        if path.is_empty() {
            let error = io::Error::new(ErrorKind::InvalidInput, "a data directory does not remove itself");
            return self.shared.done(Err(error));
        }
        let remove = || {
            for name in self.shared.look(|state| state.tree.below(path))? {
                let effect = all_or_nothing(|state| state.tree.unlink(&name));
                self.shared.step(Operation::Change, "remove", &name, effect)?;
            }
            Ok(())
        };
        self.shared.done(remove())
    }

    fn space(&self) -> IoFuture<Space> {
        let space = self.shared.look(|state| {
            Ok(Space { capacity_bytes: state.options.capacity_bytes, free_bytes: state.free_bytes() })
        });
        self.shared.done(space)
    }

    fn failure(&self) -> Option<String> {
        let down = || self.is_down().then(|| "the simulated machine is down".to_owned());
        self.shared.health.failure().or_else(down)
    }
}

struct SimFile {
    shared: Arc<Shared>,
    node: NodeId,
    path: Box<str>,
    keeping: Keeping,
}

impl SimFile {
    fn write(&self, offset: u64, buffers: &[Bytes], delivered: &Arc<AtomicBool>) -> io::Result<()> {
        let bytes = self.write_gather(buffers);
        let what = format!("write {}+{} of", offset, bytes.len());
        self.shared.step(Operation::Change, &what, &self.path, |state, course| {
            let mut fitting = state.fitting(self.node, offset, bytes.len() as u64)?;
            let full = fitting < bytes.len() as u64;
            if course == Course::Failing {
                fitting = state.random.below(fitting + 1);
            }
            let written = bytes.slice(..fitting as usize);
            state.tree.file_mut(self.node)?.write(offset, written, delivered);
            if full { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
        })
    }

    fn write_gather(&self, buffers: &[Bytes]) -> Bytes {
        let bytes = buffers.iter().map(Bytes::len).sum();
        match self.keeping {
            Keeping::Lengths if bytes as u64 > SMALL_FILE_BYTES_MAX => vec![0; bytes],
            Keeping::Contents | Keeping::Lengths => buffers.concat(),
        }
        .into()
    }

    fn sync(&self, own: Option<&Arc<AtomicBool>>) -> io::Result<Option<Work>> {
        self.shared.step(Operation::Sync, "sync", &self.path, |state, course| {
            let State { tree, random, .. } = state;
            let inode = tree.file_mut(self.node)?;
            match course {
                Course::Whole => {
                    let Flushed { bytes, end, changes } = inode.sync(own, random);
                    state.bytes_written += bytes;
                    let end = end.map(|end| (self.node, end));
                    Ok((changes > 0).then_some(Work::Sync { end, bytes }))
                }
                Course::Failing => {
                    inode.fail_sync(random);
                    Ok(None)
                }
            }
        })
    }

    fn sync_end(&self, synced: io::Result<Option<Work>>, delivered: Arc<AtomicBool>) -> IoFuture<()> {
        let work = synced.as_ref().ok().copied().flatten();
        self.shared.deliver_after(work, delivered, synced.map(drop))
    }

    fn change(
        &self,
        what: &str,
        change: impl FnOnce(&mut State) -> io::Result<Option<Change>>,
    ) -> IoFuture<()> {
        let delivered = Arc::default();
        let result = self.shared.step(Operation::Change, what, &self.path, |state, course| {
            let Some(change) = change(state)? else { return Ok(()) };
            if course == Course::Whole || state.random.one_in(2) {
                state.tree.file_mut(self.node)?.change(change, &delivered);
            }
            Ok(())
        });
        self.shared.deliver(delivered, result)
    }
}

impl File for SimFile {
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        let delivered = Arc::default();
        let result = self.write(offset, &buffers, &delivered);
        self.shared.deliver(delivered, result)
    }

    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        let delivered = Arc::default();
        let synced = self.write(offset, &buffers, &delivered).and_then(|()| self.sync(Some(&delivered)));
        self.sync_end(synced, delivered)
    }

    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        let read = self.shared.look(|state| {
            let mut read = state.tree.file(self.node)?.seen.read(offset, bytes);
            if let Some(one_in) = state.flip_one_in
                && !read.is_empty()
                && state.random.one_in(one_in)
            {
                let mut damaged = read.to_vec();
                let bit = state.random.below(damaged.len() as u64 * 8);
                damaged[bit as usize / 8] ^= 1 << (bit % 8);
                read = damaged.into();
            }
            Ok(read)
        });
        let transferred = read.as_ref().map_or(0, Bytes::len) as u64;
        let work = Work::Read { at: (self.node, offset), bytes: transferred };
        self.shared.deliver_after((transferred > 0).then_some(work), Arc::default(), read)
    }

    fn sync_data(&self) -> IoFuture<()> {
        self.sync_end(self.sync(None), Arc::default())
    }

    fn settle(&self) -> IoFuture<()> {
        let synced = self.sync(None);
        let settled = synced.and_then(|work| {
            self.shared.look(|state| {
                state.tree.file_mut(self.node)?.settle();
                Ok(work)
            })
        });
        self.sync_end(settled, Arc::default())
    }

    fn preallocate(&self, bytes: u64) -> IoFuture<()> {
        self.change("preallocate", |state| {
            let contents = &state.tree.file(self.node)?.seen;
            if contents.len() >= bytes {
                return Ok(None);
            }
            if state.fitting(self.node, 0, bytes)? < bytes {
                return Err(ErrorKind::StorageFull.into());
            }
            Ok(Some(Change::Allocate(bytes)))
        })
    }

    fn set_len(&self, bytes: u64) -> IoFuture<()> {
        self.change("set the length of", |_| Ok(Some(Change::SetLen(bytes))))
    }

    fn punch_holes(&self, holes: Vec<Range<u64>>) -> IoFuture<()> {
        let punch = |hole: Range<u64>| {
            let (offset, bytes) = (hole.start, hole.end - hole.start);
            self.change("punch a hole in", |_| Ok(Some(Change::PunchHole { offset, bytes })))
        };
        let punched: Vec<_> = holes.into_iter().map(punch).collect();
        Box::pin(async {
            for one in punched {
                one.await?;
            }
            Ok(())
        })
    }

    fn len(&self) -> IoFuture<u64> {
        self.shared.done(self.shared.look(|state| Ok(state.tree.file(self.node)?.seen.len())))
    }
}
