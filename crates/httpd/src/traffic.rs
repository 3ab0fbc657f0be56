use crate::addresses::Place;
use crate::counters::Counters;
use crate::frames::Frames;
use crate::limits::Limits;
use crate::pace::Pace;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::time::Instant;

/// The time that a connection that drains is given for a request that began to arrive: what was sent before
/// its client could know.
const DRAIN_HEAD_MAX: Duration = Duration::from_secs(1);

/// The time after its last request in which a connection makes no room for another: hyper may have the end of
/// an answer on HTTP/2 that the socket does not have yet, and we do not see it.
const ANSWER_END_MAX: Duration = Duration::from_secs(1);

/// An account of what a connection's client has sent and taken, and since when it is waited for. Its stream,
/// its requests and their bodies write here what happens; [`Traffic::look`] says what follows.
#[derive(Debug)]
pub(crate) struct Traffic {
    pub(crate) limits: Arc<Limits>,
    pub(crate) counters: Arc<Counters>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    beginning: Beginning,
    /// Requests under way, to the last byte of their answers as far as it was handed to hyper.
    under_way: usize,
    begun: u64,
    /// The moment since which there are no requests.
    idle_since: Instant,
    /// The bytes of HTTP/1 that have come of the next head, and since when.
    head_bytes: usize,
    head_since: Option<Instant>,
    head_too_large: bool,
    /// The frames of HTTP/2 that have come.
    frames: Frames,
    resets_too_much: bool,
    /// The pace at which the client takes what is written to the stream.
    output: Pace,
    /// The pace of HTTP/2's answers, where a client can stop a single one: of taking them, by the number of
    /// the request.
    answers: HashMap<u64, Pace>,
    /// Request bodies that are waited for, by the number of the request.
    bodies: HashMap<u64, Instant>,
    /// Whether a body was left unread, so that its client may still be sending.
    unread: bool,
    draining: bool,
    place: Place,
}

/// The first bytes of a connection, which tell the two versions of HTTP apart: what hyper takes for HTTP/2 is
/// the whole preface, and whatever differs from it in one byte is the head of a request.
#[derive(Debug, Default)]
struct Beginning {
    bytes: [u8; PREFACE.len()],
    known: usize,
}

const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

impl Beginning {
    fn take(&mut self, bytes: &[u8]) {
        let count = bytes.len().min(self.bytes.len() - self.known);
        self.bytes[self.known..][..count].copy_from_slice(&bytes[..count]);
        self.known += count;
    }

    /// Whether the connection may be one of HTTP/2: nothing that came so far says otherwise.
    fn may_be_http2(&self) -> bool {
        PREFACE.starts_with(&self.bytes[..self.known])
    }

    fn is_http2(&self) -> bool {
        self.bytes == *PREFACE
    }
}

/// The reason why a connection was closed. Numbers index counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CloseReason {
    /// Its client closed it, or an answer said that it ends.
    Finished,
    /// The connection broke, or what came over it was not HTTP.
    Broken,
    Handshake,
    Idle,
    /// Idle, and a newcomer needed its place.
    Displaced,
    HeadTimeout,
    HeadTooLarge,
    SlowReader,
    /// Slow, and there are too many of those, most of them of its address.
    Crowded,
    /// A client of HTTP/2 that reset more streams than it may.
    Resets,
    Drained,
}

impl CloseReason {
    pub(crate) const ALL: [CloseReason; 11] = [
        CloseReason::Finished,
        CloseReason::Broken,
        CloseReason::Handshake,
        CloseReason::Idle,
        CloseReason::Displaced,
        CloseReason::HeadTimeout,
        CloseReason::HeadTooLarge,
        CloseReason::SlowReader,
        CloseReason::Crowded,
        CloseReason::Resets,
        CloseReason::Drained,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            CloseReason::Finished => "finished",
            CloseReason::Broken => "broken",
            CloseReason::Handshake => "handshake",
            CloseReason::Idle => "idle",
            CloseReason::Displaced => "displaced",
            CloseReason::HeadTimeout => "head_timeout",
            CloseReason::HeadTooLarge => "head_too_large",
            CloseReason::SlowReader => "slow_reader",
            CloseReason::Crowded => "crowded",
            CloseReason::Resets => "resets",
            CloseReason::Drained => "drained",
        }
    }
}

impl Traffic {
    pub(crate) fn new(limits: Arc<Limits>, counters: Arc<Counters>, place: Place) -> Traffic {
        let output = Pace::new(limits.transfer_idle_max, limits.bytes_per_second_min);
        let now = Instant::now();
        let state = State {
            beginning: Beginning::default(),
            under_way: 0,
            begun: 0,
            idle_since: now,
            head_bytes: 0,
            head_since: None,
            head_too_large: false,
            frames: Frames::new(limits.http2_resets_per_second_max, now),
            resets_too_much: false,
            output,
            answers: HashMap::new(),
            bodies: HashMap::new(),
            unread: false,
            draining: false,
            place,
        };
        Traffic { limits, counters, state: Mutex::new(state) }
    }

    /// Decides what is to be done now: nothing, and to look again at some moment, or to end the connection.
    pub(crate) fn look(&self, now: Instant) -> Result<Instant, CloseReason> {
        let mut state = self.state();
        let mut next = now + self.limits.look_again_after();
        let over_at =
            state.output.over_at().into_iter().chain(state.answers.values().filter_map(Pace::over_at));
        if let Some(over_at) = over_at.min() {
            if over_at <= now {
                return Err(CloseReason::SlowReader);
            }
            next = next.min(over_at);
        }
        self.look_whether_slow(&mut state, now)?;
        state.look_whether_idle(now);
        // A client that still takes the last answer is bound by its pace alone.
        if state.output.waiting_since().is_none()
            && let Some((over_at, end)) = self.request_over_at(&state)
        {
            if over_at <= now {
                return Err(end);
            }
            next = next.min(over_at);
        }
        Ok(next)
    }

    /// The moment when the time is over for the rest of a head, or for the next request, and the end that
    /// this is; `None`: neither is waited for.
    fn request_over_at(&self, state: &State) -> Option<(Instant, CloseReason)> {
        match state.head_since() {
            Some(since) => Some((since + self.limits.head_max, CloseReason::HeadTimeout)),
            None if state.under_way == 0 => {
                Some((state.idle_since + self.limits.idle_max, CloseReason::Idle))
            }
            None => None,
        }
    }

    fn look_whether_slow(&self, state: &mut State, now: Instant) -> Result<(), CloseReason> {
        let slow = state.slow_transfers(now);
        self.counters.slow.change(state.place.slow(), slow);
        state.place.set_slow(slow);
        match state.place.crowds(self.limits.slow_max) {
            true => Err(CloseReason::Crowded),
            false => Ok(()),
        }
    }

    /// Has the connection end; a request that has half arrived may still come.
    pub(crate) fn drain(&self, now: Instant) {
        let mut state = self.state();
        state.draining = true;
        state.idle_since = now;
    }

    /// Whether a connection that [`Traffic::drain`] was called for has no requests, and its time for one that
    /// half arrived is over.
    pub(crate) fn is_drained(&self, now: Instant) -> bool {
        let state = self.state();
        state.draining && !state.has_requests() && now >= state.idle_since + DRAIN_HEAD_MAX
    }

    /// The number of bytes that may be read; `None`: any.
    pub(crate) fn head_room(&self) -> Option<usize> {
        let mut state = self.state();
        if state.under_way > 0 || state.beginning.is_http2() {
            return None;
        }
        let room = self.limits.head_bytes_max.saturating_sub(state.head_bytes);
        state.head_too_large = room == 0;
        Some(room)
    }

    /// Notes what the client sent. Answers whether it may go on; what one sent that may not goes no further.
    #[must_use]
    pub(crate) fn received(&self, bytes: &[u8], now: Instant) -> bool {
        self.counters.received_bytes.add(bytes.len() as u64);
        let mut state = self.state();
        state.beginning.take(bytes);
        if state.beginning.may_be_http2() {
            state.resets_too_much |= state.frames.take(bytes, now);
        }
        if state.beginning.is_http2() {
            state.head_since = None;
        } else if state.under_way == 0 && !bytes.is_empty() {
            state.head_bytes += bytes.len();
            state.head_since.get_or_insert(now);
        }
        if state.head_since().is_some() {
            state.place.set_idle(None);
        }
        !state.resets_too_much
    }

    pub(crate) fn cannot_send(&self, now: Instant) {
        self.state().output.wait(now);
    }

    pub(crate) fn sent(&self, bytes: usize, now: Instant) {
        self.counters.sent_bytes.add(bytes as u64);
        let mut state = self.state();
        // Only the end of an answer begins an idle time, and not the answer to a ping, which asks for
        // nothing.
        let was_waited_for = state.output.waiting_since().is_some();
        state.output.moved(bytes, now);
        if state.under_way == 0 && was_waited_for {
            state.idle_since = now;
        }
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.state().beginning.is_http2()
    }

    pub(crate) fn head_is_too_large(&self) -> bool {
        let state = self.state();
        state.head_too_large && state.under_way == 0
    }

    pub(crate) fn resets_too_much(&self) -> bool {
        self.state().resets_too_much
    }

    /// Whether the connection's place is a newcomer's now. If it is not when a request begins, it does not
    /// become so before that request has ended.
    pub(crate) fn is_displaced(&self) -> bool {
        self.state().place.displaced().is_cancelled()
    }

    /// Whether the client may be sending what nobody will read.
    pub(crate) fn is_unread(&self) -> bool {
        self.state().unread
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }
}

impl State {
    /// The number of answers and bodies for which the client is waited for too long. What is left of the last
    /// answer is in the stream alone.
    fn slow_transfers(&self, now: Instant) -> usize {
        let is_long = |since: &Instant| now >= *since + Limits::SLOW_AFTER;
        let answers = self.answers.values().filter_map(Pace::waiting_since).filter(is_long).count();
        let in_stream = self.output.waiting_since().filter(is_long).iter().count();
        answers.max(in_stream) + self.bodies.values().filter(|since| is_long(since)).count()
    }

    /// The moment since which the rest of a head is waited for, on HTTP/2 also while other requests are under
    /// way.
    fn head_since(&self) -> Option<Instant> {
        self.head_since.or(self.frames.request_head_since())
    }

    /// Whether requests are under way, or a client takes the end of an answer.
    fn has_requests(&self) -> bool {
        self.under_way > 0 || self.output.waiting_since().is_some()
    }

    /// Tells the connection's place when it has become idle. The end of that is told at once, by whatever
    /// comes of a request.
    fn look_whether_idle(&mut self, now: Instant) {
        let is_idle = !self.has_requests() && self.head_since().is_none();
        if is_idle && now >= self.idle_since + ANSWER_END_MAX {
            self.place.set_idle(Some(self.idle_since));
        }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.counters.slow.change(self.state().place.slow(), 0);
    }
}

/// A request under way, until its answer was handed over or nobody wants it any more.
#[derive(Debug)]
pub(crate) struct UnderWay {
    pub(crate) traffic: Arc<Traffic>,
    /// The number on its connection, from 1.
    pub(crate) number: u64,
}

impl UnderWay {
    pub(crate) fn begin(traffic: &Arc<Traffic>) -> UnderWay {
        let mut state = traffic.state();
        state.under_way += 1;
        state.begun += 1;
        state.head_bytes = 0;
        state.head_since = None;
        state.place.set_idle(None);
        traffic.counters.requests.count();
        traffic.counters.under_way.up();
        UnderWay { traffic: traffic.clone(), number: state.begun }
    }

    /// Notes that part of the answer is with hyper, which asks for more when the client has room for it.
    pub(crate) fn answered(&self, bytes: usize, now: Instant) {
        let limits = &self.traffic.limits;
        let mut state = self.traffic.state();
        let pace = state.answers.entry(self.number);
        let pace = pace.or_insert_with(|| Pace::new(limits.transfer_idle_max, limits.bytes_per_second_min));
        // The client has taken what was there before this.
        pace.moved(bytes, now);
        pace.wait(now);
    }

    pub(crate) fn asked_for_more(&self, now: Instant) {
        if let Some(pace) = self.traffic.state().answers.get_mut(&self.number) {
            pace.moved(0, now);
        }
    }

    pub(crate) fn body_is_waited_for(&self, since: Option<Instant>) {
        let mut state = self.traffic.state();
        match since {
            Some(since) => state.bodies.insert(self.number, since),
            None => state.bodies.remove(&self.number),
        };
    }

    pub(crate) fn body_is_left_unread(&self) {
        self.traffic.state().unread = true;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.traffic.state();
        state.under_way -= 1;
        state.answers.remove(&self.number);
        state.bodies.remove(&self.number);
        state.idle_since = Instant::now();
        self.traffic.counters.under_way.down();
    }
}
