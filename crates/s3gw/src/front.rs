use crate::account::Accounts;
use crate::admission::waits_for_100;
use crate::options::GatewayOptions;
use crate::request_body::{Progress, RequestBody, Stage};
use crate::s3::Protocol;
use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, Version};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Router};
use client::Client;
use httpd::{BodyMemory, Recent, RequestId, Work};
use std::sync::Arc;
use std::time::Duration;

/// The header in which answers name their requests.
pub const REQUEST_ID_HEADER: HeaderName = HeaderName::from_static("x-amz-request-id");

/// The longest answer that is taken for an error document. Error documents are far smaller; anything larger
/// is passed on as it is.
const ERROR_BYTES_MAX: usize = 64 * 1024;

/// The time for which a readiness probe waits for the cluster.
const READY_WITHIN: Duration = Duration::from_secs(2);

/// The time for which a readiness probe's answer is given to others who ask: anybody may, and each question
/// is one to OM and to datanodes.
const READY_FOR: Duration = Duration::from_secs(1);

/// The gateway as an axum service: S3 on every path, and `/-/health/live` and `/-/health/ready`: no bucket
/// can be called `-`. `work` bounds the requests of S3 that are worked for at once; more get `SlowDown`.
/// Documents that are sent, and long ones that are answered, have `documents`. Requests of S3 are accounted
/// for in `accounts`.
pub fn router(
    client: Client,
    options: GatewayOptions,
    work: Work,
    documents: BodyMemory,
    accounts: Arc<Accounts>,
) -> Router {
    let readiness = Arc::new(Recent::new(READY_FOR));
    let protocol = Protocol::new(client.clone(), &options, documents);
    let front = Front { work, accounts, protocol, client, readiness };
    Router::new().fallback(serve).with_state(front)
}

#[derive(Clone)]
struct Front {
    work: Work,
    accounts: Arc<Accounts>,
    protocol: Protocol,
    client: Client,
    /// Whether a byte could be written, as of a moment ago.
    readiness: Arc<Recent<Result<(), String>>>,
}

/// A question of how this gateway is.
enum Health {
    Live,
    Ready,
}

/// The question that a request is; `None` of any other request, also of one about a key of that name in a
/// bucket that stands in the host.
fn health(front: &Front, request: &Request) -> Option<Health> {
    let asked = match request.uri().path() {
        "/-/health/live" => Health::Live,
        "/-/health/ready" => Health::Ready,
        _ => return None,
    };
    let is_question = matches!(*request.method(), Method::GET | Method::HEAD);
    (is_question && !front.protocol.has_bucket_in_host(request)).then_some(asked)
}

async fn ready(front: &Front) -> Response {
    let client = front.client.clone();
    let ask = || async move { client.ready(READY_WITHIN).await.map_err(|why| format!("{why:#}")) };
    match front.readiness.get(ask).await {
        Some(Ok(())) => "ready\n".into_response(),
        Some(Err(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn serve(
    State(front): State<Front>,
    Extension(id): Extension<RequestId>,
    request: Request,
) -> Response {
    match health(&front, &request) {
        Some(Health::Live) => return "alive\n".into_response(),
        Some(Health::Ready) => return ready(&front).await,
        None => {}
    }
    let (request, connection) = watch(request);
    let is_head = *request.method() == Method::HEAD;
    let mut account = front.accounts.open(&request, id, connection.progress.clone());
    let response = match front.work.begin() {
        None => slow_down(),
        Some(permit) => {
            let request = request.map(|body| permit.request_body(body));
            let response = front.protocol.call(request, &connection.progress, &mut account.told).await;
            response.map(|body| permit.response_body(body))
        }
    };
    let (mut response, code) = name_in_error(response, id).await;
    if let Some(code) = code {
        account.error(&code);
    }
    if connection.is_over() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if is_head { account.answer_head(response) } else { account.answer(response) }
}

/// Whether the connection can carry another request after this one.
struct Reuse {
    http1: bool,
    /// The client waits for a 100 before it sends.
    waits: bool,
    progress: Progress,
}

impl Reuse {
    /// Whether the connection ends after the answer. Two cases end one of HTTP/1. What is left of a body that
    /// nobody read to its end would be taken for the next request. And boto3 keeps the status of an answer
    /// that came without the 100 it waited for, for the next answer on the same connection; a 100 is sent
    /// when a body is read, and so never for an empty one.
    fn is_over(&self) -> bool {
        self.http1
            && match self.progress.stage() {
                Stage::Empty => self.waits,
                Stage::Ended => false,
                Stage::Unread | Stage::Reading | Stage::Broken | Stage::Stalled => true,
            }
    }
}

fn watch(request: Request) -> (Request, Reuse) {
    let http1 = request.version() < Version::HTTP_2;
    let waits = waits_for_100(request.headers());
    let (parts, body) = request.into_parts();
    let (body, progress) = RequestBody::new(body);
    (Request::from_parts(parts, Body::new(body)), Reuse { http1, waits, progress })
}

/// An error document of S3.
pub fn document(code: &str, message: &str, id: RequestId) -> (&'static str, String) {
    let body = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>{code}</Code><Message>{message}</Message>\
         <RequestId>{id}</RequestId></Error>"
    );
    ("application/xml", body)
}

fn slow_down() -> Response {
    let body = "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>Please reduce your request \
                rate: this gateway serves as many requests as it may.</Message></Error>";
    let headers = [(RETRY_AFTER, "1"), (CONTENT_TYPE, "application/xml")];
    (StatusCode::SERVICE_UNAVAILABLE, headers, body).into_response()
}

/// Puts the request's id into an error document, for the support request that quotes it. Returns the
/// document's code too.
async fn name_in_error(response: Response, id: RequestId) -> (Response, Option<String>) {
    let is_xml = |value: &HeaderValue| value.as_bytes().starts_with(b"application/xml");
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let is_small = response.body().size_hint().upper().is_some_and(|bytes| bytes <= ERROR_BYTES_MAX as u64);
    if !is_error || !is_small || !response.headers().get(CONTENT_TYPE).is_some_and(is_xml) {
        return (response, None);
    }
    let (mut parts, body) = response.into_parts();
    let Ok(body) = axum::body::to_bytes(body, ERROR_BYTES_MAX).await else {
        return (StatusCode::INTERNAL_SERVER_ERROR.into_response(), None);
    };
    let text = String::from_utf8_lossy(&body);
    let code = text.split_once("<Code>").and_then(|(_, after)| after.split_once("</Code>"));
    let code = code.map(|(code, _)| code.to_owned());
    let body = match text.rsplit_once("</Error>") {
        Some((before, after)) if !before.contains("<RequestId>") => {
            Bytes::from(format!("{before}<RequestId>{id}</RequestId></Error>{after}"))
        }
        _ => body.clone(),
    };
    parts.headers.remove(axum::http::header::CONTENT_LENGTH);
    (Response::from_parts(parts, Body::from(body)), code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn error_documents_name_their_request() {
        let id = RequestId::random();
        let (response, code) = name_in_error(slow_down(), id).await;
        assert_eq!(code.as_deref(), Some("SlowDown"));
        assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
        let body = axum::body::to_bytes(response.into_body(), 4096).await.unwrap();
        let text = String::from_utf8(body.to_vec()).unwrap();
        assert!(text.ends_with(&format!("<RequestId>{id}</RequestId></Error>")), "{text}");
    }

    #[tokio::test]
    async fn a_body_that_nobody_read_and_a_100_that_was_never_sent_end_the_connection() {
        let check = async |expects: bool, body: &'static str, read: bool, over: bool| {
            let mut request = Request::put("/b/k");
            if expects {
                request = request.header("expect", "100-continue");
            }
            let (request, connection) = watch(request.body(Body::from(body)).unwrap());
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
}
