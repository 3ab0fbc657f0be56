//! A namespace over a real database, without a log: commands are prepared and applied one after another.

use super::*;
use crate::blocks::{BlockKey, UNUSED_PREFIX};
use crate::rules::VOLUME;
use crate::tables::{Read, UNUSED_TOTALS_KEY, bucket_number};
use crate::taps::Taps;
use bytes::Bytes;
use proto::Code;
use proto::datanode::BlockName;
use proto::om::{BlockPiece, CommitKeyRequest, CreateBucketRequest, DeletedPieces, Key, UnusedTotals};
use statedb::Db;
use std::sync::Arc;

pub(crate) struct Namespace {
    pub(crate) db: Db,
    remembered: Remembered,
    pub(crate) taps: Arc<Taps>,
    next_index: u64,
    pub(crate) now_ms: u64,
    /// The place of the bucket that is meant from now on; `None`: the bucket is found by name.
    pub(crate) place: Option<BucketPlace>,
    _dir: tempfile::TempDir,
}

impl Namespace {
    /// A namespace with a bucket `photos`.
    pub(crate) fn new() -> Namespace {
        let mut namespace = Namespace::empty();
        let request = CreateBucketRequest { volume: VOLUME.into(), bucket: "photos".into(), group: None };
        namespace.run::<CreateBucket>(request).unwrap();
        namespace
    }

    /// A namespace with empty tables.
    pub(crate) fn empty() -> Namespace {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &statedb::DbOptions::default()).unwrap();
        let (remembered, taps) = Default::default();
        Namespace { db, remembered, taps, next_index: 0, now_ms: 1000, place: None, _dir: dir }
    }

    /// A namespace with empty tables and a log whose entries, and so requests, have other numbers than those
    /// of other namespaces.
    pub(crate) fn empty_from(next_index: u64) -> Namespace {
        Namespace { next_index, ..Namespace::empty() }
    }

    /// Prepares and applies a request of its own; each takes a millisecond.
    pub(crate) fn run<O: Operation>(&mut self, request: O::Request) -> Result<O::Response, Failure> {
        self.run_as::<O>(u128::from(self.next_index) << 64, request)
    }

    /// Prepares and applies a request with a known id.
    pub(crate) fn run_as<O: Operation>(
        &mut self,
        id: u128,
        request: O::Request,
    ) -> Result<O::Response, Failure> {
        let random = u128::from(self.next_index);
        let fresh = Fresh { random, now_ms: self.now_ms + 1 };
        let command = prepare::<O>(RequestId(id), self.place, request, fresh)?;
        self.apply::<O>(command)
    }

    /// A new bucket, as a command had it before there were several groups.
    pub(crate) fn create_as_before(&mut self, bucket: &str) {
        let request = CreateBucketRequest { volume: VOLUME.into(), bucket: bucket.into(), group: None };
        let command = OmCommand {
            now_ms: self.now_ms + 1,
            request_id: proto::uuid_bytes(u128::from(self.next_index) << 64),
            request_digest: digest::<CreateBucket>(&request),
            command: Some(CreateBucket::into_log(request)),
            ..OmCommand::default()
        };
        self.apply::<CreateBucket>(command).unwrap();
    }

    pub(crate) fn apply<O: Operation>(&mut self, command: OmCommand) -> Result<O::Response, Failure> {
        match self.answer(command) {
            om_reply::Result::Error(error) => Err(error.into()),
            result => Ok(O::from_reply(result).unwrap()),
        }
    }

    pub(crate) fn answer(&mut self, command: OmCommand) -> om_reply::Result {
        let index = self.next_index;
        self.next_index += 1;
        self.now_ms += 1;
        let mut overlay = Overlay::new(&self.db);
        let replies = apply(&mut overlay, &mut self.remembered, index, vec![command]).unwrap();
        let changed = self.taps.changed(&overlay);
        self.db.write(overlay.into_batch()).unwrap();
        self.taps.note(changed);
        replies.into_iter().next().unwrap().result.unwrap()
    }

    /// Runs a request that must be refused; only remembered requests change, and blocks it brings are filed.
    pub(crate) fn check_refused<O: Operation>(&mut self, request: O::Request, code: Code) {
        let is_filed = |key: &[u8]| matches!(key.first(), Some(b'd' | b'h'));
        let but_filed = |namespace: &Namespace| {
            namespace.names().into_iter().filter(|(key, _)| !is_filed(key)).collect::<Vec<_>>()
        };
        let before = but_filed(self);
        match self.run::<O>(request) {
            Ok(_) => panic!("expected {code:?}, but it was done"),
            Err(failure) => assert_eq!(failure.code, code, "{failure}"),
        }
        assert_eq!(but_filed(self), before, "a refused command changed the tables");
    }

    /// Notes in the root how far a group was.
    pub(crate) fn set_seen(&mut self, seen: proto::om::GroupSeen) {
        self.put_records(vec![(crate::tables::seen_key(seen.group), seen.encode_to_vec())]);
    }

    /// Puts the tables back to these records.
    pub(crate) fn set_records(&mut self, records: &[(Vec<u8>, Vec<u8>)]) {
        let mut overlay = Overlay::new(&self.db);
        self.records(b"").into_iter().for_each(|(key, _)| overlay.delete(key));
        records.iter().for_each(|(key, value)| overlay.put(key.clone(), value.clone()));
        self.db.write(overlay.into_batch()).unwrap();
        self.remembered = Remembered::read(&self.db).unwrap();
    }

    pub(crate) fn put_records(&mut self, records: Vec<(Vec<u8>, Vec<u8>)>) {
        let mut overlay = Overlay::new(&self.db);
        records.into_iter().for_each(|(key, value)| overlay.put(key, value));
        self.db.write(overlay.into_batch()).unwrap();
    }

    /// All records but those that remember requests.
    pub(crate) fn names(&self) -> Vec<(Vec<u8>, Vec<u8>)> {
        let is_of_requests = |key: &[u8]| matches!(key.first(), Some(b'q' | b's'));
        self.records(b"").into_iter().filter(|(key, _)| !is_of_requests(key)).collect()
    }

    pub(crate) fn records(&self, prefix: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        Overlay::new(&self.db).scan(prefix).collect::<anyhow::Result<_>>().unwrap()
    }

    pub(crate) fn commit(&mut self, key: &str, container: u64) -> Result<u64, Failure> {
        self.run::<CommitKey>(commit_request(key, container)).map(|response| response.modified_ms)
    }

    pub(crate) fn key(&self, key: &str) -> Option<Key> {
        let bucket = self.bucket("photos").unwrap();
        self.db.message(&crate::tables::key_key(bucket, key.as_bytes())).unwrap()
    }

    pub(crate) fn bucket(&self, bucket: &str) -> Result<BucketNumber, Refusal> {
        bucket_number(&self.db, BucketNamed { place: self.place.map(InGroup::from), volume: VOLUME, bucket })
    }

    /// The totals of what is filed, checked against all that is.
    pub(crate) fn totals(&self) -> UnusedTotals {
        let totals: UnusedTotals = self.db.message(UNUSED_TOTALS_KEY).unwrap().unwrap_or_default();
        let counted = crate::upgrade::count_filed(&self.db).unwrap();
        assert_eq!(totals, UnusedTotals { still_named: totals.still_named, ..counted });
        totals
    }

    /// The containers of all unused blocks, in order.
    pub(crate) fn unused_containers(&self) -> Vec<u64> {
        let rows = self.records(UNUSED_PREFIX).into_iter();
        rows.map(|(key, _)| BlockKey::in_key(&key).unwrap().container()).collect()
    }

    /// The containers of all pieces that were deleted and are not sorted yet, in order.
    pub(crate) fn deleted_containers(&self) -> Vec<u64> {
        let records = self.records(b"d").into_iter();
        let pieces = records.flat_map(|(_, value)| DeletedPieces::decode(&value[..]).unwrap().pieces);
        pieces.map(|piece| piece.block.unwrap().container).collect()
    }
}

pub(crate) fn pieces(container: u64, length: u64) -> Vec<BlockPiece> {
    let block = Some(BlockName { container, local: 1, nonce: proto::uuid_bytes(container.into()) });
    vec![BlockPiece { block, offset: 0, length, commit_index: 9, crc: 0 }]
}

/// A key of ten bytes in `container`.
pub(crate) fn commit_request(key: &str, container: u64) -> CommitKeyRequest {
    let key = Key {
        key: Bytes::copy_from_slice(key.as_bytes()),
        size: 10,
        etag: format!("etag-{container}"),
        pieces: pieces(container, 10),
        ..Key::default()
    };
    CommitKeyRequest {
        volume: VOLUME.into(),
        bucket: "photos".into(),
        key: Some(key),
        ..CommitKeyRequest::default()
    }
}
