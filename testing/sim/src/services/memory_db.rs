use crate::mem_snapshots::{decode, encode};
use crate::mem_tables::Records;
use anyhow::{Context, ensure};
use disk::Disk;
use futures::FutureExt;
use futures::future::BoxFuture;
use om::TableStore;
use raft::{Applied, Snapshots};
use statedb::{Changes, Db, DbOptions, GroupDb, Tables};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, RwLock, Weak};
use types::GroupId;

/// The counterpart of [`statedb::DbGenerations`] without a disk: the database of SCM's group, or of OM's, in
/// memory, replaced as a whole by a snapshot, whose files are on a disk that can crash. Cheap to clone.
#[derive(Clone)]
pub(crate) struct MemoryDb {
    options: DbOptions,
    disk: Arc<dyn Disk>,
    place: MemoryStore,
    applied_key: &'static [u8],
    current: Arc<RwLock<Arc<Db>>>,
}

/// The place of a [`MemoryDb`], and the generation that counts: what outlives a crash.
#[derive(Clone)]
pub(crate) struct MemoryStore {
    root: PathBuf,
    counts: Arc<AtomicU64>,
    made: Arc<AtomicU64>,
}

const RECORDS: &str = "records";

impl MemoryStore {
    pub(crate) fn new(root: impl Into<PathBuf>) -> MemoryStore {
        MemoryStore { root: root.into(), counts: Arc::default(), made: Arc::default() }
    }

    fn path(&self, generation: u64) -> PathBuf {
        self.root.join(format!("db.{generation}"))
    }
}

/// Tables that are open, as long as somebody has them.
type Opened = Weak<RwLock<Arc<Db>>>;

/// The tables of an OM's groups, wherever they are; cheap to clone.
#[derive(Clone)]
pub(crate) struct MemoryTables {
    root: PathBuf,
    places: Arc<Mutex<BTreeMap<GroupId, MemoryStore>>>,
    made: Arc<AtomicU64>,
    /// The tables that are open, in the life of a process that is running.
    open: Arc<Mutex<BTreeMap<GroupId, Opened>>>,
}

impl MemoryTables {
    pub(crate) fn new(root: impl Into<PathBuf>) -> MemoryTables {
        MemoryTables { root: root.into(), places: Arc::default(), made: Arc::default(), open: Arc::default() }
    }

    /// How often a snapshot has taken the place of tables.
    pub(crate) fn replaced(&self) -> u64 {
        let places = self.places.lock().expect("no holder panics");
        places.values().map(|place| place.made.load(Ordering::Relaxed)).sum()
    }

    /// A group's current tables; `None` where nobody has them open.
    pub(crate) fn current(&self, group: GroupId) -> Option<Arc<Db>> {
        let open = self.open.lock().expect("no holder panics");
        let current = open.get(&group)?.upgrade()?;
        Some(current.read().expect("no holder panics").clone())
    }

    /// Copies the tables to somewhere else, while nobody has them open.
    pub(crate) fn copied(&self, root: &str, options: &DbOptions) -> anyhow::Result<MemoryTables> {
        let copy = MemoryTables::new(root);
        let places = self.places.lock().expect("no holder panics").clone();
        for (group, place) in places {
            let from = Db::open(&place.path(place.counts.load(Ordering::Relaxed)), options)?;
            let mut changes = Changes::default();
            from.scan(&[], None, usize::MAX)?.into_iter().for_each(|(key, value)| changes.put(key, value));
            let to = Db::open(&copy.place(group).path(0), options)?;
            Tables::write(&to, changes)?;
            to.flush()?;
        }
        Ok(copy)
    }

    fn place(&self, group: GroupId) -> MemoryStore {
        let mut places = self.places.lock().expect("no holder panics");
        let new = || {
            let number = self.made.fetch_add(1, Ordering::Relaxed);
            MemoryStore::new(self.root.join(format!("{group}.{number}")))
        };
        places.entry(group).or_insert_with(new).clone()
    }
}

/// [`MemoryTables`] over a disk of this life.
pub(crate) struct MemoryTableStore {
    pub(crate) tables: MemoryTables,
    pub(crate) options: DbOptions,
    pub(crate) disk: Arc<dyn Disk>,
}

impl TableStore for MemoryTableStore {
    fn open(&self, group: GroupId) -> BoxFuture<'static, anyhow::Result<Arc<dyn GroupDb>>> {
        let (place, options, disk) = (self.tables.place(group), self.options.clone(), self.disk.clone());
        let open = self.tables.open.clone();
        async move {
            let db = MemoryDb::open(place, options, disk, om::APPLIED_KEY)?;
            open.lock().expect("no holder panics").insert(group, Arc::downgrade(&db.current));
            Ok(Arc::new(db) as Arc<dyn GroupDb>)
        }
        .boxed()
    }

    fn delete(&self, group: GroupId) -> BoxFuture<'static, anyhow::Result<()>> {
        self.tables.places.lock().expect("no holder panics").remove(&group);
        async { Ok(()) }.boxed()
    }
}

impl MemoryDb {
    pub(crate) fn open(
        place: MemoryStore,
        options: DbOptions,
        disk: Arc<dyn Disk>,
        applied_key: &'static [u8],
    ) -> anyhow::Result<MemoryDb> {
        let db = Db::open(&place.path(place.counts.load(Ordering::Relaxed)), &options)?;
        Ok(MemoryDb { options, disk, place, applied_key, current: Arc::new(RwLock::new(Arc::new(db))) })
    }

    async fn read(&self, dir: &str) -> anyhow::Result<Records> {
        let path = format!("{dir}/{RECORDS}");
        let file = self.disk.open(&path, false).await.with_context(|| format!("open {path}"))?;
        let bytes = file.len().await?;
        let mut records = Records::new();
        decode(file.read_at(0, bytes as usize).await?, &mut records)?;
        ensure!(records.contains_key(self.applied_key), "{dir} has no applied position");
        Ok(records)
    }
}

impl GroupDb for MemoryDb {
    fn current(&self) -> Arc<Db> {
        self.current.read().expect("no holder panics").clone()
    }
}

impl Snapshots for MemoryDb {
    fn disk(&self) -> Arc<dyn Disk> {
        self.disk.clone()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let this = self.clone();
        async move {
            let db = this.current();
            let records: Records = db.scan(&[], None, usize::MAX)?.into_iter().collect();
            let applied = Applied::decode(records.get(this.applied_key).context("nothing is applied")?)?;
            this.disk.create_dir_all(&dir).await?;
            let file = this.disk.open(&format!("{dir}/{RECORDS}"), true).await?;
            file.write_and_sync(0, vec![encode(records.iter())]).await?;
            this.disk.sync_dir(&dir).await?;
            db.flush()?;
            Ok(applied)
        }
        .boxed()
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        let this = self.clone();
        async move { Applied::decode(&this.read(&dir).await?[this.applied_key]) }.boxed()
    }

    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let this = self.clone();
        async move {
            let records = this.read(&dir).await?;
            let number = this.place.made.fetch_add(1, Ordering::Relaxed) + 1;
            let db = Db::open(&this.place.path(number), &this.options)?;
            let mut changes = Changes::default();
            records.into_iter().for_each(|(key, value)| changes.put(key, value));
            Tables::write(&db, changes)?;
            db.flush()?;
            // A crash from here on leaves the new generation.
            this.place.counts.store(number, Ordering::Relaxed);
            *this.current.write().expect("no holder panics") = Arc::new(db);
            Ok(())
        }
        .boxed()
    }
}
