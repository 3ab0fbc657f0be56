use crate::counted::Batches;
use crate::lane;
use crate::ops;
use crate::overlay::Overlay;
use crate::tables::{APPLIED_KEY, BUCKETS_PREFIX, FORMAT, FORMAT_KEY};
use crate::upgrade::Upgrading;
use crate::usage::{BucketRows, Usage};
use anyhow::Context;
use bytes::Bytes;
use prost::Message;
use proto::om::{OmReplies, OmReply};
use raft::{Applied, Committed, Snapshots, StateMachine};
use statedb::{Db, GroupDb};
use std::sync::Arc;
use tokio::time::Instant;

/// The namespace as a replicated state: tables in a RocksDB that has Raft's log for its WAL.
pub(crate) struct OmStateMachine {
    pub(crate) dbs: Arc<dyn GroupDb>,
    pub(crate) usage: Arc<Usage>,
    pub(crate) batches: Arc<Batches>,
}

impl StateMachine for OmStateMachine {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.dbs.current().applied(APPLIED_KEY)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let db = self.dbs.current();
        let (replies, buckets) = apply(&db, batch, &applied, &self.batches)?;
        self.usage.follow(&db, buckets)?;
        Ok(replies)
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        Some(Arc::new(Upgrading(self.dbs.clone())))
    }
}

/// The answers, and what changed in the rows of buckets.
fn apply(
    db: &Db,
    batch: Vec<Committed>,
    applied: &Applied,
    batches: &Batches,
) -> anyhow::Result<(Vec<Bytes>, BucketRows)> {
    let mut commands = 0;
    let mut overlay = Overlay::new(db);
    let mut replies = Vec::with_capacity(batch.len());
    for committed in batch {
        let index = committed.id.index.0;
        let (merged, is_entry) =
            lane::commands(committed.meta).with_context(|| format!("decode entry {index}"))?;
        commands += merged.len();
        batches.note_entry(merged.len());
        let mut filed = 0;
        let applied = merged.into_iter().map(|command| ops::apply(&mut overlay, index, &mut filed, command));
        let mut applied = applied.collect::<anyhow::Result<Vec<OmReply>>>()?;
        let reply = match is_entry {
            true => OmReplies { replies: applied }.encode_to_vec(),
            false => applied.pop().context("a command without an answer")?.encode_to_vec(),
        };
        replies.push(Bytes::from(reply));
    }
    let buckets = overlay.changed(BUCKETS_PREFIX);
    let mut batch = overlay.into_batch();
    let rows = batch.len();
    batch.put(FORMAT_KEY, FORMAT.to_le_bytes());
    Db::put_applied(&mut batch, APPLIED_KEY, applied);
    // For metrics alone: what is applied does not depend on it.
    let begun = Instant::now();
    db.write(batch).context("write applied commands")?;
    batches.note(commands, rows, begun.elapsed());
    Ok((replies, buckets))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{commit_request, pieces};
    use crate::ops::{CommitKey, CreateBucket, CreateUpload, DeleteKeys, Fresh, Operation};
    use crate::tables::{BucketNumber, decode, format};
    use crate::upgrade::count;
    use metrics::Exposition;
    use proptest::prelude::*;
    use proto::RequestId;
    use proto::om::{
        BucketRecord, CreateBucketRequest, CreateUploadRequest, DeleteKeysRequest, OmReply, om_reply,
    };
    use raftlog::Place;
    use std::path::Path;
    use types::{LogId, LogIndex, OwnerId, Term};

    fn open(path: &Path) -> Db {
        Db::open(path, &statedb::DbOptions::default()).unwrap()
    }

    fn applied_index(db: &Db) -> u64 {
        db.applied(APPLIED_KEY).unwrap().unwrap().id.index.0
    }

    fn committed<O: Operation>(index: u64, request: O::Request) -> Committed {
        committed_as::<O>(index, u128::from(index) << 64, request)
    }

    fn committed_as<O: Operation>(index: u64, id: u128, request: O::Request) -> Committed {
        let fresh = Fresh { random: index.into(), now_ms: index };
        let command = ops::prepare::<O>(RequestId(id), request, fresh).unwrap();
        Committed {
            id: LogId { term: Term(1), index: LogIndex(index) },
            meta: Bytes::from(command.encode_to_vec()),
            place: Place { owner: OwnerId(0), segment: 0, offset: 0, body_bytes: 0 },
            roll_to: None,
        }
    }

    fn apply(db: &Db, batch: &[Committed]) -> Vec<OmReply> {
        let applied = Applied { id: batch.last().unwrap().id, membership: Bytes::from("m") };
        let (replies, _) = super::apply(db, batch.to_vec(), &applied, &Batches::default()).unwrap();
        replies.into_iter().map(|reply| OmReply::decode(reply).unwrap()).collect()
    }

    fn records(db: &Db) -> Vec<(Vec<u8>, Vec<u8>)> {
        Overlay::new(db).scan(b"").collect::<anyhow::Result<_>>().unwrap()
    }

    fn command(index: u64, kind: u8, key: &str) -> Committed {
        let bucket = || ("s3v".to_owned(), "photos".to_owned());
        match kind {
            // The same request again, or its id for another key.
            0..=3 => committed_as::<CommitKey>(index, kind.into(), commit_request(key, kind.into())),
            4..=7 => {
                let mut request = commit_request(key, index);
                let key = request.key.as_mut().unwrap();
                (key.size, key.pieces) = (index + 1, pieces(index, index + 1));
                committed::<CommitKey>(index, request)
            }
            8 => {
                let ((volume, bucket), key) = (bucket(), Bytes::copy_from_slice(key.as_bytes()));
                committed::<CreateUpload>(
                    index,
                    CreateUploadRequest { volume, bucket, key, attributes: None },
                )
            }
            _ => {
                let ((volume, bucket), keys) = (bucket(), vec![Bytes::copy_from_slice(key.as_bytes())]);
                committed::<DeleteKeys>(index, DeleteKeysRequest { volume, bucket, keys, precondition: None })
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        /// The tables and the answers are the same to the byte, however the log is cut into batches, and
        /// wherever a crash makes it start again.
        #[test]
        fn batches_and_restarts_make_no_difference(
            commands in prop::collection::vec((0u8..11, "[abc]"), 1..30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            crash in any::<prop::sample::Index>(),
        ) {
            let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
            let mut log = vec![committed::<CreateBucket>(0, bucket)];
            log.extend((1u64..).zip(&commands).map(|(index, (kind, key))| command(index, *kind, key)));
            let dir = tempfile::tempdir().unwrap();

            let one_by_one = open(&dir.path().join("one-by-one"));
            let answers: Vec<_> = log.iter().flat_map(|c| apply(&one_by_one, std::slice::from_ref(c))).collect();

            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(log.len())).chain([0, log.len()]).collect();
            cuts.sort_unstable();
            cuts.dedup();
            let path = dir.path().join("batches");
            let mut batches = open(&path);
            let mut batched_answers = Vec::new();
            let crash = crash.index(cuts.len() - 1);
            for (n, cut) in cuts.windows(2).enumerate() {
                if n == crash && n > 0 {
                    // What was not flushed is gone: it comes from the log again.
                    batches.flush().unwrap();
                    drop(batches);
                    batches = open(&path);
                    prop_assert_eq!(applied_index(&batches) as usize + 1, cut[0]);
                }
                batched_answers.extend(apply(&batches, &log[cut[0]..cut[1]]));
            }
            prop_assert_eq!(answers, batched_answers);
            prop_assert_eq!(records(&one_by_one), records(&batches));
            // What buckets say that they have is what can be counted there.
            for row in Overlay::new(&batches).scan(BUCKETS_PREFIX) {
                let (key, value) = row.unwrap();
                let record: BucketRecord = decode(&key, &value).unwrap();
                let counted = count(&batches, BucketNumber(record.id)).unwrap();
                prop_assert_eq!((record.keys, record.bytes), counted);
            }
        }
    }

    #[test]
    fn replay_of_an_older_state_gives_the_same_tables() {
        let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
        let mut log = vec![committed::<CreateBucket>(0, bucket)];
        log.extend(
            (1..40).map(|index| command(index, (index * 7 % 11) as u8, ["a", "b", "c"][index as usize % 3])),
        );
        let dir = tempfile::tempdir().unwrap();
        let whole = open(&dir.path().join("whole"));
        apply(&whole, &log);
        // A copy of the tables as they were on disk half way, from which a restart begins.
        let older = open(&dir.path().join("older"));
        apply(&older, &log[..20]);
        older.flush().unwrap();
        let checkpoint = dir.path().join("checkpoint");
        rocksdb::checkpoint::Checkpoint::new(older.rocks()).unwrap().create_checkpoint(&checkpoint).unwrap();
        apply(&older, &log[20..]);
        let restarted = open(&checkpoint);
        let from = applied_index(&restarted) as usize + 1;
        assert_eq!(from, 20);
        apply(&restarted, &log[from..]);
        assert_eq!(records(&restarted), records(&whole));
        assert_eq!(records(&older), records(&whole));
    }

    #[test]
    fn later_commands_of_a_batch_see_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(dir.path());
        let bucket = || CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
        let batch = [
            committed::<CreateBucket>(0, bucket()),
            committed::<CreateBucket>(1, bucket()),
            command(2, 4, "a"),
        ];
        let results: Vec<_> =
            apply(&machine, &batch).into_iter().map(|reply| reply.result.unwrap()).collect();
        assert!(matches!(results[0], om_reply::Result::CreateBucket(_)), "{results:?}");
        assert!(
            matches!(&results[1], om_reply::Result::Error(error) if error.code() == proto::Code::BucketExists)
        );
        assert!(matches!(results[2], om_reply::Result::CommitKey(_)), "{results:?}");
    }

    #[test]
    fn a_write_of_the_tables_is_counted_with_its_commands_and_rows() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(dir.path());
        let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
        let batches = Batches::default();
        for batch in
            [vec![committed::<CreateBucket>(0, bucket)], vec![command(1, 4, "a"), command(2, 5, "b")]]
        {
            let applied = Applied { id: batch.last().unwrap().id, membership: Bytes::new() };
            super::apply(&machine, batch, &applied, &batches).unwrap();
        }
        let mut exposition = Exposition::default();
        batches.expose(&[], &mut exposition);
        let text = exposition.finish();
        let value = |name: &str| -> f64 {
            let value =
                text.lines().find_map(|line| line.strip_prefix(&format!("flotilla_om_batch_{name} ")));
            value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        assert_eq!((value("commands_count"), value("commands_sum")), (2.0, 3.0));
        assert_eq!((value("rows_count"), value("write_seconds_count")), (2.0, 2.0));
        // Each key has a row, and each request is remembered in one.
        assert!(value("rows_sum") >= 5.0 && value("write_seconds_sum") > 0.0, "{text}");
    }

    #[test]
    fn commands_and_tables_of_a_newer_version_stop_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let machine = open(dir.path());
        let unknown = Committed { meta: Bytes::new(), ..command(0, 4, "a") };
        let applied = Applied { id: unknown.id, membership: Bytes::new() };
        let error =
            super::apply(&machine, vec![unknown], &applied, &Batches::default()).unwrap_err().to_string();
        assert!(error.contains("newer flotilla"), "{error}");

        let mut batch = rocksdb::WriteBatch::default();
        batch.put(FORMAT_KEY, (FORMAT + 1).to_le_bytes());
        machine.write(batch).unwrap();
        let error = format(&machine).unwrap_err().to_string();
        assert!(error.contains("newer flotilla"), "{error}");
    }
}
