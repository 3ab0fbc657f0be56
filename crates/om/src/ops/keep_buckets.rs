//! The root has said of buckets whether they are in this group by these epochs: a group that was reset may
//! have forgotten that one has left, and serves none before that.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{
    BUCKETS_PREFIX, BucketNumber, DOUBT_KEY, Read, Refusal, decode, doubt, letting_go, record_key,
    runs_before, sending_key,
};
use prost::Message;
use proto::om::{BucketPlace, BucketRecord, KeepBucketsRequest, KeepBucketsResponse};
use proto::{Code, Failure};

/// The most buckets that are told of, or kept, at a time.
pub(crate) const KEPT_AT_ONCE: usize = 1000;

pub(crate) struct KeepBuckets;

impl Operation for KeepBuckets {
    type Request = KeepBucketsRequest;
    type Command = KeepBucketsRequest;
    type Response = KeepBucketsResponse;
    wire!(KeepBuckets);

    fn prepare(request: KeepBucketsRequest, _: Fresh) -> Result<KeepBucketsRequest, Failure> {
        match request.kept.len() + request.left.len() {
            0..=KEPT_AT_ONCE => Ok(request),
            count => {
                let why = format!("{count} buckets, at most {KEPT_AT_ONCE} are allowed");
                Err(Failure::new(Code::TooLarge, why))
            }
        }
    }

    /// The root's word is of one history: what was true before another reset may have been forgotten in it.
    fn apply(apply: &mut Apply<'_, '_>, command: KeepBucketsRequest) -> Result<KeepBucketsResponse, Refusal> {
        let history = runs_before(apply.tables)?;
        if command.history != history {
            let why = format!("the group was reset or restored: its history is {history} now");
            return Err(Refusal::Passing(Failure::new(Code::NotHere, why)));
        }
        for place in command.kept {
            if let Some(record) = doubted(apply, place)? {
                let row = record_key(BucketNumber(place.number));
                apply.tables.put(row, BucketRecord { doubted: false, ..record }.encode_to_vec());
            }
        }
        for place in command.left {
            if doubted(apply, place)?.is_some() {
                let number = BucketNumber(place.number);
                let (key, value) = letting_go(apply.tables, number, place.epoch)?;
                apply.tables.put(key, value);
                apply.tables.delete(record_key(number));
                apply.tables.delete(sending_key(number));
                apply.leave(number);
            }
        }
        if command.is_all {
            check_all_certain(apply)?;
            apply.tables.delete(DOUBT_KEY.to_vec());
        }
        Ok(KeepBucketsResponse {})
    }
}

/// The bucket, if it is here by this epoch and the root has not said so yet.
fn doubted(apply: &Apply<'_, '_>, place: BucketPlace) -> anyhow::Result<Option<BucketRecord>> {
    let record: Option<BucketRecord> = apply.tables.message(&record_key(BucketNumber(place.number)))?;
    Ok(record.filter(|record| record.doubted && record.epoch == place.epoch))
}

/// Refuses to end the doubt while some bucket, or where buckets are, is doubted still.
fn check_all_certain(apply: &Apply<'_, '_>) -> Result<(), Refusal> {
    let mut is_doubted = doubt(apply.tables)?.is_some_and(|doubt| doubt.places);
    for row in apply.tables.scan(BUCKETS_PREFIX) {
        let (key, value) = row?;
        is_doubted |= decode::<BucketRecord>(&key, &value)?.doubted;
    }
    match is_doubted {
        false => Ok(()),
        true => Err(Refusal::Passing(Failure::new(Code::NotYet, "the group doubts some of its buckets"))),
    }
}
