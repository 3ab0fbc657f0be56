use super::convert::{Sums, conditions, etag, expires, http_date, metadata, non_empty, timestamp};
use super::gateway::Gateway;
use crate::conditions::Conditions;
use crate::error::{GatewayError, Result};
use axum::http::header::{HeaderMap, HeaderValue, IF_RANGE};
use bytes::Bytes;
use client::{ClientError, S3_VOLUME};
use futures::{Stream, StreamExt};
use proto::om::{Key, KeyAttributes};
use s3s::dto::*;
use std::ops::Range as ByteRange;
use std::pin::Pin;
use std::sync::Mutex;
use std::task::{Context, Poll};

const DEFAULT_CONTENT_TYPE: &str = "binary/octet-stream";

/// The part of an object that is asked for.
struct Selected {
    bytes: ByteRange<u64>,
    /// The range as the header says it, when it is not the whole.
    content_range: Option<String>,
    parts_count: Option<i32>,
}

/// The version of which a client has the other parts: an `If-Range` header, an ETag or the time of a change.
/// Of any other version it is sent the whole.
pub(super) struct PartOf(HeaderValue);

impl PartOf {
    pub(super) fn asked(headers: &HeaderMap) -> Option<PartOf> {
        headers.get(IF_RANGE).cloned().map(PartOf)
    }

    /// Whether the header names the key's version, by its ETag or its time. Both are compared as they were
    /// sent out.
    fn names(&self, key: &Key) -> bool {
        self.0 == format!("\"{}\"", key.etag) || self.0 == http_date(key.modified_ms)
    }
}

/// Waits for a body's first bytes: where no replica gives them, the answer is an error, and not one that
/// breaks off.
async fn begun(
    body: impl Stream<Item = std::result::Result<Bytes, ClientError>> + Send,
) -> std::result::Result<impl Stream<Item = std::result::Result<Bytes, ClientError>> + Send, ClientError> {
    let mut body = Box::pin(body);
    let first = body.next().await.transpose()?;
    Ok(futures::stream::iter(first.map(Ok)).chain(body))
}

impl Gateway {
    pub(super) async fn object_get(
        &self,
        input: GetObjectInput,
        part_of: Option<PartOf>,
    ) -> Result<GetObjectOutput> {
        let key = self.key(&input.bucket, &input.key, input.version_id.as_deref()).await?;
        let wanted = conditions(
            input.if_match,
            input.if_none_match,
            input.if_modified_since,
            input.if_unmodified_since,
        );
        let range = input.range.filter(|_| part_of.is_none_or(|part_of| part_of.names(&key)));
        let selected = select(&key, &wanted, range, input.part_number)?;
        let attributes = key.attributes.clone().unwrap_or_default();
        let sums = sums(&attributes, input.checksum_mode.as_ref(), &selected);
        let length = selected.bytes.end - selected.bytes.start;
        self.client.may_read().await?;
        let body = begun(self.client.read(&key.pieces, selected.bytes)).await?;
        Ok(GetObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            body: Some(StreamingBlob::wrap::<_, ClientError>(OneReader::new(body))),
            cache_control: input.response_cache_control.or_else(|| non_empty(&attributes.cache_control)),
            content_disposition: input
                .response_content_disposition
                .or_else(|| non_empty(&attributes.content_disposition)),
            content_encoding: input
                .response_content_encoding
                .or_else(|| non_empty(&attributes.content_encoding)),
            content_language: input
                .response_content_language
                .or_else(|| non_empty(&attributes.content_language)),
            content_length: Some(signed(length)),
            content_range: selected.content_range,
            content_type: Some(input.response_content_type.unwrap_or_else(|| content_type(&attributes))),
            e_tag: Some(etag(&key.etag)),
            expires: input.response_expires.or_else(|| expires(&attributes)),
            last_modified: Some(timestamp(key.modified_ms)),
            metadata: metadata(&attributes),
            parts_count: selected.parts_count,
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            checksum_type: sums.kind,
            ..Default::default()
        })
    }

    pub(super) async fn object_head(
        &self,
        input: HeadObjectInput,
        part_of: Option<PartOf>,
    ) -> Result<HeadObjectOutput> {
        let key = self.key(&input.bucket, &input.key, input.version_id.as_deref()).await?;
        let wanted = conditions(
            input.if_match,
            input.if_none_match,
            input.if_modified_since,
            input.if_unmodified_since,
        );
        let range = input.range.filter(|_| part_of.is_none_or(|part_of| part_of.names(&key)));
        let selected = select(&key, &wanted, range, input.part_number)?;
        let attributes = key.attributes.clone().unwrap_or_default();
        let sums = sums(&attributes, input.checksum_mode.as_ref(), &selected);
        Ok(HeadObjectOutput {
            accept_ranges: Some("bytes".to_owned()),
            cache_control: input.response_cache_control.or_else(|| non_empty(&attributes.cache_control)),
            content_disposition: input
                .response_content_disposition
                .or_else(|| non_empty(&attributes.content_disposition)),
            content_encoding: input
                .response_content_encoding
                .or_else(|| non_empty(&attributes.content_encoding)),
            content_language: input
                .response_content_language
                .or_else(|| non_empty(&attributes.content_language)),
            content_length: Some(signed(selected.bytes.end - selected.bytes.start)),
            content_range: selected.content_range,
            content_type: Some(input.response_content_type.unwrap_or_else(|| content_type(&attributes))),
            e_tag: Some(etag(&key.etag)),
            expires: input.response_expires.or_else(|| expires(&attributes)),
            last_modified: Some(timestamp(key.modified_ms)),
            metadata: metadata(&attributes),
            parts_count: selected.parts_count,
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            checksum_type: sums.kind,
            ..Default::default()
        })
    }

    /// Looks up a key. Without versioning it has one version, called `null`.
    pub(super) async fn key(&self, bucket: &str, key: &str, version: Option<&str>) -> Result<Key> {
        if version.is_some_and(|version| version != "null") {
            return Err(GatewayError::NoSuchVersion);
        }
        Ok(self.client.lookup(S3_VOLUME, bucket, key.as_bytes()).await?)
    }
}

fn select(key: &Key, wanted: &Conditions, range: Option<Range>, part: Option<i32>) -> Result<Selected> {
    wanted.check(key)?;
    let selected = match (range, part) {
        (Some(_), Some(_)) => {
            let why = "Cannot specify both Range header and partNumber query parameter";
            return Err(GatewayError::InvalidRequest(why.to_owned()));
        }
        (None, None) => Selected { bytes: 0..key.size, content_range: None, parts_count: None },
        (Some(range), None) => {
            let bytes = ranged(&range, key.size)?;
            Selected { content_range: Some(content_range(&bytes, key.size)), bytes, parts_count: None }
        }
        (None, Some(part)) => select_part(key, part)?,
    };
    Ok(selected)
}

/// The bytes that a range selects of an object of this size; none are an error. (The protocol layer finds the
/// last bytes even of an empty object.)
pub(super) fn ranged(range: &Range, size: u64) -> Result<ByteRange<u64>> {
    range.check(size).ok().filter(|bytes| !bytes.is_empty()).ok_or(GatewayError::InvalidRange { size })
}

/// The bytes of an object's part; an object that was sent at once has one.
fn select_part(key: &Key, part: i32) -> Result<Selected> {
    let whole = [key.size];
    let sizes = if key.part_sizes.is_empty() { &whole[..] } else { &key.part_sizes };
    let at = usize::try_from(part).ok().and_then(|part| part.checked_sub(1)).filter(|at| *at < sizes.len());
    let at = at.ok_or(GatewayError::InvalidPartNumber)?;
    let start: u64 = sizes[..at].iter().sum();
    let bytes = start..start + sizes[at];
    let parts_count = (!key.part_sizes.is_empty()).then_some(sizes.len() as i32); // at most 10 000
    Ok(Selected {
        content_range: (!bytes.is_empty()).then(|| content_range(&bytes, key.size)),
        bytes,
        parts_count,
    })
}

fn content_range(bytes: &ByteRange<u64>, size: u64) -> String {
    format!("bytes {}-{}/{size}", bytes.start, bytes.end - 1)
}

/// The checksums to answer with: where the client asked for them, and for all of the object, since a checksum
/// of the whole says nothing about a part of it.
fn sums(attributes: &KeyAttributes, mode: Option<&ChecksumMode>, selected: &Selected) -> Sums {
    let asked =
        mode.is_some_and(|mode| mode.as_str() == ChecksumMode::ENABLED) && selected.content_range.is_none();
    Sums::of(attributes.checksum.as_ref().filter(|_| asked))
}

fn content_type(attributes: &KeyAttributes) -> String {
    non_empty(&attributes.content_type).unwrap_or_else(|| DEFAULT_CONTENT_TYPE.to_owned())
}

pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// A stream that the protocol layer wants to be shareable between threads, which nobody does.
struct OneReader<S>(Mutex<Pin<Box<S>>>);

impl<S> OneReader<S> {
    fn new(stream: S) -> Self {
        OneReader(Mutex::new(Box::pin(stream)))
    }
}

impl<S: Stream<Item = std::result::Result<Bytes, ClientError>>> Stream for OneReader<S> {
    type Item = S::Item;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.get_mut().0.get_mut().expect("no holder panics").as_mut().poll_next(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(size: u64, part_sizes: &[u64]) -> Key {
        Key { size, part_sizes: part_sizes.to_vec(), ..Key::default() }
    }

    #[test]
    fn ranges_are_cut_to_the_object() {
        let check = |range: &str, expect: Option<(ByteRange<u64>, &str)>| {
            let range = Range::parse(range).unwrap();
            let selected = select(&key(10, &[]), &Conditions::default(), Some(range), None).ok();
            let found = selected.map(|selected| (selected.bytes, selected.content_range.unwrap()));
            assert_eq!(found, expect.map(|(bytes, text)| (bytes, text.to_owned())));
        };
        check("bytes=0-3", Some((0..4, "bytes 0-3/10")));
        check("bytes=8-99", Some((8..10, "bytes 8-9/10")));
        check("bytes=4-", Some((4..10, "bytes 4-9/10")));
        check("bytes=-3", Some((7..10, "bytes 7-9/10")));
        check("bytes=10-", None);
    }

    /// A download that is resumed must not be of two versions.
    #[test]
    fn a_part_is_of_the_version_that_its_client_has() {
        let key = Key { etag: "abc-2".to_owned(), modified_ms: 784_111_777_123, ..key(10, &[]) };
        let names = |value: &'static str| PartOf(HeaderValue::from_static(value)).names(&key);
        assert!(names("\"abc-2\"") && names("Sun, 06 Nov 1994 08:49:37 GMT"));
        for other in ["\"abc\"", "abc-2", "W/\"abc-2\"", "Sun, 06 Nov 1994 08:49:38 GMT", "*", ""] {
            assert!(!names(other), "{other}");
        }
    }

    #[test]
    fn an_empty_object_has_no_ranges() {
        for range in ["bytes=-5", "bytes=0-", "bytes=0-0"] {
            let range = Range::parse(range).unwrap();
            let refused = select(&key(0, &[]), &Conditions::default(), Some(range), None).err();
            assert!(matches!(refused, Some(GatewayError::InvalidRange { size: 0 })), "{range:?}");
        }
    }

    #[test]
    fn parts_are_selected_by_number() {
        let key = key(12, &[5, 5, 2]);
        let selected = select(&key, &Conditions::default(), None, Some(3)).unwrap();
        assert_eq!((selected.bytes, selected.parts_count), (10..12, Some(3)));
        for wrong in [0, 4, -1] {
            assert!(select(&key, &Conditions::default(), None, Some(wrong)).is_err());
        }
    }
}
