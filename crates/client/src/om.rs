use crate::ClientError;
use crate::channels::Channels;
use crate::client::Client;
use crate::counted::Counted;
use crate::om_seeker::OmSeeker;
use crate::view::View;
use bytes::Bytes;
use proto::om::om_client::OmClient;
use proto::om::*;
use proto::{Code, Failure, RequestId, Retry};
use rand::RngExt;
use rpc::Channel;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;
use tracing::debug;
use types::Backoff;
use types::random::random;

/// Calls to OM: follows its leader, and repeats what may be repeated.
pub(crate) struct OmCaller {
    channels: Channels,
    om: OmSeeker,
    /// The view, which says which cluster OM must be of.
    view: watch::Receiver<Arc<View>>,
    call_timeout: Duration,
    deadline: Duration,
    counted: Arc<Counted>,
}

impl OmCaller {
    pub(crate) fn new(
        om: OmSeeker,
        channels: Channels,
        view: watch::Receiver<Arc<View>>,
        call_timeout: Duration,
        deadline: Duration,
        counted: Arc<Counted>,
    ) -> OmCaller {
        OmCaller { channels, om, view, call_timeout, deadline, counted }
    }

    /// A call, counted.
    async fn call<Q, A, F>(
        &self,
        request: Q,
        id: Option<RequestId>,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, ClientError>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let begun = Instant::now();
        let answer = self.call_repeated(request, id, method).await;
        self.counted.om_answered(id.is_some(), begun.elapsed());
        if let Err(ClientError::Unavailable(_) | ClientError::OutcomeUnknown(_)) = &answer {
            self.counted.om_failed.count();
        }
        answer
    }

    /// Calls until OM says yes or no, or the deadline passes. Sent twice, queries do no harm, and changes
    /// take effect once, because they carry an id.
    async fn call_repeated<Q, A, F>(
        &self,
        request: Q,
        id: Option<RequestId>,
        method: impl Fn(OmClient<Channel>, tonic::Request<Q>) -> F,
    ) -> Result<A, ClientError>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<A>, tonic::Status>>,
    {
        let begun = Instant::now();
        let mut retry = Backoff::new(Duration::from_millis(20), Duration::from_millis(250));
        let (mut unsure, mut strangers) = (false, 0);
        let attempt = || {
            let call = tonic::Request::new(request.clone());
            match id {
                Some(id) => proto::as_request(call, id, begun.elapsed()),
                None => call,
            }
        };
        loop {
            let om = self.om.now();
            let address = om.as_ref().map(|om| om.address()).unwrap_or_default();
            let answer = match &om {
                Ok(_) => self.call_once(&address, attempt(), &method).await,
                // Nothing was sent.
                Err(failure) => Err(failure.clone()),
            };
            let failure = match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            // A question has no outcome to be unsure of.
            unsure |= failure.retry == Retry::Unknown && id.is_some();
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
                    code if unsure && !is_decided_by_tables(code) => {
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
            if let Ok(om) = om {
                om.failed(&address, &failure);
            }
            self.counted.om_repeats.count();
            tokio::time::sleep(retry.pause()).await;
        }
    }

    async fn call_once<Q, A, F>(
        &self,
        address: &str,
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
        let om = OmClient::new(self.channels.to(address)?)
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        match tokio::time::timeout(self.call_timeout, method(om, request)).await {
            Ok(answer) => Ok(answer?.into_inner()),
            Err(_) => Err(Failure::new(Code::OutcomeUnknown, format!("{address} does not answer"))),
        }
    }
}

/// Whether OM says so once for all: it remembers what a request was answered, so no earlier try took effect,
/// and none ever will. Other refusals say nothing of earlier tries, which may have come to another server, or
/// to the same one before it was replaced.
fn is_decided_by_tables(code: Code) -> bool {
    matches!(
        code,
        Code::NoSuchBucket
            | Code::BucketExists
            | Code::BucketNotEmpty
            | Code::NoSuchKey
            | Code::NoSuchUpload
            | Code::PreconditionFailed
            | Code::InvalidPart
            | Code::PartTooSmall
    )
}

macro_rules! query {
    ($client:expr, $method:ident, $request:expr) => {
        $client.om().call($request, None, |mut om, request| async move { om.$method(request).await })
    };
}

macro_rules! change {
    ($client:expr, $method:ident, $request:expr) => {{
        let id = Some(RequestId(random().random()));
        $client.om().call($request, id, |mut om, request| async move { om.$method(request).await })
    }};
}

fn missing(what: &str) -> ClientError {
    ClientError::Refused(Failure::internal(format!("OM's answer lacks the {what}")))
}

/// The namespace. Every call follows OM's leader and is tried again, until `write_deadline`, when that is
/// safe.
impl Client {
    pub async fn create_bucket(&self, volume: &str, bucket: &str) -> Result<Bucket, ClientError> {
        let request = CreateBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        change!(self, create_bucket, request).await?.bucket.ok_or_else(|| missing("bucket"))
    }

    pub async fn head_bucket(&self, volume: &str, bucket: &str) -> Result<Bucket, ClientError> {
        let request = HeadBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        query!(self, head_bucket, request).await?.bucket.ok_or_else(|| missing("bucket"))
    }

    pub async fn list_buckets(
        &self,
        request: ListBucketsRequest,
    ) -> Result<ListBucketsResponse, ClientError> {
        query!(self, list_buckets, request).await
    }

    pub async fn delete_bucket(&self, volume: &str, bucket: &str) -> Result<(), ClientError> {
        let request = DeleteBucketRequest { volume: volume.to_owned(), bucket: bucket.to_owned() };
        change!(self, delete_bucket, request).await.map(|_| ())
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
        Ok(change!(self, commit_key, request).await?.modified_ms)
    }

    pub async fn lookup(&self, volume: &str, bucket: &str, key: &[u8]) -> Result<Key, ClientError> {
        let request = LookupKeyRequest {
            volume: volume.to_owned(),
            bucket: bucket.to_owned(),
            key: Bytes::copy_from_slice(key),
        };
        query!(self, lookup_key, request).await?.key.ok_or_else(|| missing("key"))
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
        Ok(change!(self, delete_keys, request).await?.existed)
    }

    pub async fn list_keys(&self, request: ListKeysRequest) -> Result<ListKeysResponse, ClientError> {
        query!(self, list_keys, request).await
    }

    /// Begins a multipart upload and answers its id.
    pub async fn create_upload(&self, request: CreateUploadRequest) -> Result<String, ClientError> {
        Ok(change!(self, create_upload, request).await?.upload)
    }

    /// Adds a part, replacing an older one of the same number. Answers its time of modification.
    pub async fn commit_part(&self, request: CommitPartRequest) -> Result<u64, ClientError> {
        Ok(change!(self, commit_part, request).await?.modified_ms)
    }

    /// Joins parts to a key.
    pub async fn complete_upload(&self, request: CompleteUploadRequest) -> Result<Key, ClientError> {
        change!(self, complete_upload, request).await?.key.ok_or_else(|| missing("key"))
    }

    pub async fn abort_upload(&self, request: AbortUploadRequest) -> Result<(), ClientError> {
        change!(self, abort_upload, request).await.map(|_| ())
    }

    pub async fn list_parts(&self, request: ListPartsRequest) -> Result<ListPartsResponse, ClientError> {
        query!(self, list_parts, request).await
    }

    pub async fn list_uploads(
        &self,
        request: ListUploadsRequest,
    ) -> Result<ListUploadsResponse, ClientError> {
        query!(self, list_uploads, request).await
    }
}
