//! The refusals of requests for what single headers and parameters of theirs say.

use super::operations::{self, Operation};
use super::query::Query;
use super::{OWNER, text};
use crate::error::{GatewayError, Result};
use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, EXPECT, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};

const API_VERSION: &str = "2006-03-01";

/// Headers that a signature need not cover: how the body travels is told by headers that transports add
/// afterwards, and cannot make another request of this one.
const MAY_BE_UNSIGNED: [&str; 6] = [
    "x-amz-checksum-algorithm",
    "x-amz-content-sha256",
    "x-amz-decoded-content-length",
    "x-amz-sdk-checksum-algorithm",
    "x-amz-trailer",
    "x-amz-user-agent",
];

/// Parameters that are numbers.
const NUMBERS: [&str; 6] =
    ["max-buckets", "max-keys", "max-parts", "max-uploads", "part-number-marker", "partNumber"];

/// Headers that a request may have once at most: of two, each reader could see another one.
const ONCE: [&str; 8] = [
    "authorization",
    "content-encoding",
    "content-length",
    "content-md5",
    "content-type",
    "host",
    "if-match",
    "if-none-match",
];

/// Refuses signatures of Version 2: some clients presign with it unless told otherwise, and are told how.
pub(super) fn refuse_version_2(headers: &HeaderMap, query: &Query) -> Result<()> {
    let is_old = |scheme: &[u8]| scheme.eq_ignore_ascii_case(b"AWS ");
    let old_header =
        headers.get_all(AUTHORIZATION).iter().any(|value| value.as_bytes().get(..4).is_some_and(is_old));
    let is_old = |name: &str| ["awsaccesskeyid", "signature"].contains(&name.to_ascii_lowercase().as_str());
    if !old_header && !query.names().any(is_old) {
        return Ok(());
    }
    let why = "The authorization mechanism you have provided is not supported. Please use AWS4-HMAC-SHA256: \
               signature_version='s3v4' in boto3's and s3fs's Config, `aws configure set default.s3.signature_version s3v4` \
               for the aws cli, signature_v2 = False for s3cmd (its signurl knows no other than Version 2).";
    Err(GatewayError::InvalidRequest(why.to_owned()))
}

/// Refuses forms: a form's signature is inside its body, which would have to be read to look at it.
pub(super) fn refuse_forms(parts: &Parts) -> Result<()> {
    let is_form = |value: &HeaderValue| {
        let value = value.as_bytes().trim_ascii_start();
        value.get(..10).is_some_and(|kind| kind.eq_ignore_ascii_case(b"multipart/"))
    };
    if parts.method == Method::POST && parts.headers.get_all(CONTENT_TYPE).iter().any(is_form) {
        return Err(GatewayError::NotImplemented("An upload by POST with a form"));
    }
    Ok(())
}

/// Whether the client sends no body before it has seen a 100.
pub(crate) fn waits_for_100(headers: &HeaderMap) -> bool {
    headers.get(EXPECT).is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"100-continue"))
}

/// Refuses other expectations than the one that a server can meet: a client that has another one waits for
/// what never comes.
pub(super) fn refuse_other_expectations(headers: &HeaderMap) -> Result<()> {
    if headers.get_all(EXPECT).iter().count() == usize::from(waits_for_100(headers)) {
        return Ok(());
    }
    let why = "The only expectation that this gateway meets is 100-continue.";
    Err(GatewayError::refused("ExpectationFailed", 417, why))
}

pub(super) fn refuse_repeated(headers: &HeaderMap) -> Result<()> {
    // A header that is a list may come several times: together they are one.
    let is_list = |name: &str| name.ends_with("object-attributes");
    let counts = |name: &HeaderName| {
        let name = name.as_str();
        (operations::are_ours(name) && !is_list(name)) || ONCE.contains(&name)
    };
    match headers.keys().find(|name| counts(name) && headers.get_all(*name).iter().count() > 1) {
        Some(name) => {
            Err(GatewayError::InvalidArgument(format!("The header {name} is given more than once.")))
        }
        None => Ok(()),
    }
}

/// Refuses conditions, checksums and sources of copies that are empty: a client whose variable was empty has
/// asked for one all the same.
pub(super) fn refuse_empty(headers: &HeaderMap) -> Result<()> {
    let counts = |name: &str| {
        matches!(name, "content-md5" | "if-match" | "if-none-match")
            || ["if-modified", "if-unmodified", "x-amz-checksum-", "x-amz-copy-source"]
                .iter()
                .any(|begin| name.starts_with(begin))
    };
    match headers.iter().find(|(name, value)| value.is_empty() && counts(name.as_str())) {
        Some((name, _)) => Err(GatewayError::InvalidArgument(format!("The header {name} is empty."))),
        None => Ok(()),
    }
}

/// Refuses what a body may be wrapped in for its way, other than chunks: it would be taken for the object.
pub(super) fn refuse_other_encodings(headers: &HeaderMap) -> Result<()> {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    match (encodings.next(), encodings.next()) {
        (None, _) => Ok(()),
        (Some(only), None) if only.as_bytes().eq_ignore_ascii_case(b"chunked") => Ok(()),
        _ => {
            let why = "A transfer encoding other than chunked is not implemented.";
            Err(GatewayError::refused("NotImplemented", 501, why))
        }
    }
}

pub(super) fn refuse_unsigned(headers: &HeaderMap, signed: &[String]) -> Result<()> {
    let is_free = |name: &str| {
        !(name.starts_with("x-amz-") || name.starts_with("x-flotilla-"))
            || MAY_BE_UNSIGNED.contains(&name)
            || signed.iter().any(|signed| signed == name)
    };
    let unsigned: Vec<&str> = headers.keys().map(HeaderName::as_str).filter(|name| !is_free(name)).collect();
    if unsigned.is_empty() {
        return Ok(());
    }
    let why =
        format!("There were headers present in the request which were not signed: {}", unsigned.join(", "));
    Err(GatewayError::refused("AccessDenied", 403, why))
}

/// Refuses parameters that are numbers and have a sign: the protocol layer takes `+1` for 1, and other
/// servers do not.
pub(super) fn refuse_signed_numbers(query: &Query) -> Result<()> {
    let is_signed = |name: &&&str| query.get(name).is_some_and(|number| number.starts_with(['+', '-']));
    match NUMBERS.iter().find(is_signed) {
        Some(name) => Err(GatewayError::InvalidArgument(format!("The parameter {name} is no number."))),
        None => Ok(()),
    }
}

/// Refuses session tokens: there are no temporary keys, so who sends a token has the keys of another store.
pub(super) fn refuse_tokens(headers: &HeaderMap) -> Result<()> {
    if headers.contains_key("x-amz-security-token") {
        let why = "The provided token is malformed or otherwise invalid: this store gives out none.";
        return Err(GatewayError::refused("InvalidToken", 400, why));
    }
    Ok(())
}

/// Refuses a request that expects another owner than the one there is: its client must not find a bucket.
pub(super) fn refuse_other_owners(headers: &HeaderMap) -> Result<()> {
    for name in ["x-amz-expected-bucket-owner", "x-amz-source-expected-bucket-owner"] {
        if text(headers, name)?.is_some_and(|owner| owner != OWNER) {
            let why = format!("The bucket is not owned by whom {name} says: every owner is {OWNER}.");
            return Err(GatewayError::refused("AccessDenied", 403, why));
        }
    }
    Ok(())
}

/// Refuses other versions of S3's API than the one there has been; the AWS SDK for C++ names it in every
/// request.
pub(super) fn refuse_other_versions(headers: &HeaderMap) -> Result<()> {
    match text(headers, "x-amz-api-version")? {
        None | Some(API_VERSION) => Ok(()),
        Some(_) => Err(GatewayError::NotImplemented("A version of the API other than 2006-03-01")),
    }
}

/// Refuses a type of checksum that bytes of one request cannot have: theirs is of all of them, as minio-go
/// says with each.
pub(super) fn refuse_other_types(operation: &Operation, headers: &HeaderMap) -> Result<()> {
    let is_of_bytes = operation.body == operations::Body::Data;
    match text(headers, "x-amz-checksum-type")?.filter(|_| is_of_bytes) {
        None | Some("FULL_OBJECT") => Ok(()),
        Some(_) => {
            let why = "Value for x-amz-checksum-type header is invalid: bytes of one request have a checksum of FULL_OBJECT.";
            Err(GatewayError::InvalidRequest(why.to_owned()))
        }
    }
}
