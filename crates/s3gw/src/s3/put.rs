use super::acknowledged::Acknowledged;
use super::convert::{Described, Sums, etag, matches, more_than_one_sum};
use super::gateway::Gateway;
use crate::checksum::{Algorithm, decode_md5};
use crate::conditions::precondition;
use crate::error::{GatewayError, Result};
use crate::payload::Trailers;
use crate::store::{Promise, store};
use axum::http::HeaderMap;
use bytes::Bytes;
use client::{Ack, S3_VOLUME};
use proto::om::Key;
use s3s::dto::*;

/// The words of an upload's headers about its body, beyond what the protocol layer parses.
pub(super) struct Asked {
    trailers: Option<Trailers>,
    /// The checksum that `x-amz-trailer` announces.
    announced: Option<String>,
    /// The checksum that is to be kept.
    algorithm: Option<String>,
    ack: Acknowledged,
}

impl Asked {
    pub(super) fn of(headers: &HeaderMap, trailers: Option<Trailers>) -> Asked {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        Asked {
            trailers,
            announced: text("x-amz-trailer"),
            algorithm: text("x-amz-sdk-checksum-algorithm").or_else(|| text("x-amz-checksum-algorithm")),
            ack: Acknowledged::of(headers),
        }
    }

    /// The promise that must hold for the body before anything is committed.
    pub(super) fn promise(
        &self,
        content_length: Option<i64>,
        content_md5: Option<&str>,
        sums: Sums,
    ) -> Result<Promise> {
        let in_header = sums.one()?;
        let announced = self.announced.as_deref().map(str::trim);
        let in_trailer = announced
            .and_then(|name| Algorithm::ALL.into_iter().find(|a| a.header().eq_ignore_ascii_case(name)));
        let named = self.algorithm.as_deref().map(Algorithm::parse).transpose()?;
        let (algorithm, sum) = match (in_header, in_trailer, named) {
            (Some(_), Some(_), _) => return Err(more_than_one_sum()),
            (Some((sent, _)), None, Some(named)) | (None, Some(sent), Some(named)) if sent != named => {
                let why = "Value for x-amz-sdk-checksum-algorithm header is invalid.";
                return Err(GatewayError::InvalidRequest(why.to_owned()));
            }
            (Some((algorithm, sum)), None, _) => (algorithm, Some(sum)),
            (None, Some(algorithm), _) => (algorithm, None),
            (None, None, Some(named)) => (named, None),
            (None, None, None) => (Algorithm::DEFAULT, None),
        };
        let length = content_length.and_then(|bytes| u64::try_from(bytes).ok());
        Ok(Promise {
            bytes: length,
            md5: content_md5.map(decode_md5).transpose()?,
            algorithm,
            sum_in_trailer: sum.is_none() && in_trailer.is_some(),
            sum,
            ack: self.ack.asked()?,
        })
    }

    /// A trailer's value, once the body has ended.
    pub(super) fn trailer(&self, name: &str) -> Option<String> {
        self.trailers.as_ref()?.get(name).map(str::to_owned)
    }
}

/// Refuses to give access to single objects or buckets; an ACL that says that only the owner has access is
/// true.
pub(super) fn check_acl(acl: Option<&str>) -> Result<()> {
    match acl {
        None | Some("private" | "bucket-owner-full-control") => Ok(()),
        Some(_) => Err(GatewayError::NoAcls),
    }
}

/// The body of an upload; a missing one is empty.
pub(super) fn body(body: Option<StreamingBlob>) -> StreamingBlob {
    body.unwrap_or_else(|| {
        StreamingBlob::wrap::<_, std::io::Error>(futures::stream::empty::<
            std::result::Result<Bytes, std::io::Error>,
        >())
    })
}

impl Gateway {
    pub(super) async fn object_put(
        &self,
        input: PutObjectInput,
        asked: Asked,
    ) -> Result<(PutObjectOutput, Ack)> {
        check_acl(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
        check_storage_class(input.storage_class.as_ref())?;
        let precondition = precondition(matches(input.if_match), matches(input.if_none_match))?;
        let sums = Sums {
            crc32: input.checksum_crc32,
            crc32c: input.checksum_crc32c,
            crc64nvme: input.checksum_crc64nvme,
            sha1: input.checksum_sha1,
            sha256: input.checksum_sha256,
            kind: None,
        };
        let md5 = input.content_md5.as_deref();
        let promise = asked.promise(input.content_length, md5, sums)?;
        let described = Described {
            content_type: input.content_type,
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            expires: input.expires,
            metadata: input.metadata,
        };
        let mut attributes = described.attributes()?;
        // OM is asked before the bytes travel; the commit decides.
        if !self.seen_buckets.has(&input.bucket) {
            self.client.head_bucket(S3_VOLUME, &input.bucket).await?;
            self.seen_buckets.see(&input.bucket);
        }

        let stored = store(&self.client, body(input.body), promise, |name| asked.trailer(name)).await?;
        let sums = Sums::of(Some(&stored.checksum));
        attributes.checksum = Some(stored.checksum);
        let md5_hex = stored.written.etag();
        let (size, reached) = (stored.written.size, stored.written.reached);
        let key = Key {
            key: input.key.into_bytes().into(),
            size,
            etag: md5_hex.clone(),
            attributes: Some(attributes),
            pieces: stored.written.pieces,
            ..Key::default()
        };
        let committed = self.client.commit_key(S3_VOLUME, &input.bucket, key, precondition).await;
        if committed.is_err() {
            self.seen_buckets.forget(&input.bucket);
        }
        committed?;
        let output = PutObjectOutput {
            e_tag: Some(etag(&md5_hex)),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            checksum_type: sums.kind,
            ..Default::default()
        };
        Ok((output, reached))
    }
}

/// Refuses any other storage class than the one there is: three copies.
pub(super) fn check_storage_class(class: Option<&StorageClass>) -> Result<()> {
    match class.map(StorageClass::as_str) {
        None | Some("STANDARD") => Ok(()),
        Some(_) => Err(GatewayError::InvalidStorageClass),
    }
}
