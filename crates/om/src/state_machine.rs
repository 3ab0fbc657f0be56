use crate::change_queue;
use crate::counted::Batches;
use crate::ops::{self, Remembered};
use crate::overlay::{Change, Overlay};
use crate::tables::{
    APPLIED_KEY, BUCKETS_PREFIX, FORMAT, FORMAT_KEY, NEXT_BUCKET_KEY, NUMBERS_SKIPPED, ROOT, SENDING_PREFIX,
    doubt_buckets, doubt_fences, entry_number, next_bucket, skip_runs,
};
use crate::taps::Taps;
use crate::upgrade::{Upgrading, rows};
use crate::usage::{BucketRows, Usage};
use anyhow::Context;
use bytes::Bytes;
use prost::Message;
use proto::om::OmReplies;
use raft::{Applied, Committed, Snapshots, StateMachine};
use statedb::{Db, GroupDb};
use std::sync::{Arc, Weak};
use tokio::time::Instant;

/// The namespace as a replicated state: tables in a RocksDB that has Raft's log for its WAL.
pub(crate) struct OmStateMachine {
    group: u64,
    dbs: Arc<dyn GroupDb>,
    followed: Followed,
    /// The requests that the tables remember, and which tables these are.
    remembered: (Weak<Db>, Remembered),
}

/// The observers of the tables, which are told of changes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Followed {
    /// The usage of each bucket.
    pub(crate) usage: Arc<Usage>,
    /// Counts of the commands that are applied, write by write.
    pub(crate) batches: Arc<Batches>,
    /// The rows that change of buckets that are sent to other groups.
    pub(crate) taps: Arc<Taps>,
}

impl OmStateMachine {
    /// Opens the state machine over the current tables, and reads the usage of buckets and the requests that
    /// they remember.
    pub(crate) fn open(
        group: u64,
        dbs: Arc<dyn GroupDb>,
        followed: Followed,
    ) -> anyhow::Result<OmStateMachine> {
        let db = dbs.current();
        followed.usage.read(&db)?;
        let remembered = (Arc::downgrade(&db), Remembered::read(&db)?);
        Ok(OmStateMachine { group, dbs, followed, remembered })
    }

    /// The requests that these tables remember: read anew where they are others than before, as after a
    /// snapshot was installed.
    fn remembered_of(&mut self, db: &Arc<Db>) -> anyhow::Result<&mut Remembered> {
        if self.remembered.0.as_ptr() != Arc::as_ptr(db) {
            self.remembered = (Arc::downgrade(db), Remembered::read(db)?);
            // Nobody has seen what changed between the one and the other.
            self.followed.taps.break_all();
        }
        Ok(&mut self.remembered.1)
    }
}

impl StateMachine for OmStateMachine {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        self.dbs.current().applied(APPLIED_KEY)
    }

    fn lacks_room(&self, failed: &anyhow::Error) -> bool {
        Db::is_no_room(failed)
    }

    fn apply(&mut self, batch: Vec<Committed>, applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let (db, followed) = (self.dbs.current(), self.followed.clone());
        let (replies, buckets) = apply(&db, self.remembered_of(&db)?, batch, &applied, &followed)
            // The requests that were noted meanwhile are in no table, if anybody tries again: they are read
            // anew.
            .inspect_err(|_| self.remembered = Default::default())?;
        followed.usage.follow(&db, buckets)?;
        Ok(replies)
    }

    /// Writes what a forced reset changes. Buckets of lost numbers are in other groups, and clients know
    /// their places: no number is given out again.
    fn reset(&mut self, applied: Applied) -> anyhow::Result<()> {
        let db = self.dbs.current();
        let mut batch = rocksdb::WriteBatch::default();
        reset_rows(self.group, &db)?.into_iter().for_each(|(key, value)| batch.put(key, value));
        batch.put(FORMAT_KEY, FORMAT.to_le_bytes());
        Db::put_applied(&mut batch, APPLIED_KEY, &applied);
        db.write(batch).context("write a reset")
    }

    fn snapshots(&self) -> Option<Arc<dyn Snapshots>> {
        Some(Arc::new(Upgrading(self.dbs.clone())))
    }
}

/// The rows that a forced reset of the group changes.
pub(crate) fn reset_rows(group: u64, db: &Db) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let sending =
        rows(db, SENDING_PREFIX).map(|row| row.map(|(key, value)| (key.into_vec(), value.into_vec())));
    let mut changed = skip_runs(db, sending)?;
    changed.push(doubt_fences(db, group == ROOT)?);
    let records =
        rows(db, BUCKETS_PREFIX).map(|row| row.map(|(key, value)| (key.into_vec(), value.into_vec())));
    changed.extend(doubt_buckets(group == ROOT, records)?);
    if let Some(next) = next_bucket(db)? {
        changed.push((NEXT_BUCKET_KEY.to_vec(), (next + NUMBERS_SKIPPED).to_le_bytes().to_vec()));
    }
    Ok(changed)
}

/// Applies a batch; returns the answers, and what changed in the rows of buckets.
fn apply(
    db: &Db,
    remembered: &mut Remembered,
    batch: Vec<Committed>,
    applied: &Applied,
    Followed { batches, taps, .. }: &Followed,
) -> anyhow::Result<(Vec<Bytes>, BucketRows)> {
    let mut commands = 0;
    let mut overlay = Overlay::new(db);
    let mut replies = Vec::with_capacity(batch.len());
    for committed in batch {
        let index = entry_number(&overlay, committed.id.index)?;
        let merged =
            change_queue::commands(committed.meta).with_context(|| format!("decode entry {index}"))?;
        commands += merged.len();
        batches.note_entry(merged.len());
        let replies_to = ops::apply(&mut overlay, remembered, index, merged)?;
        let reply = OmReplies { replies: replies_to }.encode_to_vec();
        replies.push(Bytes::from(reply));
    }
    let as_is = |(key, value): (&Vec<u8>, &Change)| (key.clone(), value.clone());
    let buckets = overlay.changed(BUCKETS_PREFIX).map(as_is).collect();
    let tapped = taps.changed(&overlay);
    let mut batch = overlay.into_batch();
    let rows = batch.len();
    batch.put(FORMAT_KEY, FORMAT.to_le_bytes());
    Db::put_applied(&mut batch, APPLIED_KEY, applied);
    // The clock is for metrics alone: what is applied does not depend on it.
    let begun = Instant::now();
    db.write(batch).context("write applied commands")?;
    taps.note(tapped);
    batches.note(commands, rows, begun.elapsed());
    Ok((replies, buckets))
}

#[cfg(test)]
mod model;
#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{commit_request, pieces};
    use crate::ops::{CommitKey, CreateBucket, CreateUpload, DeleteKeys, Fresh, Operation};
    use crate::tables::{
        BucketNumber, DOUBT_KEY, RESTORED_KEY, Read, decode, doubt, format, runs_before, sending_key,
    };
    use crate::upgrade::count;
    use metrics::Exposition;
    use proptest::prelude::*;
    use proto::RequestId;
    use proto::om::{
        BucketMove, BucketRecord, CreateBucketRequest, CreateUploadRequest, DeleteKeysRequest, OmCommand,
        OmEntry, OmReply, RememberedRequests, RestoredNames, SendingBucket, om_reply,
    };
    use raftlog::Place;
    use statedb::DbState;
    use std::path::Path;
    use testkit::FullTables;
    use types::{LogId, LogIndex, OwnerId, Term};

    /// Tables and what follows from them.
    pub(super) struct Machine {
        pub(super) db: Db,
        remembered: Remembered,
    }

    pub(super) fn open(path: &Path) -> Machine {
        let db = Db::open(path, &statedb::DbOptions::default()).unwrap();
        let remembered = Remembered::read(&db).unwrap();
        Machine { db, remembered }
    }

    pub(super) fn applied_index(machine: &Machine) -> u64 {
        machine.db.applied(APPLIED_KEY).unwrap().unwrap().id.index.0
    }

    pub(super) fn prepared<O: Operation>(number: u64, request: O::Request) -> OmCommand {
        prepared_as::<O>(number, u128::from(number) << 64, request)
    }

    fn prepared_as<O: Operation>(number: u64, id: u128, request: O::Request) -> OmCommand {
        let fresh = Fresh { random: number.into(), now_ms: number };
        ops::prepare::<O>(RequestId(id), None, request, fresh).unwrap()
    }

    fn bucket() -> CreateBucketRequest {
        CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None }
    }

    pub(super) fn committed(index: u64, meta: Vec<u8>) -> Committed {
        Committed {
            id: LogId { term: Term(1), index: LogIndex(index) },
            meta: Bytes::from(meta),
            place: Place { owner: OwnerId(0), segment: 0, offset: 0, body_bytes: 0 },
            roll_to: None,
        }
    }

    /// An entry for each command.
    fn one_by_one(commands: &[OmCommand]) -> Vec<Committed> {
        let entry = |command: &OmCommand| OmEntry { commands: vec![command.clone()] }.encode_to_vec();
        (0..).zip(commands).map(|(index, command)| committed(index, entry(command))).collect()
    }

    pub(super) fn apply(machine: &mut Machine, batch: &[Committed]) -> Vec<OmReply> {
        let applied = Applied { id: batch.last().unwrap().id, membership: Bytes::from("m") };
        let Machine { db, remembered } = machine;
        let (replies, _) =
            super::apply(db, remembered, batch.to_vec(), &applied, &Followed::default()).unwrap();
        replies.into_iter().flat_map(|reply| OmReplies::decode(reply).unwrap().replies).collect()
    }

    fn records(machine: &Machine) -> Vec<(Vec<u8>, Vec<u8>)> {
        Overlay::new(&machine.db).scan(b"").collect::<anyhow::Result<_>>().unwrap()
    }

    fn command(number: u64, kind: u8, key: &str) -> OmCommand {
        let bucket = || ("s3v".to_owned(), "photos".to_owned());
        match kind {
            // The same request again, or its id for another key.
            0..=3 => prepared_as::<CommitKey>(number, kind.into(), commit_request(key, kind.into())),
            4..=7 => {
                let mut request = commit_request(key, number);
                let key = request.key.as_mut().unwrap();
                (key.size, key.pieces) = (number + 1, pieces(number, number + 1));
                prepared::<CommitKey>(number, request)
            }
            8 => {
                let ((volume, bucket), key) = (bucket(), Bytes::copy_from_slice(key.as_bytes()));
                prepared::<CreateUpload>(
                    number,
                    CreateUploadRequest { volume, bucket, key, attributes: None },
                )
            }
            _ => {
                let ((volume, bucket), keys) = (bucket(), vec![Bytes::copy_from_slice(key.as_bytes())]);
                prepared::<DeleteKeys>(number, DeleteKeysRequest { volume, bucket, keys, precondition: None })
            }
        }
    }

    /// The records by what they say: deleted pieces without their places in the log, and requests that are
    /// remembered without their places in the queue and their neighbours in an entry.
    fn records_by_content(machine: &Machine) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut content = Vec::new();
        for (key, value) in records(machine) {
            match key[0] {
                b'a' | b'q' => {}
                b'd' => content.push((b"d".to_vec(), value)),
                b's' => {
                    let RememberedRequests { request_ids, request_digests, replies, .. } =
                        decode(&key, &value).unwrap();
                    let of_each = request_ids.chunks(16).zip(request_digests.chunks(16)).zip(&replies);
                    content.extend(of_each.map(|((id, digest), reply)| {
                        ([&b"s"[..], id, digest].concat(), reply.encode_to_vec())
                    }));
                }
                _ => content.push((key, value)),
            }
        }
        content
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(30))]
        /// The answers are the same however commands are merged into entries; and the tables are, to the
        /// byte, however the log is cut into batches, and wherever a crash makes it start again.
        #[test]
        fn entries_batches_and_restarts_make_no_difference(
            commands in prop::collection::vec((0u8..11, "[abc]"), 1..30),
            entries in prop::collection::vec(1usize..5, 30),
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..4),
            crash in any::<prop::sample::Index>(),
        ) {
            let mut all = vec![prepared::<CreateBucket>(0, bucket())];
            all.extend((1u64..).zip(&commands).map(|(number, (kind, key))| command(number, *kind, key)));
            let dir = tempfile::tempdir().unwrap();
            let mut single = open(&dir.path().join("single"));
            let answers_one_by_one = apply(&mut single, &one_by_one(&all));

            let mut rest = &all[..];
            let mut log = Vec::new();
            for count in entries {
                let (merged, later) = rest.split_at(count.min(rest.len()));
                rest = later;
                // Encodings one after the other are an entry of all.
                let of_each = merged.iter().map(|command| OmEntry { commands: vec![command.clone()] }.encode_to_vec());
                let meta = of_each.collect::<Vec<_>>().concat();
                if !meta.is_empty() {
                    log.push(committed(log.len() as u64, meta));
                }
            }
            prop_assert!(rest.is_empty());

            let mut one_by_one = open(&dir.path().join("one-by-one"));
            let answers: Vec<_> = log.iter().flat_map(|c| apply(&mut one_by_one, std::slice::from_ref(c))).collect();
            prop_assert_eq!(&answers, &answers_one_by_one);
            prop_assert_eq!(records_by_content(&one_by_one), records_by_content(&single));

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
                    batches.db.flush().unwrap();
                    drop(batches);
                    batches = open(&path);
                    prop_assert_eq!(applied_index(&batches) as usize + 1, cut[0]);
                }
                batched_answers.extend(apply(&mut batches, &log[cut[0]..cut[1]]));
            }
            prop_assert_eq!(answers, batched_answers);
            prop_assert_eq!(records(&one_by_one), records(&batches));
            // What is known of requests follows from the tables.
            for machine in [&single, &one_by_one, &batches] {
                prop_assert_eq!(&machine.remembered, &Remembered::read(&machine.db).unwrap());
            }
            // What buckets say that they have is what can be counted there.
            for row in Overlay::new(&batches.db).scan(BUCKETS_PREFIX) {
                let (key, value) = row.unwrap();
                let record: BucketRecord = decode(&key, &value).unwrap();
                let counted = count(&batches.db, BucketNumber(record.id)).unwrap();
                prop_assert_eq!((record.keys, record.bytes), counted);
            }
        }
    }

    #[test]
    fn replay_of_an_older_state_gives_the_same_tables() {
        let mut all = vec![prepared::<CreateBucket>(0, bucket())];
        all.extend(
            (1..40)
                .map(|number| command(number, (number * 7 % 11) as u8, ["a", "b", "c"][number as usize % 3])),
        );
        let log = one_by_one(&all);
        let dir = tempfile::tempdir().unwrap();
        let mut whole = open(&dir.path().join("whole"));
        apply(&mut whole, &log);
        // A copy of the tables as they were on disk half way, from which a restart begins.
        let mut older = open(&dir.path().join("older"));
        apply(&mut older, &log[..20]);
        older.db.flush().unwrap();
        let checkpoint = dir.path().join("checkpoint");
        rocksdb::checkpoint::Checkpoint::new(older.db.rocks())
            .unwrap()
            .create_checkpoint(&checkpoint)
            .unwrap();
        apply(&mut older, &log[20..]);
        let mut restarted = open(&checkpoint);
        let from = applied_index(&restarted) as usize + 1;
        assert_eq!(from, 20);
        apply(&mut restarted, &log[from..]);
        assert_eq!(records(&restarted), records(&whole));
        assert_eq!(records(&older), records(&whole));
    }

    #[tokio::test]
    async fn a_batch_that_failed_leaves_nothing_behind_that_the_next_try_would_see() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(disk::RealDisk::open(&dir.path().join("disk"), 1).unwrap());
        let options = statedb::DbOptions::default();
        let dbs = statedb::DbGenerations::open(disk, "db", &options, APPLIED_KEY).await.unwrap();
        let mut machine = OmStateMachine::open(ROOT, Arc::new(dbs), Followed::default()).unwrap();
        let applied =
            |index| Applied { id: LogId { term: Term(1), index: LogIndex(index) }, membership: Bytes::new() };
        let commands = [prepared::<CreateBucket>(0, bucket()), command(1, 4, "a"), command(2, 5, "b")];
        let log = one_by_one(&commands);
        let broken = [&log[..], &[committed(3, Vec::new())]].concat();
        machine.apply(broken, applied(3)).unwrap_err();
        // The second try is shorter, so that what the first noted of the last command would be seen.
        let replies = machine.apply(log[..2].to_vec(), applied(1)).unwrap();
        let done = replies.into_iter().flat_map(|reply| OmReplies::decode(reply).unwrap().replies);
        assert!(done.into_iter().all(|reply| !matches!(reply.result, Some(om_reply::Result::Error(_)))));
        let db = machine.dbs.current();
        assert_eq!(machine.remembered.1, Remembered::read(&db).unwrap());
        assert_eq!(machine.remembered.1.len(), 2);
    }

    #[tokio::test]
    async fn commands_for_which_there_is_no_room_are_applied_once_there_is() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(disk::RealDisk::open(&dir.path().join("disk"), 1).unwrap());
        let options = statedb::DbOptions::default();
        let dbs = statedb::DbGenerations::open(disk, "db", &options, APPLIED_KEY).await.unwrap();
        let mut machine = OmStateMachine::open(ROOT, Arc::new(dbs), Followed::default()).unwrap();
        let applied =
            |index| Applied { id: LogId { term: Term(1), index: LogIndex(index) }, membership: Bytes::new() };
        let log =
            one_by_one(&[prepared::<CreateBucket>(0, bucket()), command(1, 4, "a"), command(2, 5, "a")]);
        machine.apply(log[..1].to_vec(), applied(0)).unwrap();
        let db = machine.dbs.current();
        let tables = FullTables::of(db.rocks().path());
        db.flush().unwrap_err();
        for _ in 0..2 {
            let failed = machine.apply(log[1..].to_vec(), applied(2)).unwrap_err();
            assert!(machine.lacks_room(&failed), "{failed:#}");
        }
        let failed = machine.reset(applied(2)).unwrap_err();
        assert!(machine.lacks_room(&failed), "{failed:#}");
        assert_eq!(machine.applied().unwrap(), Some(applied(0)));
        tables.make_room(|| db.probe() == DbState::Well);
        machine.apply(log[1..].to_vec(), applied(2)).unwrap();
        let mut whole = open(&dir.path().join("whole"));
        apply(&mut whole, &log);
        let without_applied = |rows: Vec<(Vec<u8>, Vec<u8>)>| -> Vec<_> {
            rows.into_iter().filter(|(key, _)| key != APPLIED_KEY).collect()
        };
        let rows = Overlay::new(&db).scan(b"").collect::<anyhow::Result<_>>().unwrap();
        assert_eq!(without_applied(rows), without_applied(records(&whole)));
    }

    #[tokio::test]
    async fn after_a_forced_reset_no_number_of_a_bucket_is_drawn_again() {
        let dir = tempfile::tempdir().unwrap();
        let disk = Arc::new(disk::RealDisk::open(&dir.path().join("disk"), 1).unwrap());
        let options = statedb::DbOptions::default();
        let dbs = statedb::DbGenerations::open(disk, "db", &options, APPLIED_KEY).await.unwrap();
        let mut machine = OmStateMachine::open(ROOT, Arc::new(dbs), Followed::default()).unwrap();
        let applied =
            |index| Applied { id: LogId { term: Term(1), index: LogIndex(index) }, membership: Bytes::new() };
        machine.reset(applied(0)).unwrap();
        assert_eq!(next_bucket(&*machine.dbs.current()).unwrap(), None, "there is no number yet");
        let doubted = doubt(&*machine.dbs.current()).unwrap();
        assert!(doubted.is_some_and(|doubt| doubt.places), "other groups may have buckets all the same");
        // All groups have told it since.
        let mut batch = rocksdb::WriteBatch::default();
        batch.delete(DOUBT_KEY);
        machine.dbs.current().write(batch).unwrap();
        let log = one_by_one(&[prepared::<CreateBucket>(7, bucket())]);
        machine.apply(log, applied(1)).unwrap();
        let before = next_bucket(&*machine.dbs.current()).unwrap().unwrap();
        let sending =
            SendingBucket { run: 3, moved: Some(BucketMove { number: 7, attempt: 9, from: 0, to: 1 }) };
        let row = sending_key(BucketNumber(7));
        let mut batch = rocksdb::WriteBatch::default();
        batch.put(&row, sending.encode_to_vec());
        machine.dbs.current().write(batch).unwrap();
        machine.reset(applied(2)).unwrap();
        assert_eq!(next_bucket(&*machine.dbs.current()).unwrap(), Some(before + NUMBERS_SKIPPED));
        let begun: SendingBucket = machine.dbs.current().message(&row).unwrap().unwrap();
        assert_eq!(begun, SendingBucket { run: 3 + NUMBERS_SKIPPED, ..sending }, "nor of a run");
        let runs = runs_before(&*machine.dbs.current()).unwrap();
        assert_eq!(runs, 2 * NUMBERS_SKIPPED, "nor of one of a move that was heard of by lost members alone");
        assert_eq!(machine.applied().unwrap(), Some(applied(2)));
    }

    #[test]
    fn what_is_filed_by_entry_is_filed_behind_what_came_with_a_backup() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = open(dir.path());
        let overwritten = [prepared::<CreateBucket>(0, bucket()), command(1, 4, "a"), command(2, 5, "a")];
        let log = one_by_one(&overwritten);
        let filed = |machine: &Machine| -> Vec<u64> {
            let rows = Overlay::new(&machine.db);
            let rows = rows.scan(b"d").map(|row| row.unwrap().0);
            rows.map(|key| u64::from_be_bytes(key[1..9].try_into().unwrap())).collect()
        };
        apply(&mut machine, &log);
        assert_eq!(filed(&machine), [2]);
        let mut batch = rocksdb::WriteBatch::default();
        let names = RestoredNames { entries: 500, founded_ms: 1, ..RestoredNames::default() };
        batch.put(RESTORED_KEY, names.encode_to_vec());
        machine.db.write(batch).unwrap();
        apply(&mut machine, &[committed(2, OmEntry { commands: vec![command(3, 6, "a")] }.encode_to_vec())]);
        assert_eq!(filed(&machine), [2, 502]);
    }

    #[test]
    fn later_commands_of_a_batch_see_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let mut machine = open(dir.path());
        let create = |number| prepared::<CreateBucket>(number, bucket());
        let batch = one_by_one(&[create(0), create(1), command(2, 4, "a")]);
        let results: Vec<_> =
            apply(&mut machine, &batch).into_iter().map(|reply| reply.result.unwrap()).collect();
        assert!(matches!(results[0], om_reply::Result::CreateBucket(_)), "{results:?}");
        assert!(
            matches!(&results[1], om_reply::Result::Error(error) if error.code() == proto::Code::BucketExists)
        );
        assert!(matches!(results[2], om_reply::Result::CommitKey(_)), "{results:?}");
    }

    #[test]
    fn a_write_of_the_tables_is_counted_with_its_commands_and_rows() {
        let dir = tempfile::tempdir().unwrap();
        let Machine { db, mut remembered } = open(dir.path());
        let followed = Followed::default();
        let both = OmEntry { commands: vec![command(1, 4, "a"), command(2, 5, "b")] };
        for entry in [OmEntry { commands: vec![prepared::<CreateBucket>(0, bucket())] }, both] {
            let batch = vec![committed(0, entry.encode_to_vec())];
            let applied = Applied { id: batch.last().unwrap().id, membership: Bytes::new() };
            super::apply(&db, &mut remembered, batch, &applied, &followed).unwrap();
        }
        let mut exposition = Exposition::default();
        followed.batches.expose(&[], &mut exposition);
        let text = exposition.finish();
        let value = |name: &str| -> f64 {
            let value = text.lines().find_map(|line| line.strip_prefix(&format!("flotilla_om_{name} ")));
            value.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
        };
        assert_eq!((value("entry_commands_count"), value("entry_commands_sum")), (2.0, 3.0));
        assert_eq!((value("batch_commands_count"), value("batch_commands_sum")), (2.0, 3.0));
        assert_eq!((value("batch_rows_count"), value("batch_write_seconds_count")), (2.0, 2.0));
        // Each key has a row, and each request is remembered in a row.
        assert!(value("batch_rows_sum") >= 5.0 && value("batch_write_seconds_sum") > 0.0, "{text}");
    }

    #[test]
    fn commands_and_tables_of_a_newer_version_stop_the_group() {
        let dir = tempfile::tempdir().unwrap();
        let Machine { db, mut remembered } = open(dir.path());
        let unknown = committed(0, Vec::new());
        let applied = Applied { id: unknown.id, membership: Bytes::new() };
        let refused = super::apply(&db, &mut remembered, vec![unknown], &applied, &Followed::default());
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("newer flotilla"), "{error}");

        let mut batch = rocksdb::WriteBatch::default();
        batch.put(FORMAT_KEY, (FORMAT + 1).to_le_bytes());
        db.write(batch).unwrap();
        let error = format(&db).unwrap_err().to_string();
        assert!(error.contains("newer flotilla"), "{error}");
    }
}
