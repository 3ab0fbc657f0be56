use super::scan::Scan;
use crate::blocks::{self, BlockKey, NAMED_PREFIX, NamingRows, container_prefix};
use crate::rules::page_limit;
use crate::tables::{BucketNumber, Read, Refusal, UPLOAD_ID_BYTES, record_key};
use anyhow::Context;
use bytes::Bytes;
use proto::om::{BucketRecord, ContainerKey, ListContainerKeysRequest, ListContainerKeysResponse};
use statedb::Db;

/// The most rows that are looked at for a page: some are said to name what they name no more.
const LOOKED_AT_MAX: usize = 10_000;

/// A page of the keys and parts that name blocks of a container, by block.
pub(crate) fn container_keys(
    db: &Db,
    request: &ListContainerKeysRequest,
) -> Result<ListContainerKeysResponse, Refusal> {
    let prefix = container_prefix(NAMED_PREFIX, request.container);
    let mut scan = Scan::new(db, &prefix, &[&request.after[..], b"\0"].concat());
    let (mut page, mut rows) = (ListContainerKeysResponse::default(), NamingRows::default());
    let limit = page_limit(request.limit);
    for _ in 0..LOOKED_AT_MAX {
        let Some((named, _)) = scan.record()?.filter(|_| page.keys.len() < limit) else { break };
        page.next_after = Bytes::copy_from_slice(named);
        let block = BlockKey::in_key(named).context("a row of a block names it")?;
        let row = blocks::naming_row(named);
        if let Some(bytes) = rows.bytes(db, row, &block)? {
            page.keys.push(told(db, &block, row, bytes)?);
        }
        scan.step();
    }
    page.truncated = scan.record()?.is_some();
    Ok(page)
}

/// The answer's entry for a row, by the row's key: `k`, bucket and key, or `p`, bucket, upload and number of
/// the part.
fn told(db: &Db, block: &BlockKey, row: &[u8], bytes: u64) -> anyhow::Result<ContainerKey> {
    let number = row.get(1..).and_then(|rest| rest.first_chunk()).context("a row is of a bucket")?;
    let (number, rest) = (u64::from_be_bytes(*number), &row[9..]);
    let record: Option<BucketRecord> = db.message(&record_key(BucketNumber(number)))?;
    let bucket_name = record.and_then(|record| record.bucket).map(|bucket| bucket.name).unwrap_or_default();
    let block = Some(block.to_proto());
    let mut told = ContainerKey { block, bucket: number, bucket_name, bytes, ..ContainerKey::default() };
    match row.first() {
        Some(b'k') => told.key = Bytes::copy_from_slice(rest),
        _ => {
            let (upload, part) = rest.split_at_checked(UPLOAD_ID_BYTES).context("a part is of an upload")?;
            told.upload = String::from_utf8_lossy(upload).into_owned();
            told.part = u32::from_be_bytes(part.try_into().context("a part has a number")?);
        }
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request, pieces};
    use crate::ops::{CommitKey, CommitPart, CreateUpload};
    use proto::om::{CommitPartRequest, CreateUploadRequest, Part};

    fn keys(namespace: &Namespace, container: u64, limit: u32) -> Vec<(String, u32, u64)> {
        let mut all = Vec::new();
        let mut request = ListContainerKeysRequest { container, limit, ..Default::default() };
        loop {
            let page = container_keys(&namespace.db, &request).unwrap();
            all.extend(page.keys.into_iter().map(|key| {
                assert_eq!((key.bucket_name.as_str(), key.block.unwrap().container), ("photos", container));
                (String::from_utf8(key.key.to_vec()).unwrap(), key.part, key.bytes)
            }));
            if !page.truncated {
                return all;
            }
            request.after = page.next_after;
        }
    }

    #[test]
    fn a_container_tells_whose_it_is() {
        let mut namespace = Namespace::new();
        for (key, container) in [("a", 1), ("b", 2), ("c", 1), ("c", 2)] {
            namespace.commit(key, container).unwrap();
        }
        let mut twice = commit_request("d", 1);
        let key = twice.key.as_mut().unwrap();
        (key.size, key.pieces) = (30, [pieces(1, 10), pieces(1, 20)].concat());
        namespace.run::<CommitKey>(twice).unwrap();
        let (volume, bucket, key) = ("s3v".to_owned(), "photos".to_owned(), Bytes::from("up"));
        let create = CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: key.clone(),
            attributes: None,
        };
        let upload = namespace.run::<CreateUpload>(create).unwrap().upload;
        let part = Part { number: 7, size: 5, etag: "0".repeat(32), pieces: pieces(1, 5), ..Part::default() };
        let request = CommitPartRequest { volume, bucket, key, upload, part: Some(part) };
        namespace.run::<CommitPart>(request).unwrap();
        let of = |key: &str, part, bytes| (key.to_owned(), part, bytes);
        for limit in [0, 1, 2] {
            assert_eq!(keys(&namespace, 1, limit), [of("a", 0, 10), of("d", 0, 30), of("", 7, 5)]);
            assert_eq!(keys(&namespace, 2, limit), [of("b", 0, 10), of("c", 0, 10)]);
            assert_eq!(keys(&namespace, 3, limit), []);
        }
    }
}
