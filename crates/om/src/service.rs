use crate::backup;
use crate::buckets::Buckets;
use crate::counted::Counted;
use crate::moves::Moves;
use crate::ops::{self, Fresh, Operation, REMEMBERED};
use crate::queries::{self, Query, Reach};
use crate::reclaim::UnusedCounts;
use crate::replica::Replica;
use crate::replicas::Replicas;
use crate::sweep::{Lacks, Sweep, SweepCounts};
use crate::tables::{InGroup, InMemory, ROOT, Read, Refusal};
use futures::FutureExt;
use futures::future::{BoxFuture, join_all};
use futures::stream::BoxStream;
use planted::Bug;
use prost::Message;
use proto::om::om_server::Om;
use proto::om::*;
use proto::{ChangesBucket, Code, Failure, RequestId, Retry};
use raft::{AddressBook, ReadPolicy};
use rand::RngExt;
use statedb::Db;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::task::yield_now;
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use tracing::error;
use types::random::random;
use types::{Clock, GroupId};

/// The most changes that one call may bring: as many as go into one entry of the log.
const CHANGES_MAX: usize = 256;
/// The most keys that one call may look up.
const LOOKUPS_MAX: usize = 64;
/// The number of keys that are read while other tasks of the thread wait: a millisecond, when a disk must be
/// asked for each.
const READ_IN_A_ROW: usize = 8;
/// The bytes after which an answer is full: the largest key has 4 MiB, and goes in.
const LOOKED_UP_BYTES_MAX: usize = 4 << 20;

/// The OM over gRPC. Only the group's leader answers: it orders the commands, and it knows that its tables
/// are current. Where the caller takes any member's answer, another member answers too, once it has applied
/// what the leader names.
#[derive(Clone)]
pub(crate) struct OmService {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) buckets: Buckets,
    pub(crate) moves: Moves,
    pub(crate) unused: Arc<UnusedCounts>,
    pub(crate) swept: Arc<SweepCounts>,
    /// `None`: there is no SCM that could tell of containers.
    pub(crate) sweep: Option<Sweep>,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    /// One permit per listing under way.
    pub(crate) scans: Arc<Semaphore>,
    /// One permit per group that is sent to a backup.
    pub(crate) backups: Arc<Semaphore>,
    pub(crate) counted: Arc<Counted>,
}

/// A group by its number.
fn group_id(group: u64) -> Result<GroupId, Failure> {
    // No group has a larger number.
    if group >> 56 == 0 { Ok(GroupId::om(group)) } else { Err(Failure::invalid("no such group")) }
}

impl OmService {
    fn serving(&self, group: u64) -> Result<Arc<Replica>, Failure> {
        self.replicas.serving(group_id(group)?, &self.addresses)
    }

    /// Changes the insides of buckets, each by itself.
    async fn change_all(&self, request: ChangeRequest) -> Result<OmReplies, Failure> {
        let count = request.changes.len();
        if count > CHANGES_MAX {
            let why = format!("the call has {count} changes, at most {CHANGES_MAX} are allowed");
            return Err(Failure::new(Code::TooLarge, why));
        }
        let begun = Instant::now();
        let replies =
            join_all(request.changes.into_iter().map(|change| self.change_one(begun, change))).await;
        Ok(OmReplies { replies: replies.into_iter().map(OmReply::from).collect() })
    }

    /// Carries out one of a call's changes, which began with the call.
    async fn change<O>(
        &self,
        begun: Instant,
        change: &Change,
        request: O::Request,
    ) -> Result<om_reply::Result, Failure>
    where
        O: Operation<Request: ChangesBucket>,
    {
        let carried_out = async {
            let place = place_of(change.place)?;
            let group = place.map_or(ROOT, |place| place.group);
            self.carry_out::<O>(group, place, change.request()?, request).await
        };
        let answer = carried_out.await;
        self.counted.note(O::Request::NAME, begun, answer.as_ref().err());
        answer
    }

    /// Changes what the root has, or a group as the root wants it.
    async fn change_in<O: Operation>(
        &self,
        group: u64,
        request: Request<O::Request>,
    ) -> Result<O::Response, Failure> {
        let try_of = proto::request_of(request.metadata())?;
        let result = self.carry_out::<O>(group, None, try_of, request.into_inner()).await?;
        ops::response::<O>(result)
    }

    async fn carry_out<O: Operation>(
        &self,
        group: u64,
        place: Option<BucketPlace>,
        (id, age): (RequestId, Duration),
        request: O::Request,
    ) -> Result<om_reply::Result, Failure> {
        if age > REMEMBERED / 2 {
            let why = format!("the request was first sent {age:?} ago: whether it took effect is forgotten");
            return Err(Failure { retry: Retry::No, ..Failure::new(Code::OutcomeUnknown, why) });
        }
        let fresh = Fresh { random: random().random(), now_ms: self.clock.now_ms() };
        let command = ops::prepare::<O>(id, place, request, fresh)?;
        let bytes = command.encoded_len();
        if bytes > O::COMMAND_BYTES_MAX {
            let max = O::COMMAND_BYTES_MAX;
            let message = format!("the request has {bytes} bytes, at most {max} are allowed");
            return Err(Failure::new(Code::TooLarge, message));
        }
        let replica = self.serving(group)?;
        self.buckets.others.groups.check_room(group)?;
        replica.check_remembers(age, fresh.now_ms)?;
        replica.carry_out(command).await
    }

    async fn make_volume(
        &self,
        request: Request<CreateVolumeRequest>,
    ) -> Result<CreateVolumeResponse, Failure> {
        self.change_in::<ops::CreateVolume>(ROOT, request).await
    }

    async fn drop_volume(
        &self,
        request: Request<DeleteVolumeRequest>,
    ) -> Result<DeleteVolumeResponse, Failure> {
        self.change_in::<ops::DeleteVolume>(ROOT, request).await
    }

    async fn make_bucket(
        &self,
        mut request: Request<CreateBucketRequest>,
    ) -> Result<CreateBucketResponse, Failure> {
        // Whoever leads the root knows the others.
        self.serving(ROOT)?;
        let groups = &self.buckets.others.groups;
        match request.get_ref().group {
            Some(group) => groups.check_is_there(group)?,
            None => request.get_mut().group = Some(groups.pick([random().random(), random().random()])),
        }
        let made = self.change_in::<ops::CreateBucket>(ROOT, request).await?;
        if let (Some(bucket), Some(place)) = (&made.bucket, made.place.filter(|place| place.group != ROOT)) {
            self.buckets.made(bucket, &place).await?;
        }
        Ok(made)
    }

    async fn drop_bucket(
        &self,
        request: Request<DeleteBucketRequest>,
    ) -> Result<DeleteBucketResponse, Failure> {
        let DeleteBucketRequest { volume, bucket: name } = request.get_ref().clone();
        let asked = self.change_in::<ops::DeleteBucket>(ROOT, request).await?;
        let Some(place) = asked.place.filter(|_| asked.deletion != 0) else { return Ok(asked) };
        let bucket = Bucket { volume, name: name.clone(), ..Bucket::default() };
        match self.buckets.deleted(bucket, place, asked.deletion).await? {
            true => Ok(asked),
            false => Err(ops::not_empty(&name)),
        }
    }

    async fn hold(&self, request: Request<HoldBucketRequest>) -> Result<HoldBucketResponse, Failure> {
        let group = request.get_ref().place.unwrap_or_default().group;
        self.change_in::<ops::HoldBucket>(group, request).await
    }

    async fn release(
        &self,
        request: Request<ReleaseBucketRequest>,
    ) -> Result<ReleaseBucketResponse, Failure> {
        let group = request.get_ref().place.unwrap_or_default().group;
        self.change_in::<ops::ReleaseBucket>(group, request).await
    }

    /// Looks up keys of one group, each by itself.
    async fn look_up_all(&self, request: LookupKeysRequest) -> Result<LookupKeysResponse, Failure> {
        let lookups = request.lookups;
        if lookups.len() > LOOKUPS_MAX {
            let why = format!("the call looks up {} keys, at most {LOOKUPS_MAX} are allowed", lookups.len());
            return Err(Failure::new(Code::TooLarge, why));
        }
        let group_of = |lookup: &Lookup| lookup.place.map_or(ROOT, |place| place.group);
        let group = lookups.first().map_or(ROOT, group_of);
        if lookups.iter().any(|lookup| group_of(lookup) != group) {
            return Err(Failure::invalid("the keys that one call looks up are of one group"));
        }
        let begun = Instant::now();
        let found = match self.current_of(group, request.any_member).await {
            Ok(db) => self.look_up(db, lookups).await?,
            Err(failure) => lookups.iter().map(|_| Some(Err(failure.clone()))).collect(),
        };
        let reply = |found: Option<Result<Key, Failure>>| match found {
            Some(found) => {
                self.counted.note("lookup_key", begun, found.as_ref().err());
                LookupReply::from(found)
            }
            None => LookupReply::default(),
        };
        Ok(LookupKeysResponse { replies: found.into_iter().map(reply).collect() })
    }

    /// Looks keys up: in place those whose rows are in memory, and then the others on a thread that may wait
    /// for a disk. `None` is in the place of those for which the answer has no room.
    async fn look_up(
        &self,
        db: Arc<Db>,
        lookups: Vec<Lookup>,
    ) -> Result<Vec<Option<Result<Key, Failure>>>, Failure> {
        let (mut found, mut bytes, mut rest) = (vec![None; lookups.len()], 0, Vec::new());
        for (nth, lookup) in lookups.into_iter().enumerate() {
            if bytes > LOOKED_UP_BYTES_MAX {
                break;
            }
            if nth % READ_IN_A_ROW == READ_IN_A_ROW - 1 {
                yield_now().await;
            }
            match look_up_in(&InMemory(&db), &lookup) {
                // Whatever is wrong comes up again on the thread that may wait.
                Err(Refusal::Broken(_)) => rest.push((nth, lookup)),
                looked => {
                    self.counted.lookups.in_place.count();
                    bytes += looked.as_ref().map_or(0, Key::encoded_len);
                    found[nth] = Some(looked.map_err(refusal));
                }
            }
        }
        if rest.is_empty() || bytes > LOOKED_UP_BYTES_MAX {
            return Ok(found);
        }
        self.counted.lookups.waited.add(rest.len() as u64);
        let read = raft::blocking(move || {
            for (nth, lookup) in rest {
                let looked = look_up_in(&*db, &lookup);
                bytes += looked.as_ref().map_or(0, Key::encoded_len);
                found[nth] = Some(looked.map_err(refusal));
                if bytes > LOOKED_UP_BYTES_MAX {
                    break;
                }
            }
            found
        });
        read.await.map_err(|error| Failure::internal(format!("read tables: {error}")))
    }

    /// The tables of a group, as they are now or later.
    fn current(&self, group: u64) -> impl Future<Output = Result<Arc<Db>, Failure>> {
        self.current_of(group, false)
    }

    /// [`OmService::current`], from a replica that does not lead, too, where any member may answer.
    async fn current_of(&self, group: u64, any_member: bool) -> Result<Arc<Db>, Failure> {
        if !any_member {
            return self.applied(&*self.serving(group)?, ReadPolicy::Lease).await;
        }
        let replica = self.replicas.reading(group_id(group)?)?;
        if replica.leads() {
            return self.applied(&replica, ReadPolicy::Lease).await;
        }
        if planted::has(Bug::FollowersAnswerAlone) {
            return Ok(replica.dbs.current());
        }
        let tables = self.applied(&replica, ReadPolicy::Lease).await?;
        self.counted.by_followers.count();
        Ok(tables)
    }

    /// The tables of a replica, once it has applied what its leader had when this was called.
    fn applied<'a>(
        &'a self,
        replica: &'a Replica,
        reads: ReadPolicy,
    ) -> BoxFuture<'a, Result<Arc<Db>, Failure>> {
        let applied = async move {
            let applied = replica.group.read_soon(reads).await;
            applied.map_err(|error| error.into_failure(&self.addresses))?;
            Ok(replica.dbs.current())
        };
        // The compiler gives up on futures that are nested deeper.
        applied.boxed()
    }

    async fn move_bucket(&self, request: Request<MoveBucketRequest>) -> Result<MoveBucketResponse, Failure> {
        self.serving(ROOT)?;
        let MoveBucketRequest { volume, bucket, to } = request.get_ref().clone();
        self.buckets.others.groups.check_is_there(to)?;
        self.buckets.check_takes(&volume, &bucket, to).await?;
        let asked = self.change_in::<ops::MoveBucket>(ROOT, request).await?;
        self.buckets.go_on(&volume, &bucket);
        Ok(asked)
    }

    async fn settle_move(&self, request: Request<SettleMoveRequest>) -> Result<SettleMoveResponse, Failure> {
        let SettleMoveRequest { volume, bucket, .. } = request.get_ref().clone();
        let settled = self.change_in::<ops::SettleMove>(ROOT, request).await?;
        self.buckets.go_on(&volume, &bucket);
        Ok(settled)
    }

    async fn send(&self, request: Request<SendBucketRequest>) -> Result<SendBucketResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().from;
        let sent = self.change_in::<ops::SendBucket>(group, request).await;
        self.moves.wanted.notify_one();
        sent
    }

    async fn end_send(&self, request: Request<EndMoveRequest>) -> Result<EndMoveResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().from;
        self.change_in::<ops::EndSending>(group, request).await
    }

    async fn receive(&self, request: Request<ReceiveRowsRequest>) -> Result<ReceiveRowsResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().to;
        self.change_in::<ops::ReceiveRows>(group, request).await
    }

    async fn end_receive(&self, request: Request<EndMoveRequest>) -> Result<EndMoveResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().to;
        self.change_in::<ops::EndReceiving>(group, request).await
    }

    async fn unused(&self, request: Request<GetUnusedRequest>) -> Result<GetUnusedResponse, Failure> {
        let group = request.into_inner().group;
        let tables = self.current(group).await?;
        let unused = self.unused.unused(GroupId::om(group), &tables);
        unused.map_err(|error| Failure::internal(format!("read what is unused: {error:#}")))
    }

    async fn container_keys(
        &self,
        request: Request<ListContainerKeysRequest>,
    ) -> Result<ListContainerKeysResponse, Failure> {
        let request = request.into_inner();
        self.scan(request.group, move |tables| queries::container_keys(tables, &request)).await
    }

    async fn known_blocks(
        &self,
        request: Request<ListKnownBlocksRequest>,
    ) -> Result<ListKnownBlocksResponse, Failure> {
        let request = request.into_inner();
        // Blocks that go by this answer are gone, also if a clock was wrong: no lease is relied on.
        let replica = self.serving(request.group)?;
        let tables = self.applied(&replica, ReadPolicy::Index).await?;
        self.scan_of(tables, move |tables| queries::known_blocks(tables, &request)).await
    }

    async fn named_containers(
        &self,
        request: Request<ListNamedContainersRequest>,
    ) -> Result<ListNamedContainersResponse, Failure> {
        let request = request.into_inner();
        self.scan(request.group, move |tables| Ok(queries::named_containers(tables, &request)?)).await
    }

    /// Reads a group's tables, as they are now or later, on a thread that may block.
    async fn scan<T: Send + 'static>(
        &self,
        group: u64,
        read: impl FnOnce(&Db) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Failure> {
        let tables = self.current(group).await?;
        self.scan_of(tables, read).await
    }

    async fn scan_of<T: Send + 'static>(
        &self,
        tables: Arc<Db>,
        read: impl FnOnce(&Db) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Failure> {
        let permit = self.scans.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Failure::new(Code::Busy, "too many listings are under way"))?;
        let read = raft::blocking(move || {
            let _held_while_reading = permit;
            read(&tables)
        });
        let read = read.await.map_err(|error| Failure::internal(format!("read tables: {error}")))?;
        read.map_err(refusal)
    }

    async fn fence(
        &self,
        request: Request<FenceContainersRequest>,
    ) -> Result<FenceContainersResponse, Failure> {
        let group = request.get_ref().group;
        if group == ROOT {
            return Err(Failure::invalid("the root fences containers by itself"));
        }
        self.change_in::<ops::FenceContainers>(group, request).await
    }

    async fn told_of_sweep(&self, request: Request<GetSweepRequest>) -> Result<GetSweepResponse, Failure> {
        let tables = self.current(ROOT).await?;
        let told = self.swept.told(&tables, request.into_inner().container);
        told.map_err(|error| Failure::internal(format!("read what was swept: {error:#}")))
    }

    async fn sweep_now(&self, request: Request<RunSweepRequest>) -> Result<RunSweepResponse, Failure> {
        self.serving(ROOT)?;
        self.swept.request(request.into_inner().container);
        Ok(RunSweepResponse {})
    }

    async fn switch_sweep(
        &self,
        request: Request<SwitchSweepRequest>,
    ) -> Result<SwitchSweepResponse, Failure> {
        let sweep = self.sweep.as_ref().ok_or_else(|| Failure::new(Code::Unavailable, "no SCM is given"))?;
        sweep.switch(request.into_inner().start).await?;
        Ok(SwitchSweepResponse {})
    }

    async fn fences_for(&self, request: Request<BringFencesRequest>) -> Result<BringFencesResponse, Failure> {
        self.buckets.bring(request.into_inner().group, Lacks::All).await?;
        Ok(BringFencesResponse {})
    }

    async fn place(&self, request: Request<PlaceBucketsRequest>) -> Result<PlaceBucketsResponse, Failure> {
        self.serving(ROOT)?;
        self.buckets.place(request.into_inner().group).await?;
        Ok(PlaceBucketsResponse {})
    }

    async fn held(&self, request: Request<ListHeldRequest>) -> Result<ListHeldResponse, Failure> {
        let request = request.into_inner();
        // Who has a bucket is decided by this: no lease is relied on.
        let replica = self.serving(request.group)?;
        let tables = self.applied(&replica, ReadPolicy::Index).await?;
        self.scan_of(tables, move |tables| Ok(queries::held(tables, &request)?)).await
    }

    async fn keep(&self, request: Request<KeepBucketsRequest>) -> Result<KeepBucketsResponse, Failure> {
        self.change_in::<ops::KeepBuckets>(request.get_ref().group, request).await
    }

    async fn told_unsettled(
        &self,
        _: Request<ListUnsettledRequest>,
    ) -> Result<ListUnsettledResponse, Failure> {
        self.serving(ROOT)?;
        Ok(self.buckets.unsettled.told())
    }

    /// Sends all that a group has now, or later.
    async fn back_up_group(
        &self,
        group: u64,
    ) -> Result<BoxStream<'static, Result<BackupPart, Status>>, Failure> {
        let permit = self.backups.clone().try_acquire_owned();
        let permit = permit.map_err(|_| Failure::new(Code::Busy, "too many backups are under way"))?;
        let db = self.current(group).await?;
        Ok(backup::send(db, group, permit))
    }

    async fn restore(&self, request: Request<RestoreRowsRequest>) -> Result<RestoreRowsResponse, Failure> {
        let request = request.into_inner();
        let replica = self.replicas.running(group_id(request.group)?)?;
        replica.restore(request, &self.addresses).await
    }

    async fn stat(&self, request: Request<StatBucketRequest>) -> Result<StatBucketResponse, Failure> {
        let place = proto::bucket_of(request.metadata())?;
        let stat = self.query::<queries::StatBucket>(request).await?;
        let number = place.map_or(0, |place| place.number);
        let (sent_rows, sent_bytes) = self.moves.counts.sent(number);
        Ok(StatBucketResponse { sent_rows, sent_bytes, ..stat })
    }

    async fn query<Q: Query>(&self, request: Request<Q::Request>) -> Result<Q::Response, Failure> {
        let place = proto::bucket_of(request.metadata())?;
        let request = request.into_inner();
        let group = place.map_or(ROOT, |place| place.group);
        let db = self.current_of(group, Q::may_any_member_answer(&request)).await?;
        let place = place.map(InGroup::from);
        match Q::REACH {
            Reach::Records => queries::read::<Q>(&db, place, request).map_err(refusal),
            Reach::Page => self.scan_of(db, move |db| queries::read::<Q>(db, place, request)).await,
        }
    }
}

/// The place of a bucket, as a call says it.
fn place_of(place: Option<BucketPlace>) -> Result<Option<BucketPlace>, Failure> {
    match place {
        Some(BucketPlace { number: 0, .. }) => Err(Failure::invalid("no bucket has the number 0")),
        place => Ok(place),
    }
}

fn look_up_in(tables: &impl Read, lookup: &Lookup) -> Result<Key, Refusal> {
    let place = place_of(lookup.place)?.map(InGroup::from);
    queries::lookup_key(tables, place, lookup)
}

fn refusal(refusal: Refusal) -> Failure {
    match refusal {
        Refusal::Failure(failure) | Refusal::Passing(failure) => failure,
        Refusal::Broken(broken) => {
            error!(error = format!("{broken:#}"), "read the namespace");
            Failure::internal(format!("read the namespace: {broken:#}"))
        }
    }
}

impl OmService {
    async fn buckets(&self, request: Request<ListBucketsRequest>) -> Result<ListBucketsResponse, Failure> {
        let listed = self.query::<queries::ListBuckets>(request).await?;
        Ok(ListBucketsResponse { is_full: self.replicas.is_full(), ..listed })
    }
}

macro_rules! om_service {
    (calls { $($call:ident, $call_request:ident => $call_response:ident, $method:ident;)* }
     changes { $($change:ident;)* }
     queries { $($query:ident, $query_request:ident => $query_response:ident, $reader:ident;)* }) => {
        pub(crate) const OPERATIONS: &[&str] = &[$(stringify!($call),)* $(<ops::$change as Operation>::Request::NAME,)* "lookup_key", "back_up", $(stringify!($query),)*];

        impl OmService {
            async fn change_one(&self, begun: Instant, mut change: Change) -> Result<om_reply::Result, Failure> {
                match change.what.take() {
                    $(Some(change::What::$change(it)) => self.change::<ops::$change>(begun, &change, *it).await,)*
                    None => Err(Failure::invalid("a change of an unknown kind")),
                }
            }
        }

        #[tonic::async_trait]
        impl Om for OmService {
            async fn change(&self, request: Request<ChangeRequest>) -> Result<Response<OmReplies>, Status> {
                Ok(Response::new(self.change_all(request.into_inner()).await?))
            }
            async fn lookup_keys(&self, request: Request<LookupKeysRequest>) -> Result<Response<LookupKeysResponse>, Status> {
                Ok(Response::new(self.look_up_all(request.into_inner()).await?))
            }
            type BackUpStream = BoxStream<'static, Result<BackupPart, Status>>;
            async fn back_up(&self, request: Request<BackUpRequest>) -> Result<Response<Self::BackUpStream>, Status> {
                let call = self.back_up_group(request.into_inner().group);
                Ok(Response::new(self.counted.call("back_up", call).await?))
            }
            $(async fn $call(&self, request: Request<$call_request>) -> Result<Response<$call_response>, Status> {
                let call = self.$method(request);
                Ok(Response::new(self.counted.call(stringify!($call), call).await?))
            })*
            $(async fn $query(&self, request: Request<$query_request>) -> Result<Response<$query_response>, Status> {
                let call = self.query::<queries::$reader>(request);
                Ok(Response::new(self.counted.call(stringify!($query), call).await?))
            })*
        }
    };
}

om_service! {
    calls {
        create_volume, CreateVolumeRequest => CreateVolumeResponse, make_volume;
        delete_volume, DeleteVolumeRequest => DeleteVolumeResponse, drop_volume;
        create_bucket, CreateBucketRequest => CreateBucketResponse, make_bucket;
        delete_bucket, DeleteBucketRequest => DeleteBucketResponse, drop_bucket;
        list_buckets, ListBucketsRequest => ListBucketsResponse, buckets;
        hold_bucket, HoldBucketRequest => HoldBucketResponse, hold;
        release_bucket, ReleaseBucketRequest => ReleaseBucketResponse, release;
        move_bucket, MoveBucketRequest => MoveBucketResponse, move_bucket;
        settle_move, SettleMoveRequest => SettleMoveResponse, settle_move;
        send_bucket, SendBucketRequest => SendBucketResponse, send;
        end_sending, EndMoveRequest => EndMoveResponse, end_send;
        receive_rows, ReceiveRowsRequest => ReceiveRowsResponse, receive;
        end_receiving, EndMoveRequest => EndMoveResponse, end_receive;
        stat_bucket, StatBucketRequest => StatBucketResponse, stat;
        get_unused, GetUnusedRequest => GetUnusedResponse, unused;
        list_container_keys, ListContainerKeysRequest => ListContainerKeysResponse, container_keys;
        fence_containers, FenceContainersRequest => FenceContainersResponse, fence;
        list_known_blocks, ListKnownBlocksRequest => ListKnownBlocksResponse, known_blocks;
        list_named_containers, ListNamedContainersRequest => ListNamedContainersResponse, named_containers;
        get_sweep, GetSweepRequest => GetSweepResponse, told_of_sweep;
        run_sweep, RunSweepRequest => RunSweepResponse, sweep_now;
        switch_sweep, SwitchSweepRequest => SwitchSweepResponse, switch_sweep;
        bring_fences, BringFencesRequest => BringFencesResponse, fences_for;
        place_buckets, PlaceBucketsRequest => PlaceBucketsResponse, place;
        list_held, ListHeldRequest => ListHeldResponse, held;
        keep_buckets, KeepBucketsRequest => KeepBucketsResponse, keep;
        list_unsettled, ListUnsettledRequest => ListUnsettledResponse, told_unsettled;
        restore_rows, RestoreRowsRequest => RestoreRowsResponse, restore;
    }
    changes {
        CommitKey; DeleteKeys; CreateUpload; CommitPart; CompleteUpload; AbortUpload;
    }
    queries {
        head_bucket, HeadBucketRequest => HeadBucketResponse, HeadBucket;
        head_volume, HeadVolumeRequest => HeadVolumeResponse, HeadVolume;
        list_volumes, ListVolumesRequest => ListVolumesResponse, ListVolumes;
        list_keys, ListKeysRequest => ListKeysResponse, ListKeys;
        list_parts, ListPartsRequest => ListPartsResponse, ListParts;
        list_uploads, ListUploadsRequest => ListUploadsResponse, ListUploads;
    }
}
