//! The S3 protocol, by the `s3s` crate: signatures, requests and answers in XML and headers, chunked bodies. The only
//! module that names it. Each operation is a function from its input to its output or a [`GatewayError`].

mod buckets;
mod convert;
mod copy;
mod delete;
mod error;
mod get;
mod list;
mod multipart;
mod put;

use crate::error::GatewayError;
use crate::options::GatewayOptions;
use crate::request_body::{Progress, Stage};
use async_trait::async_trait;
use axum::body::Body;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use client::Client;
use s3s::auth::{S3Auth, SecretKey};
use s3s::dto::*;
use s3s::service::{S3Service, S3ServiceBuilder};
use s3s::{S3, S3Error, S3ErrorCode, S3Request, S3Response, S3Result};

/// Takes HTTP requests, answers HTTP responses.
#[derive(Clone)]
pub(crate) struct Protocol(S3Service);

impl Protocol {
    pub(crate) fn new(client: Client, options: &GatewayOptions) -> Protocol {
        let mut builder = S3ServiceBuilder::new(Gateway { client, region: options.region.clone() });
        builder.set_auth(OneKeyPair {
            access_key: options.access_key.clone(),
            secret_key: SecretKey::from(options.secret_key.clone()),
        });
        Protocol(builder.build())
    }

    pub(crate) async fn call(&self, request: axum::extract::Request, body: &Progress) -> Response {
        match self.0.call(request.map(s3s::Body::http_body_unsync)).await {
            Ok(response) => match body_failure(&response, body.stage()) {
                Some(failure) => document(failure),
                None => response.map(Body::new),
            },
            Err(error) => {
                let why: Box<dyn std::error::Error + Send + Sync> = error.into();
                tracing::warn!(error = %why, "request failed in the protocol layer");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        }
    }
}

/// The protocol layer itself reads bodies that are XML, and says of all that goes wrong there that it is an internal
/// error, without a message; ours have one.
fn body_failure(response: &s3s::HttpResponse, stage: Stage) -> Option<GatewayError> {
    const NO_MESSAGE: &[u8] = b"<Error><Code>InternalError</Code></Error>";
    let internal = response.status() == StatusCode::INTERNAL_SERVER_ERROR;
    if !internal || !response.body().bytes().is_some_and(|body| body.ends_with(NO_MESSAGE)) {
        return None;
    }
    match stage {
        Stage::Empty | Stage::Unread => None,
        Stage::Ended => Some(GatewayError::ContentSha256Mismatch),
        Stage::Stalled => Some(GatewayError::RequestTimeout),
        Stage::Reading | Stage::Broken => Some(GatewayError::IncompleteBody),
    }
}

fn document(failure: GatewayError) -> Response {
    match error::to_s3(failure).to_http_response() {
        Ok(response) => response.map(Body::new),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

struct OneKeyPair {
    access_key: String,
    secret_key: SecretKey,
}

#[async_trait]
impl S3Auth for OneKeyPair {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        if access_key == self.access_key && !self.access_key.is_empty() {
            return Ok(self.secret_key.clone());
        }
        let why = "The AWS Access Key Id you provided does not exist in our records.";
        Err(S3Error::with_message(S3ErrorCode::InvalidAccessKeyId, why))
    }
}

/// The operations.
struct Gateway {
    client: Client,
    region: String,
}

fn answer<T>(result: Result<T, GatewayError>) -> S3Result<S3Response<T>> {
    result.map(S3Response::new).map_err(error::to_s3)
}

/// What is not here answers `NotImplemented`.
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
        let deleted = answer(self.bucket_delete(req.input).await)?;
        Ok(S3Response { status: Some(StatusCode::NO_CONTENT), ..deleted })
    }

    async fn get_bucket_location(
        &self,
        req: S3Request<GetBucketLocationInput>,
    ) -> S3Result<S3Response<GetBucketLocationOutput>> {
        answer(self.bucket_location(req.input).await)
    }

    async fn put_object(&self, req: S3Request<PutObjectInput>) -> S3Result<S3Response<PutObjectOutput>> {
        let asked = put::Asked::of(&req.headers, req.trailing_headers);
        answer(self.object_put(req.input, asked).await)
    }

    async fn get_object(&self, req: S3Request<GetObjectInput>) -> S3Result<S3Response<GetObjectOutput>> {
        answer(self.object_get(req.input).await)
    }

    async fn head_object(&self, req: S3Request<HeadObjectInput>) -> S3Result<S3Response<HeadObjectOutput>> {
        let head = answer(self.object_head(req.input).await)?;
        let status = head.output.content_range.as_ref().map(|_| StatusCode::PARTIAL_CONTENT);
        Ok(S3Response { status, ..head })
    }

    async fn delete_object(
        &self,
        req: S3Request<DeleteObjectInput>,
    ) -> S3Result<S3Response<DeleteObjectOutput>> {
        let deleted = answer(self.object_delete(req.input).await)?;
        Ok(S3Response { status: Some(StatusCode::NO_CONTENT), ..deleted })
    }

    async fn delete_objects(
        &self,
        req: S3Request<DeleteObjectsInput>,
    ) -> S3Result<S3Response<DeleteObjectsOutput>> {
        answer(self.objects_delete(req.input).await)
    }

    async fn copy_object(&self, req: S3Request<CopyObjectInput>) -> S3Result<S3Response<CopyObjectOutput>> {
        answer(self.object_copy(req.input, &req.headers).await)
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
        let asked = put::Asked::of(&req.headers, req.trailing_headers);
        answer(self.part_put(req.input, asked).await)
    }

    async fn upload_part_copy(
        &self,
        req: S3Request<UploadPartCopyInput>,
    ) -> S3Result<S3Response<UploadPartCopyOutput>> {
        answer(self.part_copy(req.input).await)
    }

    async fn complete_multipart_upload(
        &self,
        req: S3Request<CompleteMultipartUploadInput>,
    ) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
        answer(self.upload_complete(req.input).await)
    }

    async fn abort_multipart_upload(
        &self,
        req: S3Request<AbortMultipartUploadInput>,
    ) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
        let aborted = answer(self.upload_abort(req.input).await)?;
        Ok(S3Response { status: Some(StatusCode::NO_CONTENT), ..aborted })
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
}
