use crate::frame::{Answer, put_value, take_key};
use crate::session::{Caller, answer_all};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use kv::take_outcomes;
use raft::{Command, Group, ProposeError, ReadIndexError};
use statedb::Tables;
use std::sync::Arc;
use tokio::sync::mpsc;

/// The most requests of a group that wait for their round; more are told to come again.
pub(crate) const QUEUE_COUNT_MAX: usize = 65_536;
/// The most bytes of operations in one proposal: far below what a command may have, and some thousand
/// operations.
const PROPOSAL_BYTES_MAX: usize = 1 << 20;

/// An operation that waits for a group.
pub(crate) struct Queued {
    pub(crate) caller: Caller,
    pub(crate) work: Work,
}

pub(crate) enum Work {
    /// Operations that were looked through, and how many they are.
    Ops { ops: Bytes, count: usize },
    /// Keys, encoded.
    Read(Bytes),
}

/// The way in which a lane makes rounds of requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaneOptions {
    pub(crate) rounds: usize,
    pub(crate) merge: usize,
    pub(crate) reads_apart: bool,
    pub(crate) planted_early_ack: bool,
}

/// The requests of one group. While a round is under way, what comes meanwhile gathers for the next: writes
/// become one proposal, so the busier a group is the less each of them costs. Reads of a round need no round
/// trip of their own: a proposal that was made after they came and is committed proves that this replica
/// still led, and everything acknowledged before they came stands before it in the log.
#[derive(Clone)]
pub(crate) struct Lane {
    pub(crate) group: Group,
    pub(crate) tables: Arc<dyn Tables>,
    pub(crate) options: LaneOptions,
}

struct Write {
    caller: Caller,
    count: usize,
}

struct Read {
    caller: Caller,
    keys: Bytes,
}

impl Lane {
    /// Works until the queue is closed and what is under way is answered.
    pub(crate) async fn run(self, mut queue: mpsc::Receiver<Queued>) {
        let mut rounds = FuturesUnordered::new();
        let mut gathered = Vec::new();
        loop {
            tokio::select! {
                biased;
                Some(()) = rounds.next() => {}
                count = queue.recv_many(&mut gathered, self.options.merge), if rounds.len() < self.options.rounds => {
                    if count == 0 {
                        break;
                    }
                    rounds.push(self.clone().round(std::mem::take(&mut gathered)));
                }
            }
        }
        while rounds.next().await.is_some() {}
    }

    async fn round(self, gathered: Vec<Queued>) {
        let (mut reads, mut writes) = (Vec::new(), Vec::new());
        let mut merged = BytesMut::new();
        for Queued { caller, work } in gathered {
            match work {
                Work::Read(keys) => reads.push(Read { caller, keys }),
                Work::Ops { ops, count } => {
                    if merged.len() + ops.len() > PROPOSAL_BYTES_MAX && !writes.is_empty() {
                        let ops = merged.split().freeze();
                        // A part of the round; the reads go with the last.
                        if self.options.reads_apart {
                            self.write(ops, std::mem::take(&mut writes), Vec::new()).await;
                        } else {
                            self.write(ops, std::mem::take(&mut writes), std::mem::take(&mut reads)).await;
                        }
                    }
                    merged.extend_from_slice(&ops);
                    writes.push(Write { caller, count });
                }
            }
        }
        if self.options.reads_apart && !reads.is_empty() {
            self.read_alone(std::mem::take(&mut reads)).await;
        }
        match (writes.is_empty(), reads.is_empty()) {
            (false, _) => self.write(merged.freeze(), writes, reads).await,
            (true, false) => self.read_alone(reads).await,
            (true, true) => {}
        }
    }

    /// Proposes `ops` and answers `writes` and `reads`.
    async fn write(&self, ops: Bytes, writes: Vec<Write>, reads: Vec<Read>) {
        let proposed = self.group.propose(Command { meta: ops, ..Command::default() }).await;
        if self.options.planted_early_ack && proposed.is_ok() {
            const DONE: u8 = 1;
            let done = |count: usize| Answer::Done(vec![DONE; count].into());
            answer_all(writes.into_iter().map(|write| (write.caller, done(write.count))));
            return self.read_now(reads);
        }
        let done = match proposed {
            Ok(proposal) => proposal.done().await,
            Err(error) => Err(error),
        };
        match done {
            Ok(done) => {
                let mut outcomes = done.reply;
                let answers = writes.into_iter().map(|write| {
                    let answer = match take_outcomes(&mut outcomes, write.count) {
                        Ok(outcomes) => Answer::Done(outcomes),
                        Err(_) => Answer::OutcomeUnknown,
                    };
                    (write.caller, answer)
                });
                answer_all(answers);
                self.read_now(reads);
            }
            Err(error) => {
                let answer = write_failed(error);
                let for_reads = match &answer {
                    Answer::OutcomeUnknown => Answer::Unavailable("leadership was lost".to_owned()),
                    other => other.clone(),
                };
                answer_all(writes.into_iter().map(|write| (write.caller, answer.clone())));
                answer_all(reads.into_iter().map(|read| (read.caller, for_reads.clone())));
            }
        }
    }

    /// Reads with one confirmation for all of them.
    async fn read_alone(&self, reads: Vec<Read>) {
        match self.group.read_index().await {
            Ok(_) => self.read_now(reads),
            Err(error) => {
                let answer = read_failed(error);
                answer_all(reads.into_iter().map(|read| (read.caller, answer.clone())));
            }
        }
    }

    /// Answers reads at once: the caller knows that this replica has applied what they must see.
    fn read_now(&self, reads: Vec<Read>) {
        answer_all(reads.into_iter().map(|read| {
            let answer = match self.values(read.keys) {
                Ok(values) => Answer::Done(values),
                Err(why) => Answer::Invalid(format!("{why:#}")),
            };
            (read.caller, answer)
        }));
    }

    fn values(&self, mut keys: Bytes) -> anyhow::Result<Bytes> {
        let mut values = BytesMut::new();
        while !keys.is_empty() {
            let key = take_key(&mut keys)?;
            put_value(&mut values, kv::read(&*self.tables, &key)?.as_deref());
        }
        Ok(values.freeze())
    }
}

pub(crate) fn write_failed(error: ProposeError) -> Answer {
    match error {
        ProposeError::NotLeader { leader } => Answer::NotLeader(leader.map(|leader| leader.node)),
        ProposeError::Busy { .. } => Answer::Busy,
        ProposeError::OutcomeUnknown => Answer::OutcomeUnknown,
        ProposeError::TooLarge { .. } => Answer::Invalid(error.to_string()),
        ProposeError::DiskFull { .. } | ProposeError::Stopped { .. } => {
            Answer::Unavailable(error.to_string())
        }
    }
}

fn read_failed(error: ReadIndexError) -> Answer {
    match error {
        ReadIndexError::NotLeader { leader } => Answer::NotLeader(leader.map(|leader| leader.node)),
        ReadIndexError::NoQuorum { .. }
        | ReadIndexError::Unreachable { .. }
        | ReadIndexError::Expired
        | ReadIndexError::Busy { .. }
        | ReadIndexError::Stopped { .. } => Answer::Unavailable(error.to_string()),
    }
}
