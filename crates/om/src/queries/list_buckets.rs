use super::scan::Scan;
use super::{Query, Reach};
use crate::rules::page_limit;
use crate::tables::{InGroup, Refusal, bucket_key, decode, volume_existing};
use proto::om::{BucketEntry, BucketStage, ListBucketsRequest, ListBucketsResponse};
use statedb::Db;

/// A page of a volume's buckets, by name.
pub(crate) struct ListBuckets;

impl Query for ListBuckets {
    type Request = ListBucketsRequest;
    type Response = ListBucketsResponse;
    const REACH: Reach = Reach::Page;

    fn read(
        db: &Db,
        _: Option<InGroup>,
        request: ListBucketsRequest,
    ) -> Result<ListBucketsResponse, Refusal> {
        volume_existing(db, &request.volume)?;
        let limit = page_limit(request.limit);
        let prefix = bucket_key(&request.volume, &request.prefix);
        let mut from = bucket_key(&request.volume, &request.after);
        if !request.after.is_empty() {
            from.push(0);
        }
        let mut scan = Scan::new(db, &prefix, &from);
        let mut response = ListBucketsResponse::default();
        while let Some((key, value)) = scan.record()? {
            if response.buckets.len() == limit {
                response.truncated = true;
                break;
            }
            let entry: BucketEntry = decode(key, value)?;
            if entry.stage() != BucketStage::BucketMaking {
                response.buckets.extend(entry.bucket);
            }
            scan.step();
        }
        Ok(response)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CreateBucket;
    use crate::ops::testing::Namespace;
    use proto::om::CreateBucketRequest;

    fn check(namespace: &Namespace, prefix: &str, after: &str, limit: u32, expect: &[&str], truncated: bool) {
        let (prefix, after) = (prefix.to_owned(), after.to_owned());
        let request = ListBucketsRequest { volume: "s3v".into(), prefix, after, limit };
        let response = ListBuckets::read(&namespace.db, None, request).unwrap();
        let names: Vec<&str> = response.buckets.iter().map(|bucket| bucket.name.as_str()).collect();
        assert_eq!((names.as_slice(), response.truncated), (expect, truncated));
    }

    #[test]
    fn buckets_come_by_name_and_page() {
        let mut namespace = Namespace::new();
        for bucket in ["music", "movies", "mail"] {
            let request = CreateBucketRequest { volume: "s3v".into(), bucket: bucket.into(), group: None };
            namespace.run::<CreateBucket>(request).unwrap();
        }
        check(&namespace, "", "", 0, &["mail", "movies", "music", "photos"], false);
        check(&namespace, "", "", 3, &["mail", "movies", "music"], true);
        check(&namespace, "", "music", 3, &["photos"], false);
        check(&namespace, "m", "", 3, &["mail", "movies", "music"], false);
        check(&namespace, "m", "a", 1, &["mail"], true);
        check(&namespace, "mo", "music", 9, &[], false);
    }
}
