use super::link::Link;
use super::trace::Trace;
use bytes::Bytes;
use disk::sim::Random;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::codegen::http::{HeaderMap, request, response};

/// The time after which a connection to a machine that does not answer fails, as `rpc::TcpConnector` has it,
/// ...
const CONNECT_MAX: Duration = Duration::from_secs(1);
/// ... and the time for which an established one over which nothing comes any more is taken for alive: ping
/// interval and timeout.
pub const SILENCE_MAX: Duration = Duration::from_secs(5);
/// The time that TCP waits before it sends again.
const RESEND_MIN: Duration = Duration::from_millis(200);
const RESEND_SPREAD_MS: u64 = 400;
/// One lost frame in so many breaks its connection.
const BREAKS_ONE_IN: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub usize);

impl fmt::Display for ProcessId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "n{}", self.0 + 1)
    }
}

/// One run of a process, from its start to its crash.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Life {
    process: ProcessId,
    number: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CallId(u64);

/// The direction of a frame: with the client's request, or with the server's response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    Request,
    Response,
}

pub(super) enum Event {
    Request(Box<request::Parts>),
    Response(Box<response::Parts>),
    Data(Bytes),
    Trailers(HeaderMap),
    End,
    Broken(Status),
}

/// A message that a process put on the wire.
pub struct Sent<'a> {
    pub from: ProcessId,
    pub to: ProcessId,
    pub path: &'a str,
    pub direction: Direction,
    pub data: &'a Bytes,
}

/// Calls of one kind that take longer to arrive than all others, each by chance. So members that are asked
/// the same at the same time get the question at moments that are far apart.
#[derive(Clone, Copy, Debug)]
pub struct SlowCalls {
    /// The end of these calls' paths.
    pub method: &'static str,
    pub by_max: Duration,
}

/// A function that sees all data when it is sent, whether or not it arrives.
pub type Observer = Arc<dyn Fn(&Sent<'_>) + Send + Sync>;

/// One end's view of a call.
pub(super) struct Call {
    pub(super) id: CallId,
    pub(super) events: UnboundedReceiver<Event>,
    /// Cancelled when the other end is gone.
    pub(super) closed: CancellationToken,
}

pub(super) struct Incoming {
    pub(super) call: Call,
    pub(super) parts: Box<request::Parts>,
}

pub(super) enum Dialed {
    Call(Call),
    Refused { after: Duration, why: String },
}

/// All processes' connections. Calls are streams of frames; those of one direction of a call arrive in order.
#[derive(Clone)]
pub struct Network {
    state: Arc<Mutex<State>>,
}

struct State {
    now: Duration,
    random: Random,
    trace: Trace,
    observer: Option<Observer>,
    slow: Option<SlowCalls>,
    endpoints: Vec<Endpoint>,
    links: BTreeMap<(ProcessId, ProcessId), Way>,
    connections: BTreeMap<(Life, Life), Connection>,
    calls: BTreeMap<CallId, Wire>,
    calls_made: u64,
    queue: BTreeMap<(Duration, u64), Delivery>,
    queued: u64,
}

struct Endpoint {
    address: String,
    life: u64,
    /// `None` while the process is down.
    inbox: Option<UnboundedSender<Incoming>>,
    /// Whether the machine is up, so that a process that is down is known to be down.
    answers: bool,
}

struct Way {
    link: Link,
    /// Messages that were sent while the link was cut.
    held: VecDeque<Delivery>,
    /// The time at which what was lost is sent again; nothing overtakes it.
    stalled_until: Duration,
}

#[derive(Default)]
struct Connection {
    silent_since: Option<Duration>,
}

/// A call as the network sees it.
struct Wire {
    client: Life,
    server: Life,
    path: String,
    to_client: End,
    to_server: End,
    /// The server's receiver until the request arrives there.
    unopened: Option<UnboundedReceiver<Event>>,
}

struct End {
    events: UnboundedSender<Event>,
    closed: CancellationToken,
    /// The time when the last frame that was sent arrives.
    last_arrival: Duration,
}

struct Delivery {
    call: CallId,
    direction: Direction,
    event: Event,
}

impl Network {
    pub(super) fn new(seed: u64, trace: Trace) -> Network {
        let state = State {
            now: Duration::ZERO,
            random: Random::new(seed),
            trace,
            observer: None,
            slow: None,
            endpoints: Vec::new(),
            links: BTreeMap::new(),
            connections: BTreeMap::new(),
            calls: BTreeMap::new(),
            calls_made: 0,
            queue: BTreeMap::new(),
            queued: 0,
        };
        Network { state: Arc::new(Mutex::new(state)) }
    }

    pub fn observe(&self, observer: Observer) {
        self.lock().observer = Some(observer);
    }

    pub fn slow_calls(&self, slow: Option<SlowCalls>) {
        self.lock().slow = slow;
    }

    pub fn link(&self, from: ProcessId, to: ProcessId) -> Link {
        self.lock().links[&(from, to)].link
    }

    /// Changes one direction between two processes. What was held back arrives after TCP has tried again.
    pub fn set_link(&self, from: ProcessId, to: ProcessId, link: Link) {
        let state = &mut *self.lock();
        let way = state.links.get_mut(&(from, to)).expect("all pairs have links");
        way.link = link;
        if !link.is_cut && !way.held.is_empty() {
            let pause = RESEND_MIN + Duration::from_millis(state.random.below(RESEND_SPREAD_MS));
            way.stalled_until = state.now + pause;
            for held in std::mem::take(&mut way.held) {
                state.transmit(held);
            }
        }
    }

    pub(super) fn add(&self, address: String) -> ProcessId {
        let state = &mut *self.lock();
        let id = ProcessId(state.endpoints.len());
        for other in (0..id.0).map(ProcessId) {
            for pair in [(id, other), (other, id)] {
                let way = Way { link: Link::FAST, held: VecDeque::new(), stalled_until: Duration::ZERO };
                state.links.insert(pair, way);
            }
        }
        state.endpoints.push(Endpoint { address, life: 0, inbox: None, answers: true });
        id
    }

    pub(super) fn find(&self, address: &str) -> Option<ProcessId> {
        self.lock().endpoints.iter().position(|endpoint| endpoint.address == address).map(ProcessId)
    }

    /// Notes that a process starts: what still hung on its earlier life breaks.
    pub(super) fn up(&self, process: ProcessId) -> UnboundedReceiver<Incoming> {
        let state = &mut *self.lock();
        state.break_calls_of(process);
        let (inbox, incoming) = unbounded_channel();
        let endpoint = &mut state.endpoints[process.0];
        endpoint.life += 1;
        endpoint.inbox = Some(inbox);
        endpoint.answers = true;
        incoming
    }

    /// Notes that a process is gone from here on. When its machine `answers` still, others learn of it.
    pub(super) fn down(&self, process: ProcessId, answers: bool) {
        let state = &mut *self.lock();
        let endpoint = &mut state.endpoints[process.0];
        endpoint.inbox = None;
        endpoint.answers = answers;
        if answers {
            state.break_calls_of(process);
        }
    }

    pub(super) fn dial(&self, from: ProcessId, to: ProcessId, path: &str) -> Dialed {
        let state = &mut *self.lock();
        let (client, server) = (state.life(from), state.life(to));
        let mut first_delay = Duration::ZERO;
        if !state.connections.contains_key(&(client, server)) {
            let ways = [(from, to), (to, from)];
            let is_cut = from != to && ways.iter().any(|pair| state.links[pair].link.is_cut);
            if is_cut || !state.endpoints[to.0].answers {
                return Dialed::Refused { after: CONNECT_MAX, why: format!("no connection to {to} in time") };
            }
            first_delay = state.round_trip(from, to);
            if state.endpoints[to.0].inbox.is_none() {
                return Dialed::Refused { after: first_delay, why: format!("{to} refuses connections") };
            }
            state.connections.insert((client, server), Connection::default());
        }
        let id = CallId(state.calls_made);
        state.calls_made += 1;
        let (to_client, client_events) = End::new(state.now);
        let (mut to_server, server_events) = End::new(state.now);
        to_server.last_arrival = state.now + first_delay;
        let closed = to_client.closed.clone();
        let (path, unopened) = (path.to_owned(), Some(server_events));
        state.calls.insert(id, Wire { client, server, path, to_client, to_server, unopened });
        Dialed::Call(Call { id, events: client_events, closed })
    }

    pub(super) fn send(&self, call: CallId, direction: Direction, event: Event) {
        let state = &mut *self.lock();
        let Some(wire) = state.calls.get(&call) else { return };
        let (from, to) = wire.ends(direction);
        if !state.is_alive(from) {
            return;
        }
        if let (Some(observer), Event::Data(data)) = (&state.observer, &event) {
            observer(&Sent { from: from.process, to: to.process, path: &wire.path, direction, data });
        }
        state.transmit(Delivery { call, direction, event });
    }

    /// Gives a call up at one end; the other learns of it.
    pub(super) fn reset(&self, call: CallId, direction: Direction) {
        self.send(call, direction, Event::Broken(Status::cancelled("the other side gave the call up")));
        let state = &mut *self.lock();
        if let Some(wire) = state.calls.get(&call) {
            match direction {
                Direction::Request => wire.to_client.closed.cancel(),
                Direction::Response => wire.to_server.closed.cancel(),
            }
        }
    }

    /// Ends a call whose client has the whole response.
    pub(super) fn finish(&self, call: CallId) {
        let wire = self.lock().calls.remove(&call);
        if let Some(wire) = wire {
            wire.to_client.closed.cancel();
        }
    }

    /// Moves time on to `now`: what arrives until then is handed over.
    pub(super) fn advance(&self, now: Duration) {
        let state = &mut *self.lock();
        state.now = now;
        while let Some(first) = state.queue.first_entry().filter(|first| first.key().0 <= now) {
            let delivery = first.remove();
            state.deliver(delivery);
        }
        state.break_silent();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of the network panics")
    }
}

impl Wire {
    /// The lives that send and receive in a direction.
    fn ends(&self, direction: Direction) -> (Life, Life) {
        match direction {
            Direction::Request => (self.client, self.server),
            Direction::Response => (self.server, self.client),
        }
    }

    fn receiver(&mut self, direction: Direction) -> &mut End {
        match direction {
            Direction::Request => &mut self.to_server,
            Direction::Response => &mut self.to_client,
        }
    }
}

impl End {
    fn new(now: Duration) -> (End, UnboundedReceiver<Event>) {
        let (events, received) = unbounded_channel();
        (End { events, closed: CancellationToken::new(), last_arrival: now }, received)
    }
}

impl State {
    fn life(&self, process: ProcessId) -> Life {
        Life { process, number: self.endpoints[process.0].life }
    }

    fn is_alive(&self, life: Life) -> bool {
        let endpoint = &self.endpoints[life.process.0];
        endpoint.inbox.is_some() && endpoint.life == life.number
    }

    fn round_trip(&mut self, from: ProcessId, to: ProcessId) -> Duration {
        if from == to {
            return Duration::from_millis(1);
        }
        let (there, back) = (self.links[&(from, to)].link, self.links[&(to, from)].link);
        there.delay(&mut self.random) + back.delay(&mut self.random)
    }

    /// Puts a frame on its way: it arrives later, or when its link is mended, or breaks its connection.
    fn transmit(&mut self, delivery: Delivery) {
        let Some(wire) = self.calls.get_mut(&delivery.call) else { return };
        let (from, to) = wire.ends(delivery.direction);
        let pair = (from.process, to.process);
        let mut arrival = self.now + Link::FAST.delay_min;
        if let Some(way) = self.links.get_mut(&pair) {
            if way.link.is_cut {
                way.held.push_back(delivery);
                return;
            }
            if way.link.loses(&mut self.random) {
                if self.random.one_in(BREAKS_ONE_IN) {
                    let (client, server) = (wire.client, wire.server);
                    self.trace
                        .event(format_args!("{} – {}: connection lost", client.process, server.process));
                    self.break_connection(client, server);
                    return;
                }
                let pause = RESEND_MIN + Duration::from_millis(self.random.below(RESEND_SPREAD_MS));
                way.stalled_until = way.stalled_until.max(self.now + pause);
            }
            arrival = (self.now + way.link.delay(&mut self.random)).max(way.stalled_until);
        }
        if let (Some(slow), Event::Request(_)) = (self.slow, &delivery.event)
            && wire.path.ends_with(slow.method)
        {
            arrival += Duration::from_millis(self.random.below(1 + slow.by_max.as_millis() as u64));
        }
        let end = wire.receiver(delivery.direction);
        arrival = arrival.max(end.last_arrival);
        end.last_arrival = arrival;
        self.queued += 1;
        self.queue.insert((arrival, self.queued), delivery);
    }

    fn deliver(&mut self, Delivery { call, direction, event }: Delivery) {
        let Some(wire) = self.calls.get(&call) else { return };
        let (from, to) = wire.ends(direction);
        if !self.is_alive(to) {
            return;
        }
        self.trace_delivery(call, from, to, &event);
        let is_broken = matches!(event, Event::Broken(_));
        let wire = self.calls.get_mut(&call).expect("looked up above");
        match event {
            Event::Request(parts) => {
                let Some(events) = wire.unopened.take() else { return };
                let call = Call { id: call, events, closed: wire.to_server.closed.clone() };
                if let Some(inbox) = &self.endpoints[to.process.0].inbox {
                    let _ = inbox.send(Incoming { call, parts });
                }
            }
            // A receiver that is gone needs nothing.
            event => drop(wire.receiver(direction).events.send(event)),
        }
        if is_broken {
            wire.receiver(direction).closed.cancel();
            self.calls.remove(&call);
        }
    }

    fn trace_delivery(&self, call: CallId, from: Life, to: Life, event: &Event) {
        let (from, to, call) = (from.process, to.process, call.0);
        match event {
            Event::Request(parts) => {
                self.trace.event(format_args!("{from} → {to} #{call} {}", parts.uri.path()));
            }
            Event::Response(parts) => {
                self.trace.event(format_args!("{from} → {to} #{call} {}", parts.status))
            }
            Event::Data(data) => {
                self.trace.event(format_args!("{from} → {to} #{call} {} bytes", data.len()));
                self.trace.mix(checksum(data));
            }
            Event::Trailers(_) => self.trace.event(format_args!("{from} → {to} #{call} trailers")),
            Event::End => self.trace.event(format_args!("{from} → {to} #{call} end")),
            Event::Broken(status) => {
                self.trace.event(format_args!("{from} → {to} #{call} broken: {}", status.message()));
            }
        }
    }

    /// Breaks connections over which nothing could come for too long: both ends give them up.
    fn break_silent(&mut self) {
        let mut broken = Vec::new();
        let pairs: Vec<_> = self.connections.keys().copied().collect();
        for (client, server) in pairs {
            let (a, b) = (client.process, server.process);
            let is_silent = a != b && (self.links[&(a, b)].link.is_cut || self.links[&(b, a)].link.is_cut)
                || !self.is_alive(client)
                || !self.is_alive(server);
            let connection = self.connections.get_mut(&(client, server)).expect("listed above");
            if !is_silent {
                connection.silent_since = None;
            } else if self.now - *connection.silent_since.get_or_insert(self.now) >= SILENCE_MAX {
                broken.push((client, server));
            }
        }
        for (client, server) in broken {
            self.break_connection(client, server);
        }
    }

    /// Breaks a connection: both ends of all its calls see that at once.
    fn break_connection(&mut self, client: Life, server: Life) {
        self.connections.remove(&(client, server));
        let calls = self.calls.iter().filter(|(_, wire)| (wire.client, wire.server) == (client, server));
        let calls: Vec<_> = calls.map(|(id, _)| *id).collect();
        for wire in calls.iter().filter_map(|id| self.calls.remove(id)) {
            for end in [wire.to_client, wire.to_server] {
                let _ = end.events.send(Event::Broken(Status::unavailable("the connection broke")));
                end.closed.cancel();
            }
        }
    }

    /// Breaks all calls of a process: its machine tells whoever was in one with it.
    fn break_calls_of(&mut self, process: ProcessId) {
        self.connections.retain(|(client, server), _| client.process != process && server.process != process);
        let calls: Vec<_> = self
            .calls
            .iter()
            .filter(|(_, wire)| wire.client.process == process || wire.server.process == process)
            .map(|(id, wire)| {
                let from_client = wire.client.process == process;
                (*id, if from_client { Direction::Request } else { Direction::Response })
            })
            .collect();
        for (call, direction) in calls {
            let event = Event::Broken(Status::unavailable(format!("{process} is gone")));
            self.transmit(Delivery { call, direction, event });
        }
    }
}

fn checksum(data: &[u8]) -> u64 {
    // FNV-1a over words: it tells traces apart and does nothing else.
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for word in data.chunks(8) {
        let mut bytes = [0; 8];
        bytes[..word.len()].copy_from_slice(word);
        hash = (hash ^ u64::from_le_bytes(bytes)).wrapping_mul(0x0100_0000_01b3).rotate_left(23);
    }
    hash
}
