//! A request as it travels, how it is made and signed, and what becomes of it at the gateway.

use crate::random::Random;
use crate::signature::{self, ACCESS_KEY, DATE, SCOPE, SECRET_KEY, encode, sha256};
use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request};
use flotilla_s3gw::{GatewayOptions, Trial, Tried};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use time::OffsetDateTime;
use time::macros::datetime;

pub(crate) const NOW: OffsetDateTime = datetime!(2013-05-24 00:00:00 UTC);

#[derive(Clone, Debug)]
pub(crate) struct Wire {
    pub(crate) method: String,
    pub(crate) uri: String,
    pub(crate) headers: Vec<(String, Vec<u8>)>,
    pub(crate) body: Vec<u8>,
    /// Bytes of the body that come at a time.
    pub(crate) frame_bytes: usize,
}

/// The gateway's answer, and how many bytes of the body it read.
pub(crate) struct Answer {
    pub(crate) result: Result<Tried, String>,
    pub(crate) read_bytes: usize,
}

/// The gateway that is asked, or one with a bug.
pub(crate) type Gate<'a> = &'a dyn Fn(&Wire) -> Option<Answer>;

thread_local! {
    static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    static TRIAL: Trial = Trial::new(&GatewayOptions {
        access_key: ACCESS_KEY.to_owned(),
        secret_key: SECRET_KEY.to_owned(),
        domains: vec!["s3.example.com".to_owned()],
        ..GatewayOptions::default()
    });
}

pub(crate) fn with_trial<T>(then: impl FnOnce(&Trial) -> T) -> T {
    TRIAL.with(then)
}

/// `None`: no such request comes through HTTP.
pub(crate) fn gateway(wire: &Wire) -> Option<Answer> {
    let mut request =
        Request::builder().method(Method::from_bytes(wire.method.as_bytes()).ok()?).uri(&wire.uri);
    let headers = request.headers_mut()?;
    for (name, value) in &wire.headers {
        headers.append(HeaderName::from_bytes(name.as_bytes()).ok()?, HeaderValue::from_bytes(value).ok()?);
    }
    let read = Arc::new(AtomicUsize::new(0));
    let counter = read.clone();
    let frames: Vec<Bytes> = wire.body.chunks(wire.frame_bytes.max(1)).map(Bytes::copy_from_slice).collect();
    let frames = frames.into_iter().map(move |frame| {
        counter.fetch_add(frame.len(), Ordering::Relaxed);
        Ok::<_, Infallible>(frame)
    });
    let request = request.body(Body::from_stream(futures::stream::iter(frames))).ok()?;
    let result = TRIAL.with(|trial| RUNTIME.with(|runtime| runtime.block_on(trial.request(request, NOW))));
    Some(Answer { result, read_bytes: read.load(Ordering::Relaxed) })
}

/// The wish that somebody has, before it is signed.
pub(crate) struct Wish {
    pub(crate) method: &'static str,
    /// Decoded.
    pub(crate) path: String,
    pub(crate) query: Vec<(String, String)>,
    pub(crate) headers: Vec<(String, String)>,
    /// x-amz-content-sha256
    pub(crate) payload: String,
    pub(crate) body: Vec<u8>,
}

impl Wish {
    pub(crate) fn new(method: &'static str, path: impl Into<String>) -> Wish {
        let payload = "UNSIGNED-PAYLOAD".to_owned();
        Wish { method, path: path.into(), query: Vec::new(), headers: Vec::new(), payload, body: Vec::new() }
    }

    pub(crate) fn parameter(mut self, name: &str, value: impl Into<String>) -> Wish {
        self.query.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn header(mut self, name: &str, value: impl Into<String>) -> Wish {
        self.headers.push((name.to_owned(), value.into()));
        self
    }

    pub(crate) fn body(mut self, body: &[u8]) -> Wish {
        self.body = body.to_vec();
        self.header("content-length", body.len().to_string())
    }

    /// Says the body's hash.
    pub(crate) fn hashed(mut self) -> Wish {
        self.payload = sha256(&self.body);
        self
    }

    /// Signed in its headers.
    pub(crate) fn signed(&self, secret: &str) -> (Wire, String) {
        let mut headers = self.headers.clone();
        headers.push(("host".to_owned(), "s3.example.com".to_owned()));
        headers.push(("x-amz-content-sha256".to_owned(), self.payload.clone()));
        headers.push(("x-amz-date".to_owned(), DATE.to_owned()));
        headers.sort();
        let signature = signature::of_request(secret, &self.canonical(&self.query, &headers, &self.payload));
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={ACCESS_KEY}/{SCOPE}, SignedHeaders={}, Signature={signature}",
            names.join(";")
        );
        headers.push(("authorization".to_owned(), authorization));
        (self.wire(&self.query, headers), signature)
    }

    /// A presigned URL; headers that are not `host` are sent with it, unsigned.
    pub(crate) fn presigned(&self, secret: &str) -> Wire {
        let mut query = self.query.clone();
        let credential = format!("{ACCESS_KEY}/{SCOPE}");
        for (name, value) in [
            ("X-Amz-Algorithm", "AWS4-HMAC-SHA256"),
            ("X-Amz-Credential", credential.as_str()),
            ("X-Amz-Date", DATE),
            ("X-Amz-Expires", "600"),
            ("X-Amz-SignedHeaders", "host"),
        ] {
            query.push((name.to_owned(), value.to_owned()));
        }
        let host = ("host".to_owned(), "s3.example.com".to_owned());
        let canonical = self.canonical(&query, std::slice::from_ref(&host), "UNSIGNED-PAYLOAD");
        query.push(("X-Amz-Signature".to_owned(), signature::of_request(secret, &canonical)));
        let headers = self.headers.iter().cloned().chain([host]).collect();
        self.wire(&query, headers)
    }

    fn canonical(&self, query: &[(String, String)], headers: &[(String, String)], payload: &str) -> String {
        let mut query = query.to_vec();
        query.sort();
        let pairs: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name, b""), encode(value, b"")))
            .collect();
        let lines: String = headers
            .iter()
            .map(|(name, value)| {
                format!("{name}:{}\n", value.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
            })
            .collect();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        let (method, path) = (self.method, encode(&self.path, b"/"));
        format!("{method}\n{path}\n{}\n{lines}\n{}\n{payload}", pairs.join("&"), names.join(";"))
    }

    fn wire(&self, query: &[(String, String)], headers: Vec<(String, String)>) -> Wire {
        let pairs: Vec<String> = query
            .iter()
            .map(|(name, value)| format!("{}={}", encode(name, b""), encode(value, b"")))
            .collect();
        let mark = if pairs.is_empty() { "" } else { "?" };
        Wire {
            method: self.method.to_owned(),
            uri: format!("{}{mark}{}", encode(&self.path, b"/"), pairs.join("&")),
            headers: headers.into_iter().map(|(name, value)| (name, value.into_bytes())).collect(),
            body: self.body.clone(),
            frame_bytes: 4096,
        }
    }
}

impl Wire {
    /// Changes some of it.
    pub(crate) fn damage(&mut self, random: &mut Random) {
        match random.below(9) {
            0 => {
                self.method =
                    random.pick(&["GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "get"]).to_owned()
            }
            1 | 2 => {
                let mut uri = std::mem::take(&mut self.uri).into_bytes();
                random.damage(&mut uri);
                self.uri = String::from_utf8_lossy(&uri).into_owned();
            }
            3 => self.uri.push_str(random.pick(&[
                "&acl",
                "?acl",
                "&versionId=null",
                "&x-amz-acl=private",
                "%00",
                "/",
            ])),
            4 => {
                let at = random.below(self.headers.len());
                random.damage(&mut self.headers[at].1);
            }
            5 => drop(self.headers.remove(random.below(self.headers.len()))),
            6 => {
                let name = random.pick(&[
                    "x-amz-copy-source",
                    "x-amz-acl",
                    "x-amz-meta-a",
                    "range",
                    "expect",
                    "content-length",
                    "x-amz-decoded-content-length",
                    "x-amz-trailer",
                    "content-md5",
                    "authorization",
                    "host",
                    "x-amz-date",
                    "content-encoding",
                    "transfer-encoding",
                    "x-amz-content-sha256",
                    "content-type",
                    "x-amz-tagging",
                ]);
                let value = match random.below(3) {
                    0 => random.text(30),
                    1 => random
                        .pick(&["0", "18446744073709551616", "-1", "/b/other", "bytes=0-", "aws-chunked"])
                        .to_owned(),
                    _ => "STREAMING-UNSIGNED-PAYLOAD-TRAILER".to_owned(),
                };
                self.headers.push((name.to_owned(), value.into_bytes()));
            }
            7 => {
                let (one, other) = (random.below(self.headers.len()), random.below(self.headers.len()));
                self.headers[one].1 = self.headers[other].1.clone();
            }
            _ => random.damage(&mut self.body),
        }
        if self.headers.is_empty() {
            self.headers.push(("host".to_owned(), b"s3.example.com".to_vec()));
        }
    }
}

/// The meaning of a request: all that a signature is there to protect.
pub(crate) fn meaning(tried: &Tried) -> (String, String, Vec<(String, String)>) {
    // How a body travels may be told by headers that are not signed.
    const FREE: [&str; 3] = ["x-amz-checksum-algorithm", "x-amz-sdk-checksum-algorithm", "x-amz-trailer"];
    let protected = |name: &str| name == "host" || (name.starts_with("x-amz-") && !FREE.contains(&name));
    let mut headers: Vec<(String, String)> =
        all(&tried.parts.headers).filter(|(name, _)| protected(name)).collect();
    headers.sort();
    let (path, query) = (tried.parts.uri.path(), tried.parts.uri.query().unwrap_or_default());
    (format!("{} {}", tried.parts.method, tried.operation), format!("{}?{query}", decode(path)), headers)
}

fn all(headers: &HeaderMap) -> impl Iterator<Item = (String, String)> {
    headers.iter().map(|(name, value)| {
        let value = String::from_utf8_lossy(value.as_bytes());
        (name.to_string(), value.split_ascii_whitespace().collect::<Vec<_>>().join(" "))
    })
}

fn decode(path: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = path.as_bytes();
    while let [first, after @ ..] = rest {
        let digits = after.get(..2).filter(|_| *first == b'%');
        let decoded =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(decoded.unwrap_or(*first));
        rest = if decoded.is_some() { &after[2..] } else { after };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
