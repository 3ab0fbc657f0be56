//! One connection: the calls under way on it, what may be sent on each and on all, and what is on its way
//! out.
//!
//! Everything is under one lock that is held for some steps. What comes in goes to each stream's own channel,
//! which holds no more than the peer was allowed to send.

use super::body::Event;
use super::counts::FrameCounts;
use super::flow::{FRAME_COST, Flow};
use super::head::{DATA_BYTES_MAX, Head, Kind, Malformed};
use super::queue::{Batch, FrameSize, Queue};
use crate::gate::Room;
use crate::limits::Windows;
use bytes::{Buf, Bytes};
use proto::{Code, Failure, Retry};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::UnboundedSender;
use tokio::task::AbortHandle;
use tokio::time::Instant;
use tonic::Status;

/// The most bytes of a connection that nobody has taken and that are not counted, each way: as much as is
/// read from its socket at once, twice.
const UNCOUNTED_BYTES_MAX: usize = 128 << 10;
/// The time within which what came is read, where that is counted: as long as a message may take to come
/// whole.
const READING_MAX: Duration = Duration::from_secs(60);
/// The bytes of a stream's data that may wait for the socket while its body is asked for more.
const QUEUED_BYTES_MAX: usize = 64 << 10;

pub(super) struct Wire {
    state: Mutex<State>,
    /// Notified when something is to be written, or nothing any more.
    filled: Notify,
    /// Notified when no call is under way any more.
    emptied: Notify,
    /// Notified when something was written.
    drained: Notify,
    /// The bytes that the peer may send on each call, and those that we may.
    stream_bytes: (u32, u32),
    counts: Arc<FrameCounts>,
}

struct State {
    streams: HashMap<u32, Stream>,
    /// The highest number of a call so far.
    last: u32,
    queue: Queue,
    /// The room on all streams together.
    flow: Flow,
    /// The bytes that are being written, as far as they are counted.
    writing: usize,
    /// Places for the bytes that nobody has taken, where they are counted.
    room: Option<Room>,
    /// The streams that wait for room on all together, or for the queue to get short.
    starved: BTreeSet<u32>,
    /// Whether the server takes no calls any more.
    is_leaving: bool,
    end: Option<Status>,
}

impl State {
    fn takes_calls(&self) -> bool {
        self.end.is_none() && !self.is_leaving && self.last < u32::MAX
    }

    /// Counts what waits to be read. False: there is no room for so much.
    fn has_room_for_unread(&mut self) -> bool {
        let bytes = self.flow.untaken() as usize;
        self.room.as_mut().is_none_or(|room| room.unread.hold(counted(bytes)))
    }

    /// Counts what the peer has not taken. False: it is much, or there is no room for so much.
    fn has_room_for_unsent(&mut self) -> bool {
        let bytes = self.queue.counted() + self.writing;
        let has_room = self.room.as_mut().is_none_or(|room| room.unsent.hold(counted(bytes)));
        has_room && !self.queue.is_long()
    }

    /// Wakes the streams that wait for what all of them share.
    fn feed(&mut self) {
        for id in std::mem::take(&mut self.starved) {
            if let Some(stream) = self.streams.get_mut(&id) {
                stream.wake();
            }
        }
    }
}

/// The bytes that have places, of so many of one connection.
fn counted(bytes: usize) -> usize {
    if bytes > UNCOUNTED_BYTES_MAX { bytes } else { 0 }
}

/// A call under way.
struct Stream {
    events: UnboundedSender<Event>,
    flow: Flow,
    unread: Unread,
    /// Whether the peer said that it sends no more data.
    has_ended: bool,
    /// The bytes of the call's data that wait for the socket.
    queued: usize,
    /// The number of the call's frames among the large ones of the queue.
    large: usize,
    sender: Option<Waker>,
    /// The task that works for the call, and ends with it.
    task: Option<AbortHandle>,
}

/// The bytes of a call that came and of which not all are read yet, and since when.
pub(super) struct Unread {
    pub(super) came: u64,
    pub(super) read: u64,
    /// The bytes that had come, and when, at the last look at which all earlier ones were read.
    came_before: (u64, Instant),
}

impl Unread {
    pub(super) fn new() -> Unread {
        Unread { came: 0, read: 0, came_before: (0, Instant::now()) }
    }

    /// Whether something is not read that has been here for long.
    pub(super) fn is_late(&mut self, now: Instant) -> bool {
        let (came, at) = self.came_before;
        if self.read >= came {
            self.came_before = (self.came, now);
        }
        self.read < came && now - at >= READING_MAX
    }
}

impl Stream {
    fn wake(&mut self) {
        if let Some(waker) = self.sender.take() {
            waker.wake();
        }
    }
}

/// The status of a call of which nothing took effect, so that it may be sent again.
fn not_taken(code: Code, why: String) -> Status {
    Failure { retry: Retry::Elsewhere, ..Failure::new(code, why) }.into()
}

/// The reason why no more of a body is sent.
pub(super) enum Unsent {
    /// The call is over: nobody takes the body.
    Over,
    /// The peer did not take the body within the time that it has for that.
    NotTaken,
}

impl Wire {
    /// A connection without calls. `peer` is what the other side lets us send; `room` has places for what
    /// nobody takes.
    pub(super) fn new(windows: Windows, peer: Windows, room: Option<Room>, counts: Arc<FrameCounts>) -> Wire {
        let state = State {
            streams: HashMap::new(),
            last: 0,
            queue: Queue::default(),
            flow: Flow::new(windows.connection_bytes, peer.connection_bytes),
            writing: 0,
            room,
            starved: BTreeSet::new(),
            is_leaving: false,
            end: None,
        };
        let (filled, emptied, drained) = Default::default();
        let stream_bytes = (windows.stream_bytes, peer.stream_bytes);
        Wire { state: Mutex::new(state), filled, emptied, drained, stream_bytes, counts }
    }

    pub(super) fn counts(&self) -> &FrameCounts {
        &self.counts
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder panics")
    }

    fn push(&self, state: &mut State, head: Head, payload: Bytes) {
        let stream = state.streams.get_mut(&head.stream);
        let is_behind = stream.as_ref().is_some_and(|stream| stream.large > 0);
        let size = state.queue.push(head, payload, is_behind);
        if let (Some(stream), FrameSize::Large) = (stream, size) {
            stream.large += 1;
        }
        self.filled.notify_one();
    }

    fn control(&self, state: &mut State, kind: Kind, stream: u32, number: Option<u32>) {
        let payload = number.map_or(Bytes::new(), |number| Bytes::copy_from_slice(&number.to_le_bytes()));
        self.push(state, Head { bytes: payload.len() as u32, stream, kind, is_last: false }, payload);
    }

    fn stream(&self, events: UnboundedSender<Event>) -> Stream {
        let (has_ended, queued, large, sender, task) = Default::default();
        let flow = Flow::new(self.stream_bytes.0, self.stream_bytes.1);
        Stream { events, flow, unread: Unread::new(), has_ended, queued, large, sender, task }
    }

    /// Begins a call, of at most `calls_max` at a time. `Err`: nothing of it was sent.
    pub(super) fn open(
        &self,
        head: Bytes,
        events: UnboundedSender<Event>,
        calls_max: usize,
    ) -> Result<u32, Status> {
        let mut state = self.state();
        if !state.takes_calls() {
            return Err(not_taken(Code::Unavailable, "the connection takes no more calls".to_owned()));
        }
        if state.streams.len() >= calls_max {
            return Err(not_taken(Code::Busy, format!("{calls_max} calls are under way on the connection")));
        }
        state.last += 1;
        let id = state.last;
        state.streams.insert(id, self.stream(events));
        let head_of_frame = Head { bytes: head.len() as u32, stream: id, kind: Kind::Open, is_last: false };
        self.push(&mut state, head_of_frame, head);
        Ok(id)
    }

    /// Takes in a call that the peer began. `Ok(false)`: it comes after the last one that is taken.
    pub(super) fn opened(&self, id: u32, events: UnboundedSender<Event>) -> Result<bool, Malformed> {
        let mut state = self.state();
        if id <= state.last {
            return Err(Malformed::Stream);
        }
        // Later frames of a call that is not taken are told by this number from those of a call that never
        // began.
        state.last = id;
        if !state.takes_calls() {
            return Ok(false);
        }
        state.streams.insert(id, self.stream(events));
        Ok(true)
    }

    pub(super) fn calls(&self) -> usize {
        self.state().streams.len()
    }

    pub(super) fn takes_calls(&self) -> bool {
        self.state().takes_calls()
    }

    /// Ends `task` with the call, at once if that is over.
    pub(super) fn attach(&self, id: u32, task: AbortHandle) {
        match self.state().streams.get_mut(&id) {
            Some(stream) => stream.task = Some(task),
            None => task.abort(),
        }
    }

    /// Sends headers: of an answer, or of its end.
    pub(super) fn send_headers(&self, id: u32, kind: Kind, headers: Bytes) -> Result<(), Unsent> {
        let mut state = self.state();
        if !state.streams.contains_key(&id) {
            return Err(Unsent::Over);
        }
        let is_last = kind == Kind::Trailers;
        self.push(&mut state, Head { bytes: headers.len() as u32, stream: id, kind, is_last }, headers);
        Ok(())
    }

    /// Tells the peer that no more data of a call follows.
    pub(super) fn send_last(&self, id: u32) -> Result<(), Unsent> {
        let mut state = self.state();
        if !state.streams.contains_key(&id) {
            return Err(Unsent::Over);
        }
        self.push(&mut state, Head { bytes: 0, stream: id, kind: Kind::Data, is_last: true }, Bytes::new());
        Ok(())
    }

    /// Waits until the peer has room for a small message of a call, for so long at most.
    pub(super) async fn has_room_for_more(&self, id: u32, patience: Duration) -> Result<(), Unsent> {
        let has_room = std::future::poll_fn(|context| {
            let mut state = self.state();
            let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Err(Unsent::Over)) };
            if stream.flow.has_room() {
                return Poll::Ready(Ok(()));
            }
            stream.sender = Some(context.waker().clone());
            Poll::Pending
        });
        tokio::time::timeout(patience, has_room).await.unwrap_or(Err(Unsent::NotTaken))
    }

    /// Sends data, as the peer has room for it. It must have had room for all of it after `patience`.
    pub(super) async fn send_data(&self, id: u32, mut data: Bytes, patience: Duration) -> Result<(), Unsent> {
        let sending = async {
            while data.has_remaining() {
                std::future::poll_fn(|context| self.poll_send(id, &mut data, context)).await?;
            }
            Ok(())
        };
        tokio::time::timeout(patience, sending).await.unwrap_or(Err(Unsent::NotTaken))
    }

    /// Waits until little of a stream's data waits for the socket, for so long at most.
    pub(super) async fn sent(&self, id: u32, patience: Duration) -> Result<(), Unsent> {
        let sent = std::future::poll_fn(|context| {
            let mut state = self.state();
            let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Err(Unsent::Over)) };
            if stream.queued < QUEUED_BYTES_MAX {
                return Poll::Ready(Ok(()));
            }
            stream.sender = Some(context.waker().clone());
            Poll::Pending
        });
        tokio::time::timeout(patience, sent).await.unwrap_or(Err(Unsent::NotTaken))
    }

    fn poll_send(&self, id: u32, data: &mut Bytes, context: &mut Context<'_>) -> Poll<Result<(), Unsent>> {
        let mut guard = self.state();
        let state = &mut *guard;
        let Some(stream) = state.streams.get_mut(&id) else { return Poll::Ready(Err(Unsent::Over)) };
        let wanted = data.len().min(DATA_BYTES_MAX) as u32;
        let of_stream = stream.flow.sendable(wanted).filter(|_| stream.queued < QUEUED_BYTES_MAX);
        let Some(of_stream) = of_stream else {
            stream.sender = Some(context.waker().clone());
            return Poll::Pending;
        };
        let Some(of_all) = state.flow.sendable(wanted).filter(|_| !state.queue.is_long()) else {
            stream.sender = Some(context.waker().clone());
            state.starved.insert(id);
            return Poll::Pending;
        };
        let bytes = of_stream.min(of_all);
        stream.flow.sent(bytes);
        state.flow.sent(bytes);
        stream.queued += bytes as usize;
        let head = Head { bytes, stream: id, kind: Kind::Data, is_last: false };
        self.push(state, head, data.split_to(bytes as usize));
        Poll::Ready(Ok(()))
    }

    /// Ends a call on this side: nothing of it is sent or taken any more.
    pub(super) fn finish(&self, id: u32) {
        let mut state = self.state();
        self.remove(&mut state, id);
    }

    /// Ends a call that the peer gave up. `Ok(false)`: it was over already.
    pub(super) fn given_up(&self, id: u32) -> Result<bool, Malformed> {
        let mut state = self.state();
        match self.remove(&mut state, id) {
            Some(stream) => {
                let given_up = Event::Broken(Status::cancelled("the caller gave the call up"));
                let _ = stream.events.send(given_up); // nobody waits for it any more
                Ok(true)
            }
            None if id > state.last => Err(Malformed::Stream),
            None => Ok(false),
        }
    }

    /// Gives a call up: the peer is told, unless the call is over already.
    pub(super) fn reset(&self, id: u32) {
        let mut state = self.state();
        if self.remove(&mut state, id).is_some() {
            self.control(&mut state, Kind::Reset, id, None);
        }
    }

    fn remove(&self, state: &mut State, id: u32) -> Option<Stream> {
        let mut stream = state.streams.remove(&id)?;
        state.starved.remove(&id);
        stream.wake();
        if let Some(task) = stream.task.take() {
            task.abort();
        }
        if state.streams.is_empty() {
            self.emptied.notify_waiters();
        }
        Some(stream)
    }

    /// Gives back room for what was taken, or what nobody will take.
    pub(super) fn consumed(&self, id: u32, cost: u32) {
        let mut guard = self.state();
        let state = &mut *guard;
        if let Some(owed) = state.flow.taken(cost) {
            self.control(state, Kind::Credit, 0, Some(owed));
        }
        state.has_room_for_unread(); // there is for less
        let Some(stream) = state.streams.get_mut(&id) else { return };
        stream.unread.read += u64::from(cost);
        if !stream.has_ended
            && let Some(owed) = stream.flow.taken(cost)
        {
            self.control(state, Kind::Credit, id, Some(owed));
        }
    }

    /// Hands on what came of a call's body. A call that sends more than is read, where that has no room, is
    /// given up.
    pub(super) fn received_data(&self, head: Head, data: Bytes) -> Result<(), Malformed> {
        let Head { stream: id, is_last, .. } = head;
        let cost = match data.len() as u32 {
            0 if is_last => 0,
            0 => return Err(Malformed::Stream),
            bytes => bytes + FRAME_COST,
        };
        let is_taken = {
            let mut guard = self.state();
            let state = &mut *guard;
            state.flow.came(cost)?;
            let has_room = cost == 0 || state.has_room_for_unread();
            match state.streams.get_mut(&id) {
                None if id > state.last => return Err(Malformed::Stream),
                None => false,
                Some(stream) if stream.has_ended => return Err(Malformed::Stream),
                Some(_) if !has_room => {
                    self.give_up_unread(state, id);
                    false
                }
                Some(stream) => {
                    stream.flow.came(cost)?;
                    stream.unread.came += u64::from(cost);
                    stream.has_ended = is_last;
                    let is_taken = cost == 0 || stream.events.send(Event::Data(data, cost)).is_ok();
                    if is_last {
                        let _ = stream.events.send(Event::End); // nobody waits for it any more
                    }
                    is_taken
                }
            }
        };
        if !is_taken && cost > 0 {
            self.consumed(id, cost);
        }
        Ok(())
    }

    fn give_up_unread(&self, state: &mut State, id: u32) {
        let Some(stream) = self.remove(state, id) else { return };
        let why = Failure::new(Code::Busy, "what was sent and not read leaves no room for more");
        let _ = stream.events.send(Event::Broken(why.into())); // nobody waits for it any more
        self.counts.calls_unread.count();
        self.control(state, Kind::Reset, id, None);
    }

    /// Gives up the calls that have not read for long what came, where that is counted: it keeps room from
    /// others.
    pub(super) fn give_up_late(&self) {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.room.is_none() || counted(state.flow.untaken() as usize) == 0 {
            return;
        }
        let now = Instant::now();
        let late = |(id, stream): (&u32, &mut Stream)| stream.unread.is_late(now).then_some(*id);
        let late: Vec<u32> = state.streams.iter_mut().filter_map(late).collect();
        for id in late {
            self.give_up_unread(state, id);
        }
    }

    /// Hands on what came of a call; it may be over already.
    pub(super) fn received(&self, id: u32, event: Event) -> Result<(), Malformed> {
        let state = self.state();
        match state.streams.get(&id) {
            Some(stream) => {
                let _ = stream.events.send(event); // nobody waits for it any more
                Ok(())
            }
            None if id > state.last => Err(Malformed::Stream),
            None => Ok(()),
        }
    }

    pub(super) fn received_credit(&self, id: u32, bytes: u32) -> Result<(), Malformed> {
        let mut guard = self.state();
        let state = &mut *guard;
        if id == 0 {
            state.flow.more_credit(bytes)?;
            state.feed();
        } else if let Some(stream) = state.streams.get_mut(&id) {
            stream.flow.more_credit(bytes)?;
            stream.wake();
        }
        Ok(())
    }

    pub(super) fn ping(&self) {
        self.control(&mut self.state(), Kind::Ping, 0, None);
    }

    /// Answers a ping, unless the peer hears of us anyway.
    pub(super) fn pong(&self) {
        let mut state = self.state();
        if state.queue.is_empty() {
            self.control(&mut state, Kind::Pong, 0, None);
        }
    }

    /// Waits while there is much that the peer does not take: one that asks on and on and reads nothing is
    /// not heard any more. False: the peer took nothing for `patience`.
    pub(super) async fn has_room(&self, patience: Duration) -> bool {
        loop {
            let drained = self.drained.notified();
            tokio::pin!(drained);
            drained.as_mut().enable();
            if self.state().has_room_for_unsent() {
                return true;
            }
            if tokio::time::timeout(patience, drained).await.is_err() {
                return false;
            }
        }
    }

    /// Takes no more calls, and says so.
    pub(super) fn leave(&self) {
        let mut state = self.state();
        state.is_leaving = true;
        let last = state.last;
        self.control(&mut state, Kind::Leaving, 0, Some(last));
    }

    /// Notes that the peer takes no calls after the one with this number, and ends later ones.
    pub(super) fn peer_leaves(&self, last: u32) {
        let mut state = self.state();
        state.is_leaving = true;
        let later: Vec<u32> = state.streams.keys().copied().filter(|id| *id > last).collect();
        for id in later {
            if let Some(stream) = self.remove(&mut state, id) {
                let why = not_taken(Code::Unavailable, "the process is stopping".to_owned());
                let _ = stream.events.send(Event::Broken(why)); // nobody waits for it any more
            }
        }
    }

    /// Waits until no call is under way.
    pub(super) async fn emptied(&self) {
        loop {
            let emptied = self.emptied.notified();
            tokio::pin!(emptied);
            emptied.as_mut().enable();
            if self.state().streams.is_empty() {
                return;
            }
            emptied.await;
        }
    }

    /// Ends the connection for this reason; what is in the queue may still be written.
    pub(super) fn end(&self, why: &Status) {
        let mut state = self.state();
        if state.end.is_none() {
            state.end = Some(why.clone());
        }
        let ids: Vec<u32> = state.streams.keys().copied().collect();
        for id in ids {
            if let Some(stream) = self.remove(&mut state, id) {
                let _ = stream.events.send(Event::Broken(why.clone())); // nobody waits for it any more
            }
        }
        self.filled.notify_one();
    }

    /// The batch that is to be written next; `None` once the connection is over and all is written.
    pub(super) async fn to_write(&self) -> Option<Batch> {
        loop {
            {
                let mut guard = self.state();
                let state = &mut *guard;
                if !state.queue.is_empty() {
                    let State { queue, streams, .. } = state;
                    let batch = queue.take(|id| {
                        if let Some(stream) = streams.get_mut(&id) {
                            stream.large -= 1;
                        }
                    });
                    state.writing = batch.counted;
                    return Some(batch);
                }
                if state.end.is_some() {
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }

    /// Notes that the socket took something.
    pub(super) fn progressed(&self) {
        self.drained.notify_waiters();
    }

    /// Notes that the socket has taken a batch.
    pub(super) fn written(&self, data: &[(u32, usize)], frames: u64) {
        self.counts.writes.count();
        self.counts.frames_sent.add(frames);
        let mut guard = self.state();
        let state = &mut *guard;
        state.writing = 0;
        state.has_room_for_unsent(); // there is for less
        self.drained.notify_waiters();
        if !state.queue.is_long() {
            state.feed();
        }
        for (id, bytes) in data {
            if let Some(stream) = state.streams.get_mut(id) {
                stream.queued -= bytes;
                if stream.queued < QUEUED_BYTES_MAX {
                    stream.wake();
                }
            }
        }
    }
}
