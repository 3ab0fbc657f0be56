//! Queries only read the namespace; there is one per file.

mod head_bucket;
mod list_buckets;
mod list_keys;
mod list_parts;
mod list_uploads;
mod lookup_key;
mod scan;

pub(crate) use head_bucket::HeadBucket;
pub(crate) use list_buckets::ListBuckets;
pub(crate) use list_keys::ListKeys;
pub(crate) use list_parts::ListParts;
pub(crate) use list_uploads::ListUploads;
pub(crate) use lookup_key::LookupKey;

use crate::tables::Refusal;
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

    fn read(db: &Db, request: Self::Request) -> Result<Self::Response, Refusal>;
}
