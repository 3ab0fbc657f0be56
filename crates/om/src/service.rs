use crate::counted::Counted;
use crate::ops::{self, Fresh, Operation, REMEMBERED};
use crate::queries::{self, Query, Reach};
use crate::replica::Replica;
use crate::replicas::Replicas;
use crate::rules::COMMAND_BYTES_MAX;
use crate::tables::Refusal;
use prost::Message;
use proto::om::om_server::Om;
use proto::om::*;
use proto::{Code, Failure, RequestId, Retry};
use raft::{AddressBook, ReadPolicy};
use rand::RngExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tonic::{Request, Response, Status};
use tracing::error;
use types::random::random;
use types::{Clock, GroupId};

/// The group that has all names.
const NAMES: u64 = 0;

/// The time for which a leader that relies on no lease may ask the others: two elections.
const READ_WITHIN: Duration = Duration::from_millis(2200);

/// The OM over gRPC. Only the group's leader answers: it orders the commands, and it knows that its tables
/// are current.
#[derive(Clone)]
pub(crate) struct OmService {
    pub(crate) replicas: Arc<Replicas>,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) reads: ReadPolicy,
    /// One permit per listing under way.
    pub(crate) scans: Arc<Semaphore>,
    pub(crate) counted: Arc<Counted>,
}

impl OmService {
    fn serving(&self) -> Result<Arc<Replica>, Failure> {
        self.replicas.serving(GroupId::om(NAMES), &self.addresses)
    }

    async fn change<O: Operation>(&self, request: Request<O::Request>) -> Result<O::Response, Failure> {
        let (id, age) = proto::request_of(request.metadata())?;
        if age > REMEMBERED / 2 {
            let why = format!("the request was first sent {age:?} ago: whether it took effect is forgotten");
            return Err(Failure { retry: Retry::No, ..Failure::new(Code::OutcomeUnknown, why) });
        }
        self.change_apply::<O>(id, request.into_inner()).await
    }

    async fn change_apply<O: Operation>(
        &self,
        id: RequestId,
        request: O::Request,
    ) -> Result<O::Response, Failure> {
        let fresh = Fresh { random: random().random(), now_ms: self.clock.now_ms() };
        let command = ops::prepare::<O>(id, request, fresh)?;
        let bytes = command.encoded_len();
        if bytes > COMMAND_BYTES_MAX {
            let message = format!("the request has {bytes} bytes, at most {COMMAND_BYTES_MAX} are allowed");
            return Err(Failure::new(Code::TooLarge, message));
        }
        match self.serving()?.lane.apply(command).await?.result {
            Some(om_reply::Result::Error(error)) => Err(error.into()),
            Some(result) => O::from_reply(result)
                .ok_or_else(|| Failure::internal("the reply is to another kind of request")),
            None => Err(Failure::internal("the reply is empty")),
        }
    }

    async fn query<Q: Query>(&self, request: Q::Request) -> Result<Q::Response, Failure> {
        let replica = self.serving()?;
        let dbs = &replica.dbs;
        let current = replica.group.read(self.reads, Instant::now() + READ_WITHIN).await;
        current.map_err(|error| error.into_failure(&self.addresses))?;
        let read = match Q::REACH {
            Reach::Records => Q::read(&dbs.current(), request),
            Reach::Page => {
                let permit = self.scans.clone().try_acquire_owned();
                let permit =
                    permit.map_err(|_| Failure::new(Code::Busy, "too many listings are under way"))?;
                let db = dbs.current();
                let read = tokio::task::spawn_blocking(move || {
                    let _held_while_reading = permit;
                    Q::read(&db, request)
                });
                read.await.map_err(|error| Failure::internal(format!("read tables: {error}")))?
            }
        };
        read.map_err(|refusal| match refusal {
            Refusal::Failure(failure) => failure,
            Refusal::Broken(broken) => {
                error!(error = format!("{broken:#}"), "read the namespace");
                Failure::internal(format!("read the namespace: {broken:#}"))
            }
        })
    }
}

macro_rules! om_service {
    (changes { $($change:ident, $change_request:ident => $change_response:ident, $operation:ident;)* }
     queries { $($query:ident, $query_request:ident => $query_response:ident, $reader:ident;)* }) => {
        pub(crate) const OPERATIONS: &[&str] = &[$(stringify!($change),)* $(stringify!($query),)*];

        #[tonic::async_trait]
        impl Om for OmService {
            $(async fn $change(&self, request: Request<$change_request>) -> Result<Response<$change_response>, Status> {
                let call = self.change::<ops::$operation>(request);
                Ok(Response::new(self.counted.call(stringify!($change), call).await?))
            })*
            $(async fn $query(&self, request: Request<$query_request>) -> Result<Response<$query_response>, Status> {
                let call = self.query::<queries::$reader>(request.into_inner());
                Ok(Response::new(self.counted.call(stringify!($query), call).await?))
            })*
        }
    };
}

om_service! {
    changes {
        create_bucket, CreateBucketRequest => CreateBucketResponse, CreateBucket;
        delete_bucket, DeleteBucketRequest => DeleteBucketResponse, DeleteBucket;
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
