//! Helpers of tests.

use crate::ops::testing::{Namespace, commit_request};
use crate::ops::{DeleteKeys, SortDeleted};
use proto::om::{CommitKeyRequest, DeleteKeysRequest, SortDeletedCommand};

/// Deletes the key `gone`, and has all that is filed become unused.
pub(crate) fn unuse_all(namespace: &mut Namespace) {
    let CommitKeyRequest { volume, bucket, .. } = commit_request("gone", 1);
    let delete = DeleteKeysRequest { volume, bucket, keys: vec!["gone".into()], precondition: None };
    namespace.run::<DeleteKeys>(delete).unwrap();
    let last = namespace.records(b"d").last().map(|(key, _)| key.clone()).unwrap_or_default();
    let sort = SortDeletedCommand { last: last.into(), pieces_max: u32::MAX, ..Default::default() };
    namespace.run::<SortDeleted>(sort).unwrap();
}
