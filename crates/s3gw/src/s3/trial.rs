use super::error::to_s3;
use super::get::ranged;
use super::multipart::copy_range;
use crate::account::Told;
use crate::admission::{Admission, AdmittedBody};
use crate::error::GatewayError;
use crate::options::GatewayOptions;
use crate::request_body::RequestBody;
use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Request, StatusCode};
use bytes::Bytes;
use httpd::BodyMemory;
use s3s::S3;
use s3s::dto::Range;
use s3s::service::{S3Service, S3ServiceBuilder};
use std::ops::Range as ByteRange;
use std::sync::Arc;
use time::OffsetDateTime;

/// The gateway's way in without a cluster behind it, for who looks for requests that do harm there
/// (tests/fuzz). It lets through what the real one lets through: it is the same code up to the operation.
pub struct Trial {
    admission: Admission,
    service: S3Service,
}

/// A request that was let through.
pub struct Tried {
    pub operation: &'static str,
    /// The head of the request, as the protocol layer has it.
    pub parts: Parts,
    /// The bytes of an object, decoded as far as they came, and the code of what was wrong with them; of a
    /// document, all.
    pub body: (Vec<u8>, Option<String>),
    /// The protocol layer's answer: NOT_IMPLEMENTED if it understood, since nobody carries anything out.
    /// `None` for data.
    pub status: Option<StatusCode>,
}

const MEMORY_BYTES: usize = 64 << 20;

/// An S3 that carries nothing out.
struct Nobody;

impl S3 for Nobody {}

impl Trial {
    pub fn new(options: &GatewayOptions) -> Trial {
        Trial {
            admission: Admission::new(options, BodyMemory::new(MEMORY_BYTES, Arc::default())),
            service: S3ServiceBuilder::new(Nobody).build(),
        }
    }

    /// Lets a request in. An error is the code that the client is told.
    pub async fn request(&self, request: Request<Body>, now: OffsetDateTime) -> Result<Tried, String> {
        let (parts, body) = request.into_parts();
        let (body, progress) = RequestBody::new(body);
        let admitted =
            self.admission.admit(parts, Body::new(body), progress, now, &mut Told::default()).await;
        let admitted = admitted.map_err(code)?;
        let (operation, parts) = (admitted.operation, admitted.parts);
        let document = match admitted.body {
            AdmittedBody::Empty => Bytes::new(),
            AdmittedBody::Document(document) => document,
            AdmittedBody::Data(mut payload) => {
                let (mut data, mut ended) = (Vec::new(), None);
                while let Some(piece) = payload.next().await {
                    match piece {
                        Ok(piece) => data.extend_from_slice(&piece),
                        Err(error) => ended = Some(code(error)),
                    }
                }
                return Ok(Tried { operation, parts, body: (data, ended), status: None });
            }
        };
        let request = Request::from_parts(parts.clone(), s3s::Body::from(document.clone()));
        let answer = self.service.call(request).await;
        let status = answer.map_or(StatusCode::INTERNAL_SERVER_ERROR, |answer| answer.status());
        Ok(Tried { operation, parts, body: (document.into(), None), status: Some(status) })
    }

    /// The range that a `Range` of a GET selects of an object of so many bytes.
    pub fn range(&self, text: &str, object_bytes: u64) -> Option<ByteRange<u64>> {
        ranged(&Range::parse(text).ok()?, object_bytes).ok()
    }

    /// The range that an `x-amz-copy-source-range` selects.
    pub fn copy_range(&self, text: &str, object_bytes: u64) -> Option<ByteRange<u64>> {
        copy_range(text, object_bytes).ok()
    }
}

fn code(error: GatewayError) -> String {
    to_s3(error).code().as_str().to_owned()
}
