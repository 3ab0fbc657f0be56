use axum::body::Body;
use axum::http::header::CONTENT_LENGTH;
use axum::response::Response;

/// An answer whose XML has control characters as references. The protocol layer writes them as they are: a carriage return
/// would be read as a line feed, and three keys as one.
pub(super) fn escape_controls(response: s3s::HttpResponse) -> Response {
    let document = response.body().bytes();
    match document.filter(|document| document.iter().any(|byte| is_control(*byte))) {
        None => response.map(Body::new),
        Some(document) => {
            let (mut parts, _) = response.into_parts();
            parts.headers.remove(CONTENT_LENGTH);
            Response::from_parts(parts, Body::from(escaped(&document)))
        }
    }
}

/// Line feeds and tabs survive as they are.
fn is_control(byte: u8) -> bool {
    byte < 0x20 && byte != b'\n' && byte != b'\t'
}

/// Control characters stand in text only: no tag has one.
fn escaped(document: &[u8]) -> Vec<u8> {
    let mut escaped = Vec::with_capacity(document.len() + 64);
    for &byte in document {
        if is_control(byte) {
            escaped.extend_from_slice(format!("&#{byte};").as_bytes());
        } else {
            escaped.push(byte);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controls_become_references() {
        assert_eq!(escaped("<Key>a\rb\u{1}c\nd\te\u{e9}</Key>".as_bytes()), "<Key>a&#13;b&#1;c\nd\te\u{e9}</Key>".as_bytes());
    }
}
