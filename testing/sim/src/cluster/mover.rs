//! Somebody who moves the bucket from group to group, while it is written and OMs have their troubles; and
//! the way of its clients to where it is.

use super::ledger::Ledger;
use super::objects::{BUCKET, Objects, OmWay, VOLUME};
use disk::sim::Random;
use proto::om::om_client::OmClient;
use proto::om::{
    BucketPlace, BucketStage, HeadBucketRequest, HeadBucketResponse, MoveBucketRequest, SettleMoveRequest,
};
use proto::{Failure, RequestId};
use rpc::Channel;
use std::ops::Range;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::{Request, Response, Status};

pub(super) const PAUSE_MS_MAX: u64 = 2000;
const ANSWER_MAX: Duration = Duration::from_secs(2);
/// One move in so many is given up as soon as it has begun.
const GIVEN_UP_ONE_IN: u64 = 6;

pub(super) struct Mover {
    pub(super) oms: OmWay,
    pub(super) ledger: Ledger,
    pub(super) random: Random,
    /// The groups among which the bucket moves.
    pub(super) groups: Range<u64>,
    pub(super) pause_ms_max: u64,
    /// The epoch of the bucket's place, as it was seen last.
    pub(super) epoch: u64,
}

impl Mover {
    pub(super) async fn run(mut self) {
        while self.ledger.is_writing() {
            sleep(Duration::from_millis(1 + self.random.below(self.pause_ms_max))).await;
            self.step().await;
        }
    }

    async fn step(&mut self) {
        let Some(found) = head(&self.oms).await else { return };
        let place = found.place.unwrap_or_default();
        if place.epoch > self.epoch {
            self.epoch = place.epoch;
            self.ledger.count(|counts| counts.buckets_moved += 1);
        }
        let Range { start, end } = self.groups.clone();
        let (to, id) = (start + self.random.below(end - start), self.id());
        let moves = MoveBucketRequest { volume: VOLUME.to_owned(), bucket: BUCKET.to_owned(), to };
        let begun = ask(&self.oms, id, moves, |mut om, moves| async move { om.move_bucket(moves).await });
        let Some(begun) = begun.await.filter(|begun| !begun.is_there) else { return };
        if self.random.one_in(GIVEN_UP_ONE_IN) && found.stage() == BucketStage::BucketLive {
            let moved = begun.moved.unwrap_or_default();
            let settle = SettleMoveRequest {
                volume: VOLUME.to_owned(),
                bucket: BUCKET.to_owned(),
                number: moved.number,
                attempt: moved.attempt,
                why: "it was given up".to_owned(),
                ..SettleMoveRequest::default()
            };
            let id = self.id();
            ask(&self.oms, id, settle, |mut om, settle| async move { om.settle_move(settle).await }).await;
        }
    }

    fn id(&mut self) -> RequestId {
        RequestId(u128::from(self.random.next_u64()) << 64 | u128::from(self.random.next_u64()))
    }
}

/// Asks the root, whoever leads it, where the bucket is, and keeps the place.
pub(super) async fn find_bucket(oms: &OmWay, objects: &Objects) {
    let place: Option<BucketPlace> = head(oms).await.and_then(|found| found.place);
    place.into_iter().for_each(|place| objects.keep_place(place));
}

async fn head(oms: &OmWay) -> Option<HeadBucketResponse> {
    let head = HeadBucketRequest { volume: VOLUME.to_owned(), bucket: BUCKET.to_owned() };
    ask(oms, RequestId(0), head, |mut om, head| async move { om.head_bucket(head).await }).await
}

/// The first answer of any OM, if one gives any.
async fn ask<Q: Clone, A, F>(
    oms: &OmWay,
    id: RequestId,
    question: Q,
    call: impl Fn(OmClient<Channel>, Request<Q>) -> F,
) -> Option<A>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    for address in &oms.addresses {
        let Ok(channel) = oms.connector.connect(address) else { continue };
        let request = proto::in_cluster(Request::new(question.clone()), &oms.cluster);
        let request = proto::as_request(request, id, Duration::ZERO);
        let answer = timeout(ANSWER_MAX, call(OmClient::new(channel), request)).await;
        if let Ok(answer) = answer.map(|answer| answer.map_err(Failure::from))
            && let Ok(answer) = answer
        {
            return Some(answer.into_inner());
        }
    }
    None
}
