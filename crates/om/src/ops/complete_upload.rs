//! Makes an object of an upload's parts: those the client names, in their order. The others are deleted.

use super::abort_upload::take_parts;
use super::changed_bucket::ChangedBucket;
use super::{Apply, Fresh, Operation, precondition, wire};
use crate::blocks;
use crate::rules::{KEY_PIECES_MAX, PART_BYTES_MIN, PARTS_MAX, check_key, check_volume, part_md5};
use crate::tables::{Read, Refusal, key_key, upload_existing};
use md5::{Digest, Md5};
use prost::Message;
use proto::om::{CompleteUploadRequest, CompleteUploadResponse, CompletedPart, Key, Part};
use proto::{Code, Failure};
use std::collections::BTreeMap;

pub(crate) struct CompleteUpload;

impl Operation for CompleteUpload {
    type Request = CompleteUploadRequest;
    type Command = CompleteUploadRequest;
    type Response = CompleteUploadResponse;
    wire!(CompleteUpload);

    fn prepare(request: CompleteUploadRequest, _: Fresh) -> Result<CompleteUploadRequest, Failure> {
        check_volume(&request.volume)?;
        check_key(&request.key)?;
        check_parts_ascend(&request.parts)?;
        Ok(request)
    }

    fn apply(
        apply: &mut Apply<'_, '_>,
        command: CompleteUploadRequest,
    ) -> Result<CompleteUploadResponse, Refusal> {
        let mut changed = ChangedBucket::find(apply, &command.volume, &command.bucket)?;
        let bucket = changed.number();
        let upload = upload_existing(apply.tables, bucket, &command.key, &command.upload)?;
        let table_key = key_key(bucket, &command.key);
        let existing: Option<Key> = apply.tables.message(&table_key)?;
        precondition::check(command.precondition.as_ref(), &command.key, existing.as_ref())?;
        let uploaded = take_parts(apply, bucket, &command.key, &command.upload)?;
        let Chosen { parts, unused } = choose_parts(uploaded, &command.parts)?;
        let size = check_size(&parts)?;

        // What was asked when the upload began says which checksum to keep, not its value: that is known only
        // now.
        let mut attributes = upload.attributes.unwrap_or_default();
        attributes.checksum = command.checksum;
        let key = Key {
            key: command.key,
            size,
            etag: multipart_etag(&parts)?,
            modified_ms: apply.now_ms,
            attributes: Some(attributes),
            part_sizes: parts.iter().map(|part| part.size).collect(),
            pieces: parts.into_iter().flat_map(|part| part.pieces).collect(),
            upload: command.upload,
        };
        blocks::name(apply.tables, &table_key, &key.pieces);
        apply.tables.put(table_key.clone(), key.encode_to_vec());
        changed.count(existing.as_ref(), Some(&key));
        changed.put(apply.tables);
        let unused = unused.into_iter().flat_map(|part| part.pieces);
        let replaced = unused.chain(existing.into_iter().flat_map(|existing| existing.pieces));
        apply.delete_replaced(&table_key, replaced.collect(), &key.pieces);
        // The answer is remembered, so it is without what is long.
        let key = Key { pieces: Vec::new(), part_sizes: Vec::new(), ..key };
        Ok(CompleteUploadResponse { key: Some(key) })
    }
}

fn check_parts_ascend(parts: &[CompletedPart]) -> Result<(), Failure> {
    if parts.is_empty() || parts.len() > PARTS_MAX as usize {
        return Err(Failure::invalid(format!("{} parts, it must be 1 to {PARTS_MAX}", parts.len())));
    }
    match parts.windows(2).find(|pair| pair[0].number >= pair[1].number) {
        Some(pair) => {
            let message = format!("part {} comes after part {}", pair[1].number, pair[0].number);
            Err(Failure::new(Code::InvalidPartOrder, message))
        }
        None => Ok(()),
    }
}

/// The size of the object of these parts.
fn check_size(parts: &[Part]) -> Result<u64, Failure> {
    let pieces: usize = parts.iter().map(|part| part.pieces.len()).sum();
    if pieces > KEY_PIECES_MAX {
        let message = format!("the parts have {pieces} pieces, and an object at most {KEY_PIECES_MAX}");
        return Err(Failure::new(Code::TooLarge, message));
    }
    let size = parts.iter().try_fold(0, |sum: u64, part| sum.checked_add(part.size));
    size.ok_or_else(|| Failure::invalid("the parts' sizes overflow 64 bits"))
}

struct Chosen {
    parts: Vec<Part>,
    unused: Vec<Part>,
}

/// Finds the named parts among the uploaded ones.
fn choose_parts(uploaded: Vec<Part>, named: &[CompletedPart]) -> Result<Chosen, Failure> {
    let mut uploaded: BTreeMap<u32, Part> = uploaded.into_iter().map(|part| (part.number, part)).collect();
    let mut parts = Vec::with_capacity(named.len());
    for (position, CompletedPart { number, etag }) in named.iter().enumerate() {
        let part = uploaded.remove(number);
        let part =
            part.ok_or_else(|| Failure::new(Code::InvalidPart, format!("part {number} was not uploaded")))?;
        if !part.etag.eq_ignore_ascii_case(etag) {
            let message = format!("part {number} has etag `{}`, not `{etag}`", part.etag);
            return Err(Failure::new(Code::InvalidPart, message));
        }
        if part.size < PART_BYTES_MIN && position + 1 < named.len() {
            let size = part.size;
            let message = format!("part {number} has {size} bytes; all but the last need {PART_BYTES_MIN}");
            return Err(Failure::new(Code::PartTooSmall, message));
        }
        parts.push(part);
    }
    Ok(Chosen { parts, unused: uploaded.into_values().collect() })
}

/// S3's etag of a multipart object: the MD5 of its parts' MD5s, and how many they are.
fn multipart_etag(parts: &[Part]) -> Result<String, Failure> {
    let mut md5 = Md5::new();
    for part in parts {
        md5.update(part_md5(&part.etag)?);
    }
    let digest: [u8; 16] = md5.finalize().into();
    Ok(format!("{:032x}-{}", u128::from_be_bytes(digest), parts.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, pieces};
    use crate::ops::{CommitPart, CreateUpload};
    use bytes::Bytes;
    use proto::om::{Checksum, CommitPartRequest, CreateUploadRequest, KeyAttributes, Precondition};

    const MIB: u64 = 1024 * 1024;

    fn md5_hex(data: &str) -> String {
        let digest: [u8; 16] = Md5::digest(data).into();
        format!("{:032x}", u128::from_be_bytes(digest))
    }

    /// Parts 1 to 4 of 5, 6, 7 and 1 MiB; part `n` is in container `n` and has the MD5 of `"n"`.
    fn uploaded(namespace: &mut Namespace) -> CompleteUploadRequest {
        let (volume, bucket, key) = ("s3v".to_owned(), "photos".to_owned(), Bytes::from("a"));
        let attributes = KeyAttributes { content_type: "image/png".into(), ..KeyAttributes::default() };
        let attributes = Some(attributes);
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            attributes,
        };
        let upload = namespace.run::<CreateUpload>(create).unwrap().upload;
        for (number, size) in [(1, 5 * MIB), (2, 6 * MIB), (3, 7 * MIB), (4, MIB)] {
            let etag = md5_hex(&number.to_string());
            let part = Part { number, size, etag, pieces: pieces(number.into(), size), ..Part::default() };
            let (volume, bucket, key, upload) = (volume.clone(), bucket.clone(), key.clone(), upload.clone());
            namespace
                .run::<CommitPart>(CommitPartRequest { volume, bucket, key, upload, part: Some(part) })
                .unwrap();
        }
        CompleteUploadRequest { volume, bucket, key, upload, ..CompleteUploadRequest::default() }
    }

    fn named(numbers: &[u32]) -> Vec<CompletedPart> {
        numbers.iter().map(|&number| CompletedPart { number, etag: md5_hex(&number.to_string()) }).collect()
    }

    #[test]
    fn the_named_parts_become_the_object() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 99).unwrap();
        let checksum =
            Some(Checksum { algorithm: "CRC32C".into(), value: "AAAAAA==".into(), full_object: true });
        let request = uploaded(&mut namespace);
        let request =
            CompleteUploadRequest { parts: named(&[1, 3, 4]), checksum: checksum.clone(), ..request };
        let answer = namespace.run::<CompleteUpload>(request.clone()).unwrap();

        let key = namespace.key("a").unwrap();
        assert_eq!((key.size, key.part_sizes.as_slice()), (13 * MIB, &[5 * MIB, 7 * MIB, MIB][..]));
        // md5sum of the concatenated binary MD5s of "1", "3" and "4", computed with another tool.
        assert_eq!(key.etag, "5f64e307a1d8b46388bb0041894159c8-3");
        assert_eq!(key.pieces, [pieces(1, 5 * MIB), pieces(3, 7 * MIB), pieces(4, MIB)].concat());
        let attributes = key.attributes.clone().unwrap();
        assert_eq!((attributes.content_type.as_str(), attributes.checksum), ("image/png", checksum));
        assert_eq!(answer.key.as_ref().unwrap().etag, key.etag);
        assert_eq!(namespace.deleted_containers(), [2, 99]);
        assert_eq!((namespace.records(b"u"), namespace.records(b"p")), (vec![], vec![]));

        namespace.check_refused::<CompleteUpload>(request, Code::NoSuchUpload);
    }

    #[test]
    fn parts_that_are_too_much_for_one_object_are_refused() {
        let part = |size, count: usize| Part {
            size,
            pieces: vec![pieces(1, 1).remove(0); count],
            ..Part::default()
        };
        let code = |parts: &[Part]| check_size(parts).map_err(|failure| failure.code);
        assert_eq!(code(&[part(5, 1), part(7, KEY_PIECES_MAX - 1)]), Ok(12));
        assert_eq!(code(&[part(5, 1), part(7, KEY_PIECES_MAX)]), Err(Code::TooLarge));
        assert_eq!(code(&[part(1 << 63, 1), part(1 << 63, 1)]), Err(Code::Invalid));
    }

    #[test]
    fn what_cannot_be_completed_leaves_the_upload_as_it_was() {
        let mut namespace = Namespace::new();
        let request = uploaded(&mut namespace);
        let mut check = |parts: Vec<CompletedPart>, code| {
            namespace
                .check_refused::<CompleteUpload>(CompleteUploadRequest { parts, ..request.clone() }, code);
        };
        check(vec![], Code::Invalid);
        check(named(&[2, 1]), Code::InvalidPartOrder);
        check(named(&[1, 1]), Code::InvalidPartOrder);
        check(named(&[1, 5]), Code::InvalidPart);
        check(vec![CompletedPart { number: 1, etag: md5_hex("2") }], Code::InvalidPart);
        let mut with_small = named(&[4, 5]);
        with_small[1].etag.clear();
        check(with_small, Code::PartTooSmall);
        let precondition = Some(Precondition { etag: Some("x".into()), ..Precondition::default() });
        let conditional = CompleteUploadRequest { parts: named(&[1]), precondition, ..request.clone() };
        namespace.check_refused::<CompleteUpload>(conditional, Code::NoSuchKey);
        let elsewhere = CompleteUploadRequest { parts: named(&[1]), bucket: "music".into(), ..request };
        namespace.check_refused::<CompleteUpload>(elsewhere, Code::NoSuchBucket);
    }
}
