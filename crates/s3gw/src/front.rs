use crate::options::GatewayOptions;
use crate::request_body::{Progress, RequestBody, Stage};
use crate::s3::Protocol;
use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION, CONTENT_TYPE, EXPECT, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use client::Client;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-amz-request-id");

/// Error documents are far smaller; anything larger is passed on as it is.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// How long a readiness probe waits for the cluster.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// The gateway as an axum service: S3 on every path, and `/-/health/live` and `/-/health/ready`, which no bucket can be
/// called.
pub fn router(client: Client, options: GatewayOptions) -> Router {
    let front = Front {
        requests: Arc::new(Semaphore::new(options.requests_max)),
        ids: Arc::new(RequestIds::default()),
        protocol: Protocol::new(client.clone(), &options),
        client,
        body_idle_max: options.body_idle_max,
    };
    Router::new()
        .route("/-/health/live", get(|| async { "alive\n" }))
        .route("/-/health/ready", get(ready))
        .fallback(serve)
        .with_state(front)
}

#[derive(Clone)]
struct Front {
    requests: Arc<Semaphore>,
    ids: Arc<RequestIds>,
    protocol: Protocol,
    client: Client,
    body_idle_max: Duration,
}

/// Unique in a process, and told apart between processes by what they began with.
struct RequestIds {
    first: u64,
    next: AtomicU64,
}

impl Default for RequestIds {
    fn default() -> Self {
        use std::hash::{BuildHasher, RandomState};
        RequestIds { first: RandomState::new().hash_one("request ids"), next: AtomicU64::new(1) }
    }
}

impl RequestIds {
    fn take(&self) -> String {
        format!("{:08X}{:08X}", self.first as u32, self.next.fetch_add(1, Ordering::Relaxed))
    }
}

async fn ready(State(front): State<Front>) -> Response {
    match front.client.ready(READY_WITHIN).await {
        Ok(()) => "ready\n".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why:#}\n")).into_response(),
    }
}

async fn serve(State(front): State<Front>, request: Request) -> Response {
    let id = front.ids.take();
    let (request, connection) = watch(request, front.body_idle_max);
    let response = match (refuse(&request), front.requests.clone().try_acquire_owned()) {
        (Some(refusal), _) => refusal,
        (None, Err(_)) => slow_down(),
        (None, Ok(permit)) => {
            let response = front.protocol.call(request, &connection.progress).await;
            response.map(|body| Body::new(Counted { body, _permit: permit }))
        }
    };
    let mut response = name_in_error(response, &id).await;
    if connection.is_over() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    response.headers_mut().insert(REQUEST_ID, HeaderValue::from_str(&id).expect("hexadecimal digits"));
    response
}

/// Whether the connection can carry another request after this one.
struct Reuse {
    http1: bool,
    /// The client waits for a 100 before it sends.
    waits: bool,
    progress: Progress,
}

impl Reuse {
    /// Two cases end a connection of HTTP/1. What is left of a body that nobody read to its end would be taken for the
    /// next request. And boto3 keeps the status of an answer that came without the 100 it waited for, for the next answer
    /// on the same connection; a 100 is sent when a body is read, and so never for an empty one.
    fn is_over(&self) -> bool {
        self.http1
            && match self.progress.stage() {
                Stage::Empty => self.waits,
                Stage::Ended => false,
                Stage::Unread | Stage::Reading | Stage::Broken | Stage::Stalled => true,
            }
    }
}

fn watch(request: Request, body_idle_max: Duration) -> (Request, Reuse) {
    let http1 = request.version() < Version::HTTP_2;
    let waits = request.headers().get(EXPECT).is_some_and(|value| value.as_bytes() == b"100-continue");
    let (parts, body) = request.into_parts();
    let (body, progress) = RequestBody::new(body, body_idle_max);
    (Request::from_parts(parts, Body::new(body)), Reuse { http1, waits, progress })
}

/// What the protocol layer would take and we do not want: the old signature, which it compares byte by byte, and forms,
/// whose files it keeps in memory.
fn refuse(request: &Request) -> Option<Response> {
    let text = |name| request.headers().get(name).and_then(|value: &HeaderValue| value.to_str().ok());
    let old_header = text(AUTHORIZATION).is_some_and(|value| value.starts_with("AWS "));
    let old_query = request.uri().query().is_some_and(|query| {
        query.split('&').any(|pair| pair.starts_with("Signature=") || pair.starts_with("AWSAccessKeyId="))
    });
    if old_header || old_query {
        let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>InvalidRequest</Code><Message>The authorization \
                    mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256.</Message></Error>";
        return Some((StatusCode::BAD_REQUEST, [(CONTENT_TYPE, "application/xml")], body).into_response());
    }
    let form = text(CONTENT_TYPE).is_some_and(|kind| kind.trim_start().starts_with("multipart/form-data"));
    if form && *request.method() == Method::POST {
        let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>NotImplemented</Code><Message>Uploads by \
                    POST with a form are not implemented.</Message></Error>";
        return Some(
            (StatusCode::NOT_IMPLEMENTED, [(CONTENT_TYPE, "application/xml")], body).into_response(),
        );
    }
    None
}

fn slow_down() -> Response {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>Please reduce your request \
                rate: this gateway serves as many requests as it may.</Message></Error>";
    let headers = [(RETRY_AFTER, "1"), (CONTENT_TYPE, "application/xml")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, body).into_response()
}

/// Puts the request's id into an error document, for the support request that quotes it.
async fn name_in_error(response: Response, id: &str) -> Response {
    let is_xml = |value: &HeaderValue| value.as_bytes().starts_with(b"application/xml");
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let is_small = response.body().size_hint().upper().is_some_and(|bytes| bytes <= ERROR_BYTES_MAX as u64);
    if !is_error || !is_small || !response.headers().get(CONTENT_TYPE).is_some_and(is_xml) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let Ok(body) = axum::body::to_bytes(body, ERROR_BYTES_MAX).await else {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    let text = String::from_utf8_lossy(&body);
    let body = match text.rsplit_once("</Error>") {
        Some((before, after)) if !before.contains("<RequestId>") => {
            Bytes::from(format!("{before}<RequestId>{id}</RequestId></Error>{after}"))
        }
        _ => body.clone(),
    };
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    Response::from_parts(parts, Body::from(body))
}

/// A body that counts as a request under way until its last byte.
struct Counted {
    body: Body,
    _permit: OwnedSemaphorePermit,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn error_documents_name_their_request() {
        let response = name_in_error(slow_down(), "AB12").await;
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.ends_with("<RequestId>AB12</RequestId></Error>"), "{text}");
    }

    #[test]
    fn old_signatures_and_forms_are_refused() {
        let status = |request: axum::http::request::Builder| {
            refuse(&request.body(Body::empty()).unwrap()).map(|response| response.status().as_u16())
        };
        assert_eq!(status(Request::get("/b/k")), None);
        assert_eq!(status(Request::get("/b/k?X-Amz-Signature=b")), None);
        assert_eq!(status(Request::get("/b/k").header("authorization", "AWS AK:sig")), Some(400));
        assert_eq!(status(Request::get("/b/k?AWSAccessKeyId=a&Signature=b&Expires=1")), Some(400));
        let form = Request::post("/b").header("content-type", "multipart/form-data; boundary=x");
        assert_eq!(status(form), Some(501));
    }

    #[tokio::test]
    async fn a_body_that_nobody_read_and_a_100_that_was_never_sent_end_the_connection() {
        let check = async |expects: bool, body: &'static str, read: bool, over: bool| {
            let mut request = Request::put("/b/k");
            if expects {
                request = request.header("expect", "100-continue");
            }
            let (request, connection) =
                watch(request.body(Body::from(body)).unwrap(), Duration::from_secs(60));
            if read {
                axum::body::to_bytes(request.into_body(), 100).await.unwrap();
            }
            assert_eq!(connection.is_over(), over, "expects: {expects}, body: {body}, read: {read}");
        };
        check(true, "data", true, false).await;
        check(true, "data", false, true).await;
        check(true, "", true, true).await;
        check(false, "data", true, false).await;
        check(false, "data", false, true).await;
        check(false, "", false, false).await;
    }

    #[test]
    fn request_ids_differ() {
        let ids = RequestIds::default();
        assert_ne!(ids.take(), ids.take());
    }
}
