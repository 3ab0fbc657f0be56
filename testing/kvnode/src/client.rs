use crate::batcher::Batchers;
use crate::connection::{AskError, Connection};
use crate::frame::{Answer, NodeFacts, Request, put_key, take_value};
use bytes::{Bytes, BytesMut};
use kv::{Op, Outcome, decode_outcomes, encode_ops};
use raft::AddressBook;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;
use types::NodeId;

/// The pause between attempts, so that a group without a leader is not asked in a loop.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// A node that leaves a request unanswered for this long is taken for gone.
const ANSWER_MAX: Duration = Duration::from_secs(5);
const CONNECT_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// Requests of one group that are made at the same time travel as one.
    pub batching: bool,
    /// The time that one call may take, all its attempts together.
    pub within: Duration,
}

impl Default for ClientOptions {
    fn default() -> Self {
        Self { batching: false, within: Duration::from_secs(30) }
    }
}

#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum CallError {
    /// The write may or may not take effect, now or later; it was not sent again.
    #[error("the outcome is unknown")]
    OutcomeUnknown,
    /// Nothing was done.
    #[error("no node did it in time, at last: {last}")]
    GaveUp { last: String },
    #[error("refused: {0}")]
    Invalid(String),
}

/// A client that calls whichever node leads a group. It tries again what certainly had no effect, until its
/// time is up. Cheap to clone.
#[derive(Clone)]
pub struct Client {
    caller: Arc<Caller>,
    batchers: Option<Arc<Batchers>>,
}

pub(crate) struct Caller {
    addresses: AddressBook,
    nodes: Vec<Slot>,
    /// The node that led each group last: an index into `nodes`.
    leaders: Vec<AtomicUsize>,
    within: Duration,
}

struct Slot {
    node: NodeId,
    open: Mutex<Option<Arc<Connection>>>,
    /// A lock for connecting: one call connects, the others wait for it.
    connecting: tokio::sync::Mutex<()>,
}

impl Client {
    /// `addresses` are looked up with each new connection, so that a node may come back elsewhere.
    pub fn new(addresses: AddressBook, nodes: &[NodeId], groups: u32, options: ClientOptions) -> Client {
        let slot = |&node| Slot { node, open: Mutex::default(), connecting: tokio::sync::Mutex::default() };
        let leaders = (0..groups as usize).map(|group| AtomicUsize::new(group % nodes.len())).collect();
        let nodes = nodes.iter().map(slot).collect();
        let caller = Arc::new(Caller { addresses, nodes, leaders, within: options.within });
        let batchers = options.batching.then(|| Arc::new(Batchers::start(&caller, groups)));
        Client { caller, batchers }
    }

    /// Applies operations that take effect together.
    pub async fn apply(&self, group: u32, ops: &[Op]) -> Result<Vec<Outcome>, CallError> {
        let (encoded, count) = (encode_ops(ops), ops.len());
        let outcomes = match &self.batchers {
            Some(batchers) => batchers.apply(group, encoded, count).await?,
            None => self.caller.call(group, &Request::Ops(encoded)).await?,
        };
        decode_outcomes(outcomes).map_err(|error| CallError::Invalid(error.to_string()))
    }

    /// Reads the value of a key, no older than this call.
    pub async fn read(&self, group: u32, key: &[u8]) -> Result<Option<Bytes>, CallError> {
        let mut keys = BytesMut::new();
        put_key(&mut keys, key);
        let mut values = match &self.batchers {
            Some(batchers) => batchers.read(group, keys.freeze()).await?,
            None => self.caller.call(group, &Request::Read(keys.freeze())).await?,
        };
        take_value(&mut values).map_err(|error| CallError::Invalid(error.to_string()))
    }

    /// Replicates bytes.
    pub async fn put(&self, group: u32, body: Bytes) -> Result<(), CallError> {
        self.caller.call(group, &Request::Put(body)).await.map(drop)
    }

    /// Asks one node about itself, and no other one: one attempt.
    pub async fn facts(&self, node: NodeId) -> Result<NodeFacts, CallError> {
        let facts = self.caller.ask_node(node, 0, &Request::Facts).await?;
        NodeFacts::decode(facts).map_err(|error| CallError::Invalid(error.to_string()))
    }

    /// Asks `from` to hand a group to `to`: one attempt.
    pub async fn transfer(&self, group: u32, from: NodeId, to: NodeId) -> Result<(), CallError> {
        self.caller.ask_node(from, group, &Request::Transfer(to)).await.map(drop)
    }
}

impl Caller {
    /// Calls a group until the request is done or cannot be, or time is up.
    pub(crate) async fn call(&self, group: u32, request: &Request) -> Result<Bytes, CallError> {
        let deadline = Instant::now() + self.within;
        let Some(leader) = self.leaders.get((group as usize).wrapping_sub(1)) else {
            return Err(CallError::Invalid(format!("there is no group {group}")));
        };
        loop {
            let at = leader.load(Ordering::Relaxed);
            let next = (at + 1) % self.nodes.len();
            let (pause, go_to, why) = match self.attempt(at, group, request).await {
                Attempt::Answered(Answer::Done(bytes)) => return Ok(bytes),
                Attempt::Answered(Answer::Invalid(why)) => return Err(CallError::Invalid(why)),
                Attempt::Answered(Answer::OutcomeUnknown) | Attempt::Lost if !request.is_repeatable() => {
                    return Err(CallError::OutcomeUnknown);
                }
                Attempt::Answered(Answer::NotLeader(Some(node))) => {
                    let named = self.nodes.iter().position(|slot| slot.node == node);
                    (
                        named.is_none_or(|named| named == at),
                        named.unwrap_or(next),
                        "not the leader".to_owned(),
                    )
                }
                Attempt::Answered(Answer::NotLeader(None)) => (true, next, "no leader".to_owned()),
                Attempt::Answered(Answer::Busy) => (true, at, "busy".to_owned()),
                Attempt::Answered(Answer::Unavailable(why)) => (true, next, why),
                Attempt::Answered(Answer::OutcomeUnknown) | Attempt::Lost => {
                    (true, next, "no answer".to_owned())
                }
                Attempt::NotSent(why) => (true, next, why),
            };
            // Others may know better by now.
            let _ = leader.compare_exchange(at, go_to, Ordering::Relaxed, Ordering::Relaxed);
            if Instant::now() >= deadline {
                return Err(CallError::GaveUp { last: why });
            }
            if pause {
                tokio::time::sleep(RETRY_PAUSE).await;
            }
        }
    }

    async fn ask_node(&self, node: NodeId, group: u32, request: &Request) -> Result<Bytes, CallError> {
        let at = self.nodes.iter().position(|slot| slot.node == node);
        let at = at.ok_or_else(|| CallError::Invalid(format!("there is no node {node}")))?;
        match self.attempt(at, group, request).await {
            Attempt::Answered(Answer::Done(bytes)) => Ok(bytes),
            Attempt::Answered(other) => Err(CallError::GaveUp { last: format!("{other:?}") }),
            Attempt::Lost => Err(CallError::OutcomeUnknown),
            Attempt::NotSent(why) => Err(CallError::GaveUp { last: why }),
        }
    }

    async fn attempt(&self, at: usize, group: u32, request: &Request) -> Attempt {
        let connection = match self.connection(&self.nodes[at]).await {
            Ok(connection) => connection,
            Err(why) => return Attempt::NotSent(why),
        };
        match tokio::time::timeout(ANSWER_MAX, connection.ask(group, request)).await {
            Ok(Ok(answer)) => Attempt::Answered(answer),
            Ok(Err(error @ AskError::NotTaken)) => Attempt::NotSent(error.to_string()),
            Ok(Err(AskError::Broken)) | Err(_) => Attempt::Lost,
        }
    }

    async fn connection(&self, slot: &Slot) -> Result<Arc<Connection>, String> {
        let usable = || slot.open.lock().expect("no holder panics").clone().filter(|it| !it.is_closed());
        if let Some(open) = usable() {
            return Ok(open);
        }
        let _connecting = slot.connecting.lock().await;
        if let Some(open) = usable() {
            return Ok(open);
        }
        let address = self.addresses.get(slot.node).ok_or("its address is not known")?;
        let opened = tokio::time::timeout(CONNECT_MAX, Connection::open(&address)).await;
        let opened =
            Arc::new(opened.map_err(|_| "no connection in time")?.map_err(|error| error.to_string())?);
        *slot.open.lock().expect("no holder panics") = Some(opened.clone());
        Ok(opened)
    }
}

enum Attempt {
    Answered(Answer),
    /// The request was sent, and no answer came.
    Lost,
    NotSent(String),
}

impl Request {
    /// Whether asking twice is as good as once. Operations are not: an append would stand there twice, and a
    /// value that was set again would undo what others set in between.
    fn is_repeatable(&self) -> bool {
        match self {
            Request::Read(_) | Request::Facts | Request::Put(_) => true,
            Request::Ops(_) | Request::Transfer(_) => false,
        }
    }
}
