//! The S3 protocol, by the `s3s` crate: requests and answers in XML and headers, of requests that `admission`
//! let through. This is the only module that names `s3s`. Each operation is a function from its input to its
//! output or a [`GatewayError`].

mod acknowledged;
mod buckets;
mod convert;
mod copy;
mod delete;
mod error;
mod gateway;
mod get;
mod list;
mod multipart;
mod probes;
mod put;
mod seen_buckets;
mod trial;
mod xml;

use crate::account::Told;
use crate::admission::{Admission, AdmittedBody};
use crate::error::GatewayError;
use crate::options::GatewayOptions;
use crate::payload::Trailers;
use crate::request_body::Progress;
use acknowledged::Acknowledged;
use async_trait::async_trait;
use axum::body::Body;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::http::header::{CONTENT_RANGE, HOST};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use client::Client;
use gateway::Gateway;
use get::PartOf;
use httpd::{BodyMemory, NoRoom, Room};
use probes::Lacking;
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Request, S3Response, S3Result};
use seen_buckets::SeenBuckets;
use std::sync::Arc;
use time::OffsetDateTime;
pub use trial::{Trial, Tried};
use types::{Clock, SystemClock};

/// The way from an HTTP request to its HTTP response: admission, then the protocol layer.
#[derive(Clone)]
pub(crate) struct Protocol {
    admission: Arc<Admission>,
    documents: BodyMemory,
    service: S3Service,
}

impl Protocol {
    /// Builds the way in. The protocol layer gets no keys: signatures are verified before it, and it never
    /// sees one.
    pub(crate) fn new(client: Client, options: &GatewayOptions, documents: BodyMemory) -> Protocol {
        let admission = Admission::new(options, documents.clone());
        let gateway =
            Gateway { client, region: options.region.clone(), seen_buckets: SeenBuckets::default() };
        let service = S3ServiceBuilder::new(gateway).build();
        Protocol { admission: Arc::new(admission), documents, service }
    }

    /// Whether a bucket stands in the name of the host.
    pub(crate) fn has_bucket_in_host(&self, request: &Request) -> bool {
        self.admission.has_bucket_in_host(request.headers(), request.uri())
    }

    pub(crate) async fn call(
        &self,
        request: axum::extract::Request,
        progress: &Progress,
        told: &mut Told,
    ) -> Response {
        let (parts, body) = request.into_parts();
        let mut room = self.documents.room(parts.extensions.get());
        let now = now();
        let admitted = match self.admission.admit(parts, body, progress.clone(), now, told).await {
            Ok(admitted) => admitted,
            Err(refusal) => return document(refusal),
        };
        let asked_bytes = match &admitted.body {
            AdmittedBody::Document(document) => document.len(),
            AdmittedBody::Empty | AdmittedBody::Data(_) => 0,
        };
        if let Err(refusal) = hold_beforehand(&mut room, admitted.operation, asked_bytes) {
            return document(refusal.into());
        }
        let body = match admitted.body {
            AdmittedBody::Empty => s3s::Body::empty(),
            AdmittedBody::Document(document) => s3s::Body::from(document),
            AdmittedBody::Data(payload) => s3s::Body::http_body_unsync(payload),
        };
        match self.service.call(axum::http::Request::from_parts(admitted.parts, body)).await {
            // An object's bytes are sent as they are; all else that has a body is ours, and XML.
            Ok(response) if admitted.operation == "GetObject" && response.status().is_success() => {
                response.map(Body::new)
            }
            Ok(mut response) => {
                // The protocol layer does not tell the head of a part from that of the whole.
                let is_part =
                    response.status() == StatusCode::OK && response.headers().contains_key(CONTENT_RANGE);
                if is_part && admitted.operation == "HeadObject" {
                    *response.status_mut() = StatusCode::PARTIAL_CONTENT;
                }
                in_room(room, xml::mend(response))
            }
            Err(error) => {
                let why: Box<dyn std::error::Error + Send + Sync> = error.into();
                tracing::warn!(error = %why, "request failed in the protocol layer");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// The operations whose answers may be long.
const LONG_ANSWERS: &[&str] = &[
    "DeleteObjects",
    "GetObjectAttributes",
    "ListBuckets",
    "ListMultipartUploads",
    "ListObjectVersions",
    "ListObjects",
    "ListObjectsV2",
    "ListParts",
];

/// The room that such an operation has before it is begun: for a thousand keys of 250 bytes. OM's answer is
/// waited for in it; one that is longer as a document takes the rest when it is made, which nothing waits
/// for.
const LONG_ANSWER_BYTES: usize = 512 << 10;

/// The longest document that needs no room: errors have less, and lists of a few keys.
const SHORT_BYTES: usize = 16 << 10;

/// Takes room for an answer that may be long before anything is done for it. One that says what became of
/// each thing that was asked for has twice as many bytes as the document that asked, or less, as a rule.
fn hold_beforehand(room: &mut Room, operation: &str, asked_bytes: usize) -> Result<(), NoRoom> {
    let bytes = LONG_ANSWER_BYTES.max(2 * asked_bytes);
    if LONG_ANSWERS.contains(&operation) { room.hold(bytes) } else { Ok(()) }
}

/// Keeps a long document's room until its client has taken it, or asks that to come later.
fn in_room(mut room: Room, response: Response<Bytes>) -> Response {
    let bytes = response.body().len();
    if bytes <= SHORT_BYTES {
        return response.map(Body::from);
    }
    match room.hold(bytes) {
        Ok(()) => response.map(|document| Body::from(room.of(document))),
        Err(refusal) => document(refusal.into()),
    }
}

/// The time by the machine's clock, as signatures are dated by those of clients.
fn now() -> OffsetDateTime {
    let now_ms = SystemClock.now_ms();
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(now_ms) * 1_000_000)
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn document(failure: GatewayError) -> Response {
    match error::to_s3(failure).to_http_response() {
        Ok(response) => xml::mend(response).map(Body::from),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

fn answer<T>(result: Result<T, GatewayError>) -> S3Result<S3Response<T>> {
    result.map(S3Response::new).map_err(error::to_s3)
}

/// The operations of the protocol layer. Those that are not here are not in `admission`'s table either, and
/// never come.
#[async_trait]
impl S3 for Gateway {
    async fn list_buckets(
        &self,
        req: S3Request<ListBucketsInput>,
    ) -> S3Result<S3Response<ListBucketsOutput>> {
        answer(self.buckets_list(req.input).await)
    }

    async fn create_bucket(
        &self,
        req: S3Request<CreateBucketInput>,
    ) -> S3Result<S3Response<CreateBucketOutput>> {
        answer(self.bucket_create(req.input).await)
    }

    async fn head_bucket(&self, req: S3Request<HeadBucketInput>) -> S3Result<S3Response<HeadBucketOutput>> {
        answer(self.bucket_head(req.input).await)
    }

    async fn delete_bucket(
        &self,
        req: S3Request<DeleteBucketInput>,
    ) -> S3Result<S3Response<DeleteBucketOutput>> {
        answer(self.bucket_delete(req.input).await)
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        answer(self.bucket_location(req.input).await)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let asked = put::Asked::of(&req.headers, req.extensions.get::<Trailers>().cloned());
        Acknowledged::of(&req.headers).answer(self.object_put(req.input, asked).await)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        let part_of = PartOf::asked(&req.headers);
        answer(self.object_get(req.input, part_of).await)
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let part_of = PartOf::asked(&req.headers);
        answer(self.object_head(req.input, part_of).await)
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        answer(self.object_delete(req.input).await)
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        answer(self.objects_delete(req.input).await)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        let precondition = convert::written_precondition(&req.headers);
        let ack = Acknowledged::of(&req.headers);
        ack.answer(async { self.object_copy(req.input, precondition?, ack.asked()?).await }.await)
    }

    async fn list_objects(
        &self,
        req: S3Request<ListObjectsInput>,
    ) -> S3Result<S3Response<ListObjectsOutput>> {
        answer(self.objects_list(req.input).await)
    }

    async fn list_objects_v2(
        &self,
        req: S3Request<ListObjectsV2Input>,
    ) -> S3Result<S3Response<ListObjectsV2Output>> {
        answer(self.objects_list_v2(req.input).await)
    }

    async fn create_multipart_upload(
        &self,
        req: S3Request<CreateMultipartUploadInput>,
    ) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
        answer(self.upload_create(req.input).await)
    }

    async fn upload_part(&self, req: S3Request<UploadPartInput>) -> S3Result<S3Response<UploadPartOutput>> {
        let asked = put::Asked::of(&req.headers, req.extensions.get::<Trailers>().cloned());
        Acknowledged::of(&req.headers).answer(self.part_put(req.input, asked).await)
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        let ack = Acknowledged::of(&req.headers);
        ack.answer(async { self.part_copy(req.input, ack.asked()?).await }.await)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        let host = req.headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default().to_owned();
        answer(self.upload_complete(req.input, &host).await)
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        answer(self.upload_abort(req.input).await)
    }

    async fn list_parts(&self, req: S3Request<ListPartsInput>) -> S3Result<S3Response<ListPartsOutput>> {
        answer(self.parts_list(req.input).await)
    }

    async fn list_multipart_uploads(
        &self,
        req: S3Request<ListMultipartUploadsInput>,
    ) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
        answer(self.uploads_list(req.input).await)
    }

    async fn get_bucket_accelerate_configuration(
        &self,
        req: S3Request<GetBucketAccelerateConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketAccelerateConfigurationOutput>> {
        answer(self.of_bucket(&req.input.bucket, GetBucketAccelerateConfigurationOutput::default()).await)
    }

    async fn get_bucket_acl(
        &self,
        req: S3Request<GetBucketAclInput>,
    ) -> S3Result<S3Response<GetBucketAclOutput>> {
        answer(self.bucket_acl(req.input).await)
    }

    async fn get_bucket_cors(
        &self,
        req: S3Request<GetBucketCorsInput>,
    ) -> S3Result<S3Response<GetBucketCorsOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Cors).await)
    }

    async fn get_bucket_encryption(
        &self,
        req: S3Request<GetBucketEncryptionInput>,
    ) -> S3Result<S3Response<GetBucketEncryptionOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Encryption).await)
    }

    async fn get_bucket_lifecycle_configuration(
        &self,
        req: S3Request<GetBucketLifecycleConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketLifecycleConfigurationOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Lifecycle).await)
    }

    async fn get_bucket_logging(
        &self,
        req: S3Request<GetBucketLoggingInput>,
    ) -> S3Result<S3Response<GetBucketLoggingOutput>> {
        answer(self.of_bucket(&req.input.bucket, GetBucketLoggingOutput::default()).await)
    }

    async fn get_bucket_notification_configuration(
        &self,
        req: S3Request<GetBucketNotificationConfigurationInput>,
    ) -> S3Result<S3Response<GetBucketNotificationConfigurationOutput>> {
        answer(self.of_bucket(&req.input.bucket, GetBucketNotificationConfigurationOutput::default()).await)
    }

    async fn get_bucket_ownership_controls(
        &self,
        req: S3Request<GetBucketOwnershipControlsInput>,
    ) -> S3Result<S3Response<GetBucketOwnershipControlsOutput>> {
        answer(self.bucket_ownership(&req.input.bucket).await)
    }

    async fn get_bucket_policy(
        &self,
        req: S3Request<GetBucketPolicyInput>,
    ) -> S3Result<S3Response<GetBucketPolicyOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Policy).await)
    }

    async fn get_bucket_policy_status(
        &self,
        req: S3Request<GetBucketPolicyStatusInput>,
    ) -> S3Result<S3Response<GetBucketPolicyStatusOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Policy).await)
    }

    async fn get_bucket_replication(
        &self,
        req: S3Request<GetBucketReplicationInput>,
    ) -> S3Result<S3Response<GetBucketReplicationOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Replication).await)
    }

    async fn get_bucket_request_payment(
        &self,
        req: S3Request<GetBucketRequestPaymentInput>,
    ) -> S3Result<S3Response<GetBucketRequestPaymentOutput>> {
        answer(self.bucket_payer(&req.input.bucket).await)
    }

    async fn get_bucket_tagging(
        &self,
        req: S3Request<GetBucketTaggingInput>,
    ) -> S3Result<S3Response<GetBucketTaggingOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Tags).await)
    }

    async fn get_bucket_versioning(
        &self,
        req: S3Request<GetBucketVersioningInput>,
    ) -> S3Result<S3Response<GetBucketVersioningOutput>> {
        answer(self.of_bucket(&req.input.bucket, GetBucketVersioningOutput::default()).await)
    }

    async fn get_bucket_website(
        &self,
        req: S3Request<GetBucketWebsiteInput>,
    ) -> S3Result<S3Response<GetBucketWebsiteOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::Website).await)
    }

    async fn get_object_acl(
        &self,
        req: S3Request<GetObjectAclInput>,
    ) -> S3Result<S3Response<GetObjectAclOutput>> {
        answer(self.object_acl(req.input).await)
    }

    async fn get_object_attributes(
        &self,
        req: S3Request<GetObjectAttributesInput>,
    ) -> S3Result<S3Response<GetObjectAttributesOutput>> {
        answer(self.object_attributes(req.input).await)
    }

    async fn get_object_lock_configuration(
        &self,
        req: S3Request<GetObjectLockConfigurationInput>,
    ) -> S3Result<S3Response<GetObjectLockConfigurationOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::ObjectLock).await)
    }

    async fn get_object_tagging(
        &self,
        req: S3Request<GetObjectTaggingInput>,
    ) -> S3Result<S3Response<GetObjectTaggingOutput>> {
        answer(self.object_tags(req.input).await)
    }

    async fn get_public_access_block(
        &self,
        req: S3Request<GetPublicAccessBlockInput>,
    ) -> S3Result<S3Response<GetPublicAccessBlockOutput>> {
        answer(self.lacks(&req.input.bucket, Lacking::PublicAccessBlock).await)
    }

    async fn list_object_versions(
        &self,
        req: S3Request<ListObjectVersionsInput>,
    ) -> S3Result<S3Response<ListObjectVersionsOutput>> {
        answer(self.versions_list(req.input).await)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::SocketAddr;

    /// The longest list: a thousand keys of 1024 characters of which each is a reference.
    const LONGEST_BYTES: usize = 5 << 20;

    fn answer(mut room: Room, bytes: usize) -> Response {
        match hold_beforehand(&mut room, "ListObjectsV2", 0) {
            Ok(()) => in_room(room, Response::new(Bytes::from(vec![b'x'; bytes]))),
            Err(refusal) => document(refusal.into()),
        }
    }

    /// A hundred and fifty lists that were read slowly had all of a gateway's memory, and every upload,
    /// download and list of anybody was told to come later, for an hour.
    #[test]
    fn lists_that_nobody_takes_leave_half_of_the_memory_for_documents_to_other_addresses() {
        let documents = BodyMemory::new(8 * LONGEST_BYTES, Arc::default());
        let list = |from: SocketAddr, bytes| answer(documents.room(Some(&from)), bytes);
        let [slow, other] = ["10.0.0.1:1", "10.0.0.2:1"].map(|address| address.parse().unwrap());
        let mut taken: Vec<Response> = (0..4).map(|_| list(slow, LONGEST_BYTES)).collect();
        assert!(taken.iter().all(|answer| answer.status() == StatusCode::OK));
        let refused = list(slow, 0);
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE, "before it is done");
        assert_eq!(list(other, LONGEST_BYTES).status(), StatusCode::OK);
        taken.pop();
        // One that turns out to be longer than what is left is refused then, and keeps nothing.
        assert_eq!(list(slow, LONGEST_BYTES + 1).status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(list(slow, LONGEST_BYTES).status(), StatusCode::OK);
        assert_eq!(documents.bytes_in_use(), 3 * LONGEST_BYTES, "room goes back down to what is kept");
        drop(taken);
        assert_eq!(documents.bytes_in_use(), 0);
        let short = list(slow, SHORT_BYTES);
        assert_eq!((short.status(), documents.bytes_in_use()), (StatusCode::OK, 0));
    }

    /// A deletion that was done and told to come later is repeated, though somebody has put the object anew.
    #[test]
    fn a_long_list_of_what_is_to_be_deleted_has_room_for_its_answer_before_anything_is() {
        let documents = BodyMemory::new(4 << 20, Arc::default());
        let hold = |asked_bytes| hold_beforehand(&mut documents.room(None), "DeleteObjects", asked_bytes);
        assert!(hold(2 << 20).is_ok());
        assert!(hold((2 << 20) + 1).is_err());
    }

    #[test]
    fn operations_with_short_answers_are_begun_without_room() {
        let documents = BodyMemory::new(0, Arc::default());
        let mut room = documents.room(None);
        assert!(hold_beforehand(&mut room, "ListObjects", 0).is_err());
        for operation in ["PutObject", "GetObject", "CompleteMultipartUpload", "HeadBucket"] {
            assert!(hold_beforehand(&mut room, operation, 0).is_ok(), "{operation}");
        }
        let names: Vec<_> = crate::admission::operation_names().collect();
        assert!(LONG_ANSWERS.iter().all(|long| names.contains(long)), "{names:?}");
    }
}
