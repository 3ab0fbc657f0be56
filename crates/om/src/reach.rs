//! The root's reach: its own tables and log, and all groups. What is decided of buckets is written against
//! it, and so the model that drops answers runs the same code as a cluster.

use crate::ops::Operation;
use proto::om::*;
use proto::{Code, Failure};
use statedb::Db;
use std::collections::BTreeSet;

pub(crate) trait Reach {
    /// Reads the root's tables.
    async fn look<T: Send + 'static>(
        &self,
        look: impl FnOnce(&Db) -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, Failure>;
    /// Waits until the root's tables have all that was decided until now, by the word of a majority: no lease
    /// is relied on.
    async fn catch_up(&self) -> Result<(), Failure>;
    /// Writes into the root's log what has become of something.
    async fn write<O: Operation>(&self, what: O::Request) -> Result<O::Response, Failure>;
    /// All groups that may have a bucket.
    async fn groups(&self) -> Result<BTreeSet<u64>, Failure>;
    async fn list_held(&self, list: ListHeldRequest) -> Result<ListHeldResponse, Failure>;
    async fn keep(&self, keep: KeepBucketsRequest) -> Result<(), Failure>;
    /// Has the group from which a bucket goes send it.
    async fn send(&self, moved: BucketMove) -> Result<SendBucketResponse, Failure>;
    async fn end_sending(&self, moved: BucketMove, is_done: bool) -> Result<(), Failure>;
    /// Ends an attempt in the group to which the bucket goes, once that has all fences that the root has;
    /// answers whether what was to be there is lost.
    async fn end_receiving(&self, moved: BucketMove, is_done: bool) -> Result<bool, Failure>;
    /// Has a group take the fences of the root that it lacks.
    async fn bring_fences(&self, group: u64) -> Result<(), Failure>;
}

/// All that a group has said that it has.
pub(crate) struct Held {
    pub(crate) history: u64,
    pub(crate) buckets: Vec<HeldBucket>,
}

/// The buckets with these numbers that a group has, now or later.
pub(crate) async fn held(reach: &impl Reach, group: u64, mut from: u64, to: u64) -> Result<Held, Failure> {
    let mut all: Option<Held> = None;
    loop {
        let ListHeldResponse { held, next, history } =
            reach.list_held(ListHeldRequest { group, from, to }).await?;
        let told = all.get_or_insert(Held { history, buckets: Vec::new() });
        if told.history != history {
            let why = format!("group {group} was reset while it told which buckets it has");
            return Err(Failure::new(Code::NotYet, why));
        }
        told.buckets.extend(held);
        if next == 0 {
            return Ok(all.expect("it was told just now"));
        }
        from = next;
    }
}
