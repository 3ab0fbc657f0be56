//! Tables of earlier formats are brought to this one before their group is opened, and before a snapshot of
//! them counts: what is applied afterwards finds no others.
//!
//! That names are founded ([`crate::tables::is_founded`]) is no matter of formats: what members have must not
//! depend on whether they opened old tables or were sent the log, so nothing is written for it here. Tables
//! with anything in them that was asked for are those of founded names. Tables in which nothing was ever
//! asked for are not: once SCM knows their group, its leader writes that down as in any other.

use crate::blocks::{self, BlockKey, NAMED_PREFIX, UNUSED_PREFIX};
use crate::filed::Filed;
use crate::tables::{
    ANSWERS_PREFIX_V4, BucketNumber, DELETED_PREFIX, FORMAT, FORMAT_BY_NAME, FORMAT_BY_REQUEST, FORMAT_KEY,
    FORMAT_UNCOUNTED, FORMAT_UNNAMED, NAMES_PREFIX, QUEUE_KEY, ROOT, Read, UNUSED_TOTALS_KEY, decode, format,
    keys_prefix, record_key, remembered_key, successor,
};
use anyhow::Context;
use disk::Disk;
use futures::FutureExt;
use futures::future::BoxFuture;
use prost::Message;
use proto::om::{
    BucketEntry, BucketRecord, DeletedPieces, Key, RememberedAnswerV4, RememberedRequestV4,
    RememberedRequests, RequestQueue, UnusedBlock, UnusedTotals,
};
use raft::{Applied, Snapshots};
use rocksdb::{Direction, IteratorMode, ReadOptions, WriteBatch};
use statedb::{Db, GroupDb};
use std::sync::Arc;
use tracing::info;

/// Brings the tables to this version's format, though not yet durably on return: a crash leaves the one or
/// the other, and the next start begins anew. What follows depends on the tables alone. Reads every key of a
/// store whose buckets were not counted: seconds for millions.
pub(crate) fn upgrade(db: &Db) -> anyhow::Result<()> {
    let Some(before) = format(db)?.filter(|format| *format < FORMAT) else { return Ok(()) };
    info!(before, "the tables are of an older version");
    let mut batch = WriteBatch::default();
    if before <= FORMAT_BY_NAME {
        divide_buckets(db, &mut batch, before)?;
    }
    if before <= FORMAT_BY_REQUEST {
        join_requests(db, &mut batch)?;
    }
    if before <= FORMAT_UNNAMED {
        name_blocks(db)?;
        // Where nothing is filed there is no record: who applies the rest of the old log to new tables has
        // none either.
        match count_filed(db)? {
            nothing if nothing == UnusedTotals::default() => batch.delete(UNUSED_TOTALS_KEY),
            filed => batch.put(UNUSED_TOTALS_KEY, filed.encode_to_vec()),
        }
    }
    batch.put(FORMAT_KEY, FORMAT.to_le_bytes());
    db.write(batch).context("write what became of the tables")
}

/// Makes two rows of each bucket's one: its name in the root, and what is in it; the group of before is the
/// root.
fn divide_buckets(db: &Db, batch: &mut WriteBatch, before: u32) -> anyhow::Result<()> {
    for row in rows(db, NAMES_PREFIX) {
        let (key, value) = row?;
        let mut record: BucketRecord = decode(&key, &value)?;
        let number = BucketNumber(record.id);
        if before <= FORMAT_UNCOUNTED {
            (record.keys, record.bytes) = count(db, number)?;
            let bucket = record.bucket.as_ref().map(|bucket| &bucket.name);
            info!(bucket, record.keys, record.bytes, "counted");
        }
        let bucket = record.bucket.clone();
        let entry = BucketEntry { number: number.0, bucket, group: ROOT, ..BucketEntry::default() };
        batch.put(key, entry.encode_to_vec());
        batch.put(record_key(number), record.encode_to_vec());
    }
    Ok(())
}

/// Makes one row of the two that each remembered request has. Each was the only one of its entry, and keeps
/// its place: members that apply the rest of the old log to new tables remember the same.
fn join_requests(db: &Db, batch: &mut WriteBatch) -> anyhow::Result<()> {
    let Some(mut queue) = db.message::<RequestQueue>(QUEUE_KEY)? else { return Ok(()) };
    queue.bytes = 0;
    queue.requests = queue.next - queue.first;
    for place in queue.first..queue.next {
        let key = remembered_key(place);
        let place: RememberedRequestV4 = db.message(&key)?.unwrap_or_default();
        let answer_key = [ANSWERS_PREFIX_V4, &place.request_id].concat();
        let answer: RememberedAnswerV4 = db.message(&answer_key)?.unwrap_or_default();
        let entry = RememberedRequests {
            request_ids: place.request_id,
            request_digests: answer.request_digest,
            replies: vec![answer.reply.unwrap_or_default()],
            at_ms: place.at_ms,
            buckets: Vec::new(),
        };
        let entry = entry.encode_to_vec();
        queue.bytes += (key.len() + entry.len()) as u64;
        batch.put(key, entry);
        batch.delete(answer_key);
    }
    batch.put(QUEUE_KEY, queue.encode_to_vec());
    Ok(())
}

/// The most rows in one write of [`name_blocks`]: some MiB of memory.
const NAMED_AT_ONCE: usize = 10_000;

/// Says what names each block, which for millions of keys takes some seconds. A crash leaves a part, which
/// the next try writes once more: nobody changes keys meanwhile, but a release of before may, so what it
/// finds of this it deletes.
fn name_blocks(db: &Db) -> anyhow::Result<()> {
    let mut batch = WriteBatch::default();
    let write = |batch: &mut WriteBatch, at_least: usize| match batch.len() >= at_least {
        true => db.write(std::mem::take(batch)).context("write what names blocks"),
        false => Ok(()),
    };
    for row in rows(db, NAMED_PREFIX) {
        batch.delete(row?.0);
        write(&mut batch, NAMED_AT_ONCE)?;
    }
    let mut named = 0u64;
    for table in [&b"k"[..], b"p"] {
        for row in rows(db, table) {
            let (key, value) = row?;
            for block in blocks::pieces_of(&key, &value)?.iter().filter_map(BlockKey::of) {
                batch.put(block.named_key(&key), []);
                named += 1;
            }
            write(&mut batch, NAMED_AT_ONCE)?;
        }
    }
    write(&mut batch, 1)?;
    info!(named, "noted what names which blocks");
    Ok(())
}

/// The totals of what is filed, counted from all that is.
pub(crate) fn count_filed(db: &Db) -> anyhow::Result<UnusedTotals> {
    let mut filed = Filed::default();
    for row in rows(db, DELETED_PREFIX) {
        let (key, value) = row?;
        filed.delete(&decode::<DeletedPieces>(&key, &value)?.pieces);
    }
    for row in rows(db, UNUSED_PREFIX) {
        let (key, value) = row?;
        filed.unused(1, decode::<UnusedBlock>(&key, &value)?.bytes);
    }
    Ok(filed.change())
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

    /// Installs a snapshot, and upgrades its tables. After a crash before the end the next opening upgrades
    /// them.
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

/// The rows whose keys start with `prefix`, read past RocksDB's cache.
pub(crate) fn rows(db: &Db, prefix: &[u8]) -> impl Iterator<Item = anyhow::Result<Row>> {
    rows_from(db, prefix, prefix)
}

/// The rows whose keys start with `prefix`, from a key on, read past RocksDB's cache.
pub(crate) fn rows_from(db: &Db, prefix: &[u8], from: &[u8]) -> impl Iterator<Item = anyhow::Result<Row>> {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    if let Some(end) = successor(prefix) {
        options.set_iterate_upper_bound(end);
    }
    let rows = db.rocks().iterator_opt(IteratorMode::From(from, Direction::Forward), options);
    rows.map(|row| row.context("scan tables"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::tables::{BUCKETS_PREFIX, FORMAT_UNFENCED, FORMAT_UNNUMBERED, REMEMBERED_PREFIX, is_founded};
    use bytes::Bytes;
    use statedb::DbGenerations;

    fn put_format(db: &Db, format: u32) {
        let mut batch = WriteBatch::default();
        batch.put(FORMAT_KEY, format.to_le_bytes());
        db.write(batch).unwrap();
    }

    /// Takes away what earlier formats do not have: what names blocks, and of what row deleted pieces were.
    fn make_unnamed(db: &Db) {
        let mut batch = WriteBatch::default();
        rows(db, NAMED_PREFIX).for_each(|row| batch.delete(row.unwrap().0));
        batch.delete(UNUSED_TOTALS_KEY);
        for row in rows(db, DELETED_PREFIX) {
            let (key, value) = row.unwrap();
            let record: DeletedPieces = decode(&key, &value).unwrap();
            batch.put(key, DeletedPieces { row: Bytes::new(), ..record }.encode_to_vec());
        }
        db.write(batch).unwrap();
    }

    /// Makes tables of an earlier format: one row for each bucket, and two for each request, each in an entry
    /// of its own.
    fn make_old(db: &Db, format: u32) {
        if format == FORMAT_UNFENCED {
            return put_format(db, format);
        }
        make_unnamed(db);
        let mut batch = WriteBatch::default();
        if format >= FORMAT_UNNUMBERED {
            return put_format(db, format);
        }
        for row in rows(db, BUCKETS_PREFIX) {
            let (key, value) = row.unwrap();
            let mut record: BucketRecord = decode(&key, &value).unwrap();
            if format == FORMAT_UNCOUNTED {
                (record.keys, record.bytes) = (0, 0);
            }
            let bucket = record.bucket.clone().unwrap();
            batch.put(crate::tables::bucket_key(&bucket.volume, &bucket.name), record.encode_to_vec());
            batch.delete(key);
        }
        batch.put(FORMAT_KEY, format.to_le_bytes());
        if format == FORMAT_BY_NAME {
            return db.write(batch).unwrap();
        }
        for row in rows(db, REMEMBERED_PREFIX) {
            let (key, value) = row.unwrap();
            let RememberedRequests { request_ids, request_digests, replies, at_ms, .. } =
                decode(&key, &value).unwrap();
            assert_eq!(replies.len(), 1);
            let answer_key = [ANSWERS_PREFIX_V4, &request_ids].concat();
            let place = RememberedRequestV4 { request_id: request_ids, at_ms, bytes: 77 };
            batch.put(key, place.encode_to_vec());
            let reply = replies.into_iter().next();
            batch.put(
                answer_key,
                RememberedAnswerV4 { request_digest: request_digests, reply }.encode_to_vec(),
            );
        }
        if let Some(queue) = db.message::<RequestQueue>(QUEUE_KEY).unwrap() {
            batch.put(QUEUE_KEY, RequestQueue { bytes: 77, requests: 0, ..queue }.encode_to_vec());
        }
        db.write(batch).unwrap();
    }

    /// All rows as upgrading old ones leaves them: what is remembered does not say which buckets it was
    /// about, nor what is deleted which row named it, and that row is not said to name it any more either.
    fn unnumbered(namespace: &Namespace) -> Vec<(Vec<u8>, Vec<u8>)> {
        let strip = |(key, value): (Vec<u8>, Vec<u8>)| {
            if key.starts_with(DELETED_PREFIX) {
                let record: DeletedPieces = decode(&key, &value).unwrap();
                return (key, DeletedPieces { row: Bytes::new(), ..record }.encode_to_vec());
            }
            if !key.starts_with(REMEMBERED_PREFIX) {
                return (key, value);
            }
            let entry: RememberedRequests = decode(&key, &value).unwrap();
            (key, RememberedRequests { buckets: Vec::new(), ..entry }.encode_to_vec())
        };
        let mut rows = blocks::NamingRows::default();
        let is_so = |(key, _): &(Vec<u8>, Vec<u8>)| {
            let block = BlockKey::in_key(key).filter(|_| key.starts_with(NAMED_PREFIX));
            block.is_none_or(|block| {
                rows.bytes(&namespace.db, blocks::naming_row(key), &block).unwrap().is_some()
            })
        };
        namespace.records(b"").into_iter().filter(is_so).map(strip).collect()
    }

    #[test]
    fn tables_of_formats_before_become_what_they_would_have_been() {
        let before = [FORMAT_UNCOUNTED, FORMAT_BY_REQUEST, FORMAT_BY_NAME, FORMAT_UNNUMBERED, FORMAT_UNNAMED];
        for old in before.into_iter().chain([FORMAT_UNFENCED]) {
            let mut namespace = Namespace::empty();
            ["photos", "music"].into_iter().for_each(|bucket| namespace.create_as_before(bucket));
            for (key, container) in [("a", 1), ("b", 1), ("c", 1), ("a", 2)] {
                namespace.commit(key, container).unwrap();
            }
            put_format(&namespace.db, FORMAT);
            let mut wanted = unnumbered(&namespace);
            make_old(&namespace.db, old);
            assert_ne!(namespace.records(b""), wanted);
            let answers = if old >= FORMAT_BY_NAME { 0 } else { 6 };
            assert_eq!(namespace.records(ANSWERS_PREFIX_V4).len(), answers);
            upgrade(&namespace.db).unwrap();
            // Rows that this release writes say more, and the queue counts the bytes of that.
            let queue_row = |rows: &mut Vec<(Vec<u8>, Vec<u8>)>| rows.retain(|(key, _)| key != QUEUE_KEY);
            let mut upgraded = unnumbered(&namespace);
            queue_row(&mut upgraded);
            queue_row(&mut wanted);
            assert_eq!(upgraded, wanted, "as if it had been so from the beginning");
            let wanted = namespace.records(b"");
            upgrade(&namespace.db).unwrap();
            assert_eq!(namespace.records(b""), wanted);
        }
    }

    #[test]
    fn old_names_are_founded_and_a_group_of_which_nothing_was_asked_is_not() {
        let namespace = Namespace::new();
        make_old(&namespace.db, FORMAT_UNCOUNTED);
        upgrade(&namespace.db).unwrap();
        assert!(namespace.records(crate::tables::FOUNDED_KEY).is_empty(), "no member has what others lack");
        assert!(is_founded(&namespace.db).unwrap());

        // Tables as a leader's first entries leave them.
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
        make_old(&old.db, FORMAT_BY_REQUEST);
        let mut batch = WriteBatch::default();
        for (key, value) in old.records(b"") {
            batch.put(key, value);
        }
        let applied = Applied { id: types::LogId::default(), membership: Bytes::new() };
        Db::put_applied(&mut batch, crate::tables::APPLIED_KEY, &applied);
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
