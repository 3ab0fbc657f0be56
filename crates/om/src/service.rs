use crate::buckets::Buckets;
use crate::counted::Counted;
use crate::moves::Moves;
use crate::ops::{self, Fresh, Operation, REMEMBERED};
use crate::queries::{self, Query, Reach};
use crate::replica::Replica;
use crate::replicas::Replicas;
use crate::tables::{InGroup, ROOT, Refusal};
use prost::Message;
use proto::om::om_server::Om;
use proto::om::*;
use proto::{Code, Failure, Retry};
use raft::{AddressBook, ReadPolicy};
use rand::RngExt;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use tracing::error;
use types::random::random;
use types::{Clock, GroupId};

/// The OM over gRPC. Only the group's leader answers: it orders the commands, and it knows that its tables
/// are current.
#[derive(Clone)]
pub(crate) struct OmService {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) buckets: Buckets,
    pub(crate) moves: Moves,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) reads: ReadPolicy,
    /// One permit per listing under way.
    pub(crate) scans: Arc<Semaphore>,
    pub(crate) counted: Arc<Counted>,
}

impl OmService {
    fn serving(&self, group: u64) -> Result<Arc<Replica>, Failure> {
        // No group has a larger number.
        let group = if group >> 56 == 0 { group } else { return Err(Failure::invalid("no such group")) };
        self.replicas.serving(GroupId::om(group), &self.addresses)
    }

    /// Changes the inside of a bucket, or, where the call names none, what the root has.
    async fn change<O: Operation>(&self, request: Request<O::Request>) -> Result<O::Response, Failure> {
        let place = proto::bucket_of(request.metadata())?;
        self.change_in::<O>(place.map_or(ROOT, |place| place.group), place, request).await
    }

    async fn change_in<O: Operation>(
        &self,
        group: u64,
        place: Option<BucketPlace>,
        request: Request<O::Request>,
    ) -> Result<O::Response, Failure> {
        let (id, age) = proto::request_of(request.metadata())?;
        if age > REMEMBERED / 2 {
            let why = format!("the request was first sent {age:?} ago: whether it took effect is forgotten");
            return Err(Failure { retry: Retry::No, ..Failure::new(Code::OutcomeUnknown, why) });
        }
        let fresh = Fresh { random: random().random(), now_ms: self.clock.now_ms() };
        let command = ops::prepare::<O>(id, place, request.into_inner(), fresh)?;
        let bytes = command.encoded_len();
        if bytes > O::COMMAND_BYTES_MAX {
            let max = O::COMMAND_BYTES_MAX;
            let message = format!("the request has {bytes} bytes, at most {max} are allowed");
            return Err(Failure::new(Code::TooLarge, message));
        }
        self.serving(group)?.change::<O>(command).await
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
            None => request.get_mut().group = Some(groups.pick(random().random())),
        }
        let made = self.change_in::<ops::CreateBucket>(ROOT, None, request).await?;
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
        let asked = self.change_in::<ops::DeleteBucket>(ROOT, None, request).await?;
        let Some(place) = asked.place.filter(|_| asked.deletion != 0) else { return Ok(asked) };
        let bucket = Bucket { volume, name: name.clone(), ..Bucket::default() };
        match self.buckets.deleted(bucket, place, asked.deletion).await? {
            true => Ok(asked),
            false => Err(ops::not_empty(&name)),
        }
    }

    async fn hold(&self, request: Request<HoldBucketRequest>) -> Result<HoldBucketResponse, Failure> {
        let group = request.get_ref().place.unwrap_or_default().group;
        self.change_in::<ops::HoldBucket>(group, None, request).await
    }

    async fn release(
        &self,
        request: Request<ReleaseBucketRequest>,
    ) -> Result<ReleaseBucketResponse, Failure> {
        let group = request.get_ref().place.unwrap_or_default().group;
        self.change_in::<ops::ReleaseBucket>(group, None, request).await
    }

    async fn move_bucket(&self, request: Request<MoveBucketRequest>) -> Result<MoveBucketResponse, Failure> {
        self.serving(ROOT)?;
        let MoveBucketRequest { volume, bucket, to } = request.get_ref().clone();
        self.buckets.others.groups.check_is_there(to)?;
        self.buckets.check_takes(&volume, &bucket, to).await?;
        let asked = self.change_in::<ops::MoveBucket>(ROOT, None, request).await?;
        self.buckets.go_on(&volume, &bucket);
        Ok(asked)
    }

    async fn settle_move(&self, request: Request<SettleMoveRequest>) -> Result<SettleMoveResponse, Failure> {
        let SettleMoveRequest { volume, bucket, .. } = request.get_ref().clone();
        let settled = self.change_in::<ops::SettleMove>(ROOT, None, request).await?;
        self.buckets.go_on(&volume, &bucket);
        Ok(settled)
    }

    async fn send(&self, request: Request<SendBucketRequest>) -> Result<SendBucketResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().from;
        let sent = self.change_in::<ops::SendBucket>(group, None, request).await;
        self.moves.wanted.notify_one();
        sent
    }

    async fn end_send(&self, request: Request<EndMoveRequest>) -> Result<EndMoveResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().from;
        self.change_in::<ops::EndSending>(group, None, request).await
    }

    async fn receive(&self, request: Request<ReceiveRowsRequest>) -> Result<ReceiveRowsResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().to;
        self.change_in::<ops::ReceiveRows>(group, None, request).await
    }

    async fn end_receive(&self, request: Request<EndMoveRequest>) -> Result<EndMoveResponse, Failure> {
        let group = request.get_ref().moved.unwrap_or_default().to;
        self.change_in::<ops::EndReceiving>(group, None, request).await
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
        let replica = self.serving(place.map_or(ROOT, |place| place.group))?;
        let place = place.map(InGroup::from);
        let dbs = &replica.dbs;
        let current = replica.group.read_soon(self.reads).await;
        current.map_err(|error| error.into_failure(&self.addresses))?;
        let read = match Q::REACH {
            Reach::Records => queries::read::<Q>(&dbs.current(), place, request),
            Reach::Page => {
                let permit = self.scans.clone().try_acquire_owned();
                let permit =
                    permit.map_err(|_| Failure::new(Code::Busy, "too many listings are under way"))?;
                let db = dbs.current();
                let read = tokio::task::spawn_blocking(move || {
                    let _held_while_reading = permit;
                    queries::read::<Q>(&db, place, request)
                });
                read.await.map_err(|error| Failure::internal(format!("read tables: {error}")))?
            }
        };
        read.map_err(|refusal| match refusal {
            Refusal::Failure(failure) | Refusal::Passing(failure) => failure,
            Refusal::Broken(broken) => {
                error!(error = format!("{broken:#}"), "read the namespace");
                Failure::internal(format!("read the namespace: {broken:#}"))
            }
        })
    }
}

macro_rules! om_service {
    (buckets { $($of_bucket:ident, $bucket_request:ident => $bucket_response:ident, $method:ident;)* }
     changes { $($change:ident, $change_request:ident => $change_response:ident, $operation:ident;)* }
     queries { $($query:ident, $query_request:ident => $query_response:ident, $reader:ident;)* }) => {
        pub(crate) const OPERATIONS: &[&str] = &[$(stringify!($of_bucket),)* $(stringify!($change),)* $(stringify!($query),)*];

        #[tonic::async_trait]
        impl Om for OmService {
            $(async fn $of_bucket(&self, request: Request<$bucket_request>) -> Result<Response<$bucket_response>, Status> {
                let call = self.$method(request);
                Ok(Response::new(self.counted.call(stringify!($of_bucket), call).await?))
            })*
            $(async fn $change(&self, request: Request<$change_request>) -> Result<Response<$change_response>, Status> {
                let call = self.change::<ops::$operation>(request);
                Ok(Response::new(self.counted.call(stringify!($change), call).await?))
            })*
            $(async fn $query(&self, request: Request<$query_request>) -> Result<Response<$query_response>, Status> {
                let call = self.query::<queries::$reader>(request);
                Ok(Response::new(self.counted.call(stringify!($query), call).await?))
            })*
        }
    };
}

om_service! {
    buckets {
        create_bucket, CreateBucketRequest => CreateBucketResponse, make_bucket;
        delete_bucket, DeleteBucketRequest => DeleteBucketResponse, drop_bucket;
        hold_bucket, HoldBucketRequest => HoldBucketResponse, hold;
        release_bucket, ReleaseBucketRequest => ReleaseBucketResponse, release;
        move_bucket, MoveBucketRequest => MoveBucketResponse, move_bucket;
        settle_move, SettleMoveRequest => SettleMoveResponse, settle_move;
        send_bucket, SendBucketRequest => SendBucketResponse, send;
        end_sending, EndMoveRequest => EndMoveResponse, end_send;
        receive_rows, ReceiveRowsRequest => ReceiveRowsResponse, receive;
        end_receiving, EndMoveRequest => EndMoveResponse, end_receive;
        stat_bucket, StatBucketRequest => StatBucketResponse, stat;
    }
    changes {
        commit_key, CommitKeyRequest => CommitKeyResponse, CommitKey;
        delete_keys, DeleteKeysRequest => DeleteKeysResponse, DeleteKeys;
        create_upload, CreateUploadRequest => CreateUploadResponse, CreateUpload;
        commit_part, CommitPartRequest => CommitPartResponse, CommitPart;
        complete_upload, CompleteUploadRequest => CompleteUploadResponse, CompleteUpload;
        abort_upload, AbortUploadRequest => AbortUploadResponse, AbortUpload;
    }
    queries {
        head_bucket, HeadBucketRequest => HeadBucketResponse, HeadBucket;
        list_buckets, ListBucketsRequest => ListBucketsResponse, ListBuckets;
        lookup_key, LookupKeyRequest => LookupKeyResponse, LookupKey;
        list_keys, ListKeysRequest => ListKeysResponse, ListKeys;
        list_parts, ListPartsRequest => ListPartsResponse, ListParts;
        list_uploads, ListUploadsRequest => ListUploadsResponse, ListUploads;
    }
}
