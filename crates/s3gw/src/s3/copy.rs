use super::convert::{Described, Sums, conditions, etag, timestamp};
use super::gateway::Gateway;
use super::put::{check_acl, check_storage_class};
use crate::checksum::Algorithm;
use crate::error::{GatewayError, Result};
use crate::store::{Promise, Stored, store};
use client::{Ack, S3_VOLUME};
use futures::TryStreamExt;
use proto::om::{Key, Precondition};
use s3s::dto::*;
use std::ops::Range as ByteRange;

/// The most bytes that a single copy moves, as in S3; more goes by parts.
const COPY_BYTES_MAX: u64 = 5 << 30;

impl Gateway {
    /// Copies an object. Its bytes are read and written again: keys do not share blocks yet.
    pub(super) async fn object_copy(
        &self,
        input: CopyObjectInput,
        precondition: Option<Precondition>,
        ack: Ack,
    ) -> Result<(CopyObjectOutput, Ack)> {
        check_storage_class(input.storage_class.as_ref())?;
        check_acl(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
        let (bucket, name) = parse_source(&input.copy_source)?;
        let source = self.key(bucket, name, version(&input.copy_source)).await?;
        let wanted = conditions(
            input.copy_source_if_match,
            input.copy_source_if_none_match,
            input.copy_source_if_modified_since,
            input.copy_source_if_unmodified_since,
        );
        wanted.check_source(&source)?;
        if source.size > COPY_BYTES_MAX {
            let why = "The specified copy source is larger than the maximum allowable size for a copy source: 5368709120";
            return Err(GatewayError::InvalidRequest(why.to_owned()));
        }
        let replace = match input.metadata_directive.as_ref().map(MetadataDirective::as_str) {
            None | Some(MetadataDirective::COPY) => false,
            Some(MetadataDirective::REPLACE) => true,
            Some(_) => return Err(GatewayError::InvalidArgument("Unknown metadata directive.".to_owned())),
        };
        if !replace && bucket == input.bucket && name == input.key {
            let why = "This copy request is illegal because it is trying to copy an object to itself without changing \
                       the object's metadata, storage class, website redirect location or encryption attributes.";
            return Err(GatewayError::InvalidRequest(why.to_owned()));
        }
        self.client.head_bucket(S3_VOLUME, &input.bucket).await?;

        let mut attributes = source.attributes.clone().unwrap_or_default();
        let kept = attributes.checksum.take();
        if replace {
            let described = Described {
                content_type: input.content_type,
                cache_control: input.cache_control,
                content_disposition: input.content_disposition,
                content_encoding: input.content_encoding,
                content_language: input.content_language,
                expires: input.expires,
                metadata: input.metadata,
            };
            attributes = described.attributes()?;
        }
        let named = input.checksum_algorithm.as_ref().map(|algorithm| algorithm.as_str().to_owned());
        let algorithm = match named.or(kept.map(|checksum| checksum.algorithm)) {
            Some(name) => Algorithm::parse(&name)?,
            None => Algorithm::DEFAULT,
        };
        let size = source.size;
        let stored = self.store_copy(&source, 0..size, algorithm, ack).await?;
        let sums = Sums::of(Some(&stored.checksum));
        attributes.checksum = Some(stored.checksum);
        let (md5_hex, reached) = (stored.written.etag(), stored.written.reached);
        let key = Key {
            key: input.key.into_bytes().into(),
            size: stored.written.size,
            etag: md5_hex.clone(),
            attributes: Some(attributes),
            pieces: stored.written.pieces,
            ..Key::default()
        };
        let modified_ms = self.client.commit_key(S3_VOLUME, &input.bucket, key, precondition).await?;
        let result = CopyObjectResult {
            e_tag: Some(etag(&md5_hex)),
            last_modified: Some(timestamp(modified_ms)),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            checksum_type: sums.kind,
        };
        Ok((CopyObjectOutput { copy_object_result: Some(result), ..Default::default() }, reached))
    }

    /// Streams a range of a key into new blocks.
    pub(super) async fn store_copy(
        &self,
        source: &Key,
        range: ByteRange<u64>,
        algorithm: Algorithm,
        ack: Ack,
    ) -> Result<Stored> {
        let bytes = Some(range.end - range.start);
        let promise = Promise { bytes, md5: None, algorithm, sum: None, sum_in_trailer: false, ack };
        let body = self.client.read(&source.pieces, range).map_err(|error| error.into()); // boxed
        store(&self.client, Box::pin(body), promise, |_| None).await
    }
}

/// Bucket and key of a copy's source.
pub(super) fn parse_source(source: &CopySource) -> Result<(&str, &str)> {
    match source {
        CopySource::Bucket { bucket, key, .. } => Ok((bucket, key)),
        _ => Err(GatewayError::NotImplemented("A copy source that is no bucket")),
    }
}

pub(super) fn version(source: &CopySource) -> Option<&str> {
    match source {
        CopySource::Bucket { version_id, .. } => version_id.as_deref(),
        _ => None,
    }
}
