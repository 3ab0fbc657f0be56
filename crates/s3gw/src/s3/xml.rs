use axum::body::Bytes;
use axum::http::header::CONTENT_LENGTH;
use axum::response::Response;

/// An answer of the protocol layer as clients can read it. That layer leaves out messages, without which
/// clients know of no error but that it is "Unknown"; it puts quotes around every ETag; and it writes control
/// characters as they are: a carriage return would be read as a line feed, and three keys as one.
pub(super) fn mend(response: s3s::HttpResponse) -> Response<Bytes> {
    let is_error = response.status().is_client_error() || response.status().is_server_error();
    let Some(document) = response.body().bytes().filter(|document| !document.is_empty()) else {
        return response.map(|_| Bytes::new());
    };
    let mended = if is_error { explained(&document) } else { unquoted(&document) };
    let document = mended.map_or(document, Bytes::from);
    let (mut parts, _) = response.into_parts();
    parts.headers.remove(CONTENT_LENGTH);
    let has_controls = document.iter().any(|byte| is_control(*byte));
    let document = if has_controls { Bytes::from(escaped(&document)) } else { document };
    Response::from_parts(parts, document)
}

/// An error document with a message, if it has none.
fn explained(document: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(document).ok().filter(|text| !text.contains("<Message>"))?;
    let (before, after) = text.split_once("</Code>")?;
    let (_, code) = before.split_once("<Code>")?;
    Some(format!("{before}</Code><Message>{}</Message>{after}", message(code)))
}

/// The attributes of an object, whose ETag S3 writes without quotes, unlike everywhere else.
fn unquoted(document: &[u8]) -> Option<String> {
    const ROOT: &[u8] = b"<GetObjectAttributesResponse";
    let declaration = document.iter().position(|byte| *byte == b'>')? + 1;
    let text = document[declaration..].starts_with(ROOT).then(|| std::str::from_utf8(document).ok())??;
    Some(text.replace("<ETag>\"", "<ETag>").replace("\"</ETag>", "</ETag>"))
}

fn message(code: &str) -> &'static str {
    match code {
        "InternalError" => "We encountered an internal error. Please try again.",
        "InvalidBucketName" => "The specified bucket is not valid.",
        "InvalidURI" => "Couldn't parse the specified URI.",
        "KeyTooLongError" => "Your key is too long.",
        "MalformedXML" => {
            "The XML you provided was not well-formed or did not validate against our published schema."
        }
        "MethodNotAllowed" => "The specified method is not allowed against this resource.",
        "NotImplemented" => {
            "A header or parameter you provided implies functionality that is not implemented."
        }
        _ => "A header, a parameter or the body of the request is not valid.",
    }
}

/// Whether a byte is a control character that does not survive as it is; line feeds and tabs do.
fn is_control(byte: u8) -> bool {
    byte < 0x20 && byte != b'\n' && byte != b'\t'
}

/// The document with its control characters escaped. They stand in text only: no tag has one.
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
    fn errors_have_a_message() {
        let bare = b"<?xml version=\"1.0\"?><Error><Code>KeyTooLongError</Code></Error>";
        let expect = "<?xml version=\"1.0\"?><Error><Code>KeyTooLongError</Code><Message>Your key is too long.</Message></Error>";
        assert_eq!(explained(bare).unwrap(), expect);
        assert_eq!(explained(expect.as_bytes()), None);
    }

    #[test]
    fn the_etag_among_attributes_is_without_quotes() {
        let of = |root: &str, etag: &str| {
            format!("<?xml version=\"1.0\"?><{root} x=\"y\"><ETag>{etag}</ETag></{root}>")
        };
        let attributes = |etag| of("GetObjectAttributesResponse", etag);
        assert_eq!(unquoted(attributes("\"ab-2\"").as_bytes()).unwrap(), attributes("ab-2"));
        assert_eq!(unquoted(of("CopyObjectResult", "\"ab\"").as_bytes()), None);
        assert_eq!(unquoted(b"ab"), None);
    }

    #[test]
    fn controls_become_references() {
        assert_eq!(
            escaped("<Key>a\rb\u{1}c\nd\te\u{e9}</Key>".as_bytes()),
            "<Key>a&#13;b&#1;c\nd\te\u{e9}</Key>".as_bytes()
        );
    }
}
