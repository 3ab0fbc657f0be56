//! Queries only read the namespace; there is one per file.

mod container_keys;
mod head_bucket;
mod head_volume;
mod held;
mod known_blocks;
mod list_buckets;
mod list_keys;
mod list_parts;
mod list_uploads;
mod list_volumes;
mod lookup_key;
mod scan;
mod stat_bucket;

pub(crate) use container_keys::container_keys;
pub(crate) use head_bucket::HeadBucket;
pub(crate) use head_volume::HeadVolume;
pub(crate) use held::held;
pub(crate) use known_blocks::{known_blocks, named_containers};
pub(crate) use list_buckets::ListBuckets;
pub(crate) use list_keys::ListKeys;
pub(crate) use list_parts::ListParts;
pub(crate) use list_uploads::ListUploads;
pub(crate) use list_volumes::ListVolumes;
pub(crate) use lookup_key::lookup_key;
pub(crate) use scan::Scan;
pub(crate) use stat_bucket::StatBucket;

use crate::tables::{self, BucketNamed, InGroup, Refusal, bucket_record};
use statedb::Db;

/// The part of the tables that a query touches, which decides where it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// A record or two: in place.
    Records,
    /// Up to a page: on a thread that may block.
    Page,
}

pub(crate) trait Query {
    type Request: Send + 'static;
    type Response: Send + 'static;
    const REACH: Reach;

    /// Whether whoever asks takes the answer of a replica that does not lead, too.
    fn may_any_member_answer(_: &Self::Request) -> bool {
        false
    }

    fn read(db: &Db, place: Option<InGroup>, request: Self::Request) -> Result<Self::Response, Refusal>;
}

pub(crate) fn read<Q: Query>(
    db: &Db,
    place: Option<InGroup>,
    request: Q::Request,
) -> Result<Q::Response, Refusal> {
    let read = Q::read(db, place, request);
    check_still_here(db, place)?;
    read
}

/// Checks, after a read, that the bucket is here still: what a bucket that went to another group has left is
/// deleted row by row, and a page of half of it is none.
fn check_still_here(db: &impl tables::Read, place: Option<InGroup>) -> Result<(), Refusal> {
    if place.is_some() {
        bucket_record(db, named(place, "", "of that number"))?;
    }
    Ok(())
}

fn named<'a>(place: Option<InGroup>, volume: &'a str, bucket: &'a str) -> BucketNamed<'a> {
    BucketNamed { place, volume, bucket }
}
