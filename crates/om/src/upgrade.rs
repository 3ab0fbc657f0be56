//! Tables of the format before become those of this one before their group is opened, and before a snapshot
//! of them counts: what is applied afterwards finds no others.
//!
//! That names are founded ([`crate::tables::is_founded`]) is no matter of formats: what members have must not
//! depend on whether they opened old tables or were sent the log, so nothing is written for it here. Tables
//! with anything in them that was asked for are those of founded names. Tables in which nothing was ever asked
//! for are not: once SCM knows their group, its leader writes that down as in any other.

use crate::tables::{
    BUCKETS_PREFIX, BucketNumber, FORMAT, FORMAT_KEY, FORMAT_UNCOUNTED, decode, format, keys_prefix,
    successor,
};
use anyhow::Context;
use disk::Disk;
use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use proto::om::{BucketRecord, Key};
use raft::{Applied, Snapshots};
use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};
use statedb::{Db, GroupDb};
use std::sync::Arc;
use tracing::info;

/// Brings the tables to this version's format, though not yet durably on return: a crash leaves the one or
/// the other, and the next start begins anew. What follows depends on the tables alone. Reads every key of a
/// store of the format before: seconds for millions.
pub(crate) fn upgrade(db: &Db) -> anyhow::Result<()> {
    if format(db)? != Some(FORMAT_UNCOUNTED) {
        return Ok(());
    }
    info!("count the keys of each bucket, once: the tables are of a version that did not");
    let mut batch = WriteBatch::default();
    for row in rows(db, BUCKETS_PREFIX) {
        let (key, value) = row?;
        let mut record: BucketRecord = decode(&key, &value)?;
        (record.keys, record.bytes) = count(db, BucketNumber(record.id))?;
        info!(
            bucket = record.bucket.as_ref().map(|bucket| &bucket.name),
            record.keys, record.bytes, "counted"
        );
        batch.put(key, record.encode_to_vec());
    }
    batch.put(FORMAT_KEY, FORMAT.to_le_bytes());
    db.write(batch).context("write what was counted")
}

/// Snapshots of tables, which become those of this format when they are installed: who sends one may have
/// written it before it was upgraded.
pub(crate) struct Upgrading(pub(crate) Arc<dyn GroupDb>);

impl Snapshots for Upgrading {
    fn disk(&self) -> Arc<dyn Disk> {
        self.0.disk()
    }

    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        self.0.write(dir)
    }

    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>> {
        self.0.check(dir)
    }

    /// A crash before the end is one before the next opening, which upgrades too.
    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>> {
        let (installed, dbs) = (self.0.install(dir), self.0.clone());
        async move {
            installed.await?;
            let tables = dbs.current();
            raft::blocking(move || upgrade(&tables)).await.context("upgrade installed tables")?
        }
        .boxed()
    }
}

/// The bucket's keys and their bytes, from its keys.
pub(crate) fn count(db: &Db, bucket: BucketNumber) -> anyhow::Result<(u64, u64)> {
    let (mut keys, mut bytes) = (0, 0u64);
    for row in rows(db, &keys_prefix(bucket)) {
        let (key, value) = row?;
        keys += 1;
        bytes = bytes.wrapping_add(decode::<Key>(&key, &value)?.size);
    }
    Ok((keys, bytes))
}

pub(crate) type Row = (Box<[u8]>, Box<[u8]>);

/// Those whose keys start with `prefix`, past RocksDB's cache.
pub(crate) fn rows(db: &Db, prefix: &[u8]) -> impl Iterator<Item = anyhow::Result<Row>> {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    if let Some(end) = successor(prefix) {
        options.set_iterate_upper_bound(end);
    }
    let rows = db.rocks().iterator_opt(IteratorMode::From(prefix, Direction::Forward), options);
    rows.map(|row| row.context("scan tables"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CreateBucket;
    use crate::ops::testing::Namespace;
    use crate::tables::is_founded;
    use bytes::Bytes;
    use proto::om::CreateBucketRequest;
    use statedb::DbGenerations;

    fn put_format(db: &Db, format: u32) {
        let mut batch = WriteBatch::default();
        batch.put(FORMAT_KEY, format.to_le_bytes());
        db.write(batch).unwrap();
    }

    #[test]
    fn tables_of_the_format_before_are_counted_once() {
        let mut namespace = Namespace::new();
        let music = CreateBucketRequest { volume: "s3v".into(), bucket: "music".into() };
        namespace.run::<CreateBucket>(music).unwrap();
        for key in ["a", "b", "c", "a"] {
            namespace.commit(key, 1).unwrap();
        }
        put_format(&namespace.db, FORMAT);
        let counted = namespace.records(b"");

        let mut batch = WriteBatch::default();
        for (key, value) in namespace.records(BUCKETS_PREFIX) {
            let record = BucketRecord { keys: 0, bytes: 0, ..decode(&key, &value).unwrap() };
            batch.put(key, record.encode_to_vec());
        }
        namespace.db.write(batch).unwrap();
        put_format(&namespace.db, FORMAT_UNCOUNTED);
        assert_ne!(namespace.records(b""), counted);
        upgrade(&namespace.db).unwrap();
        assert_eq!(namespace.records(b""), counted, "as if it had counted from the beginning");
        upgrade(&namespace.db).unwrap();
        assert_eq!(namespace.records(b""), counted);
    }

    #[test]
    fn old_names_are_founded_and_a_group_of_which_nothing_was_asked_is_not() {
        let namespace = Namespace::new();
        put_format(&namespace.db, FORMAT_UNCOUNTED);
        upgrade(&namespace.db).unwrap();
        assert!(namespace.records(crate::tables::FOUNDED_KEY).is_empty(), "no member has what others lack");
        assert!(is_founded(&namespace.db).unwrap());

        // What a leader's first entries leave behind.
        let begun = Namespace::empty();
        put_format(&begun.db, FORMAT);
        upgrade(&begun.db).unwrap();
        assert!(!is_founded(&begun.db).unwrap());
    }

    #[tokio::test]
    async fn a_snapshot_of_the_format_before_is_upgraded_when_it_is_installed() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(disk::RealDisk::open(&dir.path().join("disk"), 1).unwrap());
        let options = statedb::DbOptions::default();
        let dbs = DbGenerations::open(disk, "db", &options, crate::tables::APPLIED_KEY).await.unwrap();
        let old = Namespace::new();
        let mut batch = WriteBatch::default();
        for (key, value) in old.records(b"") {
            batch.put(key, value);
        }
        let applied = Applied { id: types::LogId::default(), membership: Bytes::new() };
        Db::put_applied(&mut batch, crate::tables::APPLIED_KEY, &applied);
        batch.put(FORMAT_KEY, FORMAT_UNCOUNTED.to_le_bytes());
        dbs.current().write(batch).unwrap();
        let snapshots = Upgrading(Arc::new(dbs.clone()));
        snapshots.write("snapshot".to_owned()).await.unwrap();
        snapshots.install("snapshot".to_owned()).await.unwrap();
        assert_eq!(format(&dbs.current()).unwrap(), Some(FORMAT));
    }

    #[test]
    fn empty_tables_are_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &statedb::DbOptions::default()).unwrap();
        upgrade(&db).unwrap();
        assert_eq!(rows(&db, b"").count(), 0);
    }
}
