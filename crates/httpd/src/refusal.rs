use crate::request_id::RequestId;
use axum::body::Body;
use axum::http::{HeaderName, HeaderValue, Response, StatusCode, header};

/// A port's way to say no: a content type, and the text for a code in S3's words, a sentence and a request's
/// id.
pub type Document = fn(code: &str, message: &str, id: RequestId) -> (&'static str, String);

/// Why a connection gets an answer that no request of it came to ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Connections,
    ConnectionsOfAddress,
    HeadTimeout,
    HeadTooLarge,
}

impl Refusal {
    fn status(self) -> StatusCode {
        match self {
            Refusal::Connections | Refusal::ConnectionsOfAddress => StatusCode::SERVICE_UNAVAILABLE,
            Refusal::HeadTimeout => StatusCode::REQUEST_TIMEOUT,
            Refusal::HeadTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
        }
    }

    fn words(self) -> (&'static str, &'static str) {
        match self {
            Refusal::Connections => ("SlowDown", "There are as many connections as may be."),
            Refusal::ConnectionsOfAddress => {
                ("SlowDown", "Your address has as many connections as it may have.")
            }
            Refusal::HeadTimeout => ("RequestTimeout", "The request's headers did not come in time."),
            Refusal::HeadTooLarge => (
                "RequestHeaderSectionTooLarge",
                "Your request header section exceeds the maximum allowed size.",
            ),
        }
    }

    pub(crate) fn answer(self, document: Document, id: RequestId, id_header: &HeaderName) -> Response<Body> {
        let (response, body) = self.parts(document, id, id_header);
        response.map(|()| Body::from(body))
    }

    /// The answer as bytes, for a connection on which HTTP has ended, or not begun.
    pub(crate) fn bytes(self, document: Document, id: RequestId, id_header: &HeaderName) -> Vec<u8> {
        let (response, body) = self.parts(document, id, id_header);
        let status = response.status();
        let mut text =
            format!("HTTP/1.1 {} {}\r\n", status.as_u16(), status.canonical_reason().unwrap_or_default())
                .into_bytes();
        for (name, value) in response.headers() {
            text.extend_from_slice(name.as_str().as_bytes());
            text.extend_from_slice(b": ");
            text.extend_from_slice(value.as_bytes());
            text.extend_from_slice(b"\r\n");
        }
        text.extend_from_slice(format!("content-length: {}\r\n\r\n{body}", body.len()).as_bytes());
        text
    }

    fn parts(self, document: Document, id: RequestId, id_header: &HeaderName) -> (Response<()>, String) {
        let (code, message) = self.words();
        let (content_type, body) = document(code, message, id);
        let mut response = Response::new(());
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        headers.insert(id_header.clone(), id.header_value());
        if self.status() == StatusCode::SERVICE_UNAVAILABLE {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        (response, body)
    }
}
