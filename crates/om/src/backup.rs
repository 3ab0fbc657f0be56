//! All that a group has at one moment, as a backup takes it (docs/format/om-backup.md): read from a snapshot
//! of RocksDB, sent as fast as it is taken. Nothing waits for it; old versions of rows are kept until it
//! ends.

use crate::rules::ROWS_PART_BYTES;
use crate::tables::{
    APPLIED_KEY, FORMAT, NAMES_PREFIX, NEXT_BUCKET_KEY, OF_THIS_LOG, RESTORED_KEY, ROOT, UNSETTLED_PREFIX,
    decode, successor,
};
use anyhow::{Context, bail};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use md5::{Digest, Md5};
use proto::Failure;
use proto::om::backup_part::Part;
use proto::om::{BackupEnd, BackupHead, BackupPart, BackupRows, MovedRow, RestoredNames};
use raft::Applied;
use rocksdb::{DB, Direction, IteratorMode, ReadOptions, SnapshotWithThreadMode};
use rpc::NOTHING_TAKEN_MAX;
use statedb::Db;
use std::sync::Arc;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tokio::time::timeout;
use tonic::Status;
use tracing::{info, warn};

/// Backups of groups under way at a time, each with a thread: as many as there may be groups.
pub(crate) const BACKUPS_MAX: usize = 256;
/// The most rows of a part, which one entry of a log takes when it is restored.
const PART_ROWS_MAX: usize = 4096;
/// Parts that are read before they are taken: with the one that is made, a megabyte for each group.
const PARTS_AHEAD: usize = 1;

type Snapshot<'a> = SnapshotWithThreadMode<'a, DB>;

/// Begins to send what the tables have now.
pub(crate) fn send(
    db: Arc<Db>,
    group: u64,
    permit: OwnedSemaphorePermit,
) -> BoxStream<'static, Result<BackupPart, Status>> {
    let (parts, taken) = mpsc::channel(PARTS_AHEAD);
    let runtime = Handle::current();
    tokio::task::spawn_blocking(move || {
        let _held_while_reading = permit;
        let mut send = |part| send_within(&runtime, &parts, Ok(BackupPart { part: Some(part) }));
        match read(&db, group, &mut send) {
            Ok(rows) => info!(group, rows, "sent all rows to a backup"),
            Err(_) if parts.is_closed() => info!(group, "whoever asked for a backup has enough of it"),
            Err(error) => {
                warn!(group, error = format!("{error:#}"), "send rows to a backup");
                let failure = Failure::internal(format!("send rows to a backup: {error:#}"));
                let _ = send_within(&runtime, &parts, Err(failure.into()));
            }
        }
    });
    stream::unfold(taken, async |mut taken| taken.recv().await.map(|part| (part, taken))).boxed()
}

fn send_within(
    runtime: &Handle,
    parts: &mpsc::Sender<Result<BackupPart, Status>>,
    part: Result<BackupPart, Status>,
) -> anyhow::Result<()> {
    match runtime.block_on(timeout(NOTHING_TAKEN_MAX, parts.send(part))) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(_)) => bail!("whoever asked for it is gone"),
        Err(_) => bail!("nobody has taken anything for {NOTHING_TAKEN_MAX:?}"),
    }
}

/// Hands out what the tables have at this moment, part by part; answers how many rows that were.
pub(crate) fn read(
    db: &Db,
    group: u64,
    send: &mut dyn FnMut(Part) -> anyhow::Result<()>,
) -> anyhow::Result<u64> {
    let snapshot = db.rocks().snapshot();
    send(Part::Head(head(&snapshot, group)?))?;
    let (mut rows, mut bytes, mut count) = (Vec::new(), 0, 0);
    for table in (0..=u8::MAX).filter(|table| !OF_THIS_LOG.contains(&&[*table][..])) {
        for row in rows_of(&snapshot, &[table]) {
            let (key, value) = row?;
            bytes += key.len() + value.len();
            count += 1;
            rows.push(MovedRow { key: key.into_vec().into(), value: Some(value.into_vec().into()) });
            if bytes >= ROWS_PART_BYTES || rows.len() >= PART_ROWS_MAX {
                bytes = 0;
                send(Part::Rows(BackupRows { rows: std::mem::take(&mut rows) }))?;
            }
        }
    }
    // A part of rows ends every backup, that of a group without rows too: who restores it hears of an end.
    send(Part::Rows(BackupRows { rows }))?;
    send(Part::End(BackupEnd { rows: count }))?;
    Ok(count)
}

fn head(snapshot: &Snapshot<'_>, group: u64) -> anyhow::Result<BackupHead> {
    let applied = snapshot.get(APPLIED_KEY).context("read the applied position")?;
    let applied = Applied::decode(&applied.context("nothing is applied yet")?)?.id;
    let restored = snapshot.get(RESTORED_KEY).context("read where the names come from")?;
    let restored: Option<RestoredNames> = restored.map(|value| decode(RESTORED_KEY, &value)).transpose()?;
    Ok(BackupHead {
        group,
        format: FORMAT,
        term: applied.term.0,
        index: applied.index.0,
        entries: restored.map_or(0, |restored| restored.entries) + applied.index.0 + 1,
        places: if group == ROOT { places(snapshot)? } else { Vec::new().into() },
    })
}

/// A digest of which buckets there are, where, and what is being done with them. None of it comes back to
/// what it was: each bucket and each move has a number of its own, and attempts to delete are counted.
fn places(snapshot: &Snapshot<'_>) -> anyhow::Result<bytes::Bytes> {
    let mut digest = Md5::new();
    for table in [NAMES_PREFIX, NEXT_BUCKET_KEY, UNSETTLED_PREFIX] {
        for row in rows_of(snapshot, table) {
            let (key, value) = row?;
            for part in [&key, &value] {
                digest.update((part.len() as u64).to_le_bytes());
                digest.update(part);
            }
        }
    }
    Ok(bytes::Bytes::copy_from_slice(&digest.finalize()))
}

type Row = (Box<[u8]>, Box<[u8]>);

fn rows_of<'a>(
    snapshot: &'a Snapshot<'_>,
    prefix: &[u8],
) -> impl Iterator<Item = anyhow::Result<Row>> + use<'a> {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    if let Some(end) = successor(prefix) {
        options.set_iterate_upper_bound(end);
    }
    let rows = snapshot.iterator_opt(IteratorMode::From(prefix, Direction::Forward), options);
    rows.map(|row| row.context("read tables for a backup"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request};
    use crate::ops::{
        CommitKey, CreateBucket, CreateUpload, DeleteBucket, DeleteKeys, Founded, MoveBucket, RestoreRows,
    };
    use crate::tables::{
        BucketNumber, FENCES_KEY, NUMBERS_SKIPPED, RUNS_KEY, Read, SENDING_PREFIX, is_founded, next_bucket,
        restored, sending_key,
    };
    use prost::Message;
    use proto::Code;
    use proto::om::{
        BucketMove, CreateBucketRequest, CreateUploadRequest, DeleteBucketRequest, DeleteKeysRequest,
        FoundedCommand, MoveBucketRequest, RestoreRowsRequest, SendingBucket, SettleBucketCommand,
    };
    use rocksdb::WriteBatch;
    use types::{LogId, LogIndex, Term};

    const BACKUP: [u8; 16] = [7; 16];

    fn put(namespace: &Namespace, key: &[u8], value: Vec<u8>) {
        let mut batch = WriteBatch::default();
        batch.put(key, value);
        namespace.db.write(batch).unwrap();
    }

    /// A root of which the log has come to entry 41, with a bucket that is sent elsewhere by run 3.
    fn source() -> Namespace {
        let mut namespace = Namespace::new();
        for (key, container) in [("a", 1), ("b", 2), ("c", 3), ("a", 4)] {
            namespace.commit(key, container).unwrap();
        }
        let (volume, bucket) = ("s3v".to_owned(), "photos".to_owned());
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: "up".into(),
            attributes: None,
        };
        namespace.run::<CreateUpload>(create).unwrap();
        let delete = DeleteKeysRequest { volume, bucket, keys: vec!["b".into()], precondition: None };
        namespace.run::<DeleteKeys>(delete).unwrap();
        let sending =
            SendingBucket { moved: Some(BucketMove { number: 9, ..BucketMove::default() }), run: 3 };
        put(&namespace, &sending_key(BucketNumber(9)), sending.encode_to_vec());
        let id = LogId { term: Term(3), index: LogIndex(41) };
        let applied = Applied { id, membership: bytes::Bytes::from_static(b"m") };
        put(&namespace, APPLIED_KEY, applied.encode().to_vec());
        namespace
    }

    fn taken(namespace: &Namespace) -> (BackupHead, Vec<Vec<MovedRow>>) {
        let mut parts = Vec::new();
        let mut send = |part| {
            parts.push(part);
            Ok(())
        };
        read(&namespace.db, 0, &mut send).unwrap();
        let Part::Head(head) = parts.remove(0) else { panic!("it begins with a head") };
        let Some(Part::End(end)) = parts.pop() else { panic!("it ends") };
        let rows: Vec<Vec<MovedRow>> = parts
            .into_iter()
            .map(|part| match part {
                Part::Rows(rows) => rows.rows,
                other => panic!("{other:?} among the rows"),
            })
            .collect();
        assert_eq!(end.rows, rows.iter().map(Vec::len).sum::<usize>() as u64);
        (head, rows)
    }

    /// The requests that restore a namespace, with one row a part, so that there are many.
    fn requests(namespace: &Namespace) -> Vec<RestoreRowsRequest> {
        let (head, rows) = taken(namespace);
        let rows: Vec<MovedRow> = rows.into_iter().flatten().collect();
        let count = rows.len() as u64;
        let request = |(seq, row)| RestoreRowsRequest {
            group: 0,
            backup: BACKUP.to_vec().into(),
            seq,
            rows: vec![row],
            is_last: seq == count,
            entries: head.entries,
            format: head.format,
        };
        (1..).zip(rows).map(request).collect()
    }

    /// The records of a group that a backup has.
    fn names(namespace: &Namespace) -> Vec<(Vec<u8>, Vec<u8>)> {
        let is_of_log = |key: &[u8]| OF_THIS_LOG.iter().any(|table| key.starts_with(table));
        namespace.records(b"").into_iter().filter(|(key, _)| !is_of_log(key)).collect()
    }

    #[test]
    fn what_is_restored_is_what_was_there_and_no_number_is_given_out_again() {
        let source = source();
        let (head, rows) = taken(&source);
        assert_eq!((head.term, head.index, head.entries), (3, 41, 42));
        assert_eq!(rows.len(), 1, "that little goes in one part");
        let mut group = Namespace::empty();
        for request in requests(&source) {
            // Each part comes twice, and then once more under the number of the first.
            let first = RestoreRowsRequest { seq: 1, ..request.clone() };
            let taken = group.run::<RestoreRows>(request.clone()).unwrap();
            assert_eq!(taken, group.run::<RestoreRows>(request).unwrap());
            assert_eq!(taken, group.run::<RestoreRows>(first).unwrap());
            assert!(!is_founded(&group.db).unwrap(), "nobody is served before all groups have theirs");
        }
        assert_eq!(names(&group), names(&source));
        group.now_ms = 5_000_000;
        group.run::<Founded>(FoundedCommand {}).unwrap();
        assert!(is_founded(&group.db).unwrap());
        let next = |namespace: &Namespace| next_bucket(&namespace.db).unwrap().unwrap();
        assert_eq!(next(&group), 5_000_001, "the time is past all that was given out before it");
        let sending: SendingBucket = group.db.message(&sending_key(BucketNumber(9))).unwrap().unwrap();
        assert_eq!(sending.run, 3 + NUMBERS_SKIPPED);
        let counts = [NEXT_BUCKET_KEY, SENDING_PREFIX, RUNS_KEY, FENCES_KEY];
        let number_or_run = |key: &[u8]| counts.iter().any(|count| key.starts_with(count));
        let others = |namespace: &Namespace| {
            let rows = names(namespace).into_iter().filter(|(key, _)| !number_or_run(key));
            rows.collect::<Vec<_>>()
        };
        assert_eq!(others(&group), others(&source));
        // SCM's word comes once more.
        let before = group.names();
        group.run::<Founded>(FoundedCommand {}).unwrap();
        assert_eq!(group.names(), before);
        let names = restored(&group.db).unwrap().unwrap();
        assert_eq!((names.entries, names.founded_ms), (42, 5_000_001));
    }

    #[test]
    fn a_clock_that_is_behind_gives_out_no_number_again_either() {
        let source = source();
        let mut group = Namespace::empty();
        for request in requests(&source) {
            group.run::<RestoreRows>(request).unwrap();
        }
        group.run::<Founded>(FoundedCommand {}).unwrap();
        let next = next_bucket(&source.db).unwrap().unwrap();
        assert_eq!(next_bucket(&group.db).unwrap(), Some(next + NUMBERS_SKIPPED));
    }

    #[test]
    fn what_does_not_belong_to_the_restore_is_refused_and_changes_nothing() {
        let requests = requests(&source());
        let mut group = Namespace::empty();
        group.run::<RestoreRows>(requests[0].clone()).unwrap();
        let row = |key: &'static str| vec![MovedRow { key: key.into(), value: Some("value".into()) }];
        let second = || requests[1].clone();
        for (request, code) in [
            (RestoreRowsRequest { backup: vec![8; 16].into(), ..second() }, Code::PreconditionFailed),
            (RestoreRowsRequest { backup: vec![8; 15].into(), ..second() }, Code::Invalid),
            (RestoreRowsRequest { format: FORMAT + 1, ..second() }, Code::Invalid),
            (RestoreRowsRequest { format: FORMAT - 1, ..second() }, Code::Invalid),
            (RestoreRowsRequest { seq: 3, ..second() }, Code::Invalid),
            (RestoreRowsRequest { rows: row("a"), ..second() }, Code::Invalid),
            (RestoreRowsRequest { rows: row("s1234567"), ..second() }, Code::Invalid),
            (RestoreRowsRequest { rows: row(""), ..second() }, Code::Invalid),
            (
                RestoreRowsRequest { rows: vec![MovedRow { key: "k".into(), value: None }], ..second() },
                Code::Invalid,
            ),
        ] {
            group.check_refused::<RestoreRows>(request, code);
        }
        assert_eq!(group.run::<Founded>(FoundedCommand {}).unwrap_err().code, Code::NotYet);
        assert!(!is_founded(&group.db).unwrap(), "half a backup is served to nobody");
        for request in &requests[1..] {
            group.run::<RestoreRows>(request.clone()).unwrap();
        }
        let more = RestoreRowsRequest { seq: requests.len() as u64 + 1, ..second() };
        group.check_refused::<RestoreRows>(more, Code::Invalid);
        group.run::<Founded>(FoundedCommand {}).unwrap();
        group.check_refused::<RestoreRows>(second(), Code::PreconditionFailed);
        let mut other = Namespace::new();
        other.check_refused::<RestoreRows>(requests[0].clone(), Code::PreconditionFailed);
    }

    #[test]
    fn places_change_with_whatever_becomes_of_a_bucket_and_with_nothing_else() {
        let mut root = source();
        let places = |root: &Namespace| taken(root).0.places;
        let before = places(&root);
        root.run::<CommitKey>(commit_request("new", 9)).unwrap();
        assert_eq!(places(&root), before);
        let (volume, bucket) = (|| "s3v".to_owned(), || "far".to_owned());
        let create = CreateBucketRequest { volume: volume(), bucket: bucket(), group: Some(5) };
        let number = root.run::<CreateBucket>(create).unwrap().place.unwrap().number;
        let mut seen = vec![before, places(&root)];
        let settle = |is_gone, deletion| SettleBucketCommand {
            volume: volume(),
            bucket: bucket(),
            number,
            deletion,
            is_gone,
            refused: deletion,
        };
        root.run::<crate::ops::SettleBucket>(settle(false, 0)).unwrap();
        seen.push(places(&root));
        root.run::<DeleteBucket>(DeleteBucketRequest { volume: volume(), bucket: bucket() }).unwrap();
        seen.push(places(&root));
        root.run::<crate::ops::SettleBucket>(settle(false, 1)).unwrap();
        seen.push(places(&root));
        root.run::<MoveBucket>(MoveBucketRequest { volume: volume(), bucket: bucket(), to: 6 }).unwrap();
        seen.push(places(&root));
        let distinct: std::collections::BTreeSet<_> = seen.iter().collect();
        assert_eq!(distinct.len(), seen.len(), "none is as it was before");
    }
}
