use crate::ops::{self, Fresh, Operation};
use crate::queries::{self, Query, Reach};
use crate::rules::COMMAND_BYTES_MAX;
use crate::tables::Refusal;
use bytes::Bytes;
use prost::Message;
use proto::om::om_server::Om;
use proto::om::*;
use proto::{Code, Failure};
use raft::{AddressBook, DbGenerations, Group};
use std::sync::Arc;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use tracing::error;
use types::Clock;

/// The OM over gRPC. Only the group's leader answers: it orders the commands, and it knows that its tables are
/// current.
#[derive(Clone)]
pub(crate) struct OmService {
    pub(crate) group: Group,
    pub(crate) dbs: DbGenerations,
    pub(crate) addresses: AddressBook,
    pub(crate) clock: Arc<dyn Clock>,
    /// One permit per listing under way.
    pub(crate) scans: Arc<Semaphore>,
}

impl OmService {
    async fn change<O: Operation>(&self, request: O::Request) -> Result<Response<O::Response>, Status> {
        Ok(Response::new(self.change_apply::<O>(request).await?))
    }

    async fn change_apply<O: Operation>(&self, request: O::Request) -> Result<O::Response, Failure> {
        let fresh = Fresh { random: uuid::Uuid::new_v4().as_u128() };
        let command = O::into_log(O::prepare(request, fresh)?);
        let command = OmCommand { now_ms: self.clock.now_ms(), command: Some(command) };
        let bytes = command.encoded_len();
        if bytes > COMMAND_BYTES_MAX {
            let message = format!("the request has {bytes} bytes, at most {COMMAND_BYTES_MAX} are allowed");
            return Err(Failure::new(Code::TooLarge, message));
        }
        let command =
            raft::Command { meta: Bytes::from(command.encode_to_vec()), ..raft::Command::default() };
        let done = self.group.apply(command).await.map_err(|error| error.into_failure(&self.addresses))?;
        match OmReply::decode(done.reply).map(|reply| reply.result) {
            Ok(Some(om_reply::Result::Error(error))) => Err(error.into()),
            Ok(Some(result)) => O::from_reply(result)
                .ok_or_else(|| Failure::internal("the reply belongs to another operation")),
            Ok(None) => Err(Failure::internal("the reply is empty")),
            Err(error) => Err(Failure::internal(format!("decode the reply: {error}"))),
        }
    }

    async fn query<Q: Query>(&self, request: Q::Request) -> Result<Response<Q::Response>, Status> {
        Ok(Response::new(self.query_read::<Q>(request).await?))
    }

    async fn query_read<Q: Query>(&self, request: Q::Request) -> Result<Q::Response, Failure> {
        self.group.read_index().await.map_err(|error| error.into_failure(&self.addresses))?;
        let read = match Q::REACH {
            Reach::Records => Q::read(&self.dbs.current(), request),
            Reach::Page => {
                let permit = self.scans.clone().try_acquire_owned();
                let permit =
                    permit.map_err(|_| Failure::new(Code::Busy, "too many listings are under way"))?;
                let db = self.dbs.current();
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
        #[tonic::async_trait]
        impl Om for OmService {
            $(async fn $change(&self, request: Request<$change_request>) -> Result<Response<$change_response>, Status> {
                self.change::<ops::$operation>(request.into_inner()).await
            })*
            $(async fn $query(&self, request: Request<$query_request>) -> Result<Response<$query_response>, Status> {
                self.query::<queries::$reader>(request.into_inner()).await
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
