use super::buckets::owner;
use super::convert::{etag, key_text, timestamp};
use super::gateway::Gateway;
use super::get::signed;
use crate::error::{GatewayError, Result};
use crate::page::{limit, parse_token, token, url_encode};
use bytes::Bytes;
use client::S3_VOLUME;
use proto::om::ListKeysRequest;
use proto::om::listed_key::Entry;
use s3s::dto::*;

/// One page of a listing, in S3's words.
struct Page {
    contents: Vec<Object>,
    common_prefixes: Vec<CommonPrefix>,
    /// The place where the next page begins, if there is one.
    next_after: Option<Bytes>,
}

/// The version of an object that has no other.
pub(super) const NULL_VERSION: &str = "null";

/// The form in which names stand in the answer.
#[derive(Clone, Copy)]
pub(super) struct Names {
    url_encoded: bool,
}

impl Names {
    pub(super) fn of(encoding: Option<&EncodingType>) -> Result<Names> {
        match encoding.map(EncodingType::as_str) {
            None => Ok(Names { url_encoded: false }),
            Some(EncodingType::URL) => Ok(Names { url_encoded: true }),
            Some(_) => {
                Err(GatewayError::InvalidArgument("Invalid Encoding Method specified in Request".to_owned()))
            }
        }
    }

    pub(super) fn show(self, name: &str) -> String {
        if self.url_encoded { url_encode(name) } else { name.to_owned() }
    }

    pub(super) fn show_all(self, name: Option<String>) -> Option<String> {
        name.map(|name| self.show(&name))
    }
}

impl Gateway {
    pub(super) async fn objects_list_v2(&self, input: ListObjectsV2Input) -> Result<ListObjectsV2Output> {
        let names = Names::of(input.encoding_type.as_ref())?;
        let max_keys = limit(input.max_keys, "max-keys")?;
        let after = match (&input.continuation_token, &input.start_after) {
            (Some(token), _) => Bytes::from(parse_token(token)?),
            (None, Some(start_after)) => Bytes::copy_from_slice(start_after.as_bytes()),
            (None, None) => Bytes::new(),
        };
        let with_owner = input.fetch_owner == Some(true);
        let prefix = input.prefix.as_deref();
        let page =
            self.page(&input.bucket, prefix, input.delimiter.as_deref(), after, max_keys, names, with_owner);
        let page = page.await?;
        Ok(ListObjectsV2Output {
            name: Some(input.bucket),
            prefix: Some(names.show(input.prefix.as_deref().unwrap_or_default())),
            max_keys: Some(max_keys as i32), // at most 1000
            key_count: Some((page.contents.len() + page.common_prefixes.len()) as i32), // at most 1000
            continuation_token: input.continuation_token,
            is_truncated: Some(page.next_after.is_some()),
            next_continuation_token: page.next_after.map(|after| token(&after)),
            contents: Some(page.contents),
            common_prefixes: Some(page.common_prefixes),
            delimiter: names.show_all(input.delimiter),
            encoding_type: input.encoding_type,
            start_after: names.show_all(input.start_after),
            ..Default::default()
        })
    }

    pub(super) async fn objects_list(&self, input: ListObjectsInput) -> Result<ListObjectsOutput> {
        let names = Names::of(input.encoding_type.as_ref())?;
        let max_keys = limit(input.max_keys, "max-keys")?;
        let after = Bytes::copy_from_slice(input.marker.as_deref().unwrap_or_default().as_bytes());
        let prefix = input.prefix.as_deref();
        let page = self.page(&input.bucket, prefix, input.delimiter.as_deref(), after, max_keys, names, true);
        let page = page.await?;
        let next_marker = page.next_after.as_ref().map(|after| names.show(&key_text(after)));
        Ok(ListObjectsOutput {
            name: Some(input.bucket),
            prefix: Some(names.show(input.prefix.as_deref().unwrap_or_default())),
            marker: Some(names.show(input.marker.as_deref().unwrap_or_default())),
            max_keys: Some(max_keys as i32), // at most 1000
            is_truncated: Some(page.next_after.is_some()),
            contents: Some(page.contents),
            common_prefixes: Some(page.common_prefixes),
            // Without a delimiter S3 lets clients go on from the last key.
            next_marker: next_marker.filter(|_| input.delimiter.is_some()),
            delimiter: names.show_all(input.delimiter),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    /// Lists versions: each object has one, `null`, which is the latest.
    pub(super) async fn versions_list(
        &self,
        input: ListObjectVersionsInput,
    ) -> Result<ListObjectVersionsOutput> {
        let names = Names::of(input.encoding_type.as_ref())?;
        let max_keys = limit(input.max_keys, "max-keys")?;
        if input.version_id_marker.is_some() && input.key_marker.is_none() {
            let why = "A version-id marker cannot be specified without a key marker.";
            return Err(GatewayError::InvalidArgument(why.to_owned()));
        }
        let after = Bytes::copy_from_slice(input.key_marker.as_deref().unwrap_or_default().as_bytes());
        let prefix = input.prefix.as_deref();
        let page = self.page(&input.bucket, prefix, input.delimiter.as_deref(), after, max_keys, names, true);
        let page = page.await?;
        let next_key_marker = page.next_after.as_ref().map(|after| names.show(&key_text(after)));
        let versions = page.contents.into_iter().map(|object| ObjectVersion {
            e_tag: object.e_tag,
            is_latest: Some(true),
            key: object.key,
            last_modified: object.last_modified,
            owner: object.owner,
            size: object.size,
            storage_class: Some(ObjectVersionStorageClass::from_static(ObjectVersionStorageClass::STANDARD)),
            version_id: Some(NULL_VERSION.to_owned()),
            ..Default::default()
        });
        Ok(ListObjectVersionsOutput {
            name: Some(input.bucket),
            prefix: Some(names.show(input.prefix.as_deref().unwrap_or_default())),
            key_marker: Some(names.show(input.key_marker.as_deref().unwrap_or_default())),
            version_id_marker: Some(input.version_id_marker.unwrap_or_default()),
            max_keys: Some(max_keys as i32), // at most 1000
            is_truncated: Some(page.next_after.is_some()),
            next_version_id_marker: next_key_marker.is_some().then(|| NULL_VERSION.to_owned()),
            next_key_marker,
            versions: Some(versions.collect()),
            common_prefixes: Some(page.common_prefixes),
            delimiter: names.show_all(input.delimiter),
            encoding_type: input.encoding_type,
            ..Default::default()
        })
    }

    #[allow(clippy::too_many_arguments)] // what the listings have in common, once
    async fn page(
        &self,
        bucket: &str,
        prefix: Option<&str>,
        delimiter: Option<&str>,
        after: Bytes,
        max_keys: u32,
        names: Names,
        with_owner: bool,
    ) -> Result<Page> {
        if max_keys == 0 {
            self.client.head_bucket(S3_VOLUME, bucket).await?;
            return Ok(Page { contents: Vec::new(), common_prefixes: Vec::new(), next_after: None });
        }
        let request = ListKeysRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: bucket.to_owned(),
            prefix: Bytes::copy_from_slice(prefix.unwrap_or_default().as_bytes()),
            delimiter: Bytes::copy_from_slice(delimiter.unwrap_or_default().as_bytes()),
            after,
            limit: max_keys,
            ..ListKeysRequest::default()
        };
        let listed = self.client.list_keys(request).await?;
        let next_after = listed.truncated.then_some(listed.next_after);
        let mut page = Page { contents: Vec::new(), common_prefixes: Vec::new(), next_after };
        for entry in listed.entries.into_iter().filter_map(|listed| listed.entry) {
            match entry {
                Entry::Key(key) => page.contents.push(Object {
                    e_tag: Some(etag(&key.etag)),
                    key: Some(names.show(&key_text(&key.key))),
                    last_modified: Some(timestamp(key.modified_ms)),
                    owner: with_owner.then(owner),
                    size: Some(signed(key.size)),
                    storage_class: Some(ObjectStorageClass::from_static(ObjectStorageClass::STANDARD)),
                    ..Default::default()
                }),
                Entry::CommonPrefix(prefix) => {
                    page.common_prefixes.push(CommonPrefix { prefix: Some(names.show(&key_text(&prefix))) });
                }
            }
        }
        Ok(page)
    }
}
