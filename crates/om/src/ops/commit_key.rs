//! Makes an object visible: its blocks are written already. Replaces what the key was before.

use super::changed_bucket::ChangedBucket;
use super::{Apply, Fresh, Operation, precondition, wire};
use crate::blocks;
use crate::rules::{check_attributes, check_etag, check_key, check_pieces, check_volume};
use crate::tables::{Read, Refusal, key_key};
use prost::Message;
use proto::Failure;
use proto::om::{CommitKeyRequest, CommitKeyResponse, Key};

pub(crate) struct CommitKey;

impl Operation for CommitKey {
    type Request = CommitKeyRequest;
    type Command = CommitKeyRequest;
    type Response = CommitKeyResponse;
    wire!(CommitKey);

    fn prepare(request: CommitKeyRequest, _: Fresh) -> Result<CommitKeyRequest, Failure> {
        check_volume(&request.volume)?;
        let key = request.key.as_ref().ok_or_else(|| Failure::invalid("the request has no key"))?;
        check_key(&key.key)?;
        check_etag(&key.etag)?;
        check_attributes(key.attributes.as_ref())?;
        check_pieces(&key.pieces, key.size)?;
        check_part_sizes(key)?;
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: CommitKeyRequest) -> Result<CommitKeyResponse, Refusal> {
        let mut bucket = ChangedBucket::find(apply, &command.volume, &command.bucket)?;
        let mut key = command.key.ok_or_else(|| Failure::invalid("the command has no key"))?;
        let table_key = key_key(bucket.number(), &key.key);
        let existing: Option<Key> = apply.tables.message(&table_key)?;
        precondition::check(command.precondition.as_ref(), &key.key, existing.as_ref())?;
        apply.check_takes(&key.pieces)?;

        key.modified_ms = apply.now_ms;
        blocks::name(apply.tables, &table_key, &key.pieces);
        apply.tables.put(table_key.clone(), key.encode_to_vec());
        bucket.count(existing.as_ref(), Some(&key));
        bucket.put(apply.tables);
        if let Some(existing) = existing {
            apply.delete_replaced(&table_key, existing.pieces, &key.pieces);
        }
        Ok(CommitKeyResponse { modified_ms: apply.now_ms })
    }
}

fn check_part_sizes(key: &Key) -> Result<(), Failure> {
    let sum = key.part_sizes.iter().try_fold(0u64, |sum, &size| sum.checked_add(size));
    if !key.part_sizes.is_empty() && sum != Some(key.size) {
        return Err(Failure::invalid(format!("the parts do not add up to the size {}", key.size)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request, pieces};
    use bytes::Bytes;
    use proto::Code;
    use proto::om::Precondition;

    #[test]
    fn the_newest_commit_is_what_the_key_is() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let modified_ms = namespace.commit("a", 2).unwrap();
        let key = namespace.key("a").unwrap();
        assert_eq!((key.etag.as_str(), key.modified_ms, key.pieces), ("etag-2", modified_ms, pieces(2, 10)));
        assert_eq!(namespace.deleted_containers(), [1], "the replaced pieces wait for reclamation");
    }

    #[test]
    fn a_key_written_over_its_own_blocks_keeps_them() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        let mut again = commit_request("a", 1);
        let key = again.key.as_mut().unwrap();
        key.size = 14;
        key.pieces.extend(pieces(2, 4));
        namespace.run::<CommitKey>(again).unwrap();
        assert_eq!(namespace.deleted_containers(), [0; 0]);
        namespace.commit("a", 2).unwrap();
        assert_eq!(namespace.deleted_containers(), [1], "block 2 is still in use");
    }

    #[test]
    fn conditions_are_checked_against_the_key() {
        let mut namespace = Namespace::new();
        let with = |container, absent, etag: Option<&str>| CommitKeyRequest {
            precondition: Some(Precondition { absent, etag: etag.map(str::to_owned), present: false }),
            ..commit_request("a", container)
        };
        namespace.check_refused::<CommitKey>(with(1, false, Some("etag-1")), Code::NoSuchKey);
        namespace.run::<CommitKey>(with(1, true, None)).unwrap();
        namespace.check_refused::<CommitKey>(with(2, true, None), Code::PreconditionFailed);
        namespace.check_refused::<CommitKey>(with(2, false, Some("etag-0")), Code::PreconditionFailed);
        namespace.run::<CommitKey>(with(2, false, Some("etag-1"))).unwrap();
        assert_eq!(namespace.key("a").unwrap().etag, "etag-2");
    }

    #[test]
    fn malformed_commits_are_refused() {
        let mut namespace = Namespace::new();
        let mut check = |code, change: &dyn Fn(&mut CommitKeyRequest)| {
            let mut request = commit_request("a", 1);
            change(&mut request);
            namespace.check_refused::<CommitKey>(request, code);
        };
        check(Code::NoSuchBucket, &|request| request.bucket = "music".into());
        check(Code::NoSuchVolume, &|request| request.volume = "other".into());
        check(Code::Invalid, &|request| request.key = None);
        check(Code::Invalid, &|request| request.key.as_mut().unwrap().size = 11);
        check(Code::Invalid, &|request| request.key.as_mut().unwrap().etag.clear());
        check(Code::Invalid, &|request| request.key.as_mut().unwrap().part_sizes = vec![5, 6]);
        check(Code::TooLarge, &|request| request.key.as_mut().unwrap().key = Bytes::from(vec![b'a'; 1025]));
    }
}
