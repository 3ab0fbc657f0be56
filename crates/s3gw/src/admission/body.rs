//! Bodies of admitted requests: how one travels, as the headers say, and documents, which are read here.

use super::elements::{self, Refused};
use super::operations::{self, Operation, Sums};
use super::signature::{self, Seed, Verified};
use super::text;
use crate::checksum::{Algorithm, Hasher, decode_md5};
use crate::chunked::Chunked;
use crate::error::{GatewayError, Result};
use crate::payload::{Coding, Payload, Trailers};
use crate::request_body::Progress;
use axum::body::Body;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, TRANSFER_ENCODING};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Version};
use bytes::Bytes;
use httpd::Room;
use md5::{Digest, Md5};

/// Refuses a body that is not announced: of HTTP/1 only headers say that there is one. A client that forgot
/// to announce its body would otherwise have made an empty object.
pub(super) fn refuse_unannounced(parts: &Parts) -> Result<()> {
    let is_told = |name| parts.headers.contains_key(name);
    if parts.version >= Version::HTTP_2 || is_told(CONTENT_LENGTH) || is_told(TRANSFER_ENCODING) {
        return Ok(());
    }
    Err(without_length())
}

fn without_length() -> GatewayError {
    GatewayError::refused("MissingContentLength", 411, "You must provide the Content-Length HTTP header.")
}

/// The payload of a body that travels as the request's headers say.
pub(super) fn payload(parts: &Parts, body: Body, progress: Progress, verified: Verified) -> Result<Payload> {
    use axum::body::HttpBody;
    let headers = &parts.headers;
    let announced = announced(headers)?;
    let sent = match text(headers, CONTENT_LENGTH.as_str())? {
        Some(length) => Some(parse_length(length)?),
        None => body.size_hint().exact(),
    };
    let hash = text(headers, "x-amz-content-sha256")?.unwrap_or("UNSIGNED-PAYLOAD");
    let chunked = |seed: Option<Seed>| -> Result<(Coding, Option<u64>)> {
        let decoded = text(headers, "x-amz-decoded-content-length")?.ok_or_else(|| {
            let why = "You must provide the x-amz-decoded-content-length HTTP header.";
            GatewayError::refused("MissingContentLength", 411, why)
        });
        let decoded = parse_length(decoded?)?;
        let chunked = Chunked::new(decoded, seed, announced.iter().cloned().collect());
        Ok((Coding::Chunked(Box::new(chunked)), Some(decoded)))
    };
    let needs_trailer = || match announced {
        Some(_) => Ok(()),
        None => Err(GatewayError::InvalidRequest("The header x-amz-trailer is missing.".to_owned())),
    };
    let (coding, length) = match hash {
        _ if verified.is_presigned && hash.starts_with("STREAMING-") => {
            return Err(GatewayError::NotImplemented("A presigned URL with a chunked body"));
        }
        "UNSIGNED-PAYLOAD" => (Coding::Plain, sent),
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD" => chunked(Some(verified.seed))?,
        "STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER" => {
            needs_trailer()?;
            chunked(Some(verified.seed))?
        }
        "STREAMING-UNSIGNED-PAYLOAD-TRAILER" => {
            needs_trailer()?;
            chunked(None)?
        }
        hash => match signature::unhex(hash) {
            Some(hash) => (Coding::hashed(hash), sent),
            None => {
                let why = "x-amz-content-sha256 must be UNSIGNED-PAYLOAD, STREAMING-AWS4-HMAC-SHA256-PAYLOAD, \
                           STREAMING-AWS4-HMAC-SHA256-PAYLOAD-TRAILER, STREAMING-UNSIGNED-PAYLOAD-TRAILER or a valid sha256 value.";
                return Err(GatewayError::InvalidArgument(why.to_owned()));
            }
        },
    };
    if length.is_none() && !verified.is_presigned {
        return Err(without_length());
    }
    if !matches!(coding, Coding::Chunked(_)) {
        refuse_framed(headers)?;
    }
    Ok(Payload::new(body, progress, coding, length))
}

/// Refuses a body that is said to travel in frames, where it is not said in which: the frames would be kept
/// as if they were data.
fn refuse_framed(headers: &HeaderMap) -> Result<()> {
    let encodings = text(headers, CONTENT_ENCODING.as_str())?.unwrap_or_default();
    let is_framed = encodings.split(',').any(|coding| coding.trim().eq_ignore_ascii_case("aws-chunked"));
    if !is_framed && !headers.contains_key("x-amz-decoded-content-length") {
        return Ok(());
    }
    let why = "A body in aws-chunked encoding needs an x-amz-content-sha256 that begins with STREAMING-.";
    Err(GatewayError::InvalidRequest(why.to_owned()))
}

/// The trailer that `x-amz-trailer` announces: one at most, with a checksum that we verify.
fn announced(headers: &HeaderMap) -> Result<Option<HeaderName>> {
    let Some(name) = text(headers, "x-amz-trailer")? else { return Ok(None) };
    let name = name.trim();
    let known = Algorithm::ALL.into_iter().find(|algorithm| algorithm.header().eq_ignore_ascii_case(name));
    match known {
        Some(algorithm) => Ok(Some(HeaderName::from_static(algorithm.header()))),
        None => {
            let why = format!("The trailer {} is not implemented.", name.escape_debug());
            Err(GatewayError::refused("NotImplemented", 501, why))
        }
    }
}

fn parse_length(length: &str) -> Result<u64> {
    let is_number = !length.is_empty() && length.bytes().all(|byte| byte.is_ascii_digit());
    let parsed = is_number.then(|| length.parse().ok()).flatten();
    parsed.ok_or_else(|| GatewayError::InvalidArgument("A content length is no number.".to_owned()))
}

/// Reads a document, compares it with the checksums that were said of it, and refuses elements that the
/// protocol layer would leave out.
pub(super) async fn document(
    operation: &Operation,
    headers: &HeaderMap,
    payload: Payload,
    room: Room,
) -> Result<Bytes> {
    let operations::Body::Xml { bytes_max, elements, sums } = operation.body else { return Ok(Bytes::new()) };
    let trailers = payload.trailers();
    let document = payload.read(bytes_max, room).await?;
    if let Some(md5) = text(headers, "content-md5")?
        && decode_md5(md5)? != <[u8; 16]>::from(Md5::digest(&document))
    {
        return Err(GatewayError::BadDigest { what: "Content-MD5".to_owned() });
    }
    check_sums(headers, &trailers, sums, &document)?;
    let xml = std::str::from_utf8(&document).map_err(|_| GatewayError::MalformedXml)?;
    match elements::check(xml, elements) {
        Ok(()) => Ok(document),
        Err(Refused::Unknown(element)) => {
            let what = format!("The element {} of {}", element.escape_debug(), operation.name);
            Err(GatewayError::refused("NotImplemented", 501, format!("{what} is not implemented.")))
        }
        Err(Refused::TooMany | Refused::NoNumber) => Err(GatewayError::MalformedXml),
    }
}

fn check_sums(headers: &HeaderMap, trailers: &Trailers, sums: Sums, document: &[u8]) -> Result<()> {
    for algorithm in Algorithm::ALL {
        let in_header = text(headers, algorithm.header())?.filter(|_| sums == Sums::OfDocument);
        for sum in in_header.into_iter().chain(trailers.get(algorithm.header())) {
            let mut hasher = Hasher::new(algorithm);
            hasher.update(document);
            if hasher.finish() != sum {
                return Err(GatewayError::BadDigest { what: algorithm.name().to_owned() });
            }
        }
    }
    Ok(())
}
