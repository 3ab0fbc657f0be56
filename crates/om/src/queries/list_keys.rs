//! A page of a bucket. The cost follows the page, not the bucket: after a common prefix the scan leaps over
//! all keys below it.

use super::scan::Scan;
use super::{Query, Reach, named};
use crate::rules::page_limit;
use crate::tables::{InGroup, Refusal, bucket_number, decode, keys_prefix, successor};
use bytes::Bytes;
use proto::om::{Key, ListKeysRequest, ListKeysResponse, ListedKey, listed_key::Entry};
use statedb::Db;

/// Keys that start with a prefix; those with the delimiter after it are folded into one common prefix, which
/// ends with the delimiter. Both in byte order, strictly after `after`.
pub(crate) struct ListKeys;

impl Query for ListKeys {
    type Request = ListKeysRequest;
    type Response = ListKeysResponse;
    const REACH: Reach = Reach::Page;

    fn may_any_member_answer(request: &ListKeysRequest) -> bool {
        request.any_member
    }

    fn read(db: &Db, place: Option<InGroup>, request: ListKeysRequest) -> Result<ListKeysResponse, Refusal> {
        let limit = page_limit(request.limit);
        let table = keys_prefix(bucket_number(db, named(place, &request.volume, &request.bucket))?);
        let fold = Fold { prefix: &request.prefix, delimiter: &request.delimiter };
        let in_table = |key: &[u8]| [&table[..], key].concat();
        let Some(from) = first_after(&request.after, &fold) else { return Ok(ListKeysResponse::default()) };

        let mut scan = Scan::new(db, &in_table(&request.prefix), &in_table(&from));
        let mut response = ListKeysResponse::default();
        while let Some((table_key, value)) = scan.record()? {
            if response.entries.len() == limit {
                response.truncated = true;
                response.next_after = response.entries.last().map(name).unwrap_or_default();
                break;
            }
            let key = &table_key[table.len()..];
            let Some(common_prefix) = fold.common_prefix(key) else {
                let key: Key = decode(table_key, value)?;
                let key = Key { pieces: Vec::new(), part_sizes: Vec::new(), ..key };
                response.entries.push(ListedKey { entry: Some(Entry::Key(key)) });
                scan.step();
                continue;
            };
            let common_prefix = Bytes::copy_from_slice(common_prefix);
            let past = successor(&common_prefix);
            response.entries.push(ListedKey { entry: Some(Entry::CommonPrefix(common_prefix)) });
            match past {
                Some(past) => scan.leap(&in_table(&past)),
                None => break,
            }
        }
        Ok(response)
    }
}

/// The fold of keys that come together under one common prefix.
struct Fold<'a> {
    prefix: &'a [u8],
    delimiter: &'a [u8],
}

impl Fold<'_> {
    fn common_prefix<'k>(&self, key: &'k [u8]) -> Option<&'k [u8]> {
        let rest = key.strip_prefix(self.prefix)?;
        if self.delimiter.is_empty() {
            return None;
        }
        let at = rest.windows(self.delimiter.len()).position(|window| window == self.delimiter)?;
        Some(&key[..self.prefix.len() + at + self.delimiter.len()])
    }
}

/// The first key that may be listed after `after`; `None` when there can be none. A common prefix comes
/// before all that is folded into it, so whatever names or is below one leaps over it.
fn first_after(after: &[u8], fold: &Fold<'_>) -> Option<Vec<u8>> {
    match fold.common_prefix(after) {
        _ if after.is_empty() => Some(Vec::new()),
        Some(common_prefix) => successor(common_prefix),
        None => Some([after, b"\0"].concat()),
    }
}

fn name(listed: &ListedKey) -> Bytes {
    match &listed.entry {
        Some(Entry::Key(key)) => key.key.clone(),
        Some(Entry::CommonPrefix(common_prefix)) => common_prefix.clone(),
        None => Bytes::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::CreateBucket;
    use crate::ops::testing::Namespace;
    use crate::tables::{BucketNumber, key_key};
    use proptest::prelude::*;
    use prost::Message;
    use proto::om::CreateBucketRequest;
    use std::collections::{BTreeMap, BTreeSet};

    /// `photos` with these keys, between two buckets that have some too.
    fn filled<'a>(keys: impl IntoIterator<Item = &'a Vec<u8>>) -> Namespace {
        let mut namespace = Namespace::new();
        let neighbour = CreateBucketRequest { volume: "s3v".into(), bucket: "zzz".into(), group: None };
        namespace.run::<CreateBucket>(neighbour).unwrap();
        let photos = namespace.bucket("photos").unwrap().0;
        let mut batch = rocksdb::WriteBatch::default();
        let mut put = |bucket: u64, key: &[u8]| {
            let record = Key { key: Bytes::copy_from_slice(key), ..Key::default() };
            batch.put(key_key(BucketNumber(bucket), key), record.encode_to_vec());
        };
        keys.into_iter().for_each(|key| put(photos, key));
        put(photos - 1, b"\xff\xff");
        put(photos + 1, b"\0");
        namespace.db.write(batch).unwrap();
        namespace
    }

    fn page(
        namespace: &Namespace,
        prefix: &[u8],
        delimiter: &[u8],
        after: &[u8],
        limit: u32,
    ) -> ListKeysResponse {
        let bytes = Bytes::copy_from_slice;
        let request = ListKeysRequest {
            volume: "s3v".into(),
            bucket: "photos".into(),
            prefix: bytes(prefix),
            delimiter: bytes(delimiter),
            after: bytes(after),
            limit,
            ..ListKeysRequest::default()
        };
        ListKeys::read(&namespace.db, None, request).unwrap()
    }

    fn entry(listed: &ListedKey) -> (Vec<u8>, bool) {
        (name(listed).to_vec(), matches!(listed.entry, Some(Entry::CommonPrefix(_))))
    }

    /// S3's word on it, without any cleverness: true marks a common prefix.
    fn model(
        keys: &BTreeSet<Vec<u8>>,
        prefix: &[u8],
        delimiter: &[u8],
        after: &[u8],
    ) -> Vec<(Vec<u8>, bool)> {
        let mut entries = BTreeMap::new();
        for key in keys.iter().filter(|key| key.starts_with(prefix)) {
            let mut cut = None;
            for at in prefix.len()..key.len() {
                if cut.is_none() && !delimiter.is_empty() && key[at..].starts_with(delimiter) {
                    cut = Some(at + delimiter.len());
                }
            }
            entries.insert(key[..cut.unwrap_or(key.len())].to_vec(), cut.is_some());
        }
        entries.into_iter().filter(|(entry, _)| after.is_empty() || entry.as_slice() > after).collect()
    }

    fn check(keys: &BTreeSet<Vec<u8>>, prefix: &[u8], delimiter: &[u8], after: &[u8], limit: u32) {
        let namespace = filled(keys);
        let expected = model(keys, prefix, delimiter, after);
        let mut listed = Vec::new();
        let mut next_after = after.to_vec();
        loop {
            let response = page(&namespace, prefix, delimiter, &next_after, limit);
            assert!(response.entries.len() <= limit as usize);
            listed.extend(response.entries.iter().map(entry));
            assert_eq!(response.truncated, listed.len() < expected.len(), "{listed:?} of {expected:?}");
            if !response.truncated {
                break;
            }
            next_after = response.next_after.to_vec();
        }
        assert_eq!(listed, expected);
    }

    fn odd_bytes(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(prop::sample::select(vec![0u8, b'/', b'a', b'b', 0xfe, 0xff]), len)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]
        #[test]
        fn pages_together_are_what_s3_lists(
            keys in prop::collection::btree_set(odd_bytes(1..7), 0..40),
            prefix in odd_bytes(0..3),
            delimiter in odd_bytes(0..3),
            after in odd_bytes(0..4),
            limit in 1u32..6,
        ) {
            check(&keys, &prefix, &delimiter, &after, limit);
        }

        #[test]
        fn directories_are_listed_by_pages(
            keys in prop::collection::btree_set("[ab/]{1,6}", 1..40),
            prefix in "[ab/]{0,2}",
            after in "[ab/]{0,3}",
            limit in 1u32..6,
        ) {
            let keys = keys.into_iter().map(String::into_bytes).collect();
            check(&keys, prefix.as_bytes(), b"/", after.as_bytes(), limit);
        }
    }

    #[test]
    fn a_common_prefix_costs_one_entry_of_the_page() {
        let keys: BTreeSet<Vec<u8>> = (0..5000).map(|n| format!("dir/{n:05}").into_bytes()).collect();
        let namespace = filled(keys.iter().chain([&b"x".to_vec()]));
        let response = page(&namespace, b"", b"/", b"", 2);
        let entries: Vec<_> = response.entries.iter().map(entry).collect();
        assert_eq!(entries, [(b"dir/".to_vec(), true), (b"x".to_vec(), false)]);
        assert!(!response.truncated);
        assert_eq!(page(&namespace, b"", b"", b"", 0).entries.len(), 1000, "no limit means a whole page");
        assert_eq!(page(&namespace, b"", b"", b"", 5000).entries.len(), 1000);
    }
}
