//! Buckets of other groups: the root's leader has their groups hold them and let go of them.
//!
//! Names are the root's, and what is in a bucket its group's. Both change one after the other, and each step may be
//! repeated, by whoever leads the root by then:
//!
//! ```text
//! the root               the bucket's group      the root
//! made: name is taken ─► holds it ─────────────► live
//! live: one attempt ───► lets go, or has keys ─► gone, or live
//! ```
//!
//! Whoever asked for it waits for the end. What a crash has left is gone on with by [`finish_always`].

use crate::groups::Groups;
use crate::ops::{self, Fresh, SettleBucket, settle_id};
use crate::replica::Replica;
use crate::replicas::Replicas;
use crate::tables::{ROOT, Read, UNSETTLED_PREFIX, bucket_key, entry_place};
use crate::upgrade::rows;
use anyhow::Context;
use disk::DataDirectory;
use proto::om::om_client::OmClient;
use proto::om::*;
use proto::{Code, Failure, RequestId, as_request, in_cluster};
use raft::AddressBook;
use rand::RngExt;
use rpc::Channel;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tonic::Request;
use tracing::{debug, info, warn};
use types::random::random;
use types::{Clock, GroupId};

/// The time after which what nobody waits for is gone on with.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The way of buckets from the root to their groups, and back.
#[derive(Clone)]
pub(crate) struct Buckets {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) addresses: AddressBook,
    pub(crate) disk: Arc<dyn DataDirectory>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Buckets {
    fn root(&self) -> Result<Arc<Replica>, Failure> {
        self.replicas.serving(GroupId::om(ROOT), &self.addresses)
    }

    /// Waits until a bucket that was made is there.
    pub(crate) async fn made(&self, bucket: &Bucket, place: &BucketPlace) -> Result<(), Failure> {
        match self.entry(bucket)? {
            Some(entry) if entry.number == place.number && entry.stage() == BucketStage::BucketMaking => {
                self.settle(&entry).await.map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Waits for the outcome of an attempt to delete a bucket: whether it is gone.
    pub(crate) async fn deleted(
        &self,
        bucket: Bucket,
        place: BucketPlace,
        deletion: u64,
    ) -> Result<bool, Failure> {
        let BucketPlace { number, group, epoch } = place;
        let mut entry = BucketEntry {
            number,
            group,
            epoch,
            deletions: deletion,
            bucket: Some(bucket),
            ..Default::default()
        };
        entry.set_stage(BucketStage::BucketDropping);
        self.settle(&entry).await
    }

    fn entry(&self, bucket: &Bucket) -> Result<Option<BucketEntry>, Failure> {
        let entry = self.root()?.dbs.current().message(&bucket_key(&bucket.volume, &bucket.name));
        entry.map_err(|error| Failure::internal(format!("read the bucket's entry: {error:#}")))
    }

    /// Has a bucket's group do what the bucket's stage asks for, and notes it: whether it is gone.
    async fn settle(&self, entry: &BucketEntry) -> Result<bool, Failure> {
        let place = Some(entry_place(entry));
        let (deletion, is_gone) = match entry.stage() {
            BucketStage::BucketLive => return Ok(false),
            BucketStage::BucketMaking => {
                let hold = HoldBucketRequest { place, bucket: entry.bucket.clone() };
                self.ask(entry.group, hold, |mut om, hold| async move { om.hold_bucket(hold).await }).await?;
                (0, false)
            }
            BucketStage::BucketDropping => {
                let release = ReleaseBucketRequest { place, deletion: entry.deletions };
                let released = self.ask(entry.group, release, |mut om, release| async move {
                    om.release_bucket(release).await
                });
                (entry.deletions, released.await?.is_gone)
            }
        };
        let Bucket { volume, name: bucket, .. } = entry.bucket.clone().unwrap_or_default();
        let number = entry.number;
        let request = SettleBucketCommand { volume, bucket, number, deletion, is_gone };
        let fresh = Fresh { random: 0, now_ms: self.clock.now_ms(), group: ROOT };
        let command = ops::prepare::<SettleBucket>(settle_id(number, deletion), None, request, fresh)?;
        match self.root()?.lane.apply(command).await?.result {
            Some(om_reply::Result::SettleBucket(settled)) => Ok(settled.is_gone),
            Some(om_reply::Result::Error(error)) => Err(error.into()),
            _ => Err(Failure::internal("the reply is to another kind of request")),
        }
    }

    /// Asks the leader of a bucket's group.
    async fn ask<Q: Clone, A, F>(
        &self,
        group: u64,
        question: Q,
        call: impl Fn(OmClient<Channel>, Request<Q>) -> F,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let cluster = self.disk.stamp().cluster;
        let id = RequestId(random().random());
        let link = self.groups.link(group)?;
        let answer = link.ask(|channel| {
            let request = as_request(Request::new(question.clone()), id, Duration::ZERO);
            call(OmClient::new(channel), in_cluster(request, &cluster))
        });
        // The bucket's maker asks again, and so does the root.
        let unfinished =
            |failure: Failure| Failure::new(Code::Unavailable, format!("group {group} of names: {failure}"));
        answer.await.map_err(unfinished)
    }

    /// The buckets of which the tables say that something is to be done.
    fn unsettled(&self) -> anyhow::Result<Vec<BucketEntry>> {
        let Ok(root) = self.root() else { return Ok(Vec::new()) };
        let db = root.dbs.current();
        let mut entries = Vec::new();
        for row in rows(&db, UNSETTLED_PREFIX) {
            let (_, name) = row?;
            entries.extend(db.message(&name)?);
        }
        Ok(entries)
    }
}

/// Goes on, wherever the root is led from here, with what nobody waits for any more.
pub(crate) async fn finish_always(buckets: Buckets) {
    let attempt = |entry: &BucketEntry| (entry.number, entry.deletions);
    let mut seen = BTreeSet::new();
    loop {
        sleep(LOOK_EVERY).await;
        let unsettled = match buckets.unsettled().context("read which buckets are being made or deleted") {
            Ok(unsettled) => unsettled,
            Err(error) => {
                warn!(error = format!("{error:#}"), "finish what was begun with buckets");
                continue;
            }
        };
        // What is new somebody waits for.
        for entry in unsettled.iter().filter(|entry| seen.contains(&attempt(entry))) {
            let name = entry.bucket.as_ref().map(|bucket| &bucket.name);
            match buckets.settle(entry).await {
                Ok(is_gone) => info!(name, is_gone, "finished what was begun with a bucket"),
                Err(failure) => debug!(name, %failure, "finish what was begun with a bucket"),
            }
        }
        seen = unsettled.iter().map(attempt).collect();
    }
}
