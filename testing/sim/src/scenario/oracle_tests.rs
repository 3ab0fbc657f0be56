//! Tests of what the oracle must object to, one thing at a time; and, beside each, what is all right.

use super::oracle::{Content, Oracle, digest};
use crate::world::Trace;
use bytes::Bytes;
use kv::{Op, Outcome};
use raft::Applied;
use std::collections::BTreeMap;
use types::{GroupId, LogId, LogIndex, ReplicaId, Term};

const NO_BODY: &[u8] = &[];

fn oracle() -> Oracle {
    Oracle::new(Trace::new(false))
}

fn group() -> GroupId {
    GroupId::om(1)
}

fn id(term: u64, index: u64) -> LogId {
    LogId { term: Term(term), index: LogIndex(index) }
}

fn set(value: &'static str) -> Vec<Op> {
    vec![Op::Set { key: "k".into(), value: Some(value.into()) }]
}

fn tables(value: &'static str) -> BTreeMap<Bytes, Bytes> {
    BTreeMap::from([("k".into(), value.into())])
}

fn apply(oracle: &Oracle, by: &str, after: Option<u64>, id: LogId, value: &'static str) {
    oracle.applied(group(), by, after.map(LogIndex), id, &set(value), &[Outcome::Done]);
}

fn acknowledge(oracle: &Oracle, id: LogId, value: &'static str) {
    let began = oracle.began(group());
    oracle.acknowledged(group(), began, id, &set(value), digest(NO_BODY), &[Outcome::Done]);
}

/// Checks that the oracle finds nothing in `right`, and in `wrong` after it what `expected` says.
fn check(right: impl Fn(&Oracle), wrong: impl Fn(&Oracle), expected: &str) {
    let oracle = oracle();
    right(&oracle);
    assert_eq!(oracle.violation(), None);
    wrong(&oracle);
    let violation = oracle.violation().expect("it is wrong");
    assert!(violation.contains(expected), "{violation}");
}

#[test]
fn election_safety() {
    let leads = |oracle: &Oracle, term, replica| {
        oracle.leads(group(), Term(term), ReplicaId(replica));
    };
    let right = |oracle: &Oracle| {
        leads(oracle, 1, 7);
        leads(oracle, 1, 7);
        leads(oracle, 2, 8);
        oracle.leads(GroupId::om(2), Term(1), ReplicaId(8));
    };
    check(right, |oracle| leads(oracle, 1, 8), "two leaders in term 1: replicas 7 and 8");
}

#[test]
fn log_matching() {
    let entry = |oracle: &Oracle, id, meta: &[u8], body: &[u8], before: Option<u64>| {
        oracle.entry(group(), id, Content::of(1, meta, body), before.map(Term), "n1");
    };
    let right = |oracle: &Oracle| {
        entry(oracle, id(2, 5), b"meta", b"body", None);
        entry(oracle, id(2, 5), b"meta", b"body", Some(1));
        entry(oracle, id(3, 5), b"other", b"", Some(2));
    };
    let (another, before) = ("another entry LogId { term: Term(2)", "or another one before it");
    check(right, |oracle| entry(oracle, id(2, 5), b"other", b"body", Some(1)), another);
    check(right, |oracle| entry(oracle, id(2, 5), b"meta", b"body", Some(2)), before);
    check(right, |oracle| entry(oracle, id(2, 5), b"meta", b"ydob", Some(1)), "another body of entry");
    check(right, |oracle| oracle.body(group(), id(2, 5), digest(NO_BODY), "n2"), "another body of entry");
}

#[test]
fn leader_completeness() {
    let check_leader = |oracle: &Oracle, term, first, log: &[(u64, u64)]| {
        let log = log.iter().map(|(index, term)| (LogIndex(*index), Term(*term))).collect();
        oracle.check_leader(group(), "n1", Term(term), LogIndex(first), &log);
    };
    let right = |oracle: &Oracle| {
        oracle.committed(group(), id(1, 5), "n1");
        oracle.committed(group(), id(3, 6), "n1");
        check_leader(oracle, 2, 4, &[(4, 1), (5, 1)]);
        check_leader(oracle, 4, 6, &[(6, 3)]);
        // A leader's log may still lack what was committed in its own term, or in later ones.
        check_leader(oracle, 1, 4, &[(4, 1)]);
    };
    let missing = "leads in term 2 without the committed entry 5 of term 1";
    check(right, |oracle| check_leader(oracle, 2, 4, &[(4, 1)]), missing);
    check(right, |oracle| check_leader(oracle, 2, 4, &[(4, 1), (5, 2)]), missing);
    check(right, |oracle| check_leader(oracle, 2, 4, &[]), missing);
    check(right, |oracle| oracle.committed(group(), id(2, 5), "n2"), "entry of term 2 committed at 5");
}

#[test]
fn acknowledged_writes_stay() {
    let right = |oracle: &Oracle| {
        apply(oracle, "n1", None, id(1, 1), "a");
        acknowledge(oracle, id(1, 1), "a");
        apply(oracle, "n2", None, id(1, 1), "a");
        apply(oracle, "n1", Some(1), id(1, 2), "b");
    };
    check(right, |oracle| acknowledge(oracle, id(1, 3), "c"), "acknowledged and not applied by anybody");
    check(right, |oracle| acknowledge(oracle, id(1, 2), "c"), "the entry there is another command");
    check(right, |oracle| apply(oracle, "n3", None, id(1, 1), "c"), "applied another command");
    check(right, |oracle| apply(oracle, "n3", None, id(2, 1), "c"), "entry of term 2 committed at 1");
    check(right, |oracle| apply(oracle, "n3", None, id(1, 2), "b"), "left out 1");
    check(right, |oracle| apply(oracle, "n2", Some(1), id(1, 1), "a"), "after it had applied up to");
    check(right, |oracle| apply(oracle, "n1", Some(2), id(1, 3), "a"), "that was applied at 1 already");
    let other_body = |oracle: &Oracle| oracle.body(group(), id(1, 1), digest(&b"body"[..]), "n1");
    check(right, other_body, "n1 has another body of entry");
}

#[test]
fn a_write_becomes_an_entry_after_those_that_were_known_when_it_began() {
    let right = |oracle: &Oracle| {
        apply(oracle, "n1", None, id(1, 1), "a");
        apply(oracle, "n1", Some(1), id(1, 2), "b");
        acknowledge(oracle, id(1, 2), "b");
    };
    check(right, |oracle| acknowledge(oracle, id(1, 1), "a"), "when it began");
}

#[test]
fn refused_writes_take_no_effect() {
    let refuse = |oracle: &Oracle, value| oracle.refused(group(), &set(value));
    let right = |oracle: &Oracle| {
        refuse(oracle, "a");
        apply(oracle, "n1", None, id(1, 1), "b");
    };
    check(right, |oracle| apply(oracle, "n1", Some(1), id(1, 2), "a"), "a command that was refused");
    check(right, |oracle| refuse(oracle, "b"), "a command was refused that was applied at 1");
}

#[test]
fn applied_state_is_equal() {
    let outcomes = |oracle: &Oracle, by, outcome| {
        let ops = [Op::CompareAndSet { key: "k".into(), expected: None, value: None }];
        oracle.applied(group(), by, Some(LogIndex(2)), id(1, 3), &ops, &[outcome]);
    };
    let at =
        |oracle: &Oracle, index, found| oracle.check_tables(group(), "n1", Some(LogIndex(index)), &found);
    let right = |oracle: &Oracle| {
        apply(oracle, "n1", None, id(1, 1), "a");
        apply(oracle, "n1", Some(1), id(1, 2), "b");
        at(oracle, 0, BTreeMap::new());
        at(oracle, 1, tables("a"));
        at(oracle, 2, tables("b"));
        outcomes(oracle, "n1", Outcome::Conflict(Some("b".into())));
    };
    check(
        right,
        |oracle| at(oracle, 2, tables("a")),
        "have Some(b\"a\") under b\"k\" instead of Some(b\"b\")",
    );
    check(right, |oracle| at(oracle, 2, BTreeMap::new()), "have None under b\"k\"");
    check(right, |oracle| at(oracle, 0, tables("a")), "instead of None");
    check(right, |oracle| outcomes(oracle, "n2", Outcome::Done), "others had");
    let alone = |oracle: &Oracle| apply(oracle, "n1", None, id(1, 1), "b");
    check(alone, |oracle| outcomes(oracle, "n1", Outcome::Done), "which must have");
}

#[test]
fn members_are_the_same_after_the_same_entry() {
    let members = |oracle: &Oracle, index, members: &'static str| {
        oracle.members(group(), &Applied { id: id(1, index), membership: members.into() }, "n1");
    };
    let right = |oracle: &Oracle| {
        members(oracle, 1, "a");
        members(oracle, 1, "a");
        members(oracle, 2, "b");
    };
    check(right, |oracle| members(oracle, 2, "a"), "other members after entry 2");
}

#[test]
fn reads_are_not_stale() {
    let read = |oracle: &Oracle, began, found: Option<&str>| {
        let found = found.map(|found| Bytes::copy_from_slice(found.as_bytes()));
        oracle.read(group(), began, &"k".into(), found.as_ref());
    };
    let right = |oracle: &Oracle| {
        let before = oracle.began(group());
        read(oracle, before, None);
        apply(oracle, "n1", None, id(1, 1), "a");
        apply(oracle, "n1", Some(1), id(1, 2), "b");
        // The second write is not acknowledged to anybody, so either value may be read.
        read(oracle, before, Some("a"));
        read(oracle, oracle.began(group()), Some("a"));
        acknowledge(oracle, id(1, 2), "b");
        read(oracle, oracle.began(group()), Some("b"));
        // The read began when nothing was known.
        read(oracle, before, None);
    };
    check(right, |oracle| read(oracle, oracle.began(group()), Some("a")), "replaced by");
    check(right, |oracle| read(oracle, oracle.began(group()), None), "replaced by");
    check(right, |oracle| read(oracle, oracle.began(group()), Some("c")), "which was never written");
    let read_by_others = |oracle: &Oracle| {
        apply(oracle, "n1", None, id(1, 1), "a");
        apply(oracle, "n1", Some(1), id(1, 2), "b");
        read(oracle, oracle.began(group()), Some("b"));
    };
    check(read_by_others, |oracle| read(oracle, oracle.began(group()), Some("a")), "replaced by");
}
