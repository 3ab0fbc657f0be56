//! Signatures as AWS describes them, made by somebody who knows nothing of the gateway's code: those of
//! Version 4, and those of Version 2 that must be refused however right they are.

use super::request::{Request, Sent, encode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use hmac::{Hmac, KeyInit, Mac};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use time::OffsetDateTime;
use time::macros::format_description;

pub(super) const UNSIGNED_PAYLOAD: &str = "UNSIGNED-PAYLOAD";
const ALGORITHM: &str = "AWS4-HMAC-SHA256";

/// A key pair, and the host that is signed unless a request names another one.
#[derive(Clone)]
pub(super) struct Keys {
    pub(super) access_key: String,
    pub(super) secret_key: String,
    pub(super) host: String,
}

/// A time and a region, which a signature is bound to.
struct Scope {
    time: String,
    text: String,
}

type Pairs = Vec<(String, String)>;

impl Keys {
    /// Signed in its headers: all it has by now, and its body unless it says otherwise.
    pub(super) fn in_headers(&self, mut request: Request) -> Sent {
        let scope = Scope::now(request.region);
        request = request.header("x-amz-date", &scope.time);
        if !request.has("x-amz-content-sha256") {
            let sum = hex(&Sha256::digest(&request.body));
            request = request.header("x-amz-content-sha256", &sum);
        }
        let (names, headers) = self.signed_headers(&request);
        let payload = request.value("x-amz-content-sha256").unwrap_or_default().to_owned();
        let signature = self.sign(&scope, &request, &names, &headers, &payload);
        let credential = format!("{}/{}", self.access_key, scope.text);
        let authorization =
            format!("{ALGORITHM} Credential={credential}, SignedHeaders={names}, Signature={signature}");
        Sent::of(request, &self.host).with("authorization", &authorization)
    }

    /// A URL that anybody may use for so many seconds, with the headers it has by now.
    pub(super) fn in_url(&self, mut request: Request, seconds: u64) -> Sent {
        let scope = Scope::now(request.region);
        let (names, headers) = self.signed_headers(&request);
        let credential = format!("{}/{}", self.access_key, scope.text);
        for (name, value) in [
            ("X-Amz-Algorithm", ALGORITHM),
            ("X-Amz-Credential", &credential),
            ("X-Amz-Date", &scope.time),
            ("X-Amz-Expires", &seconds.to_string()),
            ("X-Amz-SignedHeaders", &names),
        ] {
            request = request.query(name, value);
        }
        let signature = self.sign(&scope, &request, &names, &headers, UNSIGNED_PAYLOAD);
        Sent::of(request.query("X-Amz-Signature", &signature), &self.host)
    }

    /// A request that nobody signed.
    pub(super) fn unsigned(&self, request: Request) -> Sent {
        Sent::of(request, &self.host)
    }

    /// The signature of Version 2 of what stands in front of it.
    pub(super) fn version_2(&self, text: &str) -> String {
        let mut mac = Hmac::<Sha1>::new_from_slice(self.secret_key.as_bytes()).unwrap();
        mac.update(text.as_bytes());
        BASE64.encode(mac.finalize().into_bytes())
    }

    /// Their names, and the lines that are signed.
    fn signed_headers(&self, request: &Request) -> (String, String) {
        let mut headers: Pairs = request.headers.clone();
        if request.signs_host {
            headers.push(("host".to_owned(), request.host.clone().unwrap_or_else(|| self.host.clone())));
        }
        headers.sort_unstable();
        let names: Vec<&str> = headers.iter().map(|(name, _)| name.as_str()).collect();
        (names.join(";"), headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect())
    }

    fn sign(&self, scope: &Scope, request: &Request, names: &str, headers: &str, payload: &str) -> String {
        let (path, query) = (encode(&request.path, b"/"), request.canonical_query());
        let canonical = format!("{}\n{path}\n{query}\n{headers}\n{names}\n{payload}", request.method);
        let sum = hex(&Sha256::digest(canonical));
        let first = format!("AWS4{}", self.secret_key).into_bytes();
        let key = scope.text.split('/').fold(first, |key, word| hmac(&key, word));
        hex(&hmac(&key, &format!("{ALGORITHM}\n{}\n{}\n{sum}", scope.time, scope.text)))
    }
}

impl Scope {
    fn now(region: &str) -> Scope {
        let format = format_description!("[year][month][day]T[hour][minute][second]Z");
        let time = OffsetDateTime::now_utc().format(&format).unwrap();
        let text = format!("{}/{region}/s3/aws4_request", &time[..8]);
        Scope { time, text }
    }
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Nothing takes them, so only AWS's own example tells that they are right.
#[test]
fn signatures_of_version_2_are_those_of_the_documentation() {
    let keys = Keys {
        access_key: "AKIAIOSFODNN7EXAMPLE".to_owned(),
        secret_key: "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY".to_owned(),
        host: String::new(),
    };
    let text = "GET\n\n\nTue, 27 Mar 2007 19:36:42 +0000\n/awsexamplebucket1/photos/puppy.jpg";
    assert_eq!(keys.version_2(text), "qgk2+6Sv9/oM7G3qLEjTH1a1l1g=");
}
