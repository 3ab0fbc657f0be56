use crate::ClientError;
use crate::channels::Channels;
use crate::client::Client;
use bytes::Bytes;
use proto::om::om_client::OmClient;
use proto::om::*;
use proto::{Code, Failure, Retry, Seeker};
use std::time::Duration;
use tokio::time::Instant;
use tonic::transport::Channel;
use tracing::debug;

/// Calls to OM: follows its leader, and repeats what may be repeated.
pub(crate) struct OmCaller {
    channels: Channels,
    om: Seeker,
    call_timeout: Duration,
    deadline: Duration,
}

/// A call that failed for good.
struct Failed {
    error: ClientError,
    /// An earlier try may have taken effect.
    unsure: bool,
}

impl From<Failed> for ClientError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

impl Failed {
    /// Whether this refusal is what an earlier try of the same request would cause.
    fn caused_by_us(&self, code: Code) -> bool {
        self.unsure && self.error.code() == Some(code)
    }
}

impl OmCaller {
    pub(crate) fn new(
        om: Seeker,
        channels: Channels,
        call_timeout: Duration,
        deadline: Duration,
    ) -> OmCaller {
        OmCaller { channels, om, call_timeout, deadline }
    }

    /// Calls until OM says yes or no, or the deadline passes. All requests may be sent twice: reads by nature, commits
    /// because they carry a request id, the rest because their callers look at `unsure`.
    async fn call<Q, A, F>(
        &self,
        request: Q,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, Failed>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        const RETRY_FIRST: Duration = Duration::from_millis(20);
        const RETRY_MAX: Duration = Duration::from_millis(500);
        let begun = Instant::now();
        let mut retry = RETRY_FIRST;
        let mut unsure = false;
        loop {
            let address = self.om.address();
            let failure = match self.call_once(&address, request.clone(), &method).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            unsure |= failure.retry == Retry::Unknown;
            if matches!(failure.retry, Retry::No | Retry::Unspecified) {
                return Err(Failed { error: failure.into(), unsure });
            }
            if begun.elapsed() + retry > self.deadline {
                let why = format!("OM did not answer within {:?}: {failure}", self.deadline);
                let error =
                    if unsure { ClientError::OutcomeUnknown(why) } else { ClientError::Unavailable(why) };
                return Err(Failed { error, unsure });
            }
            debug!(om = address, why = %failure, "call OM again");
            self.om.failed(&address, &failure);
            tokio::time::sleep(retry).await;
            retry = (retry * 2).min(RETRY_MAX);
        }
    }

    async fn call_once<Q, A, F>(
        &self,
        address: &str,
        request: Q,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, Failure>
    where
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let om = OmClient::new(self.channels.to(address)?)
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        match tokio::time::timeout(self.call_timeout, method(om, tonic::Request::new(request))).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Failure::new(Code::OutcomeUnknown, format!("{address} does not answer"))),
        }
    }
}

macro_rules! call {
    ($client:expr, $method:ident, $request:expr) => {
        $client.om().call($request, |mut om, request| async move { om.$method(request).await })
    };
}

fn missing(what: &str) -> ClientError {
    ClientError::Refused(Failure::internal(format!("OM's answer lacks the {what}")))
}

/// 16 random bytes that make a commit recognizable.
fn request_id() -> Bytes {
    proto::uuid_bytes(rand::random())
}

/// The namespace. Every call follows OM's leader and is tried again, until `write_deadline`, when that is safe.
impl Client {
    pub async fn create_bucket(&self, volume: &str, bucket: &str) -> Result<Bucket, ClientError> {
        let request = CreateBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        match call!(self, create_bucket, request).await {
            Ok(answer) => answer.bucket.ok_or_else(|| missing("bucket")),
            Err(failed) if failed.caused_by_us(Code::BucketExists) => self.head_bucket(volume, bucket).await,
            Err(failed) => Err(failed.into()),
        }
    }

    pub async fn head_bucket(&self, volume: &str, bucket: &str) -> Result<Bucket, ClientError> {
        let request = HeadBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        call!(self, head_bucket, request).await?.bucket.ok_or_else(|| missing("bucket"))
    }

    pub async fn list_buckets(
        &self,
        request: ListBucketsRequest,
    ) -> Result<ListBucketsResponse, ClientError> {
        Ok(call!(self, list_buckets, request).await?)
    }

    pub async fn delete_bucket(&self, volume: &str, bucket: &str) -> Result<(), ClientError> {
        let request = DeleteBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        match call!(self, delete_bucket, request).await {
            Ok(_) => Ok(()),
            Err(failed) if failed.caused_by_us(Code::NoSuchBucket) => Ok(()),
            Err(failed) => Err(failed.into()),
        }
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
            request_id: request_id(),
        };
        Ok(call!(self, commit_key, request).await?.modified_ms)
    }

    pub async fn lookup(&self, volume: &str, bucket: &str, key: &[u8]) -> Result<Key, ClientError> {
        let request = LookupKeyRequest {
            volume: volume.to_owned(),
            bucket: bucket.to_owned(),
            key: Bytes::copy_from_slice(key),
        };
        call!(self, lookup_key, request).await?.key.ok_or_else(|| missing("key"))
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
        Ok(call!(self, delete_keys, request).await?.existed)
    }

    pub async fn list_keys(&self, request: ListKeysRequest) -> Result<ListKeysResponse, ClientError> {
        Ok(call!(self, list_keys, request).await?)
    }

    /// Begins a multipart upload and answers its id. One that is begun twice because a connection broke is left over
    /// for [`Client::list_uploads`] to find.
    pub async fn create_upload(&self, request: CreateUploadRequest) -> Result<String, ClientError> {
        Ok(call!(self, create_upload, request).await?.upload)
    }

    /// Adds a part, replacing an older one of the same number. Answers its time of modification.
    pub async fn commit_part(&self, request: CommitPartRequest) -> Result<u64, ClientError> {
        Ok(call!(self, commit_part, request).await?.modified_ms)
    }

    /// Joins parts to a key. The request id is set here.
    pub async fn complete_upload(&self, request: CompleteUploadRequest) -> Result<Key, ClientError> {
        let request = CompleteUploadRequest { request_id: request_id(), ..request };
        call!(self, complete_upload, request).await?.key.ok_or_else(|| missing("key"))
    }

    pub async fn abort_upload(&self, request: AbortUploadRequest) -> Result<(), ClientError> {
        match call!(self, abort_upload, request).await {
            Ok(_) => Ok(()),
            Err(failed) if failed.caused_by_us(Code::NoSuchUpload) => Ok(()),
            Err(failed) => Err(failed.into()),
        }
    }

    pub async fn list_parts(&self, request: ListPartsRequest) -> Result<ListPartsResponse, ClientError> {
        Ok(call!(self, list_parts, request).await?)
    }

    pub async fn list_uploads(
        &self,
        request: ListUploadsRequest,
    ) -> Result<ListUploadsResponse, ClientError> {
        Ok(call!(self, list_uploads, request).await?)
    }
}
