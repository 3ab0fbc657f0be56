//! Conversions between S3's words and the namespace's.

use crate::checksum::{Algorithm, Kind};
use crate::conditions::{Conditions, Match, precondition};
use crate::error::{GatewayError, Result};
use axum::http::header::{IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName};
use proto::om::{Checksum, KeyAttributes, Precondition};
use s3s::dto::*;
use std::collections::HashMap;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc2822;

const USER_METADATA_BYTES_MAX: usize = 2048;

pub(super) fn timestamp(ms: u64) -> Timestamp {
    // The time is in whole seconds: HTTP dates can say no more, and clients compare with those.
    let seconds = i64::try_from(ms / 1000).unwrap_or(0);
    OffsetDateTime::from_unix_timestamp(seconds).unwrap_or(OffsetDateTime::UNIX_EPOCH).into()
}

fn timestamp_ms(timestamp: Timestamp) -> i64 {
    let time: OffsetDateTime = timestamp.into();
    i64::try_from(time.unix_timestamp_nanos() / 1_000_000).unwrap_or(i64::MAX)
}

pub(super) fn http_date(ms: u64) -> String {
    let time: OffsetDateTime = timestamp(ms).into();
    time.format(&Rfc2822).unwrap_or_default().replace("+0000", "GMT")
}

pub(super) fn etag(etag: &str) -> ETag {
    ETag::Strong(etag.to_owned())
}

fn etag_match(condition: ETagCondition) -> Match {
    match condition {
        ETagCondition::Any => Match::Any,
        ETagCondition::ETag(etag) => Match::Etag(etag.into_value()),
    }
}

pub(super) fn matches(condition: Option<ETagCondition>) -> Option<Match> {
    condition.map(etag_match)
}

/// The conditions on what is written, where the protocol layer does not read them.
pub(super) fn written_precondition(headers: &HeaderMap) -> Result<Option<Precondition>> {
    let read = |name: HeaderName| {
        let parsed = headers.get(&name).map(|value| ETagCondition::parse_http_header(value.as_bytes()));
        parsed
            .transpose()
            .map_err(|_| GatewayError::InvalidArgument(format!("The header {name} is invalid.")))
    };
    precondition(matches(read(IF_MATCH)?), matches(read(IF_NONE_MATCH)?))
}

pub(super) fn conditions(
    if_match: Option<ETagCondition>,
    if_none_match: Option<ETagCondition>,
    if_modified_since: Option<Timestamp>,
    if_unmodified_since: Option<Timestamp>,
) -> Conditions {
    Conditions {
        if_match: matches(if_match),
        if_none_match: matches(if_none_match),
        if_modified_since_ms: if_modified_since.map(timestamp_ms),
        if_unmodified_since_ms: if_unmodified_since.map(timestamp_ms),
    }
}

/// The headers that describe an object, as a put, a copy and a multipart upload give them.
#[derive(Default)]
pub(super) struct Described {
    pub(super) content_type: Option<String>,
    pub(super) cache_control: Option<String>,
    pub(super) content_disposition: Option<String>,
    pub(super) content_encoding: Option<String>,
    pub(super) content_language: Option<String>,
    pub(super) expires: Option<Timestamp>,
    pub(super) metadata: Option<Metadata>,
}

impl Described {
    pub(super) fn attributes(self) -> Result<KeyAttributes> {
        let metadata: HashMap<String, String> = self.metadata.unwrap_or_default().into_iter().collect();
        if metadata.iter().map(|(name, value)| name.len() + value.len()).sum::<usize>()
            > USER_METADATA_BYTES_MAX
        {
            return Err(GatewayError::MetadataTooLarge);
        }
        let expires =
            self.expires.map(|expires| http_date(u64::try_from(timestamp_ms(expires)).unwrap_or(0)));
        let attributes = KeyAttributes {
            content_type: self.content_type.unwrap_or_default(),
            cache_control: self.cache_control.unwrap_or_default(),
            content_disposition: self.content_disposition.unwrap_or_default(),
            content_encoding: content_encoding(self.content_encoding.as_deref().unwrap_or_default()),
            content_language: self.content_language.unwrap_or_default(),
            expires: expires.unwrap_or_default(),
            user_metadata: metadata.into_iter().collect(),
            checksum: None,
        };
        match bytes_of(&attributes) > ATTRIBUTES_BYTES_MAX {
            true => Err(GatewayError::MetadataTooLarge),
            false => Ok(attributes),
        }
    }
}

/// The most bytes that OM keeps of these of a key; it would say so once the body is there.
const ATTRIBUTES_BYTES_MAX: usize = 8 << 10;

/// The bytes that attributes take with OM, or some more.
fn bytes_of(attributes: &KeyAttributes) -> usize {
    const CHECKSUM_AND_LENGTHS: usize = 256;
    const OF_ENTRY: usize = 12;
    let KeyAttributes { content_type, cache_control, content_disposition, .. } = attributes;
    let KeyAttributes { content_encoding, content_language, user_metadata, .. } = attributes;
    let texts = [content_type, cache_control, content_disposition, content_encoding, content_language];
    let texts: usize = texts.iter().map(|text| text.len()).sum();
    let metadata = user_metadata.iter().map(|(name, value)| name.len() + value.len() + OF_ENTRY);
    CHECKSUM_AND_LENGTHS + texts + metadata.sum::<usize>()
}

/// An object's content encoding, without `aws-chunked`: that is how the body travelled, not what the object
/// is.
fn content_encoding(header: &str) -> String {
    let kept: Vec<&str> =
        header.split(',').map(str::trim).filter(|word| !word.eq_ignore_ascii_case("aws-chunked")).collect();
    kept.join(",")
}

pub(super) fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

pub(super) fn expires(attributes: &KeyAttributes) -> Option<Timestamp> {
    let text = non_empty(&attributes.expires)?;
    Timestamp::parse(TimestampFormat::HttpDate, &text).ok()
}

pub(super) fn metadata(attributes: &KeyAttributes) -> Option<Metadata> {
    let pairs = attributes.user_metadata.iter();
    Some(pairs.map(|(name, value)| (name.clone(), value.clone())).collect())
}

/// The `x-amz-checksum-*` values of an answer; one of them is set.
#[derive(Default)]
pub(super) struct Sums {
    pub(super) crc32: Option<String>,
    pub(super) crc32c: Option<String>,
    pub(super) crc64nvme: Option<String>,
    pub(super) sha1: Option<String>,
    pub(super) sha256: Option<String>,
    pub(super) kind: Option<ChecksumType>,
}

impl Sums {
    pub(super) fn of(checksum: Option<&Checksum>) -> Sums {
        let Some(checksum) = checksum.filter(|checksum| !checksum.value.is_empty()) else {
            return Sums::default();
        };
        let Ok(algorithm) = Algorithm::parse(&checksum.algorithm) else { return Sums::default() };
        let kind = if checksum.full_object { Kind::FullObject } else { Kind::Composite };
        let mut sums = Sums { kind: Some(checksum_type(kind)), ..Sums::default() };
        let value = Some(checksum.value.clone());
        match algorithm {
            Algorithm::Crc32 => sums.crc32 = value,
            Algorithm::Crc32c => sums.crc32c = value,
            Algorithm::Crc64Nvme => sums.crc64nvme = value,
            Algorithm::Sha1 => sums.sha1 = value,
            Algorithm::Sha256 => sums.sha256 = value,
        }
        sums
    }

    /// The sum that was sent, with its algorithm; more than one is an error.
    pub(super) fn one(self) -> Result<Option<(Algorithm, String)>> {
        let all = [self.crc32, self.crc32c, self.crc64nvme, self.sha1, self.sha256];
        let mut given =
            Algorithm::ALL.into_iter().zip(all).filter_map(|(algorithm, sum)| Some((algorithm, sum?)));
        let first = given.next();
        if given.next().is_some() {
            return Err(more_than_one_sum());
        }
        Ok(first)
    }
}

/// The refusal of a second sum, of which only one would be compared.
pub(super) fn more_than_one_sum() -> GatewayError {
    let why = "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed.";
    GatewayError::InvalidRequest(why.to_owned())
}

pub(super) fn checksum_type(kind: Kind) -> ChecksumType {
    ChecksumType::from_static(match kind {
        Kind::FullObject => ChecksumType::FULL_OBJECT,
        Kind::Composite => ChecksumType::COMPOSITE,
    })
}

pub(super) fn checksum_algorithm(algorithm: Algorithm) -> ChecksumAlgorithm {
    ChecksumAlgorithm::from_static(algorithm.name())
}

/// A key, which is bytes, as text for S3's XML.
pub(super) fn key_text(key: &[u8]) -> String {
    String::from_utf8_lossy(key).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_http_dates() {
        assert_eq!(http_date(784_111_777_123), "Sun, 06 Nov 1994 08:49:37 GMT");
    }

    #[test]
    fn aws_chunked_is_not_kept() {
        assert_eq!(content_encoding("aws-chunked"), "");
        assert_eq!(content_encoding("gzip, AWS-chunked"), "gzip");
        assert_eq!(content_encoding("gzip"), "gzip");
    }

    /// OM would refuse the key once all bytes of the object are there.
    #[test]
    fn what_is_kept_with_an_object_is_bounded_before_its_body_is_read() {
        let of = |bytes: usize, names: usize| {
            let metadata = (0..names).map(|n| (n.to_string(), String::new())).collect();
            let content_disposition = Some("x".repeat(bytes));
            Described { content_disposition, metadata: Some(metadata), ..Described::default() }.attributes()
        };
        assert!(of(7900, 0).is_ok() && of(0, 500).is_ok());
        assert!(matches!(of(8000, 0), Err(GatewayError::MetadataTooLarge)));
        assert!(matches!(of(2000, 500), Err(GatewayError::MetadataTooLarge)));
    }

    #[test]
    fn one_checksum_is_taken_and_two_are_refused() {
        let one = Sums { sha1: Some("x".into()), ..Sums::default() };
        assert_eq!(one.one().unwrap(), Some((Algorithm::Sha1, "x".to_owned())));
        let two = Sums { sha1: Some("x".into()), crc32: Some("y".into()), ..Sums::default() };
        assert!(two.one().is_err());
    }
}
