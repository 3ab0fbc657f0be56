//! Some hundred messages from one seed, and what becomes of the process that is told them.

use crate::known::Known;
use crate::message::{alike, message};
use crate::methods::Method;
use crate::random::Random;
use crate::reach::Reach;
use crate::shown::Shown;
use crate::watch::Watch;
use crate::wire::{Names, call};
use bytes::Bytes;
use proto::RequestId;
use proto::om::BucketPlace;
use protox::prost_reflect::{DynamicMessage, MessageDescriptor};
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

/// An answer is waited for so long before the next message is sent beside it.
const PATIENCE: Duration = Duration::from_millis(100);
/// Calls that wait for their answers beside the one that is begun.
const WAITING_MAX: usize = 48;
/// The most bytes of a message, about, if its method takes as many: few are of more than 16 KiB.
const LARGE_BYTES: usize = 1 << 20;
/// Of a message that is shown, in characters and in bytes.
const SHOWN_MAX: usize = 4000;

/// Who is told messages, and of which methods.
pub(crate) struct Batch<'a> {
    pub(crate) reach: &'a Reach,
    pub(crate) methods: &'a [Method],
    pub(crate) known: &'a Known,
    /// An answer has come by then, whatever it is.
    pub(crate) answered_max: Duration,
}

#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) cases: u64,
    /// How many of them were answered otherwise than with a refusal.
    pub(crate) done: u64,
    /// Of which methods.
    pub(crate) methods_done: BTreeSet<String>,
    /// The longest time until an answer ended, and of which method.
    pub(crate) longest: (Duration, String),
}

/// What must not be, and the messages of which one did it: the last is the likeliest.
#[derive(Debug)]
pub(crate) struct Finding {
    pub(crate) why: String,
    pub(crate) said: Vec<String>,
}

/// What one call says.
struct Case {
    number: u64,
    path: String,
    /// What the messages are.
    kind: MessageDescriptor,
    messages: Vec<Bytes>,
    names: Names,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // One that was damaged says nothing.
        let said = self.messages.iter().map(|bytes| DynamicMessage::decode(self.kind.clone(), bytes.clone()));
        let said = said.map(|said| said.map_or("no message".to_owned(), |said| Shown(&said).to_string()));
        let shown: String = said.collect::<Vec<_>>().join(", ").chars().take(SHOWN_MAX).collect();
        let hex = |bytes: &Bytes| {
            let bytes = &bytes[..bytes.len().min(SHOWN_MAX)];
            bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        };
        let hex: Vec<String> = self.messages.iter().map(hex).collect();
        let Case { number, path, names, .. } = self;
        write!(f, "case {number}, {path}: {shown}\n  with {names:?}\n  as bytes: {}", hex.join(" "))
    }
}

/// What became of a call.
struct Answer {
    /// It was not refused.
    is_done: bool,
    took: Duration,
}

struct Waiting {
    case: Arc<Case>,
    begun: Instant,
    answer: JoinHandle<Answer>,
}

impl Batch<'_> {
    pub(crate) async fn run(&self, seed: u64, cases: u64, watch: &mut Watch) -> Result<Tally, Finding> {
        let mut random = Random::new(seed);
        let mut tally = Tally::default();
        let mut waiting: Vec<Waiting> = Vec::new();
        for number in 0..cases {
            let (method, case) = self.case(number, &mut random);
            let channel = self.channel(&case.path, &mut random);
            let begun = Instant::now();
            let mut answer = begin(channel, method, case.clone());
            tally.cases += 1;
            match tokio::time::timeout(PATIENCE, &mut answer).await {
                Ok(answer) => tally.note(&case, &answer.expect("a call does not panic")),
                Err(_) => waiting.push(Waiting { case: case.clone(), begun, answer }),
            }
            self.look(watch, &waiting, &case)?;
            self.end(&mut waiting, WAITING_MAX, &mut tally).await?;
        }
        self.end(&mut waiting, 0, &mut tally).await?;
        watch.look().map_err(|why| Finding { why, said: vec!["after all of them".to_owned()] })?;
        Ok(tally)
    }

    fn case(&self, number: u64, random: &mut Random) -> (&Method, Arc<Case>) {
        let method = self.method(random);
        let limit = proto::MessageLimit::of_method(&method.path).expect("a method");
        let count = if method.takes_stream { 1 + random.below(5) } else { 1 };
        let (mut first, mut messages) = (None, Vec::new());
        let bytes_max = if random.one_in(24) { limit.bytes_max.min(LARGE_BYTES) } else { 16 << 10 };
        for _ in 0..count {
            let (one, bytes) = match &first {
                Some(first) if !random.one_in(4) => alike(first, self.known, random),
                _ => message(&method.asked, self.known, random, bytes_max),
            };
            first.get_or_insert(one);
            messages.push(bytes.into());
        }
        let names = self.names(random);
        (
            method,
            Arc::new(Case { number, path: method.path.clone(), kind: method.asked.clone(), messages, names }),
        )
    }

    /// Any, and more often those that are many in one.
    fn method(&self, random: &mut Random) -> &Method {
        let often = match random.below(8) {
            0 => "Om/Change",
            1 => "Datanode/Write",
            2 => "RaftTransport/",
            _ => return random.one_of(self.methods),
        };
        let methods = || self.methods.iter().filter(|method| method.path.contains(often));
        let at = random.below(methods().count().max(1) as u64) as usize;
        methods().nth(at).unwrap_or_else(|| random.one_of(self.methods))
    }

    /// Those of this cluster, mostly.
    fn names(&self, random: &mut Random) -> Names {
        let cluster = match random.below(32) {
            0 => String::new(),
            1 => "another".to_owned(),
            _ => self.known.cluster.clone(),
        };
        // Now and then one that was sent before, and says something else now.
        let id = RequestId(u128::from(random.next() >> if random.one_in(8) { 62 } else { 0 }));
        let age_ms = if random.one_in(8) { random.next() >> random.below(64) } else { 0 };
        let age = Duration::from_millis(age_ms);
        let place = match random.below(8) {
            0 => {
                Some(BucketPlace { group: random.below(6), number: random.below(20), epoch: random.below(3) })
            }
            1 => None,
            _ => self.known.place,
        };
        Names { cluster, id, age, place }
    }

    /// A process that has the method, mostly.
    fn channel(&self, path: &str, random: &mut Random) -> Channel {
        let anywhere = random.one_in(16);
        random.one_of(if anywhere { self.reach.all() } else { self.reach.serving(path) }).clone()
    }

    fn look(&self, watch: &mut Watch, waiting: &[Waiting], last: &Case) -> Result<(), Finding> {
        watch.look().map_err(|why| {
            let before = waiting.iter().map(|one| one.case.to_string());
            Finding { why, said: before.chain([last.to_string()]).collect() }
        })
    }

    /// Waits until at most so many wait, and for none longer than an answer may take.
    async fn end(&self, waiting: &mut Vec<Waiting>, most: usize, tally: &mut Tally) -> Result<(), Finding> {
        while waiting.len() > most {
            let Waiting { case, begun, mut answer } = waiting.remove(0);
            let until = (begun + self.answered_max).into();
            match tokio::time::timeout_at(until, &mut answer).await {
                Ok(Ok(answer)) if answer.took <= self.answered_max => tally.note(&case, &answer),
                _ => {
                    let why = format!("no answer within {:?}", self.answered_max);
                    return Err(Finding { why, said: vec![case.to_string()] });
                }
            }
        }
        Ok(())
    }
}

fn begin(channel: Channel, method: &Method, case: Arc<Case>) -> JoinHandle<Answer> {
    let may_wait = method.may_wait;
    tokio::spawn(async move {
        let begun = Instant::now();
        let answer = call(channel, &case.path, case.messages.clone(), &case.names);
        let is_done = match may_wait {
            true => tokio::time::timeout(PATIENCE, answer).await.is_ok_and(|answer| answer.is_ok()),
            false => answer.await.is_ok(),
        };
        Answer { is_done, took: begun.elapsed() }
    })
}

impl Tally {
    fn note(&mut self, case: &Case, answer: &Answer) {
        if answer.took > self.longest.0 {
            self.longest = (answer.took, case.path.clone());
        }
        if answer.is_done {
            self.done += 1;
            self.methods_done.insert(case.path.clone());
        }
    }
}
