use super::seen_buckets::SeenBuckets;
use client::Client;

/// The state that operations share: each is a method of it, in a file beside this one.
pub(super) struct Gateway {
    pub(super) client: Client,
    pub(super) region: String,
    pub(super) seen_buckets: SeenBuckets,
}
