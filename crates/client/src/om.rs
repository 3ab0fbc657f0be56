use crate::ClientError;
use crate::any_member::AnyMember;
use crate::channels::Channels;
use crate::client::Client;
use crate::counted::Counted;
use crate::lanes::Lanes;
use crate::om_seeker::OmSeeker;
use crate::routes::{BucketName, Routes};
use crate::view::View;
use bytes::Bytes;
use proto::om::om_client::OmClient;
use proto::om::*;
use proto::{ChangesBucket, Code, Failure, ROOT_OF_NAMES, RequestId, Retry, Seeker};
use rand::RngExt;
use rpc::Channel;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;
use types::Backoff;
use types::random::random;

/// Calls to OM: finds the group, follows its leader, and repeats what may be repeated.
pub(crate) struct OmCaller {
    om: OmSeeker,
    routes: Routes,
    wire: OmWire,
    changes: Lanes<Change>,
    lookups: Lanes<Lookup>,
    /// The way to ask members that do not lead, where such are asked, too.
    any_member: Option<AnyMember>,
    deadline: Duration,
    counted: Arc<Counted>,
}

/// The part of the names that a call is about.
#[derive(Clone)]
enum About {
    /// A group, as a whole; the root, where each bucket is.
    Group(u64),
    /// The inside of a bucket, wherever that is.
    Bucket(BucketName),
}

/// The kind of a call, which decides who is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wants {
    /// A change, which the leader carries out.
    Change,
    /// An answer of the leader.
    Answer,
    /// An answer that any member may give.
    AnyAnswer,
}

/// One try of a call.
struct Try {
    group: u64,
    address: String,
    place: Option<BucketPlace>,
    /// The time since the first try.
    age: Duration,
}

impl OmCaller {
    pub(crate) fn new(
        om: OmSeeker,
        wire: OmWire,
        any_member: Option<AnyMember>,
        deadline: Duration,
        counted: Arc<Counted>,
    ) -> OmCaller {
        let (changes, lookups) = (Lanes::new(wire.clone()), Lanes::new(wire.clone()));
        OmCaller { om, routes: Routes::default(), wire, changes, lookups, any_member, deadline, counted }
    }

    /// A question to OM.
    async fn query<Q, A, F>(
        &self,
        about: About,
        request: Q,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, ClientError>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        self.query_of(about, Wants::Answer, request, method).await
    }

    async fn query_of<Q, A, F>(
        &self,
        about: About,
        wants: Wants,
        request: Q,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, ClientError>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let ask = |one: Try| {
            let call = tonic::Request::new(request.clone());
            let call = match &one.place {
                Some(place) => proto::in_bucket(call, place),
                None => call,
            };
            self.wire.call(one.address, call, &method)
        };
        self.call(about, wants, ask).await
    }

    /// A change of what the root has.
    async fn change_root<Q, A, F>(
        &self,
        request: Q,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, ClientError>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let id = RequestId(random().random());
        let ask = |one: Try| {
            let call = proto::as_request(tonic::Request::new(request.clone()), id, one.age);
            self.wire.call(one.address, call, &method)
        };
        self.call(About::Group(ROOT_OF_NAMES), Wants::Change, ask).await
    }

    /// A change of the inside of a bucket.
    async fn change<C: ChangesBucket>(
        &self,
        bucket: BucketName,
        request: C,
    ) -> Result<C::Answer, ClientError> {
        let id = RequestId(random().random());
        let ask = |one: Try| {
            let change = Change::of(request.clone(), id, one.age, one.place);
            async move { self.changes.ask(one.group, one.address, change).await?.answer::<C>() }
        };
        self.call(About::Bucket(bucket), Wants::Change, ask).await
    }

    /// A key with its pieces.
    async fn look_up(&self, bucket: BucketName, key: &[u8]) -> Result<Key, ClientError> {
        let BucketName { volume, bucket: name } = bucket.clone();
        let asked = Lookup { place: None, volume, bucket: name, key: Bytes::copy_from_slice(key) };
        let ask = |one: Try| {
            let lookup = Lookup { place: one.place, ..asked.clone() };
            async move {
                loop {
                    let asked = self.lookups.ask(one.group, one.address.clone(), lookup.clone());
                    // A lookup without a result is asked for again: those that shared its call had filled the
                    // answer.
                    if let Some(result) = asked.await?.result {
                        return result.into();
                    }
                }
            }
        };
        self.call(About::Bucket(bucket), Wants::AnyAnswer, ask).await
    }

    /// A call, counted. About the inside of a bucket it goes to that bucket's group.
    async fn call<A, F>(&self, about: About, wants: Wants, ask: impl Fn(Try) -> F) -> Result<A, ClientError>
    where
        F: Future<Output = Result<A, Failure>>,
    {
        let begun = Instant::now();
        let answer = self.call_repeated(about, wants, ask).await;
        self.counted.om_answered(wants == Wants::Change, begun.elapsed());
        if let Err(ClientError::Unavailable(_) | ClientError::OutcomeUnknown(_)) = &answer {
            self.counted.om_failed.count();
        }
        answer
    }

    /// Calls until OM says yes or no, or the deadline passes. Sent twice, queries do no harm, and changes
    /// take effect once, because they carry an id.
    async fn call_repeated<A, F>(
        &self,
        about: About,
        wants: Wants,
        ask: impl Fn(Try) -> F,
    ) -> Result<A, ClientError>
    where
        F: Future<Output = Result<A, Failure>>,
    {
        let begun = Instant::now();
        let (group_asked, bucket) = match about {
            About::Group(group) => (group, None),
            About::Bucket(bucket) => (ROOT_OF_NAMES, Some(bucket)),
        };
        let mut retry = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
        let (mut unsure, mut strangers) = (false, 0);
        // The number of the bucket that a try without a known outcome may have changed.
        let mut changed = None;
        loop {
            let place = match &bucket {
                Some(bucket) => self.place(bucket).await.map(Some),
                None => Ok(None),
            };
            let number = place.as_ref().ok().and_then(|place| Some(place.as_ref()?.number));
            if changed.is_some() && number.is_some() && number != changed {
                // The bucket that the change was sent to is gone, and another one has its name.
                return Err(ClientError::OutcomeUnknown("the bucket was deleted meanwhile".to_owned()));
            }
            let asked = match place {
                Ok(place) => {
                    let group = place.map_or(group_asked, |place| place.group);
                    let one = |address| ask(Try { group, address, place, age: begun.elapsed() });
                    self.ask(group, wants, one).await.map_err(|failed| (failed, place))
                }
                Err(failed) => Err((failed, None)),
            };
            let (Failed { om, address, failure }, place) = match asked {
                Ok(answer) => return Ok(answer),
                Err(failed) => failed,
            };
            // A question has no outcome to be unsure of.
            if failure.retry == Retry::Unknown
                && wants == Wants::Change
                && (place.is_some() || bucket.is_none())
            {
                unsure = true;
                changed = number;
            }
            if failure.code == Code::WrongCluster {
                strangers += 1;
            }
            let is_final = match failure.code {
                // Somebody's list of addresses is wrong, or a directory was exchanged: that is for people to
                // mend.
                Code::WrongCluster => strangers >= om.as_ref().map_or(1, |om| om.configured().len()),
                _ => matches!(failure.retry, Retry::No | Retry::Unspecified),
            };
            if is_final {
                return Err(match failure.code {
                    Code::OutcomeUnknown => ClientError::OutcomeUnknown(failure.message),
                    // The root, which was not asked to change anything, says that the bucket is gone.
                    code if unsure
                        && (!is_decided_by_tables(code) || bucket.is_some() && place.is_none()) =>
                    {
                        ClientError::OutcomeUnknown(failure.message)
                    }
                    _ => failure.into(),
                });
            }
            if begun.elapsed() + retry.next_pause() > self.deadline {
                let why = format!("OM did not answer within {:?}: {failure}", self.deadline);
                return Err(match unsure {
                    true => ClientError::OutcomeUnknown(why),
                    false => ClientError::Unavailable(why),
                });
            }
            debug!(om = address, why = %failure, "call OM again");
            if let (Some(bucket), Some(wrong)) = (&bucket, place)
                && failure.code == Code::NotHere
            {
                self.routes.forget(bucket, wrong);
            } else if let Some(om) = om {
                om.failed(&address, &failure);
            }
            self.counted.om_repeats.count();
            tokio::time::sleep(retry.pause()).await;
        }
    }

    /// Keeps the place of a bucket that the root said beside something else.
    fn keep(&self, volume: &str, bucket: &str, place: Option<BucketPlace>) {
        if let Some(place) = place {
            self.routes.keep(&inside(volume, bucket), place);
        }
    }

    /// The place of a bucket: as it was told last, or as the root says.
    async fn place(&self, name: &BucketName) -> Result<BucketPlace, Failed> {
        if let Some(known) = self.routes.of(name) {
            return Ok(known);
        }
        let BucketName { volume, bucket } = name.clone();
        let request = HeadBucketRequest { volume, bucket };
        let head = |mut om: OmClient<Channel>, request| async move { om.head_bucket(request).await };
        let ask = |address| self.wire.call(address, tonic::Request::new(request.clone()), head);
        let place = self.ask(ROOT_OF_NAMES, Wants::Answer, ask).await?.place;
        let place =
            place.ok_or_else(|| Failed::of_nobody(Failure::internal("OM says of no bucket where it is")))?;
        self.routes.keep(name, place);
        Ok(place)
    }

    /// One try with the member of a group that is thought to lead it, or with all that may answer until one
    /// does.
    async fn ask<A, F>(&self, group: u64, wants: Wants, ask: impl Fn(String) -> F) -> Result<A, Failed>
    where
        F: Future<Output = Result<A, Failure>>,
    {
        let om = self.om.of(group).map_err(Failed::of_nobody)?;
        let (address, answer) = match &self.any_member {
            Some(any) if wants == Wants::AnyAnswer => any.ask(om.configured(), ask).await,
            _ => {
                let leader = om.address();
                (leader.clone(), ask(leader).await)
            }
        };
        answer.map_err(|failure| Failed { om: Some(om), address, failure })
    }
}

/// The wire to OMs, of one cluster.
#[derive(Clone)]
pub(crate) struct OmWire {
    pub(crate) channels: Channels,
    /// The view, which says which cluster OM must be of.
    pub(crate) view: watch::Receiver<Arc<View>>,
    pub(crate) call_timeout: Duration,
    /// Whether members that do not lead may answer lookups.
    pub(crate) any_member: bool,
}

impl OmWire {
    pub(crate) async fn call<Q, A, F>(
        &self,
        address: String,
        request: tonic::Request<Q>,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let cluster = self.view.borrow().cluster.clone();
        if cluster.is_empty() {
            // Nothing was sent.
            return Err(Failure::new(Code::Unavailable, "SCM has not said yet which cluster this is"));
        }
        let request = proto::in_cluster(request, &cluster);
        let om = OmClient::new(self.channels.to(&address)?)
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        match tokio::time::timeout(self.call_timeout, method(om, request)).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Failure::new(Code::OutcomeUnknown, format!("{address} does not answer"))),
        }
    }
}

/// A try that failed, and who was asked.
struct Failed {
    /// The search that named who was asked; `None`: nobody was, and nothing was sent.
    om: Option<Arc<Seeker>>,
    address: String,
    failure: Failure,
}

impl Failed {
    fn of_nobody(failure: Failure) -> Failed {
        Failed { om: None, address: String::new(), failure }
    }
}

/// Whether a refusal with this code comes from OM's tables, and so once for all: they remember what a request
/// was answered, so no earlier try took effect, and none ever will. Other refusals say nothing of earlier
/// tries, which may have come to another server, or to the same one before it was replaced.
fn is_decided_by_tables(code: Code) -> bool {
    matches!(
        code,
        Code::NoSuchBucket
            | Code::BucketExists
            | Code::BucketNotEmpty
            | Code::NoSuchVolume
            | Code::VolumeExists
            | Code::VolumeNotEmpty
            | Code::NoSuchKey
            | Code::NoSuchUpload
            | Code::PreconditionFailed
            | Code::GivenUp
            | Code::InvalidPart
            | Code::PartTooSmall
    )
}

macro_rules! query {
    ($client:expr, $method:ident, $about:expr, $request:expr) => {
        $client.om().query($about, $request, |mut om, request| async move { om.$method(request).await })
    };
}

macro_rules! change_root {
    ($client:expr, $method:ident, $request:expr) => {
        $client.om().change_root($request, |mut om, request| async move { om.$method(request).await })
    };
}

fn inside(volume: &str, bucket: &str) -> BucketName {
    BucketName { volume: volume.to_owned(), bucket: bucket.to_owned() }
}

fn about(volume: &str, bucket: &str) -> About {
    About::Bucket(inside(volume, bucket))
}

fn missing(what: &str) -> ClientError {
    ClientError::Refused(Failure::internal(format!("OM's answer lacks the {what}")))
}

/// The namespace. Every call follows OM's leader and is tried again, until `write_deadline`, when that is
/// safe.
impl Client {
    pub async fn create_bucket(&self, volume: &str, bucket: &str) -> Result<Bucket, ClientError> {
        self.create_bucket_in(volume, bucket, None).await
    }

    /// [`Client::create_bucket`] in a group of names that somebody has chosen.
    pub async fn create_bucket_in(
        &self,
        volume: &str,
        bucket: &str,
        group: Option<u64>,
    ) -> Result<Bucket, ClientError> {
        let request = CreateBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned(), group };
        let made = change_root!(self, create_bucket, request).await?;
        self.om().keep(volume, bucket, made.place);
        made.bucket.ok_or_else(|| missing("bucket"))
    }

    pub async fn create_volume(&self, volume: &str) -> Result<Volume, ClientError> {
        let request = CreateVolumeRequest { volume: volume.to_owned() };
        change_root!(self, create_volume, request).await?.volume.ok_or_else(|| missing("volume"))
    }

    /// Deletes a volume without buckets.
    pub async fn delete_volume(&self, volume: &str) -> Result<(), ClientError> {
        let request = DeleteVolumeRequest { volume: volume.to_owned() };
        change_root!(self, delete_volume, request).await.map(|_| ())
    }

    pub async fn head_volume(&self, volume: &str) -> Result<Volume, ClientError> {
        let request = HeadVolumeRequest { volume: volume.to_owned() };
        query!(self, head_volume, About::Group(ROOT_OF_NAMES), request)
            .await?
            .volume
            .ok_or_else(|| missing("volume"))
    }

    /// All volumes, by name.
    pub async fn list_volumes(&self) -> Result<Vec<Volume>, ClientError> {
        let mut all: Vec<Volume> = Vec::new();
        loop {
            let after = all.last().map(|last| last.name.clone()).unwrap_or_default();
            let request = ListVolumesRequest { after, limit: 0 };
            let page = query!(self, list_volumes, About::Group(ROOT_OF_NAMES), request).await?;
            all.extend(page.volumes);
            if !page.truncated {
                return Ok(all);
            }
        }
    }

    pub async fn head_bucket(&self, volume: &str, bucket: &str) -> Result<Bucket, ClientError> {
        self.find_bucket(volume, bucket).await?.bucket.ok_or_else(|| missing("bucket"))
    }

    /// A bucket, where it is, and whither it moves.
    pub async fn find_bucket(&self, volume: &str, bucket: &str) -> Result<HeadBucketResponse, ClientError> {
        let request = HeadBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        let found = query!(self, head_bucket, About::Group(ROOT_OF_NAMES), request).await?;
        self.om().keep(volume, bucket, found.place);
        Ok(found)
    }

    /// Has a bucket moved to another group of names. The move goes on whether anybody waits for it or not.
    pub async fn move_bucket(
        &self,
        volume: &str,
        bucket: &str,
        to: u64,
    ) -> Result<MoveBucketResponse, ClientError> {
        let request = MoveBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned(), to };
        change_root!(self, move_bucket, request).await
    }

    /// Gives a move up; answers whether it was too late for that, as the move was done.
    pub async fn give_up_move(
        &self,
        volume: &str,
        bucket: &str,
        moved: BucketMove,
    ) -> Result<bool, ClientError> {
        let BucketMove { number, attempt, .. } = moved;
        let request = SettleMoveRequest {
            volume: volume.to_owned(),
            bucket: bucket.to_owned(),
            number,
            attempt,
            is_done: false,
            why: "it was given up".to_owned(),
        };
        Ok(change_root!(self, settle_move, request).await?.is_done)
    }

    /// The number of a bucket's keys, and their bytes.
    pub async fn stat_bucket(&self, volume: &str, bucket: &str) -> Result<StatBucketResponse, ClientError> {
        let request = StatBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        query!(self, stat_bucket, about(volume, bucket), request).await
    }

    pub async fn list_buckets(
        &self,
        request: ListBucketsRequest,
    ) -> Result<ListBucketsResponse, ClientError> {
        query!(self, list_buckets, About::Group(ROOT_OF_NAMES), request).await
    }

    pub async fn delete_bucket(&self, volume: &str, bucket: &str) -> Result<(), ClientError> {
        let request = DeleteBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        change_root!(self, delete_bucket, request).await.map(|_| ())
    }

    /// The blocks that a group of names has given up and that are not gone from all disks yet.
    pub async fn unused(&self, group: u64) -> Result<GetUnusedResponse, ClientError> {
        query!(self, get_unused, About::Group(group), GetUnusedRequest { group }).await
    }

    /// A page of the keys and parts of a group of names that name blocks of a container.
    pub async fn container_keys(
        &self,
        request: ListContainerKeysRequest,
    ) -> Result<ListContainerKeysResponse, ClientError> {
        query!(self, list_container_keys, About::Group(request.group), request).await
    }

    /// The progress of the sweep for blocks that nobody named, and what it knows of a container; 0: of none.
    pub async fn sweep(&self, container: u64) -> Result<GetSweepResponse, ClientError> {
        query!(self, get_sweep, About::Group(ROOT_OF_NAMES), GetSweepRequest { container }).await
    }

    /// Has a container swept now; 0: all.
    pub async fn run_sweep(&self, container: u64) -> Result<(), ClientError> {
        query!(self, run_sweep, About::Group(ROOT_OF_NAMES), RunSweepRequest { container }).await.map(|_| ())
    }

    /// Stops the sweep, or has it go on, and then takes the names that there are now for all that there are.
    pub async fn switch_sweep(&self, start: bool) -> Result<(), ClientError> {
        query!(self, switch_sweep, About::Group(ROOT_OF_NAMES), SwitchSweepRequest { start })
            .await
            .map(|_| ())
    }

    /// The changes of buckets, and resets of groups, that have been begun and are not at their end.
    pub async fn unsettled(&self) -> Result<ListUnsettledResponse, ClientError> {
        query!(self, list_unsettled, About::Group(ROOT_OF_NAMES), ListUnsettledRequest {}).await
    }

    /// Makes `key` visible, replacing an older one. Answers its time of modification.
    pub async fn commit_key(
        &self,
        volume: &str,
        bucket: &str,
        key: Key,
        precondition: Option<Precondition>,
    ) -> Result<u64, ClientError> {
        let request = CommitKeyRequest {
            volume: volume.to_owned(),
            bucket: bucket.to_owned(),
            key: Some(key),
            precondition,
        };
        Ok(self.om().change(inside(volume, bucket), request).await?.modified_ms)
    }

    pub async fn lookup(&self, volume: &str, bucket: &str, key: &[u8]) -> Result<Key, ClientError> {
        self.om().look_up(inside(volume, bucket), key).await
    }

    /// Deletes keys; says for each whether it existed.
    pub async fn delete_keys(
        &self,
        volume: &str,
        bucket: &str,
        keys: Vec<Bytes>,
        precondition: Option<Precondition>,
    ) -> Result<Vec<bool>, ClientError> {
        let request =
            DeleteKeysRequest { volume: volume.to_owned(), bucket: bucket.to_owned(), keys, precondition };
        Ok(self.om().change(inside(volume, bucket), request).await?.existed)
    }

    pub async fn list_keys(&self, request: ListKeysRequest) -> Result<ListKeysResponse, ClientError> {
        let om = self.om();
        let request = ListKeysRequest { any_member: om.wire.any_member, ..request };
        let list = |mut om: OmClient<Channel>, request| async move { om.list_keys(request).await };
        om.query_of(about(&request.volume, &request.bucket), Wants::AnyAnswer, request, list).await
    }

    /// Begins a multipart upload and answers its id.
    pub async fn create_upload(&self, request: CreateUploadRequest) -> Result<String, ClientError> {
        Ok(self.om().change(inside(&request.volume, &request.bucket), request).await?.upload)
    }

    /// Adds a part, replacing an older one of the same number. Answers its time of modification.
    pub async fn commit_part(&self, request: CommitPartRequest) -> Result<u64, ClientError> {
        Ok(self.om().change(inside(&request.volume, &request.bucket), request).await?.modified_ms)
    }

    /// Joins parts to a key.
    pub async fn complete_upload(&self, request: CompleteUploadRequest) -> Result<Key, ClientError> {
        self.om()
            .change(inside(&request.volume, &request.bucket), request)
            .await?
            .key
            .ok_or_else(|| missing("key"))
    }

    pub async fn abort_upload(&self, request: AbortUploadRequest) -> Result<(), ClientError> {
        self.om().change(inside(&request.volume, &request.bucket), request).await.map(|_| ())
    }

    pub async fn list_parts(&self, request: ListPartsRequest) -> Result<ListPartsResponse, ClientError> {
        query!(self, list_parts, about(&request.volume, &request.bucket), request).await
    }

    pub async fn list_uploads(
        &self,
        request: ListUploadsRequest,
    ) -> Result<ListUploadsResponse, ClientError> {
        query!(self, list_uploads, about(&request.volume, &request.bucket), request).await
    }
}
