use super::told::{RequestEnd, Written};
use axum::extract::Request;
use axum::http::header::AUTHORIZATION;
use serde::Serialize;
use std::net::SocketAddr;
use std::time::Duration;
use time::OffsetDateTime;
use time::macros::format_description;

/// The longest access key that is written down: anybody may send anything as one.
const ACCESS_KEY_BYTES_MAX: usize = 128;

/// A request that has ended, as the log has it. It is made where the request is, and becomes text where
/// nobody waits.
pub(super) struct Line {
    pub(super) written: Written,
    pub(super) operation: Option<&'static str>,
    pub(super) status: Option<u16>,
    pub(super) end: RequestEnd,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) time: Duration,
    pub(super) first_byte: Option<Duration>,
}

/// The fields of a line, by the names that programs read: docs/s3.md.
#[derive(Serialize)]
struct Fields<'a> {
    time: String,
    request_id: String,
    address: Option<SocketAddr>,
    access_key: Option<&'a str>,
    method: &'a str,
    operation: Option<&'static str>,
    bucket: Option<&'a str>,
    key: Option<&'a str>,
    version: Option<&'a str>,
    status: Option<u16>,
    error: Option<&'a str>,
    end: &'static str,
    bytes_in: u64,
    bytes_out: u64,
    seconds: f64,
    first_byte_seconds: Option<f64>,
}

impl Line {
    /// Writes one line of JSON. It has no control characters: JSON escapes those below 32, and the rest is
    /// escaped here.
    pub(super) fn write_to(&self, text: &mut Vec<u8>) {
        let written = &self.written;
        let path = decoded(&written.path);
        let (bucket, key) = bucket_and_key(&path);
        let fields = Fields {
            time: time_of(written.at_ms),
            request_id: written.id.to_string(),
            address: written.peer,
            access_key: written.access_key.as_deref(),
            method: written.method.as_str(),
            operation: self.operation,
            bucket,
            key,
            version: written.version.as_deref(),
            status: self.status,
            error: written.error.as_deref(),
            end: self.end.name(),
            bytes_in: self.received_bytes,
            bytes_out: self.sent_bytes,
            seconds: seconds(self.time),
            first_byte_seconds: self.first_byte.map(seconds),
        };
        let json = serde_json::to_string(&fields).expect("strings and numbers");
        for c in json.chars() {
            // DEL and the controls of Latin 1, which some terminals obey; what some readers take for the end
            // of a line; and what turns the text behind it around.
            let turns =
                matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
            if c.is_control() || turns || matches!(c, '\u{2028}' | '\u{2029}') {
                text.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes());
            } else {
                text.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        text.push(b'\n');
    }
}

/// The access key that a request names, in its header or as a presigned URL; nothing else of either is kept.
pub(super) fn access_key(request: &Request) -> Option<String> {
    let header = || request.headers().get(AUTHORIZATION)?.to_str().ok()?.split_once("Credential=");
    let parameter = || {
        let mut parameters = request.uri().query()?.split('&');
        parameters.find_map(|parameter| parameter.split_once("X-Amz-Credential="))
    };
    let (_, credential) = header().or_else(parameter)?;
    // The scope follows the access key. Without a scope it is not known where the key ends, and what is there
    // may be anything.
    let decoded = decoded(credential.split(',').next()?.split('&').next()?);
    let (access_key, _scope) = decoded.split_once('/')?;
    Some(access_key[..access_key.floor_char_boundary(ACCESS_KEY_BYTES_MAX)].to_owned())
}

fn bucket_and_key(path: &str) -> (Option<&str>, Option<&str>) {
    let path = path.strip_prefix('/').unwrap_or(path);
    let (bucket, key) = path.split_once('/').unwrap_or((path, ""));
    (Some(bucket).filter(|bucket| !bucket.is_empty()), Some(key).filter(|key| !key.is_empty()))
}

/// The text, decoded: what is no escape is left as it is, and what is no text is replaced, so that a line is
/// written whatever came.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let digit = |at: usize| after.get(at).and_then(|byte| (*byte as char).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push((high * 16 + low) as u8); // two digits
                rest = &after[2..];
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn time_of(at_ms: u64) -> String {
    let format = format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:3]Z");
    let at = OffsetDateTime::from_unix_timestamp_nanos(i128::from(at_ms) * 1_000_000);
    at.unwrap_or(OffsetDateTime::UNIX_EPOCH).format(format).unwrap_or_default()
}

/// A time in seconds, to the microsecond.
fn seconds(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::http::Method;
    use httpd::RequestId;

    fn written(path: &str) -> String {
        let written = Written {
            at_ms: 1_795_400_000_123,
            id: RequestId::random(),
            peer: Some("192.0.2.1:5".parse().unwrap()),
            access_key: Some("KEY".to_owned()),
            method: Method::GET,
            path: path.to_owned(),
            version: None,
            error: None,
        };
        let line = Line {
            written,
            operation: Some("GetObject"),
            status: Some(200),
            end: RequestEnd::Done,
            received_bytes: 0,
            sent_bytes: 7,
            time: Duration::from_nanos(1_234_567),
            first_byte: None,
        };
        let mut text = Vec::new();
        line.write_to(&mut text);
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn a_line_is_json_and_says_what_was_asked() {
        let text = written("/bucket/a%20b/c");
        let fields: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((&fields["bucket"], &fields["key"]), (&"bucket".into(), &"a b/c".into()));
        assert_eq!(
            (&fields["time"], &fields["seconds"]),
            (&"2026-11-23T02:13:20.123Z".into(), &0.001234.into())
        );
        assert!(fields["first_byte_seconds"].is_null() && fields["address"] == "192.0.2.1:5");
        let service: serde_json::Value = serde_json::from_str(&written("/")).unwrap();
        assert!(service["bucket"].is_null() && service["key"].is_null());
    }

    #[test]
    fn no_control_character_comes_into_the_log() {
        for (path, key) in [
            ("/b/a%0Ab", "a\nb"),
            ("/b/%1b%5B2J%7f", "\u{1b}[2J\u{7f}"),
            ("/b/%C2%9B%E2%80%A8", "\u{9b}\u{2028}"),
            ("/b/%E2%80%AEtxt.exe", "\u{202e}txt.exe"),
            ("/b/%22%5C", "\"\\"),
            ("/b/%ff%zz%", "\u{fffd}%zz%"),
        ] {
            let text = written(path);
            let line = text.strip_suffix('\n').unwrap();
            assert!(
                !line.chars().any(|c| c.is_control() || matches!(c, '\u{2028}' | '\u{202e}')),
                "{line:?}"
            );
            let fields: serde_json::Value = serde_json::from_str(line).unwrap();
            assert_eq!(fields["key"], key, "{path}");
        }
    }

    #[test]
    fn of_a_signature_only_the_key_id_is_kept() {
        let check = |header: Option<&str>, query: &str, expect: Option<&str>| {
            let mut request = Request::get(format!("/b/k?{query}"));
            if let Some(header) = header {
                request = request.header(AUTHORIZATION, header);
            }
            assert_eq!(
                access_key(&request.body(Body::empty()).unwrap()).as_deref(),
                expect,
                "{header:?} {query}"
            );
        };
        let header = "AWS4-HMAC-SHA256 Credential=AKIA/20261123/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=f00d";
        check(Some(header), "", Some("AKIA"));
        let query = "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential=AKIA%2F20261123%2Fx%2Fs3%2Faws4_request&X-Amz-Signature=f00d";
        check(None, query, Some("AKIA"));
        check(None, "", None);
        check(Some("AWS AKIA:f00d"), "", None);
        check(Some("AWS4-HMAC-SHA256 Credential=no-scope-and-who-knows-what"), "", None);
        check(Some("Basic dXNlcjpzZWNyZXQ="), "", None);
    }
}
