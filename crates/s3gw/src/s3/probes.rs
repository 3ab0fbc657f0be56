//! Probes: what clients ask a bucket or an object about itself before they use it, answered by one that has
//! none of it: no versions, policies, tags, rules, and nobody but its owner.

use super::buckets::owner;
use super::convert::{Sums, etag, timestamp};
use super::gateway::Gateway;
use super::get::signed;
use crate::error::{GatewayError, Result};
use client::S3_VOLUME;
use proto::om::Key;
use s3s::dto::*;

/// The most parts of an object that one answer lists.
const PARTS_MAX: i32 = 1000;

/// A thing that an ordinary bucket does not have, and how S3 says so.
#[derive(Clone, Copy)]
pub(super) enum Lacking {
    Cors,
    Encryption,
    Lifecycle,
    ObjectLock,
    Policy,
    PublicAccessBlock,
    Replication,
    Tags,
    Website,
}

impl Lacking {
    fn error(self) -> GatewayError {
        let (code, message) = match self {
            Lacking::Cors => ("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
            Lacking::Encryption => (
                "ServerSideEncryptionConfigurationNotFoundError",
                "The server side encryption configuration was not found",
            ),
            Lacking::Lifecycle => {
                ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist")
            }
            Lacking::ObjectLock => (
                "ObjectLockConfigurationNotFoundError",
                "Object Lock configuration does not exist for this bucket",
            ),
            Lacking::Policy => ("NoSuchBucketPolicy", "The bucket policy does not exist"),
            Lacking::PublicAccessBlock => (
                "NoSuchPublicAccessBlockConfiguration",
                "The public access block configuration was not found",
            ),
            Lacking::Replication => {
                ("ReplicationConfigurationNotFoundError", "The replication configuration was not found")
            }
            Lacking::Tags => ("NoSuchTagSet", "The TagSet does not exist"),
            Lacking::Website => {
                ("NoSuchWebsiteConfiguration", "The specified bucket does not have a website configuration")
            }
        };
        GatewayError::refused(code, 404, message)
    }
}

impl Gateway {
    /// The answer of a bucket that is there and has nothing to say.
    pub(super) async fn of_bucket<T>(&self, bucket: &str, answer: T) -> Result<T> {
        self.client.head_bucket(S3_VOLUME, bucket).await?;
        Ok(answer)
    }

    pub(super) async fn lacks<T>(&self, bucket: &str, what: Lacking) -> Result<T> {
        self.client.head_bucket(S3_VOLUME, bucket).await?;
        Err(what.error())
    }

    pub(super) async fn bucket_acl(&self, input: GetBucketAclInput) -> Result<GetBucketAclOutput> {
        let acl = GetBucketAclOutput { grants: Some(grants()), owner: Some(owner()) };
        self.of_bucket(&input.bucket, acl).await
    }

    pub(super) async fn bucket_ownership(&self, bucket: &str) -> Result<GetBucketOwnershipControlsOutput> {
        let enforced = ObjectOwnership::from_static(ObjectOwnership::BUCKET_OWNER_ENFORCED);
        let rules = vec![OwnershipControlsRule { object_ownership: enforced }];
        let ownership_controls = Some(OwnershipControls { rules });
        self.of_bucket(bucket, GetBucketOwnershipControlsOutput { ownership_controls }).await
    }

    pub(super) async fn bucket_payer(&self, bucket: &str) -> Result<GetBucketRequestPaymentOutput> {
        let payer = Some(Payer::from_static(Payer::BUCKET_OWNER));
        self.of_bucket(bucket, GetBucketRequestPaymentOutput { payer }).await
    }

    pub(super) async fn object_acl(&self, input: GetObjectAclInput) -> Result<GetObjectAclOutput> {
        self.key(&input.bucket, &input.key, input.version_id.as_deref()).await?;
        Ok(GetObjectAclOutput { grants: Some(grants()), owner: Some(owner()), ..Default::default() })
    }

    pub(super) async fn object_tags(&self, input: GetObjectTaggingInput) -> Result<GetObjectTaggingOutput> {
        self.key(&input.bucket, &input.key, input.version_id.as_deref()).await?;
        Ok(GetObjectTaggingOutput { tag_set: Vec::new(), version_id: None })
    }

    pub(super) async fn object_attributes(
        &self,
        input: GetObjectAttributesInput,
    ) -> Result<GetObjectAttributesOutput> {
        let asked = attributes(&input.object_attributes)?;
        let key = self.key(&input.bucket, &input.key, input.version_id.as_deref()).await?;
        let has = |attribute: &str| asked.contains(&attribute);
        let kept = key.attributes.as_ref().and_then(|attributes| attributes.checksum.as_ref());
        let sums = Sums::of(kept);
        let checksum = (has(ObjectAttributes::CHECKSUM) && sums.kind.is_some()).then_some(Checksum {
            checksum_crc32: sums.crc32,
            checksum_crc32c: sums.crc32c,
            checksum_crc64nvme: sums.crc64nvme,
            checksum_sha1: sums.sha1,
            checksum_sha256: sums.sha256,
            checksum_type: sums.kind,
        });
        let parts = has(ObjectAttributes::OBJECT_PARTS) && !key.part_sizes.is_empty();
        let object_parts =
            parts.then(|| object_parts(&key, input.part_number_marker, input.max_parts)).transpose()?;
        Ok(GetObjectAttributesOutput {
            checksum,
            // The quotes around it are taken away in `xml::mend`.
            e_tag: has(ObjectAttributes::ETAG).then(|| etag(&key.etag)),
            last_modified: Some(timestamp(key.modified_ms)),
            object_parts,
            object_size: has(ObjectAttributes::OBJECT_SIZE).then(|| signed(key.size)),
            storage_class: has(ObjectAttributes::STORAGE_CLASS)
                .then(|| StorageClass::from_static(StorageClass::STANDARD)),
            ..Default::default()
        })
    }
}

/// The grants of every bucket and object: the owner may do everything, others nothing.
fn grants() -> Grants {
    let owner = owner();
    let grantee = Grantee {
        display_name: owner.display_name,
        email_address: None,
        id: owner.id,
        type_: Type::from_static(Type::CANONICAL_USER),
        uri: None,
    };
    let permission = Permission::from_static(Permission::FULL_CONTROL);
    vec![Grant { grantee: Some(grantee), permission: Some(permission) }]
}

/// The attributes that are asked for, which come in one header or in several.
fn attributes(headers: &[ObjectAttributes]) -> Result<Vec<&str>> {
    const ALL: [&str; 5] = [
        ObjectAttributes::CHECKSUM,
        ObjectAttributes::ETAG,
        ObjectAttributes::OBJECT_PARTS,
        ObjectAttributes::OBJECT_SIZE,
        ObjectAttributes::STORAGE_CLASS,
    ];
    let names: Vec<&str> =
        headers.iter().flat_map(|names| names.as_str().split(',')).map(str::trim).collect();
    match names.iter().find(|name| !ALL.contains(name)) {
        Some(_) => Err(GatewayError::InvalidArgument("Invalid attribute name specified.".to_owned())),
        None => Ok(names),
    }
}

/// A page of the parts of an object that was uploaded by parts.
fn object_parts(key: &Key, marker: Option<i32>, max_parts: Option<i32>) -> Result<GetObjectAttributesParts> {
    let invalid = || GatewayError::InvalidArgument("The part number marker must not be negative".to_owned());
    let marker = marker.unwrap_or(0);
    let first = usize::try_from(marker).map_err(|_| invalid())?;
    let max_parts = max_parts.unwrap_or(PARTS_MAX).min(PARTS_MAX);
    let count = usize::try_from(max_parts).map_err(|_| invalid())?;
    let parts: Vec<ObjectPart> = (1..)
        .zip(&key.part_sizes)
        .skip(first)
        .take(count)
        .map(|(number, size)| ObjectPart {
            part_number: Some(number),
            size: Some(signed(*size)),
            ..Default::default()
        })
        .collect();
    let last = parts.last().and_then(|part| part.part_number).unwrap_or(marker);
    let total = key.part_sizes.len() as i32; // at most 10 000
    Ok(GetObjectAttributesParts {
        is_truncated: Some(last < total && count > 0),
        max_parts: Some(max_parts),
        next_part_number_marker: Some(last),
        part_number_marker: Some(marker),
        parts: Some(parts),
        total_parts_count: Some(total),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_in_pages() {
        let key = Key { part_sizes: vec![5, 5, 2], ..Key::default() };
        let check = |marker, max, expect: &[i32], truncated| {
            let page = object_parts(&key, marker, max).unwrap();
            let numbers: Vec<i32> = page.parts.unwrap().iter().filter_map(|part| part.part_number).collect();
            assert_eq!((numbers.as_slice(), page.is_truncated), (expect, Some(truncated)));
        };
        check(None, None, &[1, 2, 3], false);
        check(None, Some(2), &[1, 2], true);
        check(Some(2), Some(2), &[3], false);
        check(None, Some(0), &[], false);
        check(Some(9), None, &[], false);
        assert!(object_parts(&key, Some(-1), None).is_err());
    }

    #[test]
    fn attributes_come_in_one_header_or_in_several() {
        let header = |text: &str| ObjectAttributes::from(text.to_owned());
        assert_eq!(
            attributes(&[header("ETag, ObjectSize"), header("Checksum")]).unwrap(),
            ["ETag", "ObjectSize", "Checksum"]
        );
        assert!(attributes(&[header("ETag,Owner")]).is_err());
    }
}
