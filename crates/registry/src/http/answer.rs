//! Answers: JSON with the index in a header, and failures with the status that says what to do.

use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use proto::{Code, Failure};
use serde_json::{Value, json};

/// The header with the revision of an answer.
pub(super) const INDEX: HeaderName = HeaderName::from_static("x-flotilla-index");

pub(super) fn answer(status: StatusCode, revision: u64, value: &Value) -> Response {
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(INDEX, HeaderValue::from(revision));
    (status, headers, format!("{value}\n")).into_response()
}

pub(super) fn ok(revision: u64, value: &Value) -> Response {
    answer(StatusCode::OK, revision, value)
}

/// A request that was answered, or refused with a failure.
pub(super) type Answered = Result<Response, Refused>;

pub(super) struct Refused(Failure);

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused(failure)
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        refuse(&self.0)
    }
}

fn refuse(failure: &Failure) -> Response {
    refuse_with(status_of(failure.code), failure)
}

/// The answer to a request that is not looked at, whatever it asks.
pub(super) fn refused(failure: &Failure) -> Response {
    refuse_with(StatusCode::FORBIDDEN, failure)
}

fn refuse_with(status: StatusCode, failure: &Failure) -> Response {
    let body = json!({ "error": failure.message, "code": failure.code.as_str_name() });
    let mut headers = HeaderMap::new();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    if status == StatusCode::SERVICE_UNAVAILABLE {
        headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
    }
    (status, headers, format!("{body}\n")).into_response()
}

fn status_of(code: Code) -> StatusCode {
    match code {
        Code::Invalid => StatusCode::BAD_REQUEST,
        Code::NotFound => StatusCode::NOT_FOUND,
        Code::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::Compacted => StatusCode::GONE,
        Code::LimitReached => StatusCode::INSUFFICIENT_STORAGE,
        Code::Busy | Code::Unavailable | Code::NotLeader | Code::NotYet => StatusCode::SERVICE_UNAVAILABLE,
        // The request may have taken effect: whoever asked must look.
        Code::OutcomeUnknown => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
