//! Somebody who moves buckets from group to group while they are used, and asks groups by places where
//! buckets were.

use super::histories::{Histories, name};
use super::record::Record;
use client::{Client, S3_VOLUME};
use disk::sim::Random;
use proto::om::om_client::OmClient;
use proto::om::{BucketPlace, BucketStage, HeadBucketResponse, Lookup, LookupKeysRequest, lookup_reply};
use proto::{Code, Failure};
use rpc::Connector;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Request;

const ANSWER_MAX: Duration = Duration::from_secs(2);
/// One move in so many is given up as soon as it has begun.
const GIVEN_UP_ONE_IN: u64 = 8;
/// The most places that are kept of a bucket.
const PLACES_MAX: usize = 4;

pub(super) struct Mover {
    pub(super) client: Client,
    pub(super) histories: Histories,
    pub(super) record: Record,
    pub(super) random: Random,
    pub(super) pause_ms_max: u64,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) oms: Vec<String>,
    /// The places where the bucket of each history has been, the last one at the end.
    pub(super) places: BTreeMap<usize, Vec<BucketPlace>>,
    /// A token that is held while the mover is at work.
    pub(super) at_work: Arc<()>,
}

impl Mover {
    pub(super) async fn run(mut self) {
        while !self.record.is_over() {
            sleep(Duration::from_millis(1 + self.random.below(self.pause_ms_max))).await;
            let history = self.histories.pick(&mut self.random);
            if let Ok(found) = self.client.find_bucket(S3_VOLUME, &name(history)).await {
                self.note(history, &found);
                self.ask_where_it_was(history, &found).await;
                if !self.record.is_quiet() {
                    self.move_it(history, &found).await;
                }
            }
        }
        drop(self.at_work);
    }

    fn note(&mut self, history: usize, found: &HeadBucketResponse) {
        let Some(place) = found.place else { return };
        let places = self.places.entry(history).or_default();
        let last = places.last().copied();
        if last == Some(place) {
            return;
        }
        if last.is_some_and(|last| last.number == place.number) {
            self.record.count(|counts| counts.buckets_moved += 1);
        }
        places.push(place);
        let old = places.len().saturating_sub(PLACES_MAX);
        places.drain(..old);
    }

    async fn move_it(&mut self, history: usize, found: &HeadBucketResponse) {
        let groups: Vec<u64> = self.client.view().om_groups.iter().map(|group| group.number).collect();
        if groups.is_empty() {
            return;
        }
        let to = *self.random.pick(&groups);
        let begun = self.client.move_bucket(S3_VOLUME, &name(history), to).await;
        let Some(moved) = begun.ok().filter(|begun| !begun.is_there).and_then(|begun| begun.moved) else {
            return;
        };
        if found.stage() == BucketStage::BucketLive && self.random.one_in(GIVEN_UP_ONE_IN) {
            let given_up = self.client.give_up_move(S3_VOLUME, &name(history), moved).await;
            let is_given_up = given_up.is_ok_and(|is_done| !is_done);
            self.record.count(|counts| counts.moves_given_up += u64::from(is_given_up));
        }
    }

    /// Asks an OM for a bucket by a place where it was: no group has a bucket by another place than the root
    /// says, unless it moves.
    async fn ask_where_it_was(&mut self, history: usize, found: &HeadBucketResponse) {
        let (stage, now) = (found.stage(), found.place);
        let places = self.places.get(&history).cloned().unwrap_or_default();
        let stale: Vec<BucketPlace> = places.into_iter().filter(|place| Some(*place) != now).collect();
        if stage != BucketStage::BucketLive || stale.is_empty() {
            return;
        }
        let (place, om) = (*self.random.pick(&stale), self.random.pick(&self.oms).clone());
        let asked = timeout(ANSWER_MAX, self.look_up(history, place, &om)).await;
        if let Ok(Ok(answer)) = asked {
            self.record.count(|counts| counts.stale_places_asked += 1);
            if let Some(answer) = answer {
                let bucket = name(history);
                self.record
                    .fail(format!("{om} answers for {bucket} at {place:?}, and it is at {now:?}: {answer}"));
            }
        }
    }

    /// The answer of an OM, if it takes the place for right.
    async fn look_up(&self, history: usize, place: BucketPlace, om: &str) -> Result<Option<String>, Failure> {
        let mut om = OmClient::new(self.connector.connect(om).map_err(Failure::internal)?);
        let (volume, bucket) = (S3_VOLUME.to_owned(), name(history));
        let lookup = Lookup { place: Some(place), volume, bucket, key: "key-0".into() };
        let request = Request::new(LookupKeysRequest { lookups: vec![lookup], any_member: false });
        let request = proto::in_cluster(request, &self.client.view().cluster);
        let mut replies = om.lookup_keys(request).await?.into_inner().replies;
        match replies.pop().and_then(|reply| reply.result) {
            Some(lookup_reply::Result::Error(error)) => match Failure::from(error) {
                failure if failure.code == Code::NotHere => Ok(None),
                failure if failure.code == Code::NoSuchKey => Ok(Some(failure.message)),
                failure => Err(failure),
            },
            answer => Ok(Some(format!("{answer:?}"))),
        }
    }
}
