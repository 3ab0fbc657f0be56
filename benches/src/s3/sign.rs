use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use std::io::Write;
use time::OffsetDateTime;
use time::macros::format_description;

/// The region that signed requests name; any will do for Flotilla, MinIO wants this one.
const REGION: &str = "us-east-1";
/// The word for a body that its sender does not hash: over TLS no SDK does it.
const PAYLOAD: &str = "UNSIGNED-PAYLOAD";

#[derive(Clone)]
pub(crate) struct Keys {
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
}

/// A signer that writes heads of requests, signed with Version 4. Good for the quarter of an hour that
/// servers allow a clock to be off.
#[derive(Clone)]
pub(crate) struct Signer {
    host: String,
    access_key: String,
    key: [u8; 32],
    scope: String,
    time: String,
}

/// A request that is to be signed, in characters that need no encoding.
#[derive(Clone, Copy)]
pub(crate) struct Asked<'a> {
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
    /// The query, in the order of its names.
    pub(crate) query: &'a str,
    pub(crate) body_bytes: usize,
}

impl Signer {
    pub(crate) fn new(host: &str, keys: &Keys) -> Signer {
        let now = OffsetDateTime::now_utc();
        let format = format_description!("[year][month][day]T[hour][minute][second]Z");
        let time = now.format(&format).expect("a date of our days has this form");
        let scope = format!("{}/{REGION}/s3/aws4_request", &time[..8]);
        let first = format!("AWS4{}", keys.secret_key).into_bytes();
        let key = scope.split('/').fold(first, |key, word| hmac(&key, word).to_vec());
        let key = key.try_into().expect("a SHA-256 has 32 bytes");
        Signer { host: host.to_owned(), access_key: keys.access_key.clone(), key, scope, time }
    }

    /// Writes the head of a request in the place of what is in `head`.
    pub(crate) fn write_head(&self, asked: Asked<'_>, head: &mut Vec<u8>) {
        let Asked { method, path, query, body_bytes } = asked;
        let Signer { host, access_key, key, scope, time } = self;
        let names = "host;x-amz-content-sha256;x-amz-date";
        let canonical = format!(
            "{method}\n{path}\n{query}\nhost:{host}\nx-amz-content-sha256:{PAYLOAD}\nx-amz-date:{time}\n\n{names}\n{PAYLOAD}"
        );
        let hash = hex(&Sha256::digest(canonical));
        let signature = hex(&hmac(key, &format!("AWS4-HMAC-SHA256\n{time}\n{scope}\n{hash}")));
        let mark = if query.is_empty() { "" } else { "?" };
        head.clear();
        write!(
            head,
            "{method} {path}{mark}{query} HTTP/1.1\r\nhost: {host}\r\nx-amz-content-sha256: {PAYLOAD}\r\nx-amz-date: {time}\r\n\
             authorization: AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}\r\n"
        )
        .expect("memory takes everything");
        if method == "PUT" {
            write!(head, "content-length: {body_bytes}\r\n").expect("memory takes everything");
        }
        head.extend_from_slice(b"\r\n");
    }
}

fn hmac(key: &[u8], text: &str) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("a key of any length will do");
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().into()
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}
