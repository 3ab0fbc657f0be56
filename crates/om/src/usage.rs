//! The usage of each bucket, for Prometheus, and of all together, for whoever places new ones.

use crate::rules::VOLUME;
use crate::tables::{BUCKETS_PREFIX, decode};
use crate::upgrade::rows;
use metrics::{Exposition, Metric};
use proto::om::{Bucket, BucketRecord};
use statedb::Db;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

/// The most buckets that are told of by name; the others are told of together. Two series for each, so 200.
pub(crate) const BUCKETS_NAMED_MAX: usize = 100;
/// The name of all other buckets together: no bucket's name, as it has an underscore.
const OTHERS: &str = "_others";

const BUCKETS: Metric = Metric { name: "flotilla_om_buckets", help: "Buckets." };
const KEYS: Metric = Metric {
    name: "flotilla_om_bucket_keys",
    help: "Keys of each of the buckets with the most bytes, and of all others together.",
};
const BYTES: Metric = Metric {
    name: "flotilla_om_bucket_bytes",
    help: "Bytes of the objects of each of the buckets with the most bytes, and of all others together.",
};

/// The changes in the rows of buckets: their keys, and what is there now.
pub(crate) type BucketRows = Vec<(Vec<u8>, Option<Vec<u8>>)>;

/// The rows of all buckets, in memory, so that nobody reads them to be told. They follow the tables that were
/// looked at last; other tables, as those of a snapshot that was installed, are read once when somebody asks.
#[derive(Debug, Default)]
pub(crate) struct Usage {
    known: Mutex<KnownRows>,
}

#[derive(Debug, Default)]
struct KnownRows {
    /// The tables that this is known of; they are not kept open for it.
    tables: Weak<Db>,
    buckets: BTreeMap<Arc<[u8]>, BucketRecord>,
    by_bytes: BTreeSet<(Reverse<u64>, Arc<[u8]>)>,
    keys: u64,
    bytes: u64,
}

impl Usage {
    /// Reads the rows of all buckets, unless they are known: a moment for thousands.
    pub(crate) fn read(&self, tables: &Arc<Db>) -> anyhow::Result<()> {
        self.known.lock().expect("no holder panics").read(tables)
    }

    /// Follows what has just been written to `tables`. The one writer of the tables calls this after each
    /// write, so that what is known is never older than its last call, whoever reads meanwhile.
    pub(crate) fn follow(&self, tables: &Arc<Db>, changed: BucketRows) -> anyhow::Result<()> {
        let mut known = self.known.lock().expect("no holder panics");
        if !known.is_of(tables) {
            return Ok(());
        }
        for (row, value) in changed {
            let record = value.map(|value| decode(&row, &value)).transpose()?;
            known.put(row.into(), record);
        }
        Ok(())
    }

    /// The keys of all buckets. `None` where their rows cannot be read, of which [`Usage::expose`] tells.
    pub(crate) fn keys(&self, tables: &Arc<Db>) -> Option<u64> {
        let mut known = self.known.lock().expect("no holder panics");
        known.read(tables).is_ok().then_some(known.keys)
    }

    pub(crate) fn expose(&self, tables: &Arc<Db>, labels: &[(&str, &str)], exposition: &mut Exposition) {
        let mut known = self.known.lock().expect("no holder panics");
        if let Err(error) = known.read(tables) {
            tracing::warn!(error = format!("{error:#}"), "read the buckets to tell what they have");
            return;
        }
        exposition.gauge(BUCKETS, labels, known.buckets.len() as u64);
        let mut expose = |name: &str, keys: u64, bytes: u64| {
            let labels = [labels, &[("bucket", name)]].concat();
            exposition.gauge(KEYS, &labels, keys);
            exposition.gauge(BYTES, &labels, bytes);
        };
        let (mut keys, mut bytes) = (known.keys, known.bytes);
        for (_, row) in known.by_bytes.iter().take(BUCKETS_NAMED_MAX) {
            let record = &known.buckets[row];
            keys = keys.wrapping_sub(record.keys);
            bytes = bytes.wrapping_sub(record.bytes);
            expose(&record.bucket.as_ref().map(named).unwrap_or_default(), record.keys, record.bytes);
        }
        expose(OTHERS, keys, bytes);
    }
}

/// The name of a bucket among those of all volumes: S3's, which are in one, need no other.
fn named(bucket: &Bucket) -> String {
    match bucket.volume.as_str() {
        VOLUME | "" => bucket.name.clone(),
        volume => format!("{volume}/{}", bucket.name),
    }
}

impl KnownRows {
    fn is_of(&self, tables: &Arc<Db>) -> bool {
        self.tables.as_ptr() == Arc::as_ptr(tables)
    }

    fn read(&mut self, tables: &Arc<Db>) -> anyhow::Result<()> {
        if self.is_of(tables) {
            return Ok(());
        }
        let mut known = KnownRows { tables: Arc::downgrade(tables), ..KnownRows::default() };
        for row in rows(tables, BUCKETS_PREFIX) {
            let (row, value) = row?;
            let record = decode(&row, &value)?;
            known.put(row.into(), Some(record));
        }
        *self = known;
        Ok(())
    }

    fn put(&mut self, row: Arc<[u8]>, record: Option<BucketRecord>) {
        if let Some(was) = self.buckets.remove(&row) {
            self.keys = self.keys.wrapping_sub(was.keys);
            self.bytes = self.bytes.wrapping_sub(was.bytes);
            self.by_bytes.remove(&(Reverse(was.bytes), row.clone()));
        }
        if let Some(record) = record {
            self.keys = self.keys.wrapping_add(record.keys);
            self.bytes = self.bytes.wrapping_add(record.bytes);
            self.by_bytes.insert((Reverse(record.bytes), row.clone()));
            self.buckets.insert(row, record);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prost::Message;
    use proto::om::Bucket;
    use rocksdb::WriteBatch;
    use std::path::Path;

    fn open(dir: &Path) -> Arc<Db> {
        Arc::new(Db::open(dir, &statedb::DbOptions::default()).unwrap())
    }

    fn row(name: &str, keys: u64, bytes: u64) -> (Vec<u8>, Option<Vec<u8>>) {
        let bucket = Some(Bucket { name: name.to_owned(), ..Bucket::default() });
        let record = BucketRecord { id: 1, bucket, keys, bytes, ..BucketRecord::default() };
        ([BUCKETS_PREFIX, name.as_bytes()].concat(), Some(record.encode_to_vec()))
    }

    fn write(db: &Arc<Db>, usage: &Usage, rows: BucketRows) {
        let mut batch = WriteBatch::default();
        for (key, value) in &rows {
            match value {
                Some(value) => batch.put(key, value),
                None => batch.delete(key),
            }
        }
        db.write(batch).unwrap();
        usage.follow(db, rows).unwrap();
    }

    fn lines(usage: &Usage, db: &Arc<Db>) -> Vec<String> {
        let mut exposition = Exposition::default();
        usage.expose(db, &[], &mut exposition);
        let text = exposition.finish();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn line(name: &str, keys: u64, bytes: u64) -> [String; 2] {
        [
            format!("flotilla_om_bucket_keys{{bucket=\"{name}\"}} {keys}"),
            format!("flotilla_om_bucket_bytes{{bucket=\"{name}\"}} {bytes}"),
        ]
    }

    #[test]
    fn the_largest_buckets_are_named_and_the_others_told_of_together() {
        let dir = tempfile::tempdir().unwrap();
        let (db, usage) = (open(dir.path()), Usage::default());
        usage.read(&db).unwrap();
        let count = BUCKETS_NAMED_MAX as u64 + 20;
        write(&db, &usage, (1..=count).map(|n| row(&format!("bucket-{n:03}"), n, 1000 * n)).collect());
        let told = lines(&usage, &db);
        assert_eq!(told.len(), 1 + 2 * (BUCKETS_NAMED_MAX + 1), "{told:?}");
        assert!(told.contains(&format!("flotilla_om_buckets {count}")));
        let is_told =
            |told: &[String], [keys, bytes]: [String; 2]| told.contains(&keys) && told.contains(&bytes);
        assert!(is_told(&told, line("bucket-021", 21, 21_000)));
        assert!(is_told(&told, line(OTHERS, 20 * 21 / 2, 1000 * 20 * 21 / 2)), "{told:?}");

        // One bucket grows into the first hundred, and another one goes.
        let mut gone = row("bucket-120", 0, 0);
        gone.1 = None;
        write(&db, &usage, vec![row("bucket-001", 7, 1 << 40), gone]);
        let told = lines(&usage, &db);
        assert!(is_told(&told, line("bucket-001", 7, 1 << 40)));
        assert!(is_told(&told, line(OTHERS, 20 * 21 / 2 - 1, 1000 * (20 * 21 / 2 - 1))), "{told:?}");
        assert!(!told.iter().any(|line| line.contains("bucket-120")));

        // The same is told by whoever reads the tables anew, and by whoever sees others first.
        assert_eq!(lines(&Usage::default(), &db), told);
        let other = tempfile::tempdir().unwrap();
        let installed = open(other.path());
        write(&installed, &usage, vec![row("new", 1, 2)]);
        let of_installed = lines(&usage, &installed);
        assert!(is_told(&of_installed, line("new", 1, 2)) && is_told(&of_installed, line(OTHERS, 0, 0)));
        assert_eq!(of_installed.len(), 5);
        write(&installed, &usage, vec![row("new", 3, 4)]);
        assert!(is_told(&lines(&usage, &installed), line("new", 3, 4)));
    }

    #[test]
    fn keys_that_cannot_be_counted_are_unknown_and_not_none() {
        let dir = tempfile::tempdir().unwrap();
        let db = open(dir.path());
        write(&db, &Usage::default(), vec![row("whole", 3, 4)]);
        assert_eq!(Usage::default().keys(&db), Some(3));
        let (damaged, _) = row("damaged", 0, 0);
        let mut batch = WriteBatch::default();
        batch.put(damaged, b"\xff");
        db.write(batch).unwrap();
        assert_eq!(Usage::default().keys(&db), None);
    }
}
