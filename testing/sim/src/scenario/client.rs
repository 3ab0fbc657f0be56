use super::node::Replica;
use super::oracle::{Began, Oracle, digest};
use super::plan::Plan;
use super::planted::Planted;
use bytes::Bytes;
use disk::sim::Random;
use kv::{Op, Outcome, decode_outcomes, encode_ops, read};
use raft::{Command, ProposeError, ReadIndexError, ReadPolicy, Role};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use types::{GroupId, LogId, Payload, ReplicaId};

/// The time for which a client waits for an answer, ...
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// ... and for the confirmation of a read.
const READ_MAX: Duration = Duration::from_secs(2);
const BODY_BYTES_MAX: u64 = 3000;
/// The longest pause of a client that has little time.
const HASTY_MS_MAX: u64 = 20;

/// A client that writes to one group and reads from it, one thing at a time. Each value is written once, so a
/// value says which write it is from.
pub(super) struct Client {
    number: u64,
    pub(super) part: Part,
    pub(super) group: GroupId,
    next_at: Duration,
    task: Task,
    answer: Option<Slot>,
    values: u64,
    attempts: u64,
    /// The value of this client's own key, which it changes by compare-and-set.
    own: Option<Bytes>,
    /// The replica that was said to lead.
    leader: Option<ReplicaId>,
}

/// The purpose of a client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Anything,
    /// While the leader is alone, the client reads from it by lease ...
    ReadByLease,
    /// ... or writes on the other side.
    WriteElsewhere,
}

#[derive(Clone)]
enum Task {
    None,
    /// A write that is not repeated.
    Write(Vec<Op>),
    /// A write that is repeated until it is known to have happened.
    Change {
        to: Bytes,
    },
    Read {
        key: Bytes,
        policy: ReadPolicy,
    },
}

type Slot = Arc<Mutex<Option<Answer>>>;

enum Answer {
    Done,
    Changed(Outcome),
    /// The request was refused, and nothing happened.
    Refused {
        leader: Option<ReplicaId>,
    },
    Unknown,
}

/// An attempt, to be made by a replica.
pub(super) struct Attempt {
    group: GroupId,
    what: What,
    slot: Slot,
}

enum What {
    Write { command: Command, ops: Vec<Op>, change: bool },
    Read { key: Bytes, policy: ReadPolicy },
}

impl Client {
    pub(super) fn new(number: u64, group: GroupId, part: Part) -> Client {
        Client {
            number,
            part,
            group,
            next_at: Duration::ZERO,
            task: Task::None,
            answer: None,
            values: 0,
            attempts: 0,
            own: None,
            leader: None,
        }
    }

    /// A client that changes its own key once.
    pub(super) fn probe(number: u64, group: GroupId) -> Client {
        let mut client = Client::new(number, group, Part::Anything);
        client.task = Task::Change { to: "probe".into() };
        client
    }

    /// Takes the answer if it has come; true when the client may do something.
    pub(super) fn poll(&mut self, now: Duration, plan: &Plan, random: &mut Random, oracle: &Oracle) -> bool {
        if let Some(slot) = &self.answer {
            let answer = slot.lock().expect("no holder panics").take();
            let answer = match answer {
                Some(answer) => answer,
                // The replica that held the other end is gone.
                None if Arc::strong_count(slot) == 1 => Answer::Unknown,
                None => return false,
            };
            self.answer = None;
            let think_ms_max = match self.part {
                Part::Anything => plan.think_ms_max,
                Part::ReadByLease | Part::WriteElsewhere => HASTY_MS_MAX,
            };
            self.next_at = now + Duration::from_millis(1 + random.below(think_ms_max));
            self.answered(answer, oracle);
        }
        now >= self.next_at
    }

    fn answered(&mut self, answer: Answer, oracle: &Oracle) {
        match (answer, &self.task) {
            (Answer::Refused { leader }, _) => {
                self.leader = leader;
                // A read is simply made again, a change must be.
                if !matches!(self.task, Task::Change { .. }) {
                    self.task = Task::None;
                }
            }
            (Answer::Unknown, Task::Change { .. }) => self.leader = None,
            (Answer::Changed(Outcome::Done), Task::Change { to }) => {
                self.own = Some(to.clone());
                self.task = Task::None;
            }
            // An attempt before this one, whose outcome was unknown, took effect.
            (Answer::Changed(Outcome::Conflict(Some(found))), Task::Change { to }) if found == *to => {
                self.own = Some(found);
                self.task = Task::None;
            }
            (Answer::Changed(Outcome::Conflict(found)), Task::Change { to }) => {
                let (own, key) = (&self.own, self.own_key());
                oracle.fail(format!(
                    "{:?}: only one client changes {key:?}, it went from {own:?} to {to:?} and found {found:?}",
                    self.group
                ));
            }
            (Answer::Done | Answer::Unknown | Answer::Changed(_), _) => self.task = Task::None,
        }
    }

    /// The next attempt at the task. Where the last task is finished another is thought of, unless it is time
    /// to end; then there is no attempt.
    pub(super) fn attempt(&mut self, plan: &Plan, random: &mut Random, is_ending: bool) -> Option<Attempt> {
        if matches!(self.task, Task::None) {
            if is_ending {
                return None;
            }
            self.task = self.think(plan, random);
        }
        self.attempts += 1;
        let what = match &self.task {
            Task::None => return None,
            Task::Read { key, policy } => What::Read { key: key.clone(), policy: *policy },
            Task::Write(ops) => {
                What::Write { command: self.command(ops, random), ops: ops.clone(), change: false }
            }
            Task::Change { to } => {
                let op = Op::CompareAndSet {
                    key: self.own_key(),
                    expected: self.own.clone(),
                    value: Some(to.clone()),
                };
                // A second change makes each attempt a command of its own.
                let attempt = Op::Set {
                    key: format!("attempt-{}", self.number).into(),
                    value: Some(format!("{}", self.attempts).into()),
                };
                let ops = vec![op, attempt];
                What::Write { command: self.command(&ops, random), ops, change: true }
            }
        };
        let slot = Slot::default();
        self.answer = Some(slot.clone());
        Some(Attempt { group: self.group, what, slot })
    }

    pub(super) fn is_idle(&self) -> bool {
        self.answer.is_none() && matches!(self.task, Task::None)
    }

    pub(super) fn leader(&self) -> Option<ReplicaId> {
        self.leader
    }

    /// Waits a moment, as there is nobody to ask.
    pub(super) fn wait(&mut self, now: Duration) {
        self.leader = None;
        self.next_at = now + Duration::from_millis(20);
    }

    fn think(&mut self, plan: &Plan, random: &mut Random) -> Task {
        let key = |random: &mut Random| Bytes::from(format!("k{}", random.below(plan.keys_per_group)));
        self.values += 1;
        let value = Bytes::from(format!("c{}-{}", self.number, self.values));
        match self.part {
            Part::Anything => {}
            Part::ReadByLease => return Task::Read { key: key(random), policy: ReadPolicy::Lease },
            Part::WriteElsewhere => {
                return Task::Write(vec![Op::Set { key: key(random), value: Some(value) }]);
            }
        }
        match random.below(10) {
            0..=1 => Task::Read { key: key(random), policy: ReadPolicy::Index },
            2..=3 => Task::Read { key: key(random), policy: ReadPolicy::Lease },
            4..=5 => Task::Change { to: value },
            6 => Task::Write(vec![Op::Set { key: key(random), value: Some(value) }; 1]),
            _ => {
                // The write changes two keys at once.
                let other = Bytes::from(format!("c{}-{}b", self.number, self.values));
                Task::Write(vec![
                    Op::Set { key: key(random), value: Some(value) },
                    Op::Set { key: "both".into(), value: Some(other) },
                ])
            }
        }
    }

    fn own_key(&self) -> Bytes {
        format!("own-{}", self.number).into()
    }

    fn command(&self, ops: &[Op], random: &mut Random) -> Command {
        let bytes = if random.one_in(4) { random.below(BODY_BYTES_MAX) as usize } else { 0 };
        // No two attempts have the same body.
        let mut unique = Random::new(self.number << 32 | self.attempts);
        let body = std::iter::repeat_with(|| unique.next_u64().to_le_bytes()).flatten().take(bytes);
        Command { meta: encode_ops(ops), body: Payload::checksummed(body.collect()), roll_to: None }
    }
}

impl Attempt {
    /// Makes the attempt, in the replica's process.
    pub(super) async fn make(self, replica: Replica, oracle: Oracle, planted: Option<Planted>) {
        let Attempt { group, what, slot } = self;
        let began = oracle.began(group);
        let made = async {
            match what {
                What::Write { command, ops, change } => {
                    write(&replica, &oracle, began, command, ops, change, planted).await
                }
                What::Read { key, policy } => {
                    let role = replica.group.status().role;
                    match planted {
                        Some(Planted::ReadsNotConfirmed) if role != Role::Leader => {
                            Answer::Refused { leader: None }
                        }
                        Some(Planted::ReadsNotConfirmed) => read_here(&replica, &oracle, group, began, key),
                        Some(Planted::FollowersReadAlone) if role == Role::Follower => {
                            read_here(&replica, &oracle, group, began, key)
                        }
                        _ => read_linearizable(&replica, &oracle, group, began, key, policy).await,
                    }
                }
            }
        };
        let answer = tokio::time::timeout(ANSWER_MAX, made).await.unwrap_or(Answer::Unknown);
        *slot.lock().expect("no holder panics") = Some(answer);
    }
}

async fn write(
    replica: &Replica,
    oracle: &Oracle,
    began: Began,
    command: Command,
    ops: Vec<Op>,
    change: bool,
    planted: Option<Planted>,
) -> Answer {
    let group = replica.group.id();
    let body = digest(&command.body.bytes()[..]);
    match replica.group.apply(command).await {
        Ok(done) => {
            let outcomes = match decode_outcomes(done.reply) {
                Ok(outcomes) => outcomes,
                Err(error) => {
                    oracle.fail(format!("{group:?}: a reply that is none: {error}"));
                    return Answer::Unknown;
                }
            };
            let id: LogId = done.id;
            oracle.acknowledged(group, began, id, &ops, body, &outcomes);
            match outcomes.into_iter().next() {
                Some(outcome) if change => Answer::Changed(outcome),
                _ => Answer::Done,
            }
        }
        Err(ProposeError::OutcomeUnknown) if planted != Some(Planted::UnknownRefused) => Answer::Unknown,
        // All other errors say that nothing was proposed.
        Err(error) => {
            oracle.refused(group, &ops);
            let leader = match error {
                ProposeError::NotLeader { leader } => leader.map(|member| member.replica),
                _ => None,
            };
            Answer::Refused { leader }
        }
    }
}

async fn read_linearizable(
    replica: &Replica,
    oracle: &Oracle,
    group: GroupId,
    began: Began,
    key: Bytes,
    policy: ReadPolicy,
) -> Answer {
    let leads = replica.group.status().role == Role::Leader;
    match replica.group.read(policy, Instant::now() + READ_MAX).await {
        Ok(_) => {
            oracle.count(|counts| {
                counts.follower_reads += u64::from(!leads);
                counts.lease_reads += u64::from(policy == ReadPolicy::Lease);
            });
            read_here(replica, oracle, group, began, key)
        }
        Err(ReadIndexError::NotLeader { leader }) => {
            Answer::Refused { leader: leader.map(|member| member.replica) }
        }
        Err(_) => Answer::Refused { leader: None },
    }
}

fn read_here(replica: &Replica, oracle: &Oracle, group: GroupId, began: Began, key: Bytes) -> Answer {
    match read(&*replica.tables, &key) {
        Ok(found) => {
            oracle.read(group, began, &key, found.as_ref());
            Answer::Done
        }
        Err(_) => Answer::Refused { leader: None },
    }
}
