//! Admission: what a request may be and do is decided before the protocol layer sees it and before a byte of
//! its body is read: on which host it asks, who signed what of it, and which operation it is. What this lets
//! through, the protocol layer takes as it is: it has no keys, sees no signature, and finds only paths with
//! the bucket in front.

mod body;
mod elements;
mod hosts;
mod nothing;
mod operations;
mod query;
mod refusals;
mod signature;

use crate::account::Told;
use crate::error::{GatewayError, Result};
use crate::options::GatewayOptions;
use crate::payload::Payload;
use crate::request_body::Progress;
use axum::body::Body;
use axum::http::header::{CONTENT_LENGTH, HOST};
use axum::http::request::Parts;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use body::{document, payload, refuse_unannounced};
use bytes::Bytes;
use hosts::{Addressing, Hosts};
use httpd::BodyMemory;
use nothing::{is_sum_of_nothing, take_sums_of_nothing};
use operations::Scope;
use query::Query;
pub(crate) use refusals::waits_for_100;
use refusals::{
    refuse_empty, refuse_forms, refuse_other_encodings, refuse_other_expectations, refuse_other_owners,
    refuse_other_types, refuse_other_versions, refuse_repeated, refuse_signed_numbers, refuse_tokens,
    refuse_unsigned, refuse_version_2,
};
pub(crate) use signature::Seed;
use signature::{Covered, KeyPair};
use time::OffsetDateTime;
use tokio::time::Instant;

/// The owner of everything, as `x-amz-expected-bucket-owner` and access lists name it.
pub(crate) const OWNER: &str = "flotilla";

/// Headers that are for the gateway alone, and are not handed on to the protocol layer.
const OURS: [&str; 5] = [
    "authorization",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-decoded-content-length",
    "x-amz-user-agent",
];

/// The operations of S3 that this gateway has.
pub(crate) fn operation_names() -> impl Iterator<Item = &'static str> {
    operations::names()
}

pub(crate) struct Admission {
    keys: KeyPair,
    hosts: Hosts,
    /// The memory that documents take while they come and are worked on.
    documents: BodyMemory,
}

/// A request as the protocol layer may have it.
pub(crate) struct Admitted {
    pub(crate) parts: Parts,
    pub(crate) body: AdmittedBody,
    pub(crate) operation: &'static str,
}

pub(crate) enum AdmittedBody {
    Empty,
    Document(Bytes),
    Data(Payload),
}

impl Admission {
    pub(crate) fn new(options: &GatewayOptions, documents: BodyMemory) -> Admission {
        let (access_key, secret_key) = (options.access_key.clone(), options.secret_key.clone());
        Admission { keys: KeyPair { access_key, secret_key }, hosts: Hosts::new(&options.domains), documents }
    }

    pub(crate) fn has_bucket_in_host(&self, headers: &HeaderMap, uri: &Uri) -> bool {
        let said = || headers.get(HOST)?.to_str().ok();
        let host = uri.authority().map(|authority| authority.as_str()).or_else(said).unwrap_or_default();
        matches!(self.hosts.addressing(host), Ok(Addressing::VirtualHosted { .. }))
    }

    /// Decides on a request. Reads a body only where the request is signed, is an operation, and that
    /// operation takes a document.
    pub(crate) async fn admit(
        &self,
        mut parts: Parts,
        body: Body,
        progress: Progress,
        now: OffsetDateTime,
        told: &mut Told,
    ) -> Result<Admitted> {
        let mut query = Query::parse(parts.uri.query().unwrap_or_default())?;
        refuse_version_2(&parts.headers, &query)?;
        refuse_forms(&parts)?;
        refuse_other_expectations(&parts.headers)?;
        refuse_other_encodings(&parts.headers)?;
        refuse_repeated(&parts.headers)?;
        set_host(&mut parts)?;
        let addressing = self.hosts.addressing(text(&parts.headers, HOST.as_str())?.unwrap_or_default())?;

        if let Addressing::VirtualHosted { bucket, .. } = &addressing {
            told.bucket_in_host(bucket);
        }

        let covered =
            Covered { method: &parts.method, path: parts.uri.path(), query: &query, headers: &parts.headers };
        let begun = Instant::now();
        let verified = self.keys.verify(&covered, now);
        told.signature_took(begun.elapsed());
        let mut verified = verified?;
        told.is_signed_by(&self.keys.access_key);
        if verified.is_presigned {
            verified.signed_headers.extend(take_presigned(&mut query, &mut parts.headers)?);
        }
        refuse_unsigned(&parts.headers, &verified.signed_headers)?;
        refuse_empty(&parts.headers)?;
        refuse_tokens(&parts.headers)?;
        refuse_signed_numbers(&query)?;
        take_sums_of_nothing(&parts.method, &mut parts.headers);

        address(&mut parts, addressing, &query)?;
        let names = parts.headers.keys().map(HeaderName::as_str);
        let names: Vec<&str> = names.filter(|name| operations::says_what(&parts.method, name)).collect();
        let scope = scope(parts.uri.path());
        let operation = operations::operation(&parts.method, scope, &query, &names).map_err(|what| {
            GatewayError::refused("NotImplemented", 501, format!("{what} is not implemented."))
        })?;
        told.is_operation(operation.name, query.get("versionId"));
        refuse_other_owners(&parts.headers)?;
        refuse_other_versions(&parts.headers)?;
        refuse_other_types(operation, &parts.headers)?;

        let body = match operation.body {
            operations::Body::None => AdmittedBody::Empty,
            operations::Body::Data => {
                refuse_unannounced(&parts)?;
                AdmittedBody::Data(payload(&parts, body, progress, verified)?)
            }
            operations::Body::Xml { .. } => {
                let payload = payload(&parts, body, progress, verified)?;
                let room = self.documents.room(parts.extensions.get());
                AdmittedBody::Document(document(operation, &parts.headers, payload, room).await?)
            }
        };
        hand_over(&mut parts, &body);
        told.is_admitted();
        Ok(Admitted { parts, body, operation: operation.name })
    }
}

/// The one value of a header, as text.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Result<Option<&'a str>> {
    let invalid = |_| GatewayError::InvalidArgument(format!("The header {name} is not text."));
    headers.get(name).map(|value| value.to_str().map_err(invalid)).transpose()
}

/// Sets the Host header from the URI's authority, where HTTP/2 has the host. Refuses two hosts: who stands in
/// front of the gateway may have gone by the other one.
fn set_host(parts: &mut Parts) -> Result<()> {
    let Some(authority) = parts.uri.authority() else { return Ok(()) };
    let host = HeaderValue::from_str(authority.as_str()).map_err(|_| invalid_uri())?;
    match parts.headers.get(HOST) {
        Some(said) if !said.as_bytes().eq_ignore_ascii_case(host.as_bytes()) => {
            Err(GatewayError::InvalidRequest("The request names two hosts.".to_owned()))
        }
        Some(_) => Ok(()),
        None => {
            parts.headers.insert(HOST, host);
            Ok(())
        }
    }
}

/// Takes the parameters of a presigned URL that are not the operation's. SDKs put headers among them, which
/// then hold as if they were sent: they are signed. Returns their names.
fn take_presigned(query: &mut Query, headers: &mut HeaderMap) -> Result<Vec<String>> {
    query.take(signature::is_presigned_parameter);
    let is_header = |name: &str| name.get(..6).is_some_and(|start| start.eq_ignore_ascii_case("x-amz-"));
    let mut names = Vec::new();
    for (name, value) in query.take(is_header) {
        let invalid =
            || GatewayError::InvalidArgument(format!("The parameter {} is invalid.", name.escape_debug()));
        let header: HeaderName = name.parse().map_err(|_| invalid())?;
        if is_sum_of_nothing(header.as_str(), &value) {
            names.push(header.as_str().to_owned());
            continue;
        }
        let value = HeaderValue::from_str(&value).map_err(|_| invalid())?;
        if headers.get(&header).is_some_and(|sent| *sent != value) {
            let why = format!("The header {header} is not what the presigned URL says.");
            return Err(GatewayError::refused("AccessDenied", 403, why));
        }
        names.push(header.as_str().to_owned());
        headers.insert(header, value);
    }
    Ok(names)
}

/// Rewrites the URI: with the bucket in the path, and with what is left of the query.
fn address(parts: &mut Parts, addressing: Addressing, query: &Query) -> Result<()> {
    let mut path = parts.uri.path().to_owned();
    if let Addressing::VirtualHosted { bucket, own_host } = addressing {
        path = format!("/{bucket}{path}");
        parts.headers.insert(HOST, HeaderValue::from_str(&own_host).map_err(|_| invalid_uri())?);
    }
    if !path.starts_with('/') {
        return Err(invalid_uri());
    }
    let query = query.canonical(|_| true);
    let path = if query.is_empty() { path } else { format!("{path}?{query}") };
    parts.uri = Uri::from(path.parse::<PathAndQuery>().map_err(|_| invalid_uri())?);
    Ok(())
}

fn invalid_uri() -> GatewayError {
    GatewayError::refused("InvalidURI", 400, "Couldn't parse the specified URI.")
}

/// The scope of a path with the bucket in front. The protocol layer sees the path decoded; an encoded slash
/// is one to it.
fn scope(path: &str) -> Scope {
    let decoded = query::decode(path, query::Plus::IsPlus).unwrap_or_default();
    match decoded.strip_prefix('/').unwrap_or_default().split_once('/') {
        None if decoded.len() <= 1 => Scope::Service,
        None | Some((_, "")) => Scope::Bucket,
        Some(_) => Scope::Object,
    }
}

/// Leaves in the request's head what is the operation's: nothing of the signature, and the length of the body
/// that will be read.
fn hand_over(parts: &mut Parts, body: &AdmittedBody) {
    for name in OURS {
        parts.headers.remove(name);
    }
    let length = match body {
        AdmittedBody::Empty => Some(0),
        AdmittedBody::Document(document) => Some(document.len() as u64),
        AdmittedBody::Data(payload) => {
            parts.extensions.insert(payload.trailers());
            payload.length()
        }
    };
    parts.headers.remove(CONTENT_LENGTH);
    parts.headers.extend(length.map(|length| (CONTENT_LENGTH, HeaderValue::from(length))));
}

#[cfg(test)]
mod tests {
    use super::refusals::refuse_unsigned;
    use super::*;
    use crate::request_body::RequestBody;
    use axum::http::Method;
    use axum::http::header::{AUTHORIZATION, TRANSFER_ENCODING};
    use futures::StreamExt;
    use md5::{Digest, Md5};
    use signature::tests::{example_keys, sign};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use time::macros::datetime;

    const NOW: OffsetDateTime = datetime!(2013-05-24 00:00:00 UTC);
    const DATE: &str = "20130524T000000Z";
    const SCOPE: &str = "20130524/us-east-1/s3/aws4_request";

    #[test]
    fn a_header_that_means_something_is_signed() {
        let check = |name: &'static str, signed: &[&str]| {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static(name), HeaderValue::from_static("x"))]);
            let signed: Vec<String> = signed.iter().map(|name| (*name).to_owned()).collect();
            refuse_unsigned(&headers, &signed).is_ok()
        };
        for name in ["x-amz-copy-source", "x-flotilla-ack"] {
            assert!(!check(name, &["host"]) && check(name, &["host", name]), "{name}");
        }
        assert!(check("accept", &["host"]) && check("x-amz-content-sha256", &["host"]));
    }

    fn memory() -> BodyMemory {
        BodyMemory::new(8 << 20, Arc::default())
    }

    /// A request, signed in its headers unless it brings a signature, and what of its body was read.
    struct Sent {
        method: Method,
        uri: String,
        headers: Vec<(&'static str, String)>,
        signed: Vec<&'static str>,
        body: &'static [u8],
        /// Whether neither a length nor an encoding says that there is a body.
        is_unannounced: bool,
        read: Arc<AtomicUsize>,
    }

    fn put(uri: &str) -> Sent {
        sent(Method::PUT, uri)
    }

    fn sent(method: Method, uri: &str) -> Sent {
        let headers = vec![
            ("host", "localhost".to_owned()),
            ("x-amz-content-sha256", "UNSIGNED-PAYLOAD".to_owned()),
            ("x-amz-date", DATE.to_owned()),
        ];
        let signed = vec!["host", "x-amz-content-sha256", "x-amz-date"];
        Sent {
            method,
            uri: uri.to_owned(),
            headers,
            signed,
            body: b"",
            is_unannounced: false,
            read: Arc::default(),
        }
    }

    /// A presigned URL; what comes before its signature stands in `uri`.
    fn presigned(method: Method, uri: &str) -> Sent {
        let mark = if uri.contains('?') { '&' } else { '?' };
        let zeros = "0".repeat(64);
        let uri = format!(
            "{uri}{mark}X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={}%2F{}&X-Amz-Date={DATE}&X-Amz-Expires=600\
             &X-Amz-SignedHeaders=host&X-Amz-Signature={zeros}",
            example_keys().access_key,
            SCOPE.replace('/', "%2F"),
        );
        let headers = vec![("host", "localhost".to_owned())];
        Sent {
            method,
            uri,
            headers,
            signed: vec!["host"],
            body: b"",
            is_unannounced: false,
            read: Arc::default(),
        }
    }

    impl Sent {
        fn signing(mut self, name: &'static str, value: &str) -> Sent {
            self.headers.retain(|(other, _)| *other != name);
            self.headers.push((name, value.to_owned()));
            if !self.signed.contains(&name) {
                self.signed.push(name);
                self.signed.sort_unstable();
            }
            self
        }

        fn adding(mut self, name: &'static str, value: &str) -> Sent {
            self.headers.push((name, value.to_owned()));
            self
        }

        fn with(mut self, body: &'static [u8]) -> Sent {
            self.body = body;
            self
        }

        async fn admit(&self) -> Result<Admitted> {
            self.admit_by(Vec::new()).await
        }

        async fn admit_by(&self, domains: Vec<String>) -> Result<Admitted> {
            let KeyPair { access_key, secret_key } = example_keys();
            let options = GatewayOptions { access_key, secret_key, domains, ..GatewayOptions::default() };
            let mut headers = HeaderMap::new();
            for (name, value) in &self.headers {
                headers.append(HeaderName::from_static(name), HeaderValue::from_str(value).unwrap());
            }
            if !self.is_unannounced && !headers.contains_key(CONTENT_LENGTH) {
                headers.insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
            }
            let mut uri = self.uri.clone();
            let presigned = uri.contains("X-Amz-Signature");
            if !presigned && !self.signed.is_empty() {
                let authorization = format!(
                    "AWS4-HMAC-SHA256 Credential={}/{SCOPE}, SignedHeaders={}, Signature={}",
                    example_keys().access_key,
                    self.signed.join(";"),
                    "0".repeat(64),
                );
                headers.insert(AUTHORIZATION, HeaderValue::from_str(&authorization).unwrap());
            }
            if !self.signed.is_empty() {
                uri = sign(&self.method, &uri, &mut headers);
            }
            let mut request =
                axum::http::Request::builder().method(self.method.clone()).uri(uri).body(()).unwrap();
            *request.headers_mut() = headers;
            let read = self.read.clone();
            let body = Body::from_stream(futures::stream::iter(self.body.chunks(7)).map(move |frame| {
                read.fetch_add(frame.len(), Ordering::Relaxed);
                Ok::<_, std::io::Error>(Bytes::from_static(frame))
            }));
            let body = match self.body.is_empty() {
                true => Body::empty(),
                false => body,
            };
            let (body, progress) = RequestBody::new(body);
            let parts = request.into_parts().0;
            let mut told = Told::default();
            Admission::new(&options, memory()).admit(parts, Body::new(body), progress, NOW, &mut told).await
        }

        async fn refusal(&self) -> String {
            match self.admit().await {
                Ok(admitted) => {
                    panic!("{} {} is let through as {}", self.method, self.uri, admitted.operation)
                }
                Err(GatewayError::Refused { code, message, .. }) => format!("{code}: {message}"),
                Err(error) => format!("{error:?}: {error}"),
            }
        }

        async fn refused(&self, why: &str) {
            let refusal = self.refusal().await;
            assert!(refusal.contains(why), "{} {}: {refusal}", self.method, self.uri);
        }
    }

    #[tokio::test]
    async fn bytes_that_no_header_announces_are_no_empty_object() {
        let forgotten = |sent: Sent| Sent { is_unannounced: true, ..sent };
        forgotten(put("/b/k")).refused("MissingContentLength").await;
        forgotten(presigned(Method::PUT, "/b/k")).refused("MissingContentLength").await;
        forgotten(put("/b/k?partNumber=1&uploadId=u")).refused("MissingContentLength").await;
        forgotten(put("/b/k")).signing("content-length", "0").admit().await.unwrap();
        forgotten(put("/b")).admit().await.unwrap();
        let copy = forgotten(put("/b/k")).signing("x-amz-copy-source", "/b/other");
        copy.admit().await.unwrap();
    }

    #[tokio::test]
    async fn numbers_of_parameters_have_no_sign() {
        for uri in ["/b/k?partNumber=%2B1&uploadId=u", "/b/k?partNumber=-1&uploadId=u"] {
            put(uri).refused("The parameter partNumber is no number.").await;
        }
        sent(Method::GET, "/b?max-keys=%2B5").refused("The parameter max-keys is no number.").await;
        sent(Method::GET, "/b?max-keys=5&prefix=-1").admit().await.unwrap();
    }

    #[tokio::test]
    async fn what_is_asked_for_with_an_empty_header_or_at_a_wrong_time_is_refused() {
        let put = || put("/b/k").signing("content-length", "0");
        for name in ["if-match", "if-none-match", "content-md5", "x-amz-checksum-crc32"] {
            put().signing(name, "").refused("is empty").await;
        }
        let part = sent(Method::PUT, "/b/k?partNumber=1&uploadId=u").signing("x-amz-copy-source", "/b/other");
        part.signing("x-amz-copy-source-range", "").refused("is empty").await;
        for name in ["if-modified-since", "if-unmodified-since"] {
            put().adding(name, "Mon, 23 Nov 2026 12:00:00 GMT").refused("not implemented").await;
        }
        put().adding("if-match", "\"\"").admit().await.unwrap();
    }

    #[tokio::test]
    async fn an_expectation_that_nobody_meets_is_refused() {
        let put = || put("/b/k").signing("content-length", "0");
        put().adding("expect", "100-Continue").admit().await.unwrap();
        for other in ["200-ok", "", "100-continue, more"] {
            put().adding("expect", other).refused("ExpectationFailed").await;
        }
        put().adding("expect", "100-continue").adding("expect", "more").refused("ExpectationFailed").await;
    }

    #[tokio::test]
    async fn what_is_let_through_has_no_signature_left() {
        let admitted = put("/b/k?x-id=PutObject")
            .signing("x-amz-meta-a", "1")
            .with(b"data")
            .signing("content-length", "4");
        let admitted = admitted.admit().await.unwrap();
        assert_eq!(admitted.operation, "PutObject");
        assert_eq!(admitted.parts.uri, "/b/k?x-id=PutObject");
        let names: Vec<&str> = admitted.parts.headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(names.len(), 3, "{names:?}");
        assert_eq!(admitted.parts.headers["content-length"], "4");

        let admitted = presigned(Method::GET, "/b/k?versionId=null").admit().await.unwrap();
        assert_eq!(
            (admitted.operation, admitted.parts.uri.to_string()),
            ("GetObject", "/b/k?versionId=null".to_owned())
        );
    }

    #[tokio::test]
    async fn headers_that_make_another_request_must_be_signed() {
        for request in [put("/b/k").signing("content-length", "0"), presigned(Method::PUT, "/b/k")] {
            request.adding("x-amz-copy-source", "/b/secret").refused("not signed: x-amz-copy-source").await;
        }
        for header in
            ["x-amz-acl", "x-amz-meta-a", "x-amz-never-heard-of", "x-amz-checksum-crc32", "x-amz-tagging"]
        {
            presigned(Method::PUT, "/b/k").adding(header, "x").refused(header).await;
        }
        for header in ["x-amz-user-agent", "x-amz-sdk-checksum-algorithm"] {
            presigned(Method::PUT, "/b/k").adding(header, "CRC32").admit().await.unwrap();
        }
        // A request that is signed rightly, but for the host.
        let mut anywhere = put("/b/k").signing("content-length", "0");
        anywhere.signed.retain(|name| *name != "host");
        anywhere.refused("The Host header must be signed").await;
    }

    #[tokio::test]
    async fn parameters_of_a_presigned_url_are_its_headers() {
        let admitted =
            presigned(Method::PUT, "/b/k?x-amz-meta-color=green&X-Amz-Acl=private").admit().await.unwrap();
        assert_eq!(admitted.parts.headers["x-amz-meta-color"], "green");
        assert_eq!(admitted.parts.headers["x-amz-acl"], "private");
        assert_eq!(admitted.parts.uri, "/b/k");
        presigned(Method::PUT, "/b/k?x-amz-tagging=a%3Db").refused("x-amz-tagging").await;
        let other = presigned(Method::PUT, "/b/k?X-Amz-Acl=private").adding("x-amz-acl", "public-read");
        other.refused("not what the presigned URL says").await;
        put("/b/k?x-amz-acl=private").signing("content-length", "0").refused("NotImplemented").await;
        presigned(Method::GET, "/b/k?X-Amz-Security-Token=t").refused("InvalidToken").await;
    }

    #[tokio::test]
    async fn bytes_of_one_request_have_a_checksum_of_all() {
        for uri in ["/b/k", "/b/k?partNumber=1&uploadId=u"] {
            let sent = |kind| put(uri).signing("content-length", "0").signing("x-amz-checksum-type", kind);
            sent("FULL_OBJECT").admit().await.unwrap();
            sent("COMPOSITE").refused("x-amz-checksum-type").await;
        }
    }

    #[tokio::test]
    async fn checksums_of_nothing_ask_for_nothing() {
        for method in [Method::GET, Method::HEAD, Method::DELETE] {
            for (header, nothing, something) in [
                ("x-amz-checksum-crc32", "AAAAAA==", "AAAAAQ=="),
                ("x-amz-checksum-sha1", "2jmj7l5rSw0yVb/vlWAYkK/YBwk=", "AAAAAAAAAAAAAAAAAAAAAAAAAAA="),
            ] {
                let asked = |value| sent(method.clone(), "/b/k").signing(header, value);
                assert!(!asked(nothing).admit().await.unwrap().parts.headers.contains_key(header));
                asked(something).refused(header).await;
                sent(method.clone(), "/b/k").adding(header, nothing).refused("not signed").await;
            }
        }
        let sum = "x-amz-checksum-crc32";
        // A URL as the SDK for JavaScript signs it; the body that comes is not empty.
        let url = "/b/k?x-amz-checksum-crc32=AAAAAA%3D%3D&x-amz-sdk-checksum-algorithm=CRC32&x-id=PutObject";
        let admitted = presigned(Method::PUT, url).with(b"by url").admit().await.unwrap();
        assert!(!admitted.parts.headers.contains_key(sum));
        let admitted = presigned(Method::PUT, url).adding(sum, "jb0+qA==").admit().await.unwrap();
        assert_eq!(admitted.parts.headers[sum], "jb0+qA==", "a true one may be sent");
        let url = "/b/k?x-amz-checksum-crc32=jb0%2BqA%3D%3D";
        let admitted = presigned(Method::PUT, url).with(b"by url").admit().await.unwrap();
        assert_eq!(admitted.parts.headers[sum], "jb0+qA==");
        let put = put("/b/k").signing("content-length", "0").signing(sum, "AAAAAA==");
        assert_eq!(
            put.admit().await.unwrap().parts.headers[sum],
            "AAAAAA==",
            "the sum of a body is looked at"
        );
    }

    #[tokio::test]
    async fn version_2_is_refused_however_it_is_spelled() {
        for query in [
            "AWSAccessKeyId=a&Signature=b&Expires=1",
            "%53ignature=b",
            "Signatur%65=b",
            "%41WSAccessKeyId=a",
            "signature=b",
        ] {
            let mut request = sent(Method::GET, &format!("/b/k?{query}"));
            request.signed.clear();
            request.refused("AWS4-HMAC-SHA256").await;
        }
        for header in ["AWS AKIA:signature", "aws AKIA:signature"] {
            let mut request = sent(Method::GET, "/b/k").adding("authorization", header);
            request.signed.clear();
            request.refused("signature_version='s3v4'").await;
        }
    }

    #[tokio::test]
    async fn nothing_of_a_strangers_body_is_read() {
        for kind in [
            "multipart/form-data; boundary=x",
            "Multipart/form-data;boundary=x",
            " MULTIPART/FORM-DATA",
            "multipart/mixed",
        ] {
            let mut form = sent(Method::POST, "/b").adding("content-type", kind).with(b"--x and 5 GiB more");
            form.refused("form").await;
            form.signed.clear();
            form.refused("form").await;
            assert_eq!(form.read.load(Ordering::Relaxed), 0);
        }
        for uri in ["/b?delete", "/b/k?uploadId=u", "/b/k"] {
            let method = if uri.contains('?') { Method::POST } else { Method::PUT };
            let mut stranger = sent(method, uri).with(b"<Delete></Delete>");
            stranger.signed.clear();
            stranger.refused("Access Denied").await;
            assert_eq!(stranger.read.load(Ordering::Relaxed), 0);
        }
    }

    #[tokio::test]
    async fn hosts_with_a_bucket_are_served_or_refused() {
        let domains = || vec!["s3.example.com".to_owned()];
        let request = sent(Method::GET, "/a/b%20c?acl").signing("host", "photos.s3.example.com:9000");
        let admitted = request.admit_by(domains()).await.unwrap();
        assert_eq!(
            (admitted.operation, admitted.parts.uri.to_string()),
            ("GetObjectAcl", "/photos/a/b%20c?acl=".to_owned())
        );
        assert_eq!(admitted.parts.headers["host"], "s3.example.com:9000");
        let list = sent(Method::GET, "/?list-type=2").signing("host", "photos.s3.example.com");
        assert_eq!(list.admit_by(domains()).await.unwrap().operation, "ListObjectsV2");
        let path = sent(Method::GET, "/photos?list-type=2").signing("host", "s3.example.com");
        assert_eq!(path.admit_by(domains()).await.unwrap().operation, "ListObjectsV2");
        // A key that would have become a bucket.
        let key = put("/key").signing("host", "photos.s3.example.com").signing("content-length", "0");
        key.refused("does not know the host name photos.s3.example.com").await;
    }

    #[test]
    fn where_a_bucket_stands_in_the_host_each_path_is_a_key() {
        let options =
            GatewayOptions { domains: vec!["s3.example.com".to_owned()], ..GatewayOptions::default() };
        let admission = Admission::new(&options, BodyMemory::new(0, Arc::default()));
        let check = |host: &'static str, uri: &str, expect| {
            let headers = HeaderMap::from_iter([(HOST, HeaderValue::from_static(host))]);
            assert_eq!(admission.has_bucket_in_host(&headers, &uri.parse().unwrap()), expect, "{host} {uri}");
        };
        check("photos.s3.example.com:9000", "/-/health/live", true);
        check("s3.example.com", "/-/health/live", false);
        // Who asks for a gateway's health knows it by any name.
        check("gateway-7.pods.cluster.local", "/-/health/live", false);
        check("s3.example.com", "http://photos.s3.example.com/-/health/live", true);
    }

    #[tokio::test]
    async fn what_is_given_twice_is_refused() {
        let once = || put("/b/k").signing("content-length", "0");
        once().adding("content-length", "0").refused("more than once").await;
        once()
            .signing("x-amz-acl", "private")
            .adding("x-amz-acl", "public-read")
            .refused("more than once")
            .await;
        once().adding("host", "localhost").refused("more than once").await;
        sent(Method::GET, "http://elsewhere/b/k").signing("x-amz-acl", "").refused("names two hosts").await;
    }

    #[tokio::test]
    async fn what_wraps_a_body_on_its_way_is_refused() {
        for encoding in ["gzip, chunked", "identity", "chunked, chunked"] {
            let wrapped = put("/b/k").signing("content-length", "0").adding("transfer-encoding", encoding);
            wrapped.refused("other than chunked").await;
        }
    }

    #[tokio::test]
    async fn documents_are_limited_and_compared() {
        use base64::Engine;
        let document = b"<Delete><Object><Key>k</Key></Object></Delete>";
        let delete = || sent(Method::POST, "/b?delete").with(document).signing("content-length", "46");
        assert!(
            matches!(delete().admit().await.unwrap().body, AdmittedBody::Document(bytes) if &bytes[..] == document)
        );
        let encode = |sum: &[u8]| base64::engine::general_purpose::STANDARD.encode(sum);
        delete().signing("content-md5", &encode(&Md5::digest(document))).admit().await.unwrap();
        delete().signing("content-md5", &encode(&Md5::digest(b"other"))).refused("BadDigest").await;
        delete().signing("x-amz-checksum-crc32", "AAAAAA==").refused("BadDigest").await;
        delete().signing("x-amz-content-sha256", &"0".repeat(64)).refused("ContentSha256Mismatch").await;

        let long = |uri: &str, length: usize| {
            sent(Method::POST, uri).with(b"<").signing("content-length", &length.to_string())
        };
        long("/b?delete", (2 << 20) + 1).refused("MaxMessageLengthExceeded").await;
        long("/b/k?uploadId=u", (4 << 20) + 1).refused("MaxMessageLengthExceeded").await;
        let tagged = b"<CreateBucketConfiguration><Tags><Tag/></Tags></CreateBucketConfiguration>";
        put("/b")
            .with(tagged)
            .signing("content-length", "74")
            .refused("The element Tags of CreateBucket")
            .await;
    }

    #[tokio::test]
    async fn checksums_that_nobody_verifies_are_refused() {
        for header in ["x-amz-checksum-sha512", "x-amz-checksum-md5", "x-amz-checksum-xxhash64"] {
            put("/b/k")
                .signing("content-length", "0")
                .signing(header, "AAAA")
                .refused("NotImplemented")
                .await;
            let trailer = put("/b/k")
                .signing("x-amz-content-sha256", "STREAMING-UNSIGNED-PAYLOAD-TRAILER")
                .signing("x-amz-decoded-content-length", "0")
                .signing("x-amz-trailer", header);
            trailer.refused("NotImplemented").await;
        }
    }

    #[tokio::test]
    async fn other_owners_have_nothing_here() {
        let get = |owner| sent(Method::GET, "/b/k").signing("x-amz-expected-bucket-owner", owner);
        get(OWNER).admit().await.unwrap();
        get("123456789012").refused("AccessDenied").await;
    }

    #[tokio::test]
    async fn there_is_one_version_of_the_api() {
        for method in [Method::GET, Method::HEAD, Method::PUT, Method::DELETE] {
            let asked = |version| {
                let request = sent(method.clone(), "/b/k").signing("content-length", "0");
                request.signing("x-amz-api-version", version)
            };
            asked("2006-03-01").admit().await.unwrap();
            asked("2030-01-01").refused("NotImplemented").await;
        }
        sent(Method::GET, "/b/k").adding("x-amz-api-version", "2006-03-01").refused("not signed").await;
    }

    /// "Signature calculations for the authorization header: transferring payload in multiple chunks", of
    /// AWS.
    fn documented_chunks(last_signature: &str) -> (HeaderMap, Vec<u8>) {
        let authorization = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
            SignedHeaders=content-encoding;content-length;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;\
            x-amz-storage-class,Signature=4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9";
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", authorization),
            ("content-encoding", "aws-chunked"),
            ("content-length", "66824"),
            ("host", "s3.amazonaws.com"),
            ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"),
            ("x-amz-date", DATE),
            ("x-amz-decoded-content-length", "66560"),
            ("x-amz-storage-class", "REDUCED_REDUNDANCY"),
        ] {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        let mut body = Vec::new();
        for (length, signature) in [
            (65536, "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648"),
            (1024, "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497"),
            (0, last_signature),
        ] {
            body.extend_from_slice(format!("{length:x};chunk-signature={signature}\r\n").as_bytes());
            body.extend(std::iter::repeat_n(b'a', length));
            body.extend_from_slice(b"\r\n");
        }
        (headers, body)
    }

    async fn read_chunks(headers: HeaderMap, body: Vec<u8>) -> Result<Bytes> {
        let KeyPair { access_key, secret_key } = example_keys();
        let domains = vec!["s3.amazonaws.com".to_owned()];
        let options = GatewayOptions { access_key, secret_key, domains, ..GatewayOptions::default() };
        let mut request = axum::http::Request::put("/examplebucket/chunkObject.txt").body(()).unwrap();
        *request.headers_mut() = headers;
        let pieces: Vec<_> = body.chunks(1000).map(|piece| Ok::<_, std::io::Error>(piece.to_vec())).collect();
        let (body, progress) = RequestBody::new(Body::from_stream(futures::stream::iter(pieces)));
        let parts = request.into_parts().0;
        let mut told = Told::default();
        let admitted = Admission::new(&options, memory())
            .admit(parts, Body::new(body), progress, NOW, &mut told)
            .await?;
        let AdmittedBody::Data(payload) = admitted.body else { panic!("an object has data") };
        payload.read(1 << 20, memory().room(None)).await
    }

    #[tokio::test]
    async fn signed_chunks_follow_from_each_other() {
        let right = "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9";
        let (headers, body) = documented_chunks(right);
        assert_eq!(read_chunks(headers.clone(), body.clone()).await.unwrap(), "a".repeat(66560));
        let mut other = body.clone();
        other[40_000] = b'b';
        assert!(matches!(read_chunks(headers.clone(), other).await, Err(GatewayError::ChunkSignature)));
        let (headers, body) = documented_chunks(&right.replace("b6c6", "b6c7"));
        assert!(matches!(
            read_chunks(headers.clone(), body.clone()).await,
            Err(GatewayError::ChunkSignature)
        ));
        assert!(read_chunks(headers, body[..body.len() - 90].to_vec()).await.is_err());
    }
    /// A request as minio-go 7.4.1 signs it with its `TrailingHeaders`.
    #[tokio::test]
    async fn signed_trailers_of_minio_go_are_read() {
        let authorization = "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request,\
            SignedHeaders=content-encoding;host;x-amz-content-sha256;x-amz-date;x-amz-decoded-content-length;x-amz-trailer,\
            Signature=fc9c0845404f6185bea95571075926a84ac3cb84e80ef1fcebd49d02c0711d1b";
        let body = "b;chunk-signature=ba2745e26daf607b5fa4fd29c74563af18c637c18dd4d5c77ebf40ce3d7e7ea5\r\nhello world\r\n\
            0;chunk-signature=55fa00fb9f8d4d3265447d6edbc272963bab3ca5823105c76cde6a1069f13b32\r\n\
            x-amz-checksum-crc32c:yZRlqg==\n\r\n\
            x-amz-trailer-signature:53804f979494b6613e7f9b926ced667e6661e8ed42f925a5aa59704343bd8da7\r\n\r\n";
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("authorization", authorization),
            ("content-encoding", "aws-chunked"),
            ("content-length", "306"),
            ("host", "s3.amazonaws.com"),
            ("x-amz-content-sha256", "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER"),
            ("x-amz-date", DATE),
            ("x-amz-decoded-content-length", "11"),
            ("x-amz-trailer", "x-amz-checksum-crc32c"),
        ] {
            headers.insert(name, HeaderValue::from_str(value).unwrap());
        }
        assert_eq!(read_chunks(headers.clone(), body.into()).await.unwrap(), "hello world");
        for (from, to) in [("yZRlqg==\n", "yZRlqw==\n"), ("signature:5380", "signature:5381")] {
            let other = body.replace(from, to);
            assert_ne!(other, body);
            let read = read_chunks(headers.clone(), other.into()).await;
            assert!(matches!(read, Err(GatewayError::ChunkSignature)), "{read:?}");
        }
    }
}
