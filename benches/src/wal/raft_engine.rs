use super::appenders::append_in_threads;
use super::contender::{Appended, Case, Contender, Limits, payload};
use protobuf::well_known_types::BytesValue;
use raft_engine::env::{DefaultFileSystem, FileSystem, Handle, Permission};
use raft_engine::{Config, Engine, LogBatch, MessageExt, ReadableSize};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Files that hold nothing any more are recycled as soon as the queue is this long.
const PURGE_THRESHOLD: ReadableSize = ReadableSize::mb(256);

/// TiKV's log engine: all logs in one file, one sync for all that wait, and its own defaults, except that it
/// does not try to compress. A thread for each log; a window is one `LogBatch` with so many entries.
pub(super) struct RaftEngine {
    case: Case,
    engine: Engine<CountingFileSystem>,
    logs: Vec<Region>,
    syncs: Arc<AtomicU64>,
}

/// One log, and the entries of its next batch.
struct Region {
    id: u64,
    next_index: u64,
    entries: Vec<BytesValue>,
}

/// An entry is bytes; the first eight of them are its index.
struct Indexed;

impl MessageExt for Indexed {
    type Entry = BytesValue;

    fn index(entry: &BytesValue) -> u64 {
        let index = entry.value[..8].try_into().expect("a payload has eight bytes");
        u64::from_le_bytes(index)
    }
}

impl RaftEngine {
    pub(super) fn open(case: Case, root: &Path) -> RaftEngine {
        let config = Config {
            dir: root.to_str().expect("temporary directories have names in UTF-8").to_owned(),
            batch_compression_threshold: ReadableSize(0),
            purge_threshold: PURGE_THRESHOLD,
            ..Config::default()
        };
        let syncs = Arc::<AtomicU64>::default();
        let file_system = CountingFileSystem { inner: DefaultFileSystem, syncs: syncs.clone() };
        let engine = Engine::open_with_file_system(config, Arc::new(file_system)).expect("open raft-engine");
        let entry = BytesValue { value: payload(case.payload_bytes), ..BytesValue::default() };
        let region = |id| Region { id, next_index: 1, entries: vec![entry.clone(); case.window] };
        RaftEngine { case, engine, logs: (1..=case.logs as u64).map(region).collect(), syncs }
    }
}

impl Region {
    fn append(&mut self, engine: &Engine<CountingFileSystem>) {
        for entry in &mut self.entries {
            entry.value[..8].copy_from_slice(&self.next_index.to_le_bytes());
            self.next_index += 1;
        }
        let mut batch = LogBatch::default();
        batch.add_entries::<Indexed>(self.id, &self.entries).expect("encode entries");
        engine.write(&mut batch, true).expect("write");
    }
}

impl Contender for RaftEngine {
    fn append(&mut self, limits: Limits) -> Appended {
        let engine = &self.engine;
        let mut appenders: Vec<_> = self.logs.iter_mut().map(|log| || log.append(engine)).collect();
        append_in_threads(self.case, limits, &mut appenders)
    }

    fn syncs(&self) -> u64 {
        self.syncs.load(Ordering::Relaxed)
    }

    fn reclaim(&mut self) {
        for log in &self.logs {
            self.engine.compact_to(log.id, log.next_index);
        }
        self.engine.purge_expired_files().expect("purge");
    }
}

/// raft-engine's own file system, counting syncs.
struct CountingFileSystem {
    inner: DefaultFileSystem,
    syncs: Arc<AtomicU64>,
}

type InnerHandle = <DefaultFileSystem as FileSystem>::Handle;

struct CountingHandle {
    inner: Arc<InnerHandle>,
    syncs: Arc<AtomicU64>,
}

impl CountingFileSystem {
    fn counting(&self, inner: InnerHandle) -> CountingHandle {
        CountingHandle { inner: Arc::new(inner), syncs: self.syncs.clone() }
    }
}

impl FileSystem for CountingFileSystem {
    type Handle = CountingHandle;
    type Reader = <DefaultFileSystem as FileSystem>::Reader;
    type Writer = <DefaultFileSystem as FileSystem>::Writer;

    fn create<P: AsRef<Path>>(&self, path: P) -> io::Result<CountingHandle> {
        Ok(self.counting(self.inner.create(path)?))
    }

    fn open<P: AsRef<Path>>(&self, path: P, permission: Permission) -> io::Result<CountingHandle> {
        Ok(self.counting(self.inner.open(path, permission)?))
    }

    fn delete<P: AsRef<Path>>(&self, path: P) -> io::Result<()> {
        self.inner.delete(path)
    }

    fn rename<P: AsRef<Path>>(&self, from: P, to: P) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn new_reader(&self, handle: Arc<CountingHandle>) -> io::Result<Self::Reader> {
        self.inner.new_reader(handle.inner.clone())
    }

    fn new_writer(&self, handle: Arc<CountingHandle>) -> io::Result<Self::Writer> {
        self.inner.new_writer(handle.inner.clone())
    }
}

impl Handle for CountingHandle {
    fn truncate(&self, offset: usize) -> io::Result<()> {
        Handle::truncate(&*self.inner, offset)
    }

    fn file_size(&self) -> io::Result<usize> {
        Handle::file_size(&*self.inner)
    }

    fn sync(&self) -> io::Result<()> {
        self.syncs.fetch_add(1, Ordering::Relaxed);
        Handle::sync(&*self.inner)
    }
}
