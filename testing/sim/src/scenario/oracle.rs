//! Invariants of every group, checked with each thing that is seen of it: on the wire, in logs, when commands
//! are applied, when clients are answered.

use super::counts::Counts;
use crate::world::Trace;
use bytes::Bytes;
use kv::{Op, Outcome};
use raft::{Applied as Position, SetMembersError};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};
use types::{GroupId, LogId, LogIndex, ReplicaId, Term};

/// A memory of what happened, which finds what must not have; a cheap handle. The first violation stays.
#[derive(Clone)]
pub(super) struct Oracle {
    state: Arc<Mutex<State>>,
    trace: Trace,
}

#[derive(Default)]
struct State {
    violation: Option<String>,
    groups: BTreeMap<GroupId, History>,
    counts: Counts,
}

/// A group's history, as everybody must agree about it.
#[derive(Default)]
struct History {
    leaders: BTreeMap<Term, ReplicaId>,
    entries: BTreeMap<LogId, Entry>,
    /// The bodies of entries, whoever told: logs and messages, clients, or the reader of a place that a state
    /// machine was told.
    bodies: BTreeMap<LogId, u64>,
    committed: BTreeMap<LogIndex, Term>,
    /// The members after some entries, as replicas keep them beside their state.
    members: BTreeMap<LogIndex, Bytes>,
    /// The applied commands, in order; other entries have no place here.
    applied: BTreeMap<LogIndex, Applied>,
    /// The index at which each command was applied: a client proposes it once.
    commands: BTreeMap<u64, LogIndex>,
    /// Commands of which a client was told that no entry was made of them.
    refused: BTreeSet<u64>,
    /// The state by the commands applied so far: what the state machines must come to as well.
    versions: BTreeMap<Bytes, Vec<(LogIndex, Option<Bytes>)>>,
    /// The last entry that is known to have been acknowledged or read; so are all before it.
    known: Option<LogIndex>,
}

/// An entry of a log, wherever it was seen.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Entry {
    content: u64,
    /// The term of the entry before it, once that was seen with it.
    before: Option<Term>,
}

struct Applied {
    term: Term,
    command: u64,
    outcomes: Vec<Outcome>,
}

/// The state of a group's history when an operation began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Began {
    known: Option<LogIndex>,
}

impl Oracle {
    pub(super) fn new(trace: Trace) -> Oracle {
        Oracle { state: Arc::default(), trace }
    }

    pub(super) fn violation(&self) -> Option<String> {
        self.lock().violation.clone()
    }

    pub(super) fn counts(&self) -> Counts {
        self.lock().counts
    }

    pub(super) fn count(&self, add: impl FnOnce(&mut Counts)) {
        add(&mut self.lock().counts);
    }

    /// Notes a violation that somebody else found.
    pub(super) fn fail(&self, why: String) {
        let mut state = self.lock();
        if state.violation.is_none() {
            self.trace.event(format_args!("VIOLATION: {why}"));
            state.violation = Some(why);
        }
    }

    /// Hears that a replica acts as its group's leader in a term; true when that is news.
    pub(super) fn leads(&self, group: GroupId, term: Term, replica: ReplicaId) -> bool {
        let known = *self.lock().group(group).leaders.entry(term).or_insert(replica);
        let is_news = {
            let state = &mut *self.lock();
            let elections = state.groups.values().map(|history| history.leaders.len() as u64).sum();
            let is_news = elections > state.counts.elections;
            state.counts.elections = elections;
            is_news
        };
        if is_news {
            self.trace.event(format_args!("{group:?}: replica {replica} leads in term {term}"));
        }
        if known != replica {
            self.fail(format!("{group:?} has two leaders in term {term}: replicas {known} and {replica}"));
        }
        is_news
    }

    /// Hears that an entry stands in somebody's log, or is sent; `before` is the term of the one before it.
    pub(super) fn entry(&self, group: GroupId, id: LogId, found: Content, before: Option<Term>, by: &str) {
        self.body(group, id, found.body, by);
        let content = found.rest;
        let mut wrong = None;
        {
            let state = &mut *self.lock();
            let entry = state.group(group).entries.entry(id).or_insert(Entry { content, before });
            entry.before = entry.before.or(before);
            if *entry != (Entry { content, before: before.or(entry.before) }) {
                wrong = Some(format!(
                    "{group:?}: {by} has another entry {id:?} than was seen before, or another one before it"
                ));
            }
        }
        wrong.into_iter().for_each(|why| self.fail(why));
    }

    /// Hears that somebody found the body of an entry.
    pub(super) fn body(&self, group: GroupId, id: LogId, body: u64, by: &str) {
        let known = *self.lock().group(group).bodies.entry(id).or_insert(body);
        if known != body {
            self.fail(format!("{group:?}: {by} has another body of entry {id:?} than was seen before"));
        }
    }

    /// Hears that somebody takes an entry for committed.
    pub(super) fn committed(&self, group: GroupId, id: LogId, by: &str) {
        let known = *self.lock().group(group).committed.entry(id.index).or_insert(id.term);
        if known != id.term {
            let index = id.index;
            self.fail(format!(
                "{group:?}: {by} has the entry of term {} committed at {index}, others that of term {known}",
                id.term
            ));
        }
    }

    /// Hears that a replica's state has come to an entry, with the members as they are by then.
    pub(super) fn members(&self, group: GroupId, at: &Position, by: &str) {
        let index = at.id.index;
        let members = self.lock().group(group).members.entry(index).or_insert(at.membership.clone()).clone();
        if members != at.membership {
            self.fail(format!("{group:?}: {by} has other members after entry {index} than others have"));
        }
        self.committed(group, at.id, by);
    }

    /// Hears what became of a call that changes members.
    pub(super) fn members_changed(&self, group: GroupId, done: &Result<(), SetMembersError>) {
        match done {
            Ok(()) => self.count(|counts| counts.member_changes += 1),
            Err(error) => self.trace.event(format_args!("{group:?}: {error}")),
        }
    }

    /// Checks a leader's log, which begins at `first`: it must have all that was committed before its term.
    pub(super) fn check_leader(
        &self,
        group: GroupId,
        leader: &str,
        term: Term,
        first: LogIndex,
        log: &BTreeMap<LogIndex, Term>,
    ) {
        let missing = {
            let state = &mut *self.lock();
            let committed = state.group(group).committed.range(first..);
            let mut earlier = committed.filter(|(_, committed)| **committed < term);
            earlier
                .find(|(index, committed)| log.get(index) != Some(committed))
                .map(|(index, committed)| (*index, *committed))
        };
        if let Some((index, committed)) = missing {
            let has = log.get(&index);
            self.fail(format!(
                "{group:?}: {leader} leads in term {term} without the committed entry {index} of term {committed} \
                 (it has term {has:?} there)"
            ));
        }
    }

    /// Hears that a replica which had applied everything up to `after` applied a command. All must apply the
    /// same ones, in order, each once, with the outcomes that follow from those before.
    pub(super) fn applied(
        &self,
        group: GroupId,
        by: &str,
        after: Option<LogIndex>,
        id: LogId,
        ops: &[Op],
        outcomes: &[Outcome],
    ) {
        if Some(id.index) <= after {
            self.fail(format!("{group:?}: {by} applied {id:?} after it had applied up to {after:?}"));
            return;
        }
        self.committed(group, id, by);
        let result = self.lock().group(group).applied(after, id, ops, outcomes);
        if let Err(why) = result {
            self.fail(format!("{group:?}: {by} {why}"));
        }
    }

    /// Checks the tables, as a whole, of a replica that has applied up to `at`.
    pub(super) fn check_tables(
        &self,
        group: GroupId,
        by: &str,
        at: Option<LogIndex>,
        found: &BTreeMap<Bytes, Bytes>,
    ) {
        let result = self.lock().group(group).check_tables(at, found);
        if let Err(why) = result {
            self.fail(format!("{group:?}: the tables of {by}, applied up to {at:?}, {why}"));
        }
    }

    pub(super) fn began(&self, group: GroupId) -> Began {
        Began { known: self.lock().group(group).known }
    }

    /// Hears that a client was told that nothing was proposed.
    pub(super) fn refused(&self, group: GroupId, ops: &[Op]) {
        let applied = {
            let (state, command) = (&mut *self.lock(), command_of(ops));
            let history = state.group(group);
            history.refused.insert(command);
            history.commands.get(&command).copied()
        };
        if let Some(index) = applied {
            self.fail(format!("{group:?}: a command was refused that was applied at {index}"));
        }
    }

    /// Hears that a client was told that its command was applied as this entry, with these outcomes.
    pub(super) fn acknowledged(
        &self,
        group: GroupId,
        began: Began,
        id: LogId,
        ops: &[Op],
        body: u64,
        outcomes: &[Outcome],
    ) {
        self.body(group, id, body, "a client");
        let result = {
            let state = &mut *self.lock();
            state.counts.writes += 1;
            state.group(group).acknowledged(began, id, ops, outcomes)
        };
        if let Err(why) = result {
            self.fail(format!("{group:?}: {why}"));
        }
    }

    /// Hears that a client read a key.
    pub(super) fn read(&self, group: GroupId, began: Began, key: &Bytes, found: Option<&Bytes>) {
        let result = {
            let state = &mut *self.lock();
            state.counts.reads += 1;
            state.group(group).read(began, key, found)
        };
        if let Err(why) = result {
            self.fail(format!("{group:?}: {why}"));
        }
    }

    /// The last command that anybody applied.
    pub(super) fn last_applied(&self, group: GroupId) -> Option<LogIndex> {
        self.lock().group(group).applied.keys().next_back().copied()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the oracle panics")
    }
}

/// The contents of an entry, for comparing.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Content {
    rest: u64,
    body: u64,
}

impl Content {
    pub(super) fn of(kind: u32, meta: &[u8], body: &[u8]) -> Content {
        Content { rest: digest(&(kind, meta)), body: digest(body) }
    }
}

pub(super) fn digest(what: &(impl Hash + ?Sized)) -> u64 {
    let mut hasher = DefaultHasher::new();
    what.hash(&mut hasher);
    hasher.finish()
}

fn command_of(ops: &[Op]) -> u64 {
    digest(&kv::encode_ops(ops))
}

impl State {
    fn group(&mut self, group: GroupId) -> &mut History {
        self.groups.entry(group).or_default()
    }
}

impl History {
    fn applied(
        &mut self,
        after: Option<LogIndex>,
        id: LogId,
        ops: &[Op],
        outcomes: &[Outcome],
    ) -> Result<(), String> {
        let first = after.map_or(LogIndex(0), LogIndex::next);
        if let Some((skipped, _)) = self.applied.range(first..id.index).next() {
            return Err(format!("applied {id:?} after {after:?} and left out {skipped}"));
        }
        let command = command_of(ops);
        if let Some(known) = self.applied.get(&id.index) {
            if (known.term, known.command) != (id.term, command) {
                return Err(format!("applied another command as {id:?} than others"));
            }
            if known.outcomes != outcomes {
                let known = &known.outcomes;
                return Err(format!("had the outcomes {outcomes:?} of {id:?}, others had {known:?}"));
            }
            return Ok(());
        }
        if let Some((last, _)) = self.applied.last_key_value()
            && *last > id.index
        {
            return Err(format!("applied {id:?}, which others passed over on their way to {last}"));
        }
        if self.refused.contains(&command) {
            return Err(format!("applied {id:?}, a command that was refused"));
        }
        if let Some(first) = self.commands.insert(command, id.index) {
            return Err(format!("applied {id:?}, a command that was applied at {first} already"));
        }
        let expected = self.apply(id.index, ops);
        if expected != outcomes {
            return Err(format!("had the outcomes {outcomes:?} of {id:?}, which must have {expected:?}"));
        }
        self.applied.insert(id.index, Applied { term: id.term, command, outcomes: expected });
        Ok(())
    }

    /// Applies a command as the state machine does, as plainly as that can be written.
    fn apply(&mut self, index: LogIndex, ops: &[Op]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for op in ops {
            let (key, value) = match op {
                Op::Set { key, value } => (key, value.clone()),
                Op::CompareAndSet { key, expected, value } => {
                    let found = self.newest(key);
                    if found != *expected {
                        outcomes.push(Outcome::Conflict(found));
                        continue;
                    }
                    (key, value.clone())
                }
                Op::Append { key, value } => {
                    let longer = [&self.newest(key).unwrap_or_default()[..], value].concat();
                    (key, Some(longer.into()))
                }
            };
            self.versions.entry(key.clone()).or_default().push((index, value));
            outcomes.push(Outcome::Done);
        }
        outcomes
    }

    fn newest(&self, key: &Bytes) -> Option<Bytes> {
        self.versions.get(key)?.last()?.1.clone()
    }

    fn check_tables(&self, at: Option<LogIndex>, found: &BTreeMap<Bytes, Bytes>) -> Result<(), String> {
        let mut expected = BTreeMap::new();
        for (key, versions) in &self.versions {
            let newest = versions.iter().rev().find(|(index, _)| Some(*index) <= at);
            if let Some((_, Some(value))) = newest {
                expected.insert(key.clone(), value.clone());
            }
        }
        if *found == expected {
            return Ok(());
        }
        let keys = expected.keys().chain(found.keys());
        let differing = keys.into_iter().find(|key| expected.get(*key) != found.get(*key));
        let key = differing.expect("maps that differ differ in a key");
        Err(format!("have {:?} under {key:?} instead of {:?}", found.get(key), expected.get(key)))
    }

    fn acknowledged(
        &mut self,
        began: Began,
        id: LogId,
        ops: &[Op],
        outcomes: &[Outcome],
    ) -> Result<(), String> {
        if Some(id.index) <= began.known {
            return Err(format!("a write became entry {id:?}, before {began:?}, when it began"));
        }
        match self.applied.get(&id.index) {
            None => Err(format!("{id:?} was acknowledged and not applied by anybody")),
            Some(known) if (known.term, known.command) != (id.term, command_of(ops)) => {
                Err(format!("{id:?} was acknowledged, and the entry there is another command"))
            }
            Some(known) if known.outcomes != outcomes => {
                let known = &known.outcomes;
                Err(format!("{id:?} was acknowledged with {outcomes:?} instead of {known:?}"))
            }
            Some(_) => {
                self.known = self.known.max(Some(id.index));
                Ok(())
            }
        }
    }

    /// Checks a read: the value must have stood there at some moment between the beginning of the read and
    /// now.
    fn read(&mut self, began: Began, key: &Bytes, found: Option<&Bytes>) -> Result<(), String> {
        let mut versions: Vec<(Option<LogIndex>, Option<&Bytes>)> = vec![(None, None)];
        let written = self.versions.get(key).into_iter().flatten();
        versions.extend(written.map(|(index, value)| (Some(*index), value.as_ref())));
        let Some(at) = versions.iter().rposition(|(_, value)| *value == found) else {
            return Err(format!("{key:?} was read as {found:?}, which was never written"));
        };
        if let Some((replaced, by)) = versions.get(at + 1)
            && *replaced <= began.known
        {
            let known = began.known;
            return Err(format!(
                "{key:?} was read as {found:?}, replaced by {by:?} at {replaced:?}, when {known:?} had been acknowledged"
            ));
        }
        self.known = self.known.max(versions[at].0);
        Ok(())
    }
}
