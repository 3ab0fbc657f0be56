//! The OM's tables in RocksDB (`docs/format/om-tables.md`). Keys sort as bytes; numbers in keys are
//! big-endian, in values little-endian.
//!
//! | key | value |
//! |---|---|
//! | `a` | applied position |
//! | `b` + volume + 0 + bucket name | `BucketEntry`, in the root |
//! | `c` + bucket | `BucketRecord`, in the group that has it |
//! | `d` + log index + `u32` | `DeletedPieces` |
//! | `e` + block | `UnusedBlock` |
//! | `f` | format of the tables, `u32` |
//! | `g` | empty: the names of this group are founded |
//! | `h` | `UnusedTotals` |
//! | `i` + bucket | `IncomingBucket`: one that comes from another group, and is not here yet |
//! | `j` | `RestoredNames`: the names of this group come, or came, from a backup |
//! | `k` + bucket + key | `Key` |
//! | `l` + block + key of a row | empty: that row names the block, or did ([`crate::blocks`]) |
//! | `m` + container | no further block of it is taken; in the root `SweptContainer`, empty until it was swept |
//! | `M` | `Fences` |
//! | `B` | the first bucket number that this root gave out, `u64` |
//! | `n` | next bucket number, `u64`, in the root |
//! | `N` + group | `GroupSeen`, in the root |
//! | `o` + bucket | of a bucket that is being made, deleted or moved, in the root: the key of its entry |
//! | `p` + bucket + upload id + part number `u32` | `Part` |
//! | `P` | `Doubt`: the group was reset, and is yet to hear which of its buckets are its own |
//! | `q` | `RequestQueue` |
//! | `s` + place in the queue | `RememberedRequests` |
//! | `t` + bucket | the last epoch by which this group never holds the bucket, `u64`; empty: it never holds it |
//! | `u` + bucket + escaped key + upload id | `Upload` |
//! | `v` + bucket | `SendingBucket`: one that is sent to another group |
//! | `w` + volume | `Volume`, in the root: one that was made |
//! | `x` + bucket | `DroppedBucket` |
//! | `y` + bucket | the bucket is not here, and what is left of its rows is to be deleted: since which entry, `u64` |
//! | `z` | the number after which runs of moves from here begin, `u64`; missing: 0 |

use crate::rules::{VOLUME, check_volume, no_such_volume};
use anyhow::{Context, bail};
use planted::Bug;
use prost::Message;
use proto::om::{
    BucketEntry, BucketPlace, BucketRecord, BucketStage, Doubt, Fences, GroupSeen, RestoredNames,
    SendingBucket, Upload, Volume,
};
use proto::{Code, Failure};
use rocksdb::{ReadOptions, ReadTier};
use statedb::Db;
use types::LogIndex;

/// The key under which the tables say up to where they are applied.
pub const APPLIED_KEY: &[u8] = b"a";
pub(crate) const FORMAT_KEY: &[u8] = b"f";
pub(crate) const FOUNDED_KEY: &[u8] = b"g";
pub(crate) const UNUSED_TOTALS_KEY: &[u8] = b"h";
pub(crate) const FENCES_KEY: &[u8] = b"M";
/// The prefix of the rows that say how far groups were when the root heard of them last.
pub(crate) const SEEN_PREFIX: &[u8] = b"N";
pub(crate) const FIRST_BUCKET_KEY: &[u8] = b"B";
pub(crate) const NEXT_BUCKET_KEY: &[u8] = b"n";
pub(crate) const DOUBT_KEY: &[u8] = b"P";
pub(crate) const QUEUE_KEY: &[u8] = b"q";
pub(crate) const RESTORED_KEY: &[u8] = b"j";
pub(crate) const RUNS_KEY: &[u8] = b"z";

/// The format of the tables that this release writes. Persisted. Format 1 remembered only some requests and
/// pieces without their nonces, format 2 neither refusals nor what a request was; both were in no release.
pub const FORMAT: u32 = 9;
/// Persisted: format 8, which has no fences.
#[cfg(test)]
pub(crate) const FORMAT_UNFENCED: u32 = 8;
/// Persisted: format 7, which does not say what names a block.
pub(crate) const FORMAT_UNNAMED: u32 = 7;
/// Persisted: format 6, in which what is remembered of requests does not say which buckets they were about.
#[cfg(test)]
pub(crate) const FORMAT_UNNUMBERED: u32 = 6;
/// Persisted: format 5, in which a bucket's one row had its name and what is in it.
pub(crate) const FORMAT_BY_NAME: u32 = 5;
/// Persisted: format 4, which has two rows for each request that is remembered.
pub(crate) const FORMAT_BY_REQUEST: u32 = 4;
/// Persisted: format 3, whose buckets do not say how much is in them.
pub(crate) const FORMAT_UNCOUNTED: u32 = 3;

/// The prefix of the rows that remember requests.
pub(crate) const REMEMBERED_PREFIX: &[u8] = b"s";
/// The prefix of answers by request id, up to [`FORMAT_BY_REQUEST`].
pub(crate) const ANSWERS_PREFIX_V4: &[u8] = b"r";

/// The prefix of containers of which no further block is taken.
pub(crate) const FENCED_PREFIX: &[u8] = b"m";
/// The prefix of deleted pieces.
pub(crate) const DELETED_PREFIX: &[u8] = b"d";
/// The prefix of buckets that were deleted, and whose uploads are yet to end.
pub(crate) const DROPPED_PREFIX: &[u8] = b"x";
/// The prefix of the names of buckets.
pub(crate) const NAMES_PREFIX: &[u8] = b"b";
/// The prefix of volumes that were made.
pub(crate) const VOLUMES_PREFIX: &[u8] = b"w";
/// The prefix of the rows of buckets that are here.
pub(crate) const BUCKETS_PREFIX: &[u8] = b"c";
/// The prefix of the rows of buckets that are being made, deleted or moved.
pub(crate) const UNSETTLED_PREFIX: &[u8] = b"o";
/// The prefix of the rows of buckets that come from other groups.
pub(crate) const INCOMING_PREFIX: &[u8] = b"i";
/// The prefix of the rows of buckets that are sent to other groups.
pub(crate) const SENDING_PREFIX: &[u8] = b"v";
/// The prefix of the rows of buckets of which only what is to be deleted is here.
pub(crate) const LEFT_PREFIX: &[u8] = b"y";
/// The tables of what is in a bucket, in order. Their rows go along when the bucket moves.
pub(crate) const CONTENTS: [&[u8]; 3] = [b"k", b"p", b"u"];

/// The tables of one row, and those of remembered requests, which are of one group's log alone: no backup has
/// them.
pub(crate) const OF_THIS_LOG: [&[u8]; 6] =
    [APPLIED_KEY, FORMAT_KEY, FOUNDED_KEY, RESTORED_KEY, QUEUE_KEY, REMEMBERED_PREFIX];

/// The numbers that are skipped: more buckets and attempts to move them than anybody can have made, and more
/// runs than anybody can have begun, without the knowledge of tables that were reset, or restored.
pub(crate) const NUMBERS_SKIPPED: u64 = 1_000_000;

pub(crate) use proto::ROOT_OF_NAMES as ROOT;

/// The length of an upload's id: 128 random bits in hexadecimal.
pub(crate) const UPLOAD_ID_BYTES: usize = 32;

/// Tables to read: those on disk, or those a batch of commands is changing.
pub(crate) trait Read {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>>;

    fn message<M: Message + Default>(&self, key: &[u8]) -> anyhow::Result<Option<M>> {
        let Some(value) = self.get(key)? else { return Ok(None) };
        decode(key, &value).map(Some)
    }
}

impl Read for Db {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        self.rocks().get(key).context("read tables")
    }
}

/// Tables, for lookups in place: of what RocksDB has in memory, which is what is new and what was read
/// lately. A lookup fails where the disk would have to be asked, and is to be made again where that may be
/// waited for.
pub(crate) struct InMemory<'a>(pub &'a Db);

impl Read for InMemory<'_> {
    fn get(&self, key: &[u8]) -> anyhow::Result<Option<Vec<u8>>> {
        let mut options = ReadOptions::default();
        options.set_read_tier(ReadTier::BlockCache);
        self.0.rocks().get_opt(key, &options).context("read tables in memory")
    }
}

pub(crate) fn decode<M: Message + Default>(key: &[u8], value: &[u8]) -> anyhow::Result<M> {
    M::decode(value).with_context(|| format!("decode record {}", key.escape_ascii()))
}

/// The reason why a command or query has no answer.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The request cannot be carried out, and its sender should know why.
    Failure(Failure),
    /// The request cannot be carried out at the moment, or here; it may be another time, or elsewhere.
    Passing(Failure),
    /// The tables cannot be read: a broken disk or a bug.
    Broken(anyhow::Error),
}

impl From<Failure> for Refusal {
    fn from(failure: Failure) -> Self {
        Refusal::Failure(failure)
    }
}

impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Self {
        Refusal::Broken(error)
    }
}

/// A bucket's number: everything in the bucket is filed under it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BucketNumber(pub(crate) u64);

/// A bucket as a request names it: by the place that the root gave its sender, or else by name.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BucketNamed<'a> {
    pub(crate) place: Option<InGroup>,
    pub(crate) volume: &'a str,
    pub(crate) bucket: &'a str,
}

/// A bucket's place, in the group that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct InGroup {
    pub(crate) number: BucketNumber,
    pub(crate) epoch: u64,
}

impl From<BucketPlace> for InGroup {
    fn from(place: BucketPlace) -> InGroup {
        InGroup { number: BucketNumber(place.number), epoch: place.epoch }
    }
}

pub(crate) fn entry_place(entry: &BucketEntry) -> BucketPlace {
    BucketPlace { group: entry.group, number: entry.number, epoch: entry.epoch }
}

pub(crate) fn bucket_key(volume: &str, bucket: &str) -> Vec<u8> {
    [b"b", volume.as_bytes(), b"\0", bucket.as_bytes()].concat()
}

pub(crate) fn volume_key(volume: &str) -> Vec<u8> {
    [VOLUMES_PREFIX, volume.as_bytes()].concat()
}

/// The volume, or the refusal that there is none.
pub(crate) fn volume_existing(tables: &impl Read, volume: &str) -> Result<Volume, Refusal> {
    check_volume(volume)?;
    if volume == VOLUME {
        return Ok(Volume { name: volume.to_owned(), created_ms: 0 });
    }
    Ok(tables.message(&volume_key(volume))?.ok_or_else(|| no_such_volume(volume))?)
}

pub(crate) fn record_key(bucket: BucketNumber) -> Vec<u8> {
    [BUCKETS_PREFIX, &bucket.0.to_be_bytes()[..]].concat()
}

/// The key of the row of a bucket that this group never holds again, or not by the epochs of before.
pub(crate) fn let_go_key(bucket: BucketNumber) -> Vec<u8> {
    [b"t", &bucket.0.to_be_bytes()[..]].concat()
}

/// The last epoch by which this group never holds a bucket, if there is one.
pub(crate) fn let_go(tables: &impl Read, bucket: BucketNumber) -> anyhow::Result<Option<u64>> {
    let Some(value) = tables.get(&let_go_key(bucket))? else { return Ok(None) };
    if value.is_empty() {
        return Ok(Some(u64::MAX));
    }
    let epoch = value.as_slice().try_into().context("an epoch has 8 bytes")?;
    Ok(Some(u64::from_le_bytes(epoch)))
}

/// The row by which this group never holds a bucket up to `epoch`, beside what it says already.
pub(crate) fn letting_go(
    tables: &impl Read,
    bucket: BucketNumber,
    epoch: u64,
) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let value = match let_go(tables, bucket)?.unwrap_or_default().max(epoch) {
        u64::MAX => Vec::new(),
        epoch => epoch.to_le_bytes().to_vec(),
    };
    Ok((let_go_key(bucket), value))
}

pub(crate) fn incoming_key(bucket: BucketNumber) -> Vec<u8> {
    [INCOMING_PREFIX, &bucket.0.to_be_bytes()[..]].concat()
}

pub(crate) fn sending_key(bucket: BucketNumber) -> Vec<u8> {
    [SENDING_PREFIX, &bucket.0.to_be_bytes()[..]].concat()
}

/// The entry since which what is left of a bucket's rows is to be deleted; `None`: nothing is left to delete.
pub(crate) fn left_since(tables: &impl Read, bucket: BucketNumber) -> anyhow::Result<Option<u64>> {
    let Some(value) = tables.get(&left_key(bucket))? else { return Ok(None) };
    let since = value.as_slice().try_into().context("a log index has 8 bytes")?;
    Ok(Some(u64::from_le_bytes(since)))
}

pub(crate) fn left_key(bucket: BucketNumber) -> Vec<u8> {
    [LEFT_PREFIX, &bucket.0.to_be_bytes()[..]].concat()
}

/// The number of the bucket whose row this is, by the key of a table that has one row for each.
pub(crate) fn number_in(key: &[u8]) -> anyhow::Result<BucketNumber> {
    let number = key.get(1..).unwrap_or_default().try_into().context("a bucket's number has 8 bytes")?;
    Ok(BucketNumber(u64::from_be_bytes(number)))
}

/// The prefixes of all rows of what is in a bucket, in order.
pub(crate) fn contents(bucket: BucketNumber) -> [Vec<u8>; 3] {
    CONTENTS.map(|table| [table, &bucket.0.to_be_bytes()[..]].concat())
}

pub(crate) fn unsettled_key(bucket: BucketNumber) -> Vec<u8> {
    [UNSETTLED_PREFIX, &bucket.0.to_be_bytes()[..]].concat()
}

pub(crate) fn keys_prefix(bucket: BucketNumber) -> Vec<u8> {
    [b"k", &bucket.0.to_be_bytes()[..]].concat()
}

pub(crate) fn key_key(bucket: BucketNumber, key: &[u8]) -> Vec<u8> {
    [b"k", &bucket.0.to_be_bytes()[..], key].concat()
}

pub(crate) fn uploads_prefix(bucket: BucketNumber) -> Vec<u8> {
    [b"u", &bucket.0.to_be_bytes()[..]].concat()
}

/// The key at which the uploads to keys that start with `prefix` begin: escaping keeps prefixes.
pub(crate) fn uploads_with_prefix(bucket: BucketNumber, prefix: &[u8]) -> Vec<u8> {
    let mut out = uploads_prefix(bucket);
    escape(prefix, &mut out);
    out
}

/// The key of an upload's row. Uploads sort by key, then by upload id: zero bytes in a key become `00 ff`,
/// and the key ends with `00 01`.
pub(crate) fn upload_key(bucket: BucketNumber, key: &[u8], upload: &str) -> Vec<u8> {
    let mut out = uploads_with_prefix(bucket, key);
    out.extend_from_slice(&[0, 1]);
    out.extend_from_slice(upload.as_bytes());
    out
}

/// The key behind all uploads to `key`, and before those to the next one.
pub(crate) fn uploads_after_key(bucket: BucketNumber, key: &[u8]) -> Vec<u8> {
    let mut out = uploads_with_prefix(bucket, key);
    out.extend_from_slice(&[0, 2]);
    out
}

fn escape(key: &[u8], out: &mut Vec<u8>) {
    for &byte in key {
        out.push(byte);
        if byte == 0 {
            out.push(0xff);
        }
    }
}

pub(crate) fn parts_prefix(bucket: BucketNumber, upload: &str) -> Vec<u8> {
    [b"p", &bucket.0.to_be_bytes()[..], upload.as_bytes()].concat()
}

pub(crate) fn part_key(bucket: BucketNumber, upload: &str, number: u32) -> Vec<u8> {
    [&parts_prefix(bucket, upload)[..], &number.to_be_bytes()].concat()
}

pub(crate) fn deleted_key(index: u64, count: u32) -> Vec<u8> {
    [DELETED_PREFIX, &index.to_be_bytes()[..], &count.to_be_bytes()].concat()
}

pub(crate) fn fenced_key(container: u64) -> Vec<u8> {
    [FENCED_PREFIX, &container.to_be_bytes()[..]].concat()
}

pub(crate) fn fences(tables: &impl Read) -> anyhow::Result<Fences> {
    Ok(tables.message(FENCES_KEY)?.unwrap_or_default())
}

/// The row of fences after a group was reset, or restored: others may have seen fences in it that it has not.
/// In the root no number of fences and moves is one that was drawn without the knowledge of these tables.
pub(crate) fn doubt_fences(tables: &impl Read, is_root: bool) -> anyhow::Result<(Vec<u8>, Vec<u8>)> {
    let before = fences(tables)?;
    let skipped = if is_root { NUMBERS_SKIPPED } else { 0 };
    let (number, moves) = (before.number + skipped, before.moves + skipped);
    Ok((FENCES_KEY.to_vec(), Fences { number, moves, lacks: true, ..before }.encode_to_vec()))
}

pub(crate) fn seen_key(group: u64) -> Vec<u8> {
    [SEEN_PREFIX, &group.to_be_bytes()[..]].concat()
}

/// How far a group was when the root heard of it last; `None`: the root never did.
pub(crate) fn seen(tables: &impl Read, group: u64) -> anyhow::Result<Option<GroupSeen>> {
    tables.message(&seen_key(group))
}

pub(crate) fn dropped_key(bucket: BucketNumber) -> Vec<u8> {
    [DROPPED_PREFIX, &bucket.0.to_be_bytes()[..]].concat()
}

/// The key of what is remembered of an entry's requests, by its place in the queue.
pub(crate) fn remembered_key(place: u64) -> Vec<u8> {
    [REMEMBERED_PREFIX, &place.to_be_bytes()[..]].concat()
}

/// The first byte string after all those that start with `prefix`; `None` when there is none.
pub(crate) fn successor(prefix: &[u8]) -> Option<Vec<u8>> {
    let last = prefix.iter().rposition(|&byte| byte != 0xff)?;
    let mut successor = prefix[..=last].to_vec();
    successor[last] += 1;
    Some(successor)
}

/// The next bucket's number; `None` before the first.
pub(crate) fn next_bucket(tables: &impl Read) -> anyhow::Result<Option<u64>> {
    bucket_number_at(tables, NEXT_BUCKET_KEY)
}

/// The first number that this root gave out: one that was founded anew knows nothing of those before.
pub(crate) fn first_bucket(tables: &impl Read) -> anyhow::Result<Option<u64>> {
    bucket_number_at(tables, FIRST_BUCKET_KEY)
}

fn bucket_number_at(tables: &impl Read, key: &[u8]) -> anyhow::Result<Option<u64>> {
    let Some(number) = tables.get(key)? else { return Ok(None) };
    let number = number.as_slice().try_into().context("a bucket's number has 8 bytes")?;
    Ok(Some(u64::from_le_bytes(number)))
}

/// The bucket's entry in the root, or the refusal that there is no such bucket. One that is being made is
/// none yet.
pub(crate) fn bucket_entry(tables: &impl Read, volume: &str, bucket: &str) -> Result<BucketEntry, Refusal> {
    check_volume(volume)?;
    let entry: Option<BucketEntry> = tables.message(&bucket_key(volume, bucket))?;
    match entry.filter(|entry| entry.stage() != BucketStage::BucketMaking) {
        Some(entry) => Ok(entry),
        None => {
            volume_existing(tables, volume)?;
            let why = format!("no bucket `{bucket}` in volume `{volume}`");
            Err(Failure::new(Code::NoSuchBucket, why).into())
        }
    }
}

/// The bucket's record, or the refusal that it is not in this group.
pub(crate) fn bucket_record(tables: &impl Read, named: BucketNamed<'_>) -> Result<BucketRecord, Refusal> {
    let place = match named.place {
        Some(place) => place,
        None => {
            let entry = bucket_entry(tables, named.volume, named.bucket)?;
            if entry.group != ROOT {
                return Err(not_here(&named));
            }
            entry_place(&entry).into()
        }
    };
    let record: Option<BucketRecord> = tables.message(&record_key(place.number))?;
    let is_of_epoch = |record: &BucketRecord| record.epoch == place.epoch || planted::has(Bug::EpochsIgnored);
    let record = record.filter(is_of_epoch).ok_or_else(|| not_here(&named))?;
    check_certain(&record)?;
    Ok(record)
}

/// Refuses, for the moment, a bucket that may have left before this group was reset.
pub(crate) fn check_certain(record: &BucketRecord) -> Result<(), Refusal> {
    if !record.doubted || planted::has(Bug::DoubtIgnored) {
        return Ok(());
    }
    let name = record.bucket.as_ref().map(|bucket| bucket.name.as_str()).unwrap_or_default();
    let why = format!("the group was reset, and the root has yet to say whether bucket `{name}` is in it");
    Err(Refusal::Passing(Failure::new(Code::NotYet, why)))
}

/// The doubt of this group, since it was reset by force, about the places of buckets.
pub(crate) fn doubt(tables: &impl Read) -> anyhow::Result<Option<Doubt>> {
    tables.message(DOUBT_KEY)
}

/// Refuses, for the moment, a change of what buckets there are, or where, while the root may have forgotten
/// some.
pub(crate) fn check_places_known(tables: &impl Read) -> Result<(), Refusal> {
    if !doubt(tables)?.is_some_and(|doubt| doubt.places) {
        return Ok(());
    }
    let why = "the root of names was reset, and is yet to hear from all groups which buckets they have";
    Err(Refusal::Passing(Failure::new(Code::NotYet, why)))
}

/// The rows by which a group that was reset doubts all of its buckets, and the root all places.
pub(crate) fn doubt_buckets(
    is_root: bool,
    records: impl Iterator<Item = anyhow::Result<(Vec<u8>, Vec<u8>)>>,
) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut rows = vec![(DOUBT_KEY.to_vec(), Doubt { places: is_root }.encode_to_vec())];
    for row in records {
        let (key, value) = row?;
        let record: BucketRecord = decode(&key, &value)?;
        rows.push((key, BucketRecord { doubted: true, ..record }.encode_to_vec()));
    }
    Ok(rows)
}

fn not_here(named: &BucketNamed<'_>) -> Refusal {
    let why = format!("bucket `{}` is not in this group of names, or was moved", named.bucket);
    Refusal::Passing(Failure::new(Code::NotHere, why))
}

pub(crate) fn bucket_number(tables: &impl Read, named: BucketNamed<'_>) -> Result<BucketNumber, Refusal> {
    Ok(BucketNumber(bucket_record(tables, named)?.id))
}

/// The upload in progress, or the refusal that there is none.
pub(crate) fn upload_existing(
    tables: &impl Read,
    bucket: BucketNumber,
    key: &[u8],
    upload: &str,
) -> Result<Upload, Refusal> {
    let known = if upload.len() == UPLOAD_ID_BYTES {
        tables.message(&upload_key(bucket, key, upload))?
    } else {
        None
    };
    let missing = || {
        let message = format!("no upload `{upload}` of key `{}` is in progress", key.escape_ascii());
        Failure::new(Code::NoSuchUpload, message)
    };
    Ok(known.ok_or_else(missing)?)
}

/// Whether the names that are in these tables are founded: a command of their log said so, or any change was
/// carried out or refused. Only founded groups carry out any, and those of before that note have carried out
/// what they were asked. What is remembered of the last requests never goes as a whole.
pub(crate) fn is_founded(tables: &impl Read) -> anyhow::Result<bool> {
    Ok(tables.get(FOUNDED_KEY)?.is_some() || tables.get(QUEUE_KEY)?.is_some())
}

/// The backup that these names come from, and how far it has come; `None`: all of them were made here.
pub(crate) fn restored(tables: &impl Read) -> anyhow::Result<Option<RestoredNames>> {
    tables.message(RESTORED_KEY)
}

/// The number by which records are filed that this entry of the log makes: behind all that came with a
/// backup.
pub(crate) fn entry_number(tables: &impl Read, index: LogIndex) -> anyhow::Result<u64> {
    Ok(restored(tables)?.map_or(0, |restored| restored.entries) + index.0)
}

/// The number after which the runs of a move from here begin.
pub(crate) fn runs_before(tables: &impl Read) -> anyhow::Result<u64> {
    let Some(before) = tables.get(RUNS_KEY)? else { return Ok(0) };
    Ok(u64::from_le_bytes(before.as_slice().try_into().context("the number of a run has 8 bytes")?))
}

/// The rows by which no run, of moves that are under way and of those that are yet to be heard of, is
/// numbered like one that was begun without the knowledge of these tables: another group may have parts of
/// that.
pub(crate) fn skip_runs(
    tables: &impl Read,
    sending: impl Iterator<Item = anyhow::Result<(Vec<u8>, Vec<u8>)>>,
) -> anyhow::Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let before = runs_before(tables)?.saturating_add(NUMBERS_SKIPPED);
    let mut rows = vec![(RUNS_KEY.to_vec(), before.to_le_bytes().to_vec())];
    for row in sending {
        let (key, value) = row?;
        let sending: SendingBucket = decode(&key, &value)?;
        let run = sending.run.saturating_add(NUMBERS_SKIPPED);
        rows.push((key, SendingBucket { run, ..sending }.encode_to_vec()));
    }
    Ok(rows)
}

/// The format of tables that this version reads; `None` of empty ones. Those of other versions are refused.
pub(crate) fn format(db: &Db) -> anyhow::Result<Option<u32>> {
    let Some(value) = db.get(FORMAT_KEY)? else { return Ok(None) };
    let format = u32::from_le_bytes(value.as_slice().try_into().context("format has 4 bytes")?);
    if !(FORMAT_UNCOUNTED..=FORMAT).contains(&format) {
        let other = if format > FORMAT { "a newer" } else { "an older" };
        bail!("tables have format {format}, this version reads {FORMAT}: run {other} flotilla");
    }
    Ok(Some(format))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The bytes of `docs/format/om-tables.md`; a change here is a change of format.
    #[test]
    fn keys_have_their_documented_bytes() {
        let bucket = BucketNumber(0x0102);
        assert_eq!(bucket_key("s3v", "photos"), b"bs3v\0photos");
        assert_eq!(volume_key("photos"), b"wphotos");
        assert_eq!(record_key(bucket), b"c\0\0\0\0\0\0\x01\x02");
        assert_eq!(let_go_key(bucket), b"t\0\0\0\0\0\0\x01\x02");
        assert_eq!(incoming_key(bucket), b"i\0\0\0\0\0\0\x01\x02");
        assert_eq!(sending_key(bucket), b"v\0\0\0\0\0\0\x01\x02");
        assert_eq!(left_key(bucket), b"y\0\0\0\0\0\0\x01\x02");
        assert_eq!(number_in(&left_key(bucket)).unwrap(), bucket);
        assert_eq!(unsettled_key(bucket), b"o\0\0\0\0\0\0\x01\x02");
        assert_eq!(key_key(bucket, b"a\0b"), b"k\0\0\0\0\0\0\x01\x02a\0b");
        assert_eq!(upload_key(bucket, b"a\0b", "0f"), b"u\0\0\0\0\0\0\x01\x02a\0\xffb\0\x010f");
        assert_eq!(part_key(bucket, "0f", 3), b"p\0\0\0\0\0\0\x01\x020f\0\0\0\x03");
        assert_eq!(deleted_key(5, 1), b"d\0\0\0\0\0\0\0\x05\0\0\0\x01");
        assert_eq!(fenced_key(0x0102), b"m\0\0\0\0\0\0\x01\x02");
        assert_eq!(seen_key(0x0102), b"N\0\0\0\0\0\0\x01\x02");
        assert_eq!(dropped_key(bucket), b"x\0\0\0\0\0\0\x01\x02");
        assert_eq!(remembered_key(7), b"s\0\0\0\0\0\0\0\x07");
    }

    proptest! {
        #[test]
        fn uploads_sort_by_key_and_then_by_id(
            one in (prop::collection::vec(0u8..3, 0..4), 0u8..2),
            other in (prop::collection::vec(0u8..3, 0..4), 0u8..2),
        ) {
            let id = |upload: u8| format!("{upload:032x}");
            let filed = |(key, upload): &(Vec<u8>, u8)| upload_key(BucketNumber(1), key, &id(*upload));
            prop_assert_eq!(filed(&one).cmp(&filed(&other)), one.cmp(&other));
            let past_one = uploads_after_key(BucketNumber(1), &one.0);
            prop_assert_eq!(filed(&other) < past_one, other.0 <= one.0);
            let prefixed = filed(&other).starts_with(&uploads_with_prefix(BucketNumber(1), &one.0));
            prop_assert_eq!(prefixed, other.0.starts_with(&one.0));
        }

        #[test]
        fn a_successor_separates_a_prefix_from_what_follows(
            prefix in prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xfe, 0xff]), 0..4),
            other in prop::collection::vec(prop::sample::select(vec![0u8, 1, 0xfe, 0xff]), 0..5),
        ) {
            let before = successor(&prefix).is_none_or(|successor| other < successor);
            prop_assert_eq!(before && other >= prefix, other.starts_with(&prefix));
        }
    }
}
