//! Signature Version 4 as AWS describes it, written anew: what the gateway computes is not compared with
//! itself.

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

pub(crate) const DATE: &str = "20130524T000000Z";
pub(crate) const SCOPE: &str = "20130524/us-east-1/s3/aws4_request";
pub(crate) const ACCESS_KEY: &str = "AKIAIOSFODNN7EXAMPLE";
pub(crate) const SECRET_KEY: &str = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY";

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hmac(key: &[u8], text: &str) -> Vec<u8> {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(text.as_bytes());
    mac.finalize().into_bytes().to_vec()
}

fn sign(secret: &str, text: &str) -> String {
    let key = SCOPE.split('/').fold(format!("AWS4{secret}").into_bytes(), |key, word| hmac(&key, word));
    hex(&hmac(&key, text))
}

pub(crate) fn of_request(secret: &str, canonical: &str) -> String {
    sign(secret, &format!("AWS4-HMAC-SHA256\n{DATE}\n{SCOPE}\n{}", sha256(canonical.as_bytes())))
}

pub(crate) fn of_chunk(secret: &str, previous: &str, data: &[u8]) -> String {
    let (nothing, data) = (sha256(b""), sha256(data));
    sign(secret, &format!("AWS4-HMAC-SHA256-PAYLOAD\n{DATE}\n{SCOPE}\n{previous}\n{nothing}\n{data}"))
}

pub(crate) fn of_trailers(secret: &str, previous: &str, trailers: &str) -> String {
    let sum = sha256(trailers.as_bytes());
    sign(secret, &format!("AWS4-HMAC-SHA256-TRAILER\n{DATE}\n{SCOPE}\n{previous}\n{sum}"))
}

/// Percent-encoding as signatures have it.
pub(crate) fn encode(text: &str, kept: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.~".contains(byte) || kept.contains(byte);
    text.bytes()
        .map(|byte| if plain(&byte) { (byte as char).to_string() } else { format!("%{byte:02X}") })
        .collect()
}
