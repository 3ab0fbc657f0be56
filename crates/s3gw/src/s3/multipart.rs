use super::buckets::owner;
use super::convert::{
    Described, Sums, checksum_algorithm, checksum_type, conditions, etag, key_text, matches, timestamp,
};
use super::copy::{parse_source, version};
use super::gateway::Gateway;
use super::get::signed;
use super::list::Names;
use super::put::{Asked, body, check_acl, check_storage_class};
use crate::checksum::{Algorithm, Kind, of_parts};
use crate::conditions::precondition;
use crate::error::{GatewayError, Result};
use crate::page::{limit, url_encode};
use crate::store::{Stored, checksum, store};
use bytes::Bytes;
use client::{Ack, ClientError, S3_VOLUME};
use md5::{Digest, Md5};
use proto::Code;
use proto::om::{self, Checksum, KeyAttributes};
use s3s::dto::*;
use std::collections::BTreeMap;

const PAGE: u32 = 1000;

impl Gateway {
    pub(super) async fn upload_create(
        &self,
        input: CreateMultipartUploadInput,
    ) -> Result<CreateMultipartUploadOutput> {
        check_storage_class(input.storage_class.as_ref())?;
        check_acl(input.acl.as_ref().map(ObjectCannedACL::as_str))?;
        let described = Described {
            content_type: input.content_type,
            cache_control: input.cache_control,
            content_disposition: input.content_disposition,
            content_encoding: input.content_encoding,
            content_language: input.content_language,
            expires: input.expires,
            metadata: input.metadata,
        };
        let asked = match &input.checksum_algorithm {
            Some(algorithm) => {
                let algorithm = Algorithm::parse(algorithm.as_str())?;
                Some((algorithm, parse_kind(input.checksum_type.as_ref(), algorithm)?))
            }
            None => None,
        };
        let (algorithm, kind) = asked.unwrap_or((Algorithm::DEFAULT, Kind::FullObject));
        let mut attributes = described.attributes()?;
        // The upload keeps which checksum the object will have; its value is known at the end.
        attributes.checksum = Some(checksum(algorithm, kind, String::new()));
        let request = om::CreateUploadRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: input.bucket.clone(),
            key: Bytes::copy_from_slice(input.key.as_bytes()),
            attributes: Some(attributes),
        };
        let upload = self.client.create_upload(request).await?;
        Ok(CreateMultipartUploadOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(upload),
            checksum_algorithm: asked.map(|(algorithm, _)| checksum_algorithm(algorithm)),
            checksum_type: asked.map(|(_, kind)| checksum_type(kind)),
            ..Default::default()
        })
    }

    pub(super) async fn part_put(
        &self,
        input: UploadPartInput,
        asked: Asked,
    ) -> Result<(UploadPartOutput, Ack)> {
        let number = part_number(input.part_number)?;
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
        // OM is asked before the bytes travel; the commit decides.
        self.parts_page(&input.bucket, &input.key, &input.upload_id, 0, 1).await?;
        let stored = store(&self.client, body(input.body), promise, |name| asked.trailer(name)).await?;
        let sums = Sums::of(Some(&stored.checksum));
        let (md5_hex, reached) = (stored.written.etag(), stored.written.reached);
        self.commit_part(&input.bucket, &input.key, &input.upload_id, number, stored).await?;
        let output = UploadPartOutput {
            e_tag: Some(etag(&md5_hex)),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            ..Default::default()
        };
        Ok((output, reached))
    }

    pub(super) async fn part_copy(
        &self,
        input: UploadPartCopyInput,
        ack: Ack,
    ) -> Result<(UploadPartCopyOutput, Ack)> {
        let number = part_number(input.part_number)?;
        let (bucket, name) = parse_source(&input.copy_source)?;
        let source = self.key(bucket, name, version(&input.copy_source)).await?;
        let wanted = conditions(
            input.copy_source_if_match,
            input.copy_source_if_none_match,
            input.copy_source_if_modified_since,
            input.copy_source_if_unmodified_since,
        );
        wanted.check_source(&source)?;
        let range = match &input.copy_source_range {
            None => 0..source.size,
            Some(text) => copy_range(text, source.size)?,
        };
        let upload = self.parts_page(&input.bucket, &input.key, &input.upload_id, 0, 1).await?;
        let (algorithm, _) = upload_checksum(upload.attributes.as_ref());
        let stored = self.store_copy(&source, range, algorithm, ack).await?;
        let sums = Sums::of(Some(&stored.checksum));
        let (md5_hex, reached) = (stored.written.etag(), stored.written.reached);
        let modified_ms =
            self.commit_part(&input.bucket, &input.key, &input.upload_id, number, stored).await?;
        let result = CopyPartResult {
            e_tag: Some(etag(&md5_hex)),
            last_modified: Some(timestamp(modified_ms)),
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
        };
        Ok((UploadPartCopyOutput { copy_part_result: Some(result), ..Default::default() }, reached))
    }

    async fn commit_part(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        number: u32,
        stored: Stored,
    ) -> Result<u64> {
        let part = om::Part {
            number,
            size: stored.written.size,
            etag: stored.written.etag(),
            modified_ms: 0,
            pieces: stored.written.pieces,
            checksum: Some(stored.checksum),
        };
        let request = om::CommitPartRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: bucket.to_owned(),
            key: Bytes::copy_from_slice(key.as_bytes()),
            upload: upload.to_owned(),
            part: Some(part),
        };
        Ok(self.client.commit_part(request).await?)
    }

    pub(super) async fn upload_complete(
        &self,
        input: CompleteMultipartUploadInput,
        host: &str,
    ) -> Result<CompleteMultipartUploadOutput> {
        let precondition = precondition(matches(input.if_match), matches(input.if_none_match))?;
        let named = input.multipart_upload.and_then(|upload| upload.parts).unwrap_or_default();
        if named.is_empty() {
            return Err(GatewayError::MalformedXml);
        }
        let mut parts = Vec::with_capacity(named.len());
        for part in &named {
            let number = part_number(part.part_number.ok_or(GatewayError::MalformedXml)?)?;
            let etag = part.e_tag.clone().ok_or(GatewayError::MalformedXml)?.into_value();
            parts.push(om::CompletedPart { number, etag });
        }
        let promised = Sums {
            crc32: input.checksum_crc32,
            crc32c: input.checksum_crc32c,
            crc64nvme: input.checksum_crc64nvme,
            sha1: input.checksum_sha1,
            sha256: input.checksum_sha256,
            kind: None,
        };
        let promised = promised.one()?;
        let uploaded = self.upload_parts(&input.bucket, &input.key, &input.upload_id).await;
        let checksum = match uploaded {
            Ok((attributes, uploaded)) => {
                check_named_kind(input.checksum_type.as_ref(), &attributes)?;
                check_named(&named, &uploaded)?;
                let size: u64 =
                    parts.iter().filter_map(|part| uploaded.get(&part.number)).map(|part| part.size).sum();
                if input.mpu_object_size.is_some_and(|asked| asked != signed(size)) {
                    let why = format!("The parts have {size} bytes, x-amz-mp-object-size says otherwise.");
                    return Err(GatewayError::InvalidRequest(why));
                }
                whole_checksum(&attributes, &parts, &uploaded, promised)?
            }
            Err(error) => {
                let key =
                    self.completed_before(&input.bucket, &input.key, &input.upload_id, &parts, error).await?;
                return Ok(completed(host, input.bucket, input.key, &key));
            }
        };
        let request = om::CompleteUploadRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: input.bucket.clone(),
            key: Bytes::copy_from_slice(input.key.as_bytes()),
            upload: input.upload_id,
            parts,
            precondition,
            checksum,
        };
        let (upload, named) = (request.upload.clone(), request.parts.clone());
        let key = match self.client.complete_upload(request).await {
            Ok(key) => key,
            Err(error) => {
                self.completed_before(&input.bucket, &input.key, &upload, &named, error.into()).await?
            }
        };
        Ok(completed(host, input.bucket, input.key, &key))
    }

    /// Returns the object that the upload has already become, of these parts: an upload is gone once it is
    /// completed, and a client that did not hear so asks again. In any other case it returns `error`, with
    /// which OM refused.
    async fn completed_before(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        parts: &[om::CompletedPart],
        error: GatewayError,
    ) -> Result<om::Key> {
        let is_gone = matches!(&error, GatewayError::Client(ClientError::Refused(why)) if why.code == Code::NoSuchUpload);
        if !is_gone {
            return Err(error);
        }
        match self.client.lookup(S3_VOLUME, bucket, key.as_bytes()).await {
            Ok(found) if found.upload == upload && parts_etag(parts).as_ref() == Some(&found.etag) => {
                Ok(found)
            }
            _ => Err(error),
        }
    }

    /// Returns all parts of an upload, read a page at a time.
    async fn upload_parts(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
    ) -> Result<(KeyAttributes, BTreeMap<u32, om::Part>)> {
        let (mut all, mut after) = (BTreeMap::new(), 0);
        loop {
            let page = self.parts_page(bucket, key, upload, after, PAGE).await?;
            after = page.parts.last().map_or(after, |part| part.number);
            all.extend(page.parts.into_iter().map(|part| (part.number, part)));
            if !page.truncated {
                return Ok((page.attributes.unwrap_or_default(), all));
            }
        }
    }

    async fn parts_page(
        &self,
        bucket: &str,
        key: &str,
        upload: &str,
        after: u32,
        limit: u32,
    ) -> Result<om::ListPartsResponse> {
        let request = om::ListPartsRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: bucket.to_owned(),
            key: Bytes::copy_from_slice(key.as_bytes()),
            upload: upload.to_owned(),
            after,
            limit,
        };
        Ok(self.client.list_parts(request).await?)
    }

    pub(super) async fn upload_abort(
        &self,
        input: AbortMultipartUploadInput,
    ) -> Result<AbortMultipartUploadOutput> {
        let request = om::AbortUploadRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: input.bucket,
            key: Bytes::from(input.key),
            upload: input.upload_id,
        };
        self.client.abort_upload(request).await?;
        Ok(AbortMultipartUploadOutput::default())
    }

    pub(super) async fn parts_list(&self, input: ListPartsInput) -> Result<ListPartsOutput> {
        let max_parts = limit(input.max_parts, "max-parts")?;
        let marker = input.part_number_marker.unwrap_or(0);
        let after = u32::try_from(marker).map_err(|_| {
            GatewayError::InvalidArgument("part-number-marker must not be negative".to_owned())
        })?;
        let mut page =
            self.parts_page(&input.bucket, &input.key, &input.upload_id, after, max_parts.max(1)).await?;
        // A client may ask for a page of no parts, which OM does not take: one is asked for, and the answer
        // is an empty, last page.
        if max_parts == 0 {
            page.parts.clear();
            page.truncated = false;
        }
        let (algorithm, kind) = upload_checksum(page.attributes.as_ref());
        let next = page.parts.last().map(|part| part.number as i32); // at most 10 000
        let parts = page.parts.into_iter().map(|part| {
            let sums = Sums::of(part.checksum.as_ref());
            Part {
                part_number: Some(part.number as i32), // at most 10 000
                e_tag: Some(etag(&part.etag)),
                last_modified: Some(timestamp(part.modified_ms)),
                size: Some(signed(part.size)),
                checksum_crc32: sums.crc32,
                checksum_crc32c: sums.crc32c,
                checksum_crc64nvme: sums.crc64nvme,
                checksum_sha1: sums.sha1,
                checksum_sha256: sums.sha256,
            }
        });
        Ok(ListPartsOutput {
            bucket: Some(input.bucket),
            key: Some(input.key),
            upload_id: Some(input.upload_id),
            parts: Some(parts.collect()),
            is_truncated: Some(page.truncated),
            max_parts: Some(max_parts as i32), // at most 1000
            part_number_marker: Some(marker),
            next_part_number_marker: next,
            owner: Some(owner()),
            checksum_algorithm: Some(checksum_algorithm(algorithm)),
            checksum_type: Some(checksum_type(kind)),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            ..Default::default()
        })
    }

    pub(super) async fn uploads_list(
        &self,
        input: ListMultipartUploadsInput,
    ) -> Result<ListMultipartUploadsOutput> {
        if input.delimiter.is_some() {
            return Err(GatewayError::NotImplemented("Listing multipart uploads with a delimiter"));
        }
        let names = Names::of(input.encoding_type.as_ref())?;
        let max_uploads = limit(input.max_uploads, "max-uploads")?;
        let request = om::ListUploadsRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: input.bucket.clone(),
            prefix: Bytes::copy_from_slice(input.prefix.as_deref().unwrap_or_default().as_bytes()),
            after_key: Bytes::copy_from_slice(input.key_marker.as_deref().unwrap_or_default().as_bytes()),
            after_upload: input.upload_id_marker.clone().unwrap_or_default(),
            limit: max_uploads.max(1),
        };
        let mut page = self.client.list_uploads(request).await?;
        if max_uploads == 0 {
            page.uploads.clear();
            page.truncated = false;
        }
        let last = page.uploads.last().filter(|_| page.truncated);
        let (next_key, next_upload) =
            last.map(|last| (names.show(&key_text(&last.key)), last.upload.clone())).unzip();
        let uploads = page.uploads.iter().map(|upload| {
            let (algorithm, kind) = upload_checksum(upload.attributes.as_ref());
            MultipartUpload {
                key: Some(names.show(&key_text(&upload.key))),
                upload_id: Some(upload.upload.clone()),
                initiated: Some(timestamp(upload.created_ms)),
                owner: Some(owner()),
                checksum_algorithm: Some(checksum_algorithm(algorithm)),
                checksum_type: Some(checksum_type(kind)),
                storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
                ..Default::default()
            }
        });
        Ok(ListMultipartUploadsOutput {
            bucket: Some(input.bucket),
            uploads: Some(uploads.collect()),
            is_truncated: Some(page.truncated),
            max_uploads: Some(max_uploads as i32), // at most 1000
            prefix: names.show_all(input.prefix),
            key_marker: names.show_all(input.key_marker),
            encoding_type: input.encoding_type,
            upload_id_marker: input.upload_id_marker,
            next_key_marker: next_key,
            next_upload_id_marker: next_upload,
            ..Default::default()
        })
    }
}

fn completed(host: &str, bucket: String, name: String, key: &om::Key) -> CompleteMultipartUploadOutput {
    let sums = Sums::of(key.attributes.as_ref().and_then(|attributes| attributes.checksum.as_ref()));
    CompleteMultipartUploadOutput {
        location: Some(format!("http://{host}/{bucket}/{}", url_encode(&name))),
        bucket: Some(bucket),
        key: Some(name),
        e_tag: Some(etag(&key.etag)),
        checksum_crc32: sums.crc32,
        checksum_crc32c: sums.crc32c,
        checksum_crc64nvme: sums.crc64nvme,
        checksum_sha1: sums.sha1,
        checksum_sha256: sums.sha256,
        checksum_type: sums.kind,
        ..Default::default()
    }
}

/// The ETag of an object of these parts: the MD5 of their MD5s, and how many they are.
fn parts_etag(parts: &[om::CompletedPart]) -> Option<String> {
    let mut md5 = Md5::new();
    for part in parts {
        let digits = part.etag.as_bytes();
        let digit = |byte: u8| (byte as char).to_digit(16).map(|digit| digit as u8);
        let bytes = digits.chunks(2).map(|pair| Some(digit(pair[0])? << 4 | digit(*pair.get(1)?)?));
        md5.update(bytes.collect::<Option<Vec<u8>>>().filter(|bytes| bytes.len() == 16)?);
    }
    let hex: String = md5.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    Some(format!("{hex}-{}", parts.len()))
}

/// A kind of checksum that is named at the end must be the one that the upload was begun with.
fn check_named_kind(named: Option<&ChecksumType>, attributes: &KeyAttributes) -> Result<()> {
    let (_, kind) = upload_checksum(Some(attributes));
    if named.is_none_or(|named| *named == checksum_type(kind)) {
        return Ok(());
    }
    let why = "The upload was begun with another checksum type than x-amz-checksum-type names.";
    Err(GatewayError::InvalidRequest(why.to_owned()))
}

fn part_number(number: i32) -> Result<u32> {
    let valid = u32::try_from(number).ok().filter(|number| (1..=10_000).contains(number));
    valid.ok_or_else(|| {
        GatewayError::InvalidArgument(
            "Part number must be an integer between 1 and 10000, inclusive".to_owned(),
        )
    })
}

fn parse_kind(kind: Option<&ChecksumType>, algorithm: Algorithm) -> Result<Kind> {
    let kind = match kind.map(ChecksumType::as_str) {
        None => algorithm.default_kind(),
        Some(ChecksumType::FULL_OBJECT) => Kind::FullObject,
        Some(ChecksumType::COMPOSITE) => Kind::Composite,
        Some(_) => {
            return Err(GatewayError::InvalidRequest(
                "Value for x-amz-checksum-type header is invalid.".to_owned(),
            ));
        }
    };
    if algorithm.allows(kind) {
        return Ok(kind);
    }
    let name = algorithm.name().to_lowercase();
    let why = format!(
        "The {} checksum type cannot be used with the {name} checksum algorithm.",
        checksum_type(kind).as_str()
    );
    Err(GatewayError::InvalidRequest(why))
}

/// The checksum that an upload was begun with.
fn upload_checksum(attributes: Option<&KeyAttributes>) -> (Algorithm, Kind) {
    let checksum = attributes.and_then(|attributes| attributes.checksum.as_ref());
    let parsed = checksum
        .and_then(|checksum| Some((Algorithm::parse(&checksum.algorithm).ok()?, checksum.full_object)));
    match parsed {
        Some((algorithm, true)) => (algorithm, Kind::FullObject),
        Some((algorithm, false)) => (algorithm, Kind::Composite),
        None => (Algorithm::DEFAULT, Kind::FullObject),
    }
}

/// Refuses checksums that the client names for parts, where they are not those of what it sent.
fn check_named(named: &[CompletedPart], uploaded: &BTreeMap<u32, om::Part>) -> Result<()> {
    for part in named {
        let sums = Sums {
            crc32: part.checksum_crc32.clone(),
            crc32c: part.checksum_crc32c.clone(),
            crc64nvme: part.checksum_crc64nvme.clone(),
            sha1: part.checksum_sha1.clone(),
            sha256: part.checksum_sha256.clone(),
            kind: None,
        };
        let number = part.part_number.and_then(|number| u32::try_from(number).ok());
        let found = number.and_then(|number| uploaded.get(&number)).and_then(|part| part.checksum.as_ref());
        if let (Some((algorithm, sum)), Some(found)) = (sums.one()?, found)
            && (found.algorithm != algorithm.name() || found.value != sum)
        {
            return Err(GatewayError::InvalidPart);
        }
    }
    Ok(())
}

/// The object's checksum from its parts'. Parts that were sent with another algorithm leave it without one.
fn whole_checksum(
    attributes: &KeyAttributes,
    parts: &[om::CompletedPart],
    uploaded: &BTreeMap<u32, om::Part>,
    promised: Option<(Algorithm, String)>,
) -> Result<Option<Checksum>> {
    let (algorithm, kind) = upload_checksum(Some(attributes));
    let sum_of = |part: &om::CompletedPart| {
        let part = uploaded.get(&part.number)?;
        let sum = part.checksum.as_ref().filter(|sum| sum.algorithm == algorithm.name())?;
        Some((sum.value.clone(), part.size))
    };
    let sums: Option<Vec<(String, u64)>> = parts.iter().map(sum_of).collect();
    let computed = sums.map(|sums| of_parts(algorithm, kind, &sums)).transpose()?;
    // A sum of sums is named with the number of parts behind it, or, by minio-go, without.
    let is_right = |sum: &str| {
        computed
            .as_ref()
            .is_some_and(|whole| sum == whole || whole.split_once('-').is_some_and(|(of, _)| sum == of))
    };
    if let Some((named, sum)) = promised
        && (named != algorithm || !is_right(&sum))
    {
        return Err(GatewayError::BadDigest { what: named.name().to_owned() });
    }
    Ok(computed.map(|value| checksum(algorithm, kind, value)))
}

/// Reads an `x-amz-copy-source-range`, which names a first and a last byte, both within the source.
pub(super) fn copy_range(text: &str, size: u64) -> Result<std::ops::Range<u64>> {
    let bad = || {
        GatewayError::InvalidArgument(
            "The x-amz-copy-source-range value must be of the form bytes=first-last where first and last are the \
             zero-based offsets of the first and last bytes to copy"
                .to_owned(),
        )
    };
    match Range::parse(text) {
        Ok(Range::Int { first, last: Some(last) }) if first <= last => {
            if last < size {
                Ok(first..last + 1)
            } else {
                Err(GatewayError::InvalidRange { size })
            }
        }
        _ => Err(bad()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_the_etag_that_om_gives_them() {
        let part = |digit: &str| om::CompletedPart { number: 1, etag: digit.repeat(32) };
        assert_eq!(parts_etag(&[part("a"), part("b")]).unwrap(), "8039a288fc27346c4ebd08f17995e8bc-2");
        assert_eq!(parts_etag(&[om::CompletedPart { number: 1, etag: "nonsense".to_owned() }]), None);
    }

    #[test]
    fn copy_ranges_name_both_ends() {
        assert_eq!(copy_range("bytes=0-4", 10).unwrap(), 0..5);
        assert_eq!(copy_range("bytes=9-9", 10).unwrap(), 9..10);
        for wrong in ["bytes=0-10", "bytes=5-", "bytes=-5", "0-4"] {
            assert!(copy_range(wrong, 10).is_err(), "{wrong}");
        }
    }

    #[test]
    fn parts_of_another_algorithm_leave_the_object_without_a_checksum() {
        let attributes = KeyAttributes {
            checksum: Some(checksum(Algorithm::Crc32, Kind::FullObject, String::new())),
            ..Default::default()
        };
        let part = |algorithm| om::Part {
            number: 1,
            size: 9,
            checksum: Some(checksum(algorithm, Kind::FullObject, "y/Q5Jg==".to_owned())),
            ..Default::default()
        };
        let named = [om::CompletedPart { number: 1, etag: String::new() }];
        let whole = |algorithm, promised| {
            whole_checksum(&attributes, &named, &BTreeMap::from([(1, part(algorithm))]), promised)
        };
        assert_eq!(whole(Algorithm::Crc32, None).unwrap().unwrap().value, "y/Q5Jg==");
        assert_eq!(whole(Algorithm::Crc32c, None).unwrap(), None);
        assert!(whole(Algorithm::Crc32, Some((Algorithm::Crc32, "AAAAAA==".to_owned()))).is_err());
    }

    #[test]
    fn a_sum_of_sums_may_be_named_without_the_number_of_parts() {
        let attributes = KeyAttributes {
            checksum: Some(checksum(Algorithm::Crc32c, Kind::Composite, String::new())),
            ..Default::default()
        };
        // Parts as minio-go 7.4.1 sends them: 5 and 2 MiB of `abcdefg`, again and again.
        let part = |number, mib: u64, sum: &str| om::Part {
            number,
            size: mib << 20,
            checksum: Some(checksum(Algorithm::Crc32c, Kind::FullObject, sum.to_owned())),
            ..Default::default()
        };
        let uploaded = BTreeMap::from([(1, part(1, 5, "qqs8iA==")), (2, part(2, 2, "8wiL9g=="))]);
        let named = [1, 2].map(|number| om::CompletedPart { number, etag: String::new() });
        let whole = |sum: &str| {
            whole_checksum(&attributes, &named, &uploaded, Some((Algorithm::Crc32c, sum.to_owned())))
        };
        for right in ["fXLwYA==", "fXLwYA==-2"] {
            assert_eq!(whole(right).unwrap().unwrap().value, "fXLwYA==-2");
        }
        for wrong in ["fXLwYA==-3", "fXLwYA==-", "fXLwYA", "fXLwYQ==", ""] {
            assert!(whole(wrong).is_err(), "{wrong}");
        }
    }
}
