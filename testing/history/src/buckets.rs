//! A bucket with all its keys, as who uses it sees it: a page lists several keys as they are at one moment,
//! and a bucket is empty when none of them is there.

use crate::{Condition, Model};
use proto::Code;
use std::collections::BTreeMap;

/// An operation on a bucket or keys of it, which have numbers. Each write has a number that no other has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketOp {
    Create,
    Delete,
    Put {
        key: u8,
        write: u64,
        condition: Condition,
    },
    DeleteKeys {
        keys: Vec<u8>,
    },
    Read {
        key: u8,
    },
    /// The first so many keys after one.
    List {
        after: Option<u8>,
        limit: usize,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BucketAnswer {
    Done,
    Existed(Vec<bool>),
    Value(u64),
    Listed(Vec<(u8, u64)>),
    Refused(Code),
}

/// The write that each key is; `None`: there is no such bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Bucket(Option<BTreeMap<u8, u64>>);

impl BucketOp {
    /// Whether the operation changes nothing.
    pub fn is_question(&self) -> bool {
        matches!(self, BucketOp::Read { .. } | BucketOp::List { .. })
    }
}

impl Bucket {
    fn try_apply(&mut self, op: &BucketOp) -> Result<BucketAnswer, Code> {
        let Some(keys) = &mut self.0 else {
            return match op {
                BucketOp::Create => {
                    self.0 = Some(BTreeMap::new());
                    Ok(BucketAnswer::Done)
                }
                _ => Err(Code::NoSuchBucket),
            };
        };
        match op {
            BucketOp::Create => Err(Code::BucketExists),
            BucketOp::Delete if !keys.is_empty() => Err(Code::BucketNotEmpty),
            BucketOp::Delete => {
                self.0 = None;
                Ok(BucketAnswer::Done)
            }
            BucketOp::Put { key, write, condition } => {
                condition.check(keys.get(key).map(std::slice::from_ref))?;
                keys.insert(*key, *write);
                Ok(BucketAnswer::Done)
            }
            BucketOp::DeleteKeys { keys: which } => {
                Ok(BucketAnswer::Existed(which.iter().map(|key| keys.remove(key).is_some()).collect()))
            }
            BucketOp::Read { key } => keys.get(key).copied().map(BucketAnswer::Value).ok_or(Code::NoSuchKey),
            BucketOp::List { after, limit } => {
                let rest = keys.iter().filter(|(key, _)| after.is_none_or(|after| **key > after));
                Ok(BucketAnswer::Listed(rest.take(*limit).map(|(key, write)| (*key, *write)).collect()))
            }
        }
    }
}

impl Model for Bucket {
    type Op = BucketOp;
    type Answer = BucketAnswer;

    fn apply(&mut self, op: &BucketOp) -> BucketAnswer {
        self.try_apply(op).unwrap_or_else(BucketAnswer::Refused)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Call, is_linearizable};

    type Answered = (BucketOp, u64, u64, BucketAnswer);

    fn check(expect: bool, what: &str, calls: &[Answered]) {
        let call = |(op, asked_at, at, answer): &Answered| Call {
            op: op.clone(),
            asked_at: *asked_at,
            answered: Some((*at, answer.clone())),
        };
        let calls: Vec<_> = calls.iter().map(call).collect();
        assert_eq!(is_linearizable(Bucket::default(), &calls), expect, "{what}");
    }

    #[test]
    fn the_search_tells_good_histories_of_buckets_from_bad_ones() {
        let put = |key, write, at| {
            let op = BucketOp::Put { key, write, condition: Condition::Nothing };
            (op, at, at + 1, BucketAnswer::Done)
        };
        let list = |at, listed: &[(u8, u64)]| {
            let op = BucketOp::List { after: None, limit: 9 };
            (op, at, at + 1, BucketAnswer::Listed(listed.to_vec()))
        };
        let (create, delete) = ((BucketOp::Create, 0, 1, BucketAnswer::Done), |at| {
            (BucketOp::Delete, at, at + 1, BucketAnswer::Done)
        });
        let made = |rest: &[Answered]| [std::slice::from_ref(&create), rest].concat();
        check(true, "a page", &made(&[put(1, 1, 2), put(2, 2, 4), list(6, &[(1, 1), (2, 2)])]));
        check(false, "a page of two moments", &made(&[put(1, 1, 2), put(2, 2, 4), list(6, &[(2, 2)])]));
        check(false, "an acknowledged key in a deleted bucket", &made(&[put(1, 1, 2), delete(4)]));
        let unmade = (BucketOp::Read { key: 1 }, 4, 5, BucketAnswer::Refused(Code::NoSuchBucket));
        check(true, "deleted as empty", &made(&[delete(2), unmade]));
        let again = (BucketOp::Create, 4, 5, BucketAnswer::Done);
        check(false, "a key of the bucket before", &made(&[delete(2), again.clone(), list(6, &[(1, 1)])]));
        check(
            true,
            "another bucket of the name",
            &made(&[delete(2), again, put(1, 7, 6), list(8, &[(1, 7)])]),
        );
        let both = BucketOp::DeleteKeys { keys: vec![1, 2] };
        let existed =
            |at, existed: [bool; 2]| (both.clone(), at, at + 1, BucketAnswer::Existed(existed.to_vec()));
        check(true, "two keys at once", &made(&[put(1, 1, 2), existed(4, [true, false]), list(6, &[])]));
        check(false, "deleted by nobody", &made(&[put(1, 1, 2), existed(4, [false, false])]));
        let next = BucketOp::List { after: Some(1), limit: 1 };
        let next = (next, 8, 9, BucketAnswer::Listed(vec![(2, 2)]));
        check(true, "the next page", &made(&[put(1, 1, 2), put(2, 2, 4), put(3, 3, 6), next]));
    }
}
