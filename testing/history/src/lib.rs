//! A history of what callers of an OM asked and were answered, and whether one could have been served after
//! the other so.

mod buckets;

pub use buckets::{Bucket, BucketAnswer, BucketOp};

use proto::Code;
use std::collections::{BTreeMap, HashSet};
use std::hash::Hash;

/// The thing on which calls are carried out, as it is between two of them.
pub trait Model: Clone + Eq + Hash {
    type Op;
    type Answer: PartialEq;

    /// Carries out one operation. A refused one changes nothing.
    fn apply(&mut self, op: &Self::Op) -> Self::Answer;
}

/// An operation on a key, its bucket or its uploads. Each write has a number that no other has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    CreateBucket,
    DeleteBucket,
    Put {
        write: u64,
        condition: Condition,
    },
    Delete,
    Read,
    /// The id is known when the call was answered; an upload whose id nobody knows changes nothing that is
    /// looked at.
    CreateUpload {
        upload: Option<String>,
    },
    CommitPart {
        upload: String,
        number: u32,
        write: u64,
    },
    Complete {
        upload: String,
        parts: Vec<(u32, u64)>,
    },
    Abort {
        upload: String,
    },
    ReadParts {
        upload: String,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    Nothing,
    Absent,
    /// The key is what this write made of it.
    Is(u64),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Existed(bool),
    /// The writes that the key is made of: one, or those of its parts.
    Value(Option<Vec<u64>>),
    Parts(BTreeMap<u32, u64>),
    Refused(Code),
}

#[derive(Clone, Debug)]
pub struct Call<O = Op, A = Answer> {
    pub op: O,
    pub asked_at: u64,
    /// The time and the answer. `None`: the outcome is unknown, and the call takes effect at any time after
    /// it was asked, or never.
    pub answered: Option<(u64, A)>,
}

/// A key as it is between two operations.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct State {
    bucket: bool,
    value: Option<Vec<u64>>,
    uploads: BTreeMap<String, BTreeMap<u32, u64>>,
}

impl State {
    pub fn new(bucket: bool) -> State {
        State { bucket, ..State::default() }
    }

    fn try_apply(&mut self, op: &Op) -> Result<Answer, Code> {
        match op {
            Op::CreateBucket if self.bucket => return Err(Code::BucketExists),
            Op::CreateBucket => {
                self.bucket = true;
                return Ok(Answer::Done);
            }
            _ if !self.bucket => return Err(Code::NoSuchBucket),
            _ => {}
        }
        match op {
            Op::CreateBucket => unreachable!("it was done above"),
            Op::DeleteBucket if self.value.is_some() => return Err(Code::BucketNotEmpty),
            Op::DeleteBucket => *self = State::default(),
            Op::Put { write, condition } => {
                condition.check(self.value.as_deref())?;
                self.value = Some(vec![*write]);
            }
            Op::Delete => return Ok(Answer::Existed(self.value.take().is_some())),
            Op::Read if self.value.is_none() => return Err(Code::NoSuchKey),
            Op::Read => return Ok(Answer::Value(self.value.clone())),
            Op::CreateUpload { upload } => {
                self.uploads.extend(upload.clone().map(|upload| (upload, BTreeMap::new())));
            }
            Op::CommitPart { upload, number, write } => {
                self.uploads.get_mut(upload).ok_or(Code::NoSuchUpload)?.insert(*number, *write);
            }
            Op::Complete { upload, parts } => {
                let uploaded = self.uploads.get(upload).ok_or(Code::NoSuchUpload)?;
                if parts.iter().any(|(number, write)| uploaded.get(number) != Some(write)) {
                    return Err(Code::InvalidPart);
                }
                self.uploads.remove(upload);
                self.value = Some(parts.iter().map(|(_, write)| *write).collect());
            }
            Op::Abort { upload } => {
                self.uploads.remove(upload).ok_or(Code::NoSuchUpload)?;
            }
            Op::ReadParts { upload } => {
                return self.uploads.get(upload).cloned().map(Answer::Parts).ok_or(Code::NoSuchUpload);
            }
        }
        Ok(Answer::Done)
    }
}

impl Condition {
    /// Refuses a key that is not made of these writes, or is there, as it may be.
    fn check(self, value: Option<&[u64]>) -> Result<(), Code> {
        match (self, value) {
            (Condition::Absent, Some(_)) => Err(Code::PreconditionFailed),
            (Condition::Is(_), None) => Err(Code::NoSuchKey),
            (Condition::Is(write), Some(value)) if value != [write] => Err(Code::PreconditionFailed),
            _ => Ok(()),
        }
    }
}

impl Model for State {
    type Op = Op;
    type Answer = Answer;

    fn apply(&mut self, op: &Op) -> Answer {
        self.try_apply(op).unwrap_or_else(Answer::Refused)
    }
}

/// Whether the calls could have been carried out one at a time, each between its question and its answer,
/// with these answers (Wing and Gong's search; what led to a state and a set of calls that were seen before
/// is not searched again).
pub fn is_linearizable<M: Model>(first: M, calls: &[Call<M::Op, M::Answer>]) -> bool {
    assert!(calls.len() <= 128, "{} calls, a set of them has 128 bits", calls.len());
    let answered = (0..calls.len()).filter(|at| calls[*at].answered.is_some());
    let all_answered: u128 = answered.map(|at| 1 << at).sum();
    let mut seen = HashSet::new();
    let mut open = vec![(0u128, first)];
    while let Some((done, state)) = open.pop() {
        if done & all_answered == all_answered {
            return true;
        }
        if !seen.insert((done, state.clone())) {
            continue;
        }
        let left = || calls.iter().enumerate().filter(|(at, _)| done & (1 << at) == 0);
        let first_answer = left().filter_map(|(_, call)| Some(call.answered.as_ref()?.0)).min();
        for (at, call) in left().filter(|(_, call)| Some(call.asked_at) < first_answer) {
            let mut after = state.clone();
            let answer = after.apply(&call.op);
            if call.answered.as_ref().is_none_or(|(_, answered)| *answered == answer) {
                open.push((done | 1 << at, after));
            }
        }
    }
    false
}

#[test]
fn the_search_tells_good_histories_from_bad_ones() {
    let put = |write| Op::Put { write, condition: Condition::Nothing };
    let call = |op: Op, asked_at: u64, answered: Option<(u64, Answer)>| Call { op, asked_at, answered };
    let read = |asked_at, value: &[u64]| {
        call(Op::Read, asked_at, Some((asked_at + 1, Answer::Value(Some(value.to_vec())))))
    };
    let nothing = |asked_at| call(Op::Read, asked_at, Some((asked_at + 1, Answer::Refused(Code::NoSuchKey))));
    let deleted =
        |asked_at, existed| call(Op::Delete, asked_at, Some((asked_at + 1, Answer::Existed(existed))));
    let done = |op: Op, asked_at, at| call(op, asked_at, Some((at, Answer::Done)));
    let check = |expect: bool, what: &str, calls: &[Call]| {
        assert_eq!(is_linearizable(State::new(true), calls), expect, "{what}");
    };
    check(true, "one after the other", &[done(put(1), 0, 1), read(2, &[1]), deleted(4, true), nothing(6)]);
    check(false, "a stale read", &[done(put(1), 0, 1), done(put(2), 2, 3), read(4, &[1])]);
    check(true, "either of two at once", &[done(put(1), 0, 3), done(put(2), 1, 2), read(4, &[1])]);
    check(false, "twice", &[done(put(1), 0, 1), done(put(2), 2, 3), read(4, &[2]), read(6, &[1])]);
    check(true, "unknown and never", &[call(put(1), 0, None), nothing(2)]);
    check(true, "unknown and late", &[call(put(1), 0, None), nothing(2), read(4, &[1])]);
    check(
        false,
        "unknown and twice",
        &[call(put(1), 0, None), read(2, &[1]), deleted(4, true), read(6, &[1])],
    );
    check(false, "deleted by nobody", &[done(put(1), 0, 1), nothing(2)]);
    let absent = Op::Put { write: 2, condition: Condition::Absent };
    let refused = call(absent, 2, Some((3, Answer::Refused(Code::PreconditionFailed))));
    check(true, "refused", &[done(put(1), 0, 1), refused.clone(), read(4, &[1])]);
    check(false, "refused and done", &[done(put(1), 0, 1), refused.clone(), deleted(4, true), read(6, &[2])]);
    check(false, "refused without a reason", &[refused]);
    let upload = || "u".to_owned();
    let create = done(Op::CreateUpload { upload: Some(upload()) }, 0, 1);
    let part = |write, at| done(Op::CommitPart { upload: upload(), number: 1, write }, at, at + 1);
    let complete = |write, at| done(Op::Complete { upload: upload(), parts: vec![(1, write)] }, at, at + 1);
    check(true, "an upload", &[create.clone(), part(1, 2), part(2, 4), complete(2, 6), read(8, &[2])]);
    check(false, "an old part", &[create.clone(), part(1, 2), part(2, 4), complete(1, 6)]);
    check(false, "completed twice", &[create, part(1, 2), complete(1, 4), complete(1, 6)]);
}
