//! Deletes up to a thousand keys. Deleting what is not there succeeds and says so.

use super::changed_bucket::ChangedBucket;
use super::{Apply, Fresh, Operation, precondition, wire};
use crate::rules::{PAGE_ENTRIES_MAX, check_volume};
use crate::tables::{Read, Refusal, key_key};
use proto::om::{DeleteKeysRequest, DeleteKeysResponse, Key};
use proto::{Code, Failure};

pub(crate) struct DeleteKeys;

impl Operation for DeleteKeys {
    type Request = DeleteKeysRequest;
    type Command = DeleteKeysRequest;
    type Response = DeleteKeysResponse;
    wire!(DeleteKeys);

    fn prepare(request: DeleteKeysRequest, _: Fresh) -> Result<DeleteKeysRequest, Failure> {
        check_volume(&request.volume)?;
        let count = request.keys.len();
        if count > PAGE_ENTRIES_MAX as usize {
            let message = format!("{count} keys to delete, at most {PAGE_ENTRIES_MAX} at a time");
            return Err(Failure::new(Code::TooLarge, message));
        }
        if count == 0 {
            return Err(Failure::invalid("no keys to delete"));
        }
        if request.precondition.is_some() && count > 1 {
            return Err(Failure::invalid("a precondition takes one key"));
        }
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: DeleteKeysRequest) -> Result<DeleteKeysResponse, Refusal> {
        let mut bucket = ChangedBucket::find(apply, &command.volume, &command.bucket)?;
        let mut existed = Vec::with_capacity(command.keys.len());
        for key in &command.keys {
            let table_key = key_key(bucket.number(), key);
            let existing: Option<Key> = apply.tables.message(&table_key)?;
            precondition::check(command.precondition.as_ref(), key, existing.as_ref())?;
            existed.push(existing.is_some());
            bucket.count(existing.as_ref(), None);
            if let Some(existing) = existing {
                apply.delete_pieces(&table_key, existing.pieces);
                apply.tables.delete(table_key);
            }
        }
        bucket.put(apply.tables);
        Ok(DeleteKeysResponse { existed })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use bytes::Bytes;
    use proto::om::Precondition;

    fn delete(keys: &[&str]) -> DeleteKeysRequest {
        DeleteKeysRequest {
            volume: "s3v".into(),
            bucket: "photos".into(),
            keys: keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect(),
            precondition: None,
        }
    }

    #[test]
    fn deleting_says_what_was_there() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        namespace.commit("c", 3).unwrap();
        let existed = namespace.run::<DeleteKeys>(delete(&["a", "b", "c", "a"])).unwrap().existed;
        assert_eq!(existed, [true, false, true, false]);
        assert_eq!((namespace.key("a"), namespace.key("c")), (None, None));
        assert_eq!(namespace.deleted_containers(), [1, 3]);
    }

    #[test]
    fn a_condition_guards_one_key() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let with = |etag: &str, keys: &[&str]| DeleteKeysRequest {
            precondition: Some(Precondition { etag: Some(etag.into()), ..Precondition::default() }),
            ..delete(keys)
        };
        namespace.check_refused::<DeleteKeys>(with("etag-2", &["a"]), Code::PreconditionFailed);
        namespace.check_refused::<DeleteKeys>(with("etag-1", &["a", "b"]), Code::Invalid);
        namespace.run::<DeleteKeys>(with("etag-1", &["a"])).unwrap();
        namespace.check_refused::<DeleteKeys>(with("etag-1", &["a"]), Code::NoSuchKey);
    }

    #[test]
    fn requests_are_limited() {
        let mut namespace = Namespace::new();
        namespace.check_refused::<DeleteKeys>(delete(&[]), Code::Invalid);
        namespace.check_refused::<DeleteKeys>(delete(&["a"; 1001]), Code::TooLarge);
        let elsewhere = DeleteKeysRequest { bucket: "music".into(), ..delete(&["a"]) };
        namespace.check_refused::<DeleteKeys>(elsewhere, Code::NoSuchBucket);
    }
}
