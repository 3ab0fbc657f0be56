use crate::{Changes, Tables};
use anyhow::Context;
use raft::Applied;
use rocksdb::{
    BlockBasedOptions, Cache, DB, DBCompressionType, Direction, Env, FlushOptions, IteratorMode, LogLevel,
    Options, ReadOptions, WriteBatch, WriteBufferManager, WriteOptions,
};
use std::fmt;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

/// The most files that a database keeps open; the rest is opened when read.
const OPEN_FILES_MAX: i32 = 256;
/// The most flushes and compactions at a time: there are many databases in a process.
const BACKGROUND_JOBS_MAX: i32 = 2;
/// The files of level 0 that are merged into the next level together. Each flush makes one, small where a
/// snapshot or a deletion asks for it, and each merge reads and writes what is below again.
const LEVEL_0_FILES: i32 = 8;
/// RocksDB's own text logs: kept for the last few starts, small.
const INFO_LOGS_MAX: usize = 3;
const INFO_LOG_BYTES_MAX: usize = 1 << 20;
/// Words that are in the errors from which RocksDB recovers by itself.
const NO_ROOM: [&str; 2] = ["No space left on device", "Space limit reached"];

/// Memory and behaviour of a RocksDB that holds state derived from Raft logs.
#[derive(Clone, Debug)]
pub struct DbOptions {
    /// The cache of this database's own, unless it shares memory with others.
    pub block_cache_bytes: usize,
    pub write_buffer_bytes: usize,
    pub shared: Option<SharedMemory>,
    /// The memory that keeps the database's files in place of a disk: in simulations.
    pub memory: Option<DbMemory>,
}

/// Memory of several databases, for blocks that are read and for what is not flushed yet, within one number.
/// Where the latter fill their part, whatever database is written to has its buffer flushed before that is
/// full.
#[derive(Clone)]
pub struct SharedMemory {
    cache: Cache,
    buffers: WriteBufferManager,
}

/// Memory that databases take, and their limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheBytes {
    pub used: u64,
    pub max: u64,
}

/// Buffers may take one part in so many of the shared memory.
const PART_OF_BUFFERS: usize = 2;

impl SharedMemory {
    pub fn new(bytes: usize) -> SharedMemory {
        let cache = Cache::new_lru_cache(bytes);
        // Buffers take room of the cache; a writer never waits for room.
        let of_buffers = bytes / PART_OF_BUFFERS;
        let buffers =
            WriteBufferManager::new_write_buffer_manager_with_cache(of_buffers, false, cache.clone());
        SharedMemory { cache, buffers }
    }
}

impl fmt::Debug for SharedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SharedMemory")
    }
}

/// Files of databases in memory, by their paths: for simulations. A database there that is dropped has
/// crashed: what it had not flushed is lost.
#[derive(Clone)]
pub struct DbMemory(Env);

impl DbMemory {
    pub fn new() -> anyhow::Result<DbMemory> {
        Env::mem_env().map(DbMemory).context("make room for databases in memory")
    }
}

impl fmt::Debug for DbMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DbMemory")
    }
}

impl Default for DbOptions {
    fn default() -> Self {
        Self { block_cache_bytes: 32 << 20, write_buffer_bytes: 16 << 20, shared: None, memory: None }
    }
}

/// A RocksDB without a WAL of its own: the Raft logs are its WAL. What a crash takes from its memory is
/// applied again from the log, from the applied position that stands in the same batch as the effects. One
/// column family, so that batches are atomic on disk too.
pub struct Db {
    /// `None` only while it is dropped.
    rocks: Option<DB>,
    write_options: WriteOptions,
    /// Whether another database has replaced this one: its files go with it.
    is_retired: AtomicBool,
    closes: Closes,
    state: Mutex<DbState>,
}

/// Whether a database takes writes. RocksDB turns read-only when it cannot flush or compact.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum DbState {
    #[default]
    Well,
    /// The database's disk has no room. RocksDB looks every five seconds whether it has, and goes on by
    /// itself.
    Full(String),
    /// A failure that lasts until the database is opened again.
    Failed(String),
}

/// The fate of what is in memory alone when a database is dropped.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Closes {
    Flushing,
    /// The database has nothing to lose, or is meant to lose it.
    AsItIs,
}

impl Db {
    pub fn open(path: &Path, options: &DbOptions) -> anyhow::Result<Db> {
        let mut settings = rocks_options(options);
        let closes = match &options.memory {
            None => Closes::Flushing,
            Some(memory) => {
                settings = settings.get_options_from_string("avoid_flush_during_shutdown=true")?;
                settings.set_env(&memory.0);
                Closes::AsItIs
            }
        };
        let rocks =
            DB::open(&settings, path).with_context(|| format!("open RocksDB in {}", path.display()))?;
        Ok(Db::over(rocks, closes))
    }

    /// Opens a database that nobody has open, to read it. Its files stay as they are; RocksDB's text log goes
    /// to `logs_dir`.
    pub(crate) fn open_read_only(path: &Path, logs_dir: &Path) -> anyhow::Result<Db> {
        let mut options = rocks_options(&DbOptions::default());
        options.create_if_missing(false);
        options.set_db_log_dir(logs_dir);
        let rocks = DB::open_for_read_only(&options, path, false)
            .with_context(|| format!("open RocksDB in {} to read it", path.display()))?;
        Ok(Db::over(rocks, Closes::AsItIs))
    }

    fn over(rocks: DB, closes: Closes) -> Db {
        let mut write_options = WriteOptions::default();
        write_options.disable_wal(true);
        let (is_retired, state) = Default::default();
        Db { rocks: Some(rocks), write_options, is_retired, closes, state }
    }

    /// Notes that another database takes this one's place: the files are removed when the last reader is
    /// gone.
    pub(crate) fn retire(&self) {
        self.is_retired.store(true, Ordering::Relaxed);
    }

    /// The database itself, for reads and iterators.
    pub fn rocks(&self) -> &DB {
        self.rocks.as_ref().expect("taken only in drop")
    }

    /// Writes a batch to memory: readable on return, durable once flushed.
    pub fn write(&self, batch: WriteBatch) -> anyhow::Result<()> {
        self.judged(self.rocks().write_opt(batch, &self.write_options)).context("write a batch to RocksDB")
    }

    /// The state of the database as writes and flushes have shown it.
    pub fn state(&self) -> DbState {
        self.state.lock().expect("no holder panics").clone()
    }

    /// Finds out whether the database takes writes, with one that changes nothing.
    pub fn probe(&self) -> DbState {
        let mut options = WriteOptions::default();
        options.disable_wal(true);
        // A write that would have to wait for flushes is no answer.
        options.set_no_slowdown(true);
        if self.judged(self.rocks().write_opt(WriteBatch::default(), &options)).is_ok() {
            let mut state = self.state.lock().expect("no holder panics");
            if let DbState::Full(_) = *state {
                tracing::info!(path = %self.rocks().path().display(), "RocksDB has room again");
                *state = DbState::Well;
            }
        }
        self.state()
    }

    /// The number of flushes and compactions that failed since the database was opened.
    pub fn background_errors(&self) -> u64 {
        let errors = self.rocks().property_int_value(rocksdb::properties::BACKGROUND_ERRORS);
        errors.ok().flatten().unwrap_or_default()
    }

    /// The memory that blocks take which were read, and, where databases share it, what is not flushed yet,
    /// of all of them together.
    pub fn cache_bytes(&self) -> CacheBytes {
        let property = |name| self.rocks().property_int_value(name).ok().flatten().unwrap_or_default();
        CacheBytes {
            used: property(rocksdb::properties::BLOCK_CACHE_USAGE),
            max: property(rocksdb::properties::BLOCK_CACHE_CAPACITY),
        }
    }

    /// Remembers what an error says of the database: what is written goes to memory, so that only a
    /// background error makes it fail.
    fn judged<T>(&self, done: Result<T, rocksdb::Error>) -> Result<T, rocksdb::Error> {
        let Err(error) = &done else { return done };
        let why = error.to_string();
        let found = match error.kind() {
            _ if lacks_room(error) => DbState::Full(why),
            rocksdb::ErrorKind::IOError | rocksdb::ErrorKind::Corruption => DbState::Failed(why),
            _ => return done,
        };
        let mut state = self.state.lock().expect("no holder panics");
        let is_worse = match (&*state, &found) {
            (DbState::Well, _) | (DbState::Full(_), DbState::Failed(_)) => true,
            (DbState::Full(_), _) | (DbState::Failed(_), _) => false,
        };
        if is_worse {
            let path = self.rocks().path().display();
            tracing::error!(%path, state = ?found, "RocksDB takes no more writes");
            *state = found;
        }
        done
    }

    /// Whether a write failed for lack of room, whatever has become of that since.
    pub fn is_no_room(error: &anyhow::Error) -> bool {
        error.chain().filter_map(|cause| cause.downcast_ref::<rocksdb::Error>()).any(lacks_room)
    }

    /// Adds a group's applied position to a batch; `key` is the caller's place for it.
    pub fn put_applied(batch: &mut WriteBatch, key: &[u8], applied: &Applied) {
        batch.put(key, applied.encode());
    }

    pub fn applied(&self, key: &[u8]) -> anyhow::Result<Option<Applied>> {
        let Some(stored) = self.rocks().get_pinned(key).context("read the applied position")? else {
            return Ok(None);
        };
        Applied::decode(&stored).map(Some)
    }

    /// Makes everything written so far durable.
    pub fn flush(&self) -> anyhow::Result<()> {
        let mut options = FlushOptions::default();
        options.set_wait(true);
        self.judged(self.rocks().flush_opt(&options)).context("flush RocksDB")
    }
}

impl Tables for Db {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        self.rocks().get(key).context("read a record")
    }

    fn scan(
        &self,
        from: &[u8],
        end: Option<&[u8]>,
        count_max: usize,
    ) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut options = ReadOptions::default();
        if let Some(end) = end {
            options.set_iterate_upper_bound(end);
        }
        let records = self.rocks().iterator_opt(IteratorMode::From(from, Direction::Forward), options);
        let records = records.take(count_max).map(|record| {
            let (key, value) = record.context("scan records")?;
            Ok((key.into_vec(), value.into_vec()))
        });
        records.collect()
    }

    fn write(&self, changes: Changes) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        for (key, value) in changes.into_iter() {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        Db::write(self, batch)
    }

    fn flush(&self) -> anyhow::Result<()> {
        Db::flush(self)
    }
}

impl Drop for Db {
    /// A clean close leaves nothing to apply again. When it fails, the log has it all.
    fn drop(&mut self) {
        if self.closes == Closes::AsItIs {
            return;
        }
        if self.is_retired.load(Ordering::Relaxed) {
            let path = self.rocks().path().to_owned();
            drop(self.rocks.take());
            // Files that stay are removed at the next start.
            if let Err(error) = DB::destroy(&Options::default(), &path) {
                tracing::warn!(path = %path.display(), %error, "remove a replaced RocksDB");
            }
            return;
        }
        if let Err(error) = self.flush() {
            tracing::warn!(path = %self.rocks().path().display(), error = format!("{error:#}"), "flush on close");
        }
    }
}

fn rocks_options(options: &DbOptions) -> Options {
    let mut table = BlockBasedOptions::default();
    let own = || Cache::new_lru_cache(options.block_cache_bytes);
    table.set_block_cache(&options.shared.as_ref().map_or_else(own, |shared| shared.cache.clone()));
    table.set_cache_index_and_filter_blocks(true);
    table.set_bloom_filter(10.0, false);

    let mut rocks = Options::default();
    rocks.create_if_missing(true);
    rocks.set_block_based_table_factory(&table);
    rocks.set_write_buffer_size(options.write_buffer_bytes);
    if let Some(shared) = &options.shared {
        rocks.set_write_buffer_manager(&shared.buffers);
    }
    rocks.set_max_write_buffer_number(2);
    rocks.set_compression_type(DBCompressionType::Lz4);
    rocks.set_level_zero_file_num_compaction_trigger(LEVEL_0_FILES);
    rocks.set_max_open_files(OPEN_FILES_MAX);
    rocks.set_max_background_jobs(BACKGROUND_JOBS_MAX);
    rocks.set_level_compaction_dynamic_level_bytes(true);
    rocks.set_bytes_per_sync(1 << 20);
    rocks.set_log_level(LogLevel::Warn);
    rocks.set_keep_log_file_num(INFO_LOGS_MAX);
    rocks.set_max_log_file_size(INFO_LOG_BYTES_MAX);
    rocks
}

fn lacks_room(error: &rocksdb::Error) -> bool {
    let why: &str = error.as_ref();
    error.kind() == rocksdb::ErrorKind::IOError && NO_ROOM.iter().any(|words| why.contains(words))
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the tests play the failing disk
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use testkit::FullTables;

    const DEADLINE: Duration = Duration::from_secs(60);

    fn opened(dir: &Path) -> Db {
        Db::open(dir, &DbOptions::default()).unwrap()
    }

    fn put(db: &Db, key: &str) -> anyhow::Result<()> {
        let mut batch = WriteBatch::default();
        batch.put(key, key);
        db.write(batch)
    }

    #[test]
    fn databases_that_share_memory_keep_within_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let shared = SharedMemory::new(8 << 20);
        let options =
            DbOptions { write_buffer_bytes: 16 << 20, shared: Some(shared.clone()), ..DbOptions::default() };
        let dbs: Vec<Db> =
            (0..4).map(|n| Db::open(&dir.path().join(n.to_string()), &options).unwrap()).collect();
        let write = |db: &Db, n: u64, bytes: usize| {
            let mut batch = WriteBatch::default();
            batch.put(n.to_be_bytes(), vec![n as u8; bytes]);
            db.write(batch).unwrap();
        };
        for n in 0..40 {
            dbs.iter().for_each(|db| write(db, n, 256 << 10));
        }
        let used = || shared.buffers.get_usage();
        assert!(used() > 0, "what is written is counted");
        let give_up = Instant::now() + DEADLINE;
        // Each database alone would keep all of its 10 MiB. A burst may be ahead of the flushes, which writes
        // begin.
        while used() > 16 << 20 {
            assert!(Instant::now() < give_up, "{} bytes are used", used());
            std::thread::sleep(Duration::from_millis(20));
            dbs.iter().for_each(|db| write(db, 0, 1));
        }
    }

    #[test]
    fn a_database_without_room_says_so_and_goes_on_when_there_is_some() {
        let dir = tempfile::tempdir().unwrap();
        let db = opened(dir.path());
        put(&db, "before").unwrap();
        let tables = FullTables::of(dir.path());
        db.flush().unwrap_err();
        assert!(matches!(db.state(), DbState::Full(_)), "{:?}", db.state());
        put(&db, "while it is full").unwrap_err();
        assert!(matches!(db.probe(), DbState::Full(_)));
        assert!(db.background_errors() > 0);
        tables.make_room(|| db.probe() == DbState::Well);
        put(&db, "after").unwrap();
        db.flush().unwrap();
        drop(db);
        let db = opened(dir.path());
        for (key, is_there) in [("before", true), ("while it is full", false), ("after", true)] {
            assert_eq!(db.rocks().get(key).unwrap().is_some(), is_there, "{key}");
        }
    }

    #[test]
    fn a_database_that_could_not_write_its_files_is_failed_until_it_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (path, away) = (dir.path().join("db"), dir.path().join("away"));
        let db = opened(&path);
        put(&db, "before").unwrap();
        assert_eq!(db.probe(), DbState::Well);
        std::fs::rename(&path, &away).unwrap();
        db.flush().unwrap_err();
        assert!(matches!(db.state(), DbState::Failed(_)), "{:?}", db.state());
        std::fs::rename(&away, &path).unwrap();
        put(&db, "after").unwrap_err();
        assert!(matches!(db.probe(), DbState::Failed(_)));
        drop(db);
        assert_eq!(opened(&path).probe(), DbState::Well);
    }
}
