use super::convert::timestamp;
use super::gateway::Gateway;
use crate::admission::OWNER;
use crate::error::{GatewayError, Result};
use crate::page::{parse_token, token};
use client::S3_VOLUME;
use proto::om::ListBucketsRequest;
use s3s::dto::*;

/// AWS's largest page of buckets.
const BUCKETS_MAX: i32 = 10_000;

impl Gateway {
    pub(super) async fn buckets_list(&self, input: ListBucketsInput) -> Result<ListBucketsOutput> {
        let asked = input.max_buckets.unwrap_or(BUCKETS_MAX);
        if !(1..=BUCKETS_MAX).contains(&asked) {
            let why = format!("Argument max-buckets must be an integer between 1 and {BUCKETS_MAX}");
            return Err(GatewayError::InvalidArgument(why));
        }
        let mut after = match &input.continuation_token {
            Some(token) => String::from_utf8(parse_token(token)?).map_err(|_| {
                GatewayError::InvalidArgument("The continuation token provided is incorrect".to_owned())
            })?,
            None => String::new(),
        };
        let mut buckets = Vec::new();
        loop {
            let left = asked as usize - buckets.len();
            let page = ListBucketsRequest {
                volume: S3_VOLUME.to_owned(),
                prefix: input.prefix.clone().unwrap_or_default(),
                after: after.clone(),
                limit: left.min(1000) as u32, // at most 10 000, checked above
            };
            let page = self.client.list_buckets(page).await?;
            if let Some(last) = page.buckets.last() {
                after = last.name.clone();
            }
            buckets.extend(page.buckets);
            if !page.truncated || buckets.len() >= asked as usize {
                let continuation_token = page.truncated.then(|| token(after.as_bytes()));
                let buckets = buckets.into_iter().map(|bucket| Bucket {
                    name: Some(bucket.name),
                    creation_date: Some(timestamp(bucket.created_ms)),
                    ..Default::default()
                });
                return Ok(ListBucketsOutput {
                    buckets: Some(buckets.collect()),
                    continuation_token,
                    owner: Some(owner()),
                    prefix: input.prefix,
                });
            }
        }
    }

    pub(super) async fn bucket_create(&self, input: CreateBucketInput) -> Result<CreateBucketOutput> {
        if input.acl.as_ref().is_some_and(|acl| acl.as_str() != BucketCannedACL::PRIVATE) {
            return Err(GatewayError::NoAcls);
        }
        let enforced = ObjectOwnership::BUCKET_OWNER_ENFORCED;
        if input.object_ownership.as_ref().is_some_and(|ownership| ownership.as_str() != enforced) {
            return Err(GatewayError::NoAcls);
        }
        if input.object_lock_enabled_for_bucket == Some(true) {
            return Err(GatewayError::NotImplemented("Object lock"));
        }
        self.client.create_bucket(S3_VOLUME, &input.bucket).await?;
        Ok(CreateBucketOutput { location: Some(format!("/{}", input.bucket)) })
    }

    pub(super) async fn bucket_head(&self, input: HeadBucketInput) -> Result<HeadBucketOutput> {
        self.client.head_bucket(S3_VOLUME, &input.bucket).await?;
        Ok(HeadBucketOutput { bucket_region: Some(self.region.clone()), ..Default::default() })
    }

    pub(super) async fn bucket_delete(&self, input: DeleteBucketInput) -> Result<DeleteBucketOutput> {
        self.seen_buckets.forget(&input.bucket);
        self.client.delete_bucket(S3_VOLUME, &input.bucket).await?;
        Ok(DeleteBucketOutput {})
    }

    pub(super) async fn bucket_location(
        &self,
        input: GetBucketLocationInput,
    ) -> Result<GetBucketLocationOutput> {
        self.client.head_bucket(S3_VOLUME, &input.bucket).await?;
        // For the first region AWS ever had the answer is empty.
        let elsewhere = self.region != "us-east-1";
        let location_constraint = elsewhere.then(|| BucketLocationConstraint::from(self.region.clone()));
        Ok(GetBucketLocationOutput { location_constraint })
    }
}

/// The owner of everything: the one key pair there is.
pub(super) fn owner() -> Owner {
    Owner { display_name: Some(OWNER.to_owned()), id: Some(OWNER.to_owned()) }
}
