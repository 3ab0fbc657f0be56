use super::answer::Answer;
use super::connection::ConnectionInfo;
use super::share::{Places, Shares, holder};
use super::{Gate, GateCounts};
use bytes::{Buf, Bytes};
use futures::FutureExt;
use futures::future::BoxFuture;
use proto::{Code, Failure, MessageLimit};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::time::Sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Body as HttpBody, Service};
use tonic::transport::server::TcpConnectInfo;
use tower::Layer;

/// The head of each message: one byte of flags, four of length.
const FRAME_HEAD_BYTES: usize = 5;
/// The time after which a message is given up of which only a part came, or not the end of its call. Within
/// it 36 Mbit/s bring all that an address may have sent in part (256 MiB), and 3.4 the largest message alone;
/// a link that brings less does not keep up with its groups either.
pub(super) const ARRIVAL_MAX: Duration = Duration::from_secs(60);

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        let (calls, gathered, untaken_bytes) =
            (self.calls.clone(), self.gathered.clone(), self.untaken_bytes.clone());
        Gated { inner, calls, gathered, untaken_bytes, counts: self.counts.clone() }
    }
}

/// Services behind the door.
#[derive(Clone)]
pub struct Gated<S> {
    inner: S,
    calls: Arc<Shares>,
    gathered: Arc<Shares>,
    untaken_bytes: Arc<Shares>,
    counts: Arc<GateCounts>,
}

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        let untaken = request.extensions_mut().remove::<ConnectionInfo>().map(|connection| {
            request.extensions_mut().insert(connection.tcp);
            connection.untaken
        });
        let from = caller(&request);
        let Some(place) = self.calls.take(from) else {
            self.counts.calls_refused.count();
            let refused = Status::from(Failure::new(Code::Busy, "too many calls are under way")).into_http();
            return std::future::ready(Ok(refused)).boxed();
        };
        self.counts.calls.count();
        let path = request.uri().path();
        let asked = Asked {
            frame: Frame::Head(0, [0; 4]),
            // An unknown method has no message that anybody reads.
            limit: MessageLimit::of_method(path).unwrap_or(proto::SMALL),
            only: (!proto::takes_stream(path)).then(Only::default),
            gathered: self.gathered.none(from),
            late: None,
            counts: self.counts.clone(),
        };
        let answered =
            self.inner.call(request.map(|body| Body::new(GatedBody { body, what: What::Asked(asked) })));
        let (untaken_bytes, counts) = (self.untaken_bytes.clone(), self.counts.clone());
        let answer = Answer { _place: place, from, untaken_bytes, untaken, counts };
        async move { Ok(answered.await?.map(|body| Body::new(GatedBody { body, what: What::Answer(answer) }))) }
            .boxed()
    }
}

/// The address that a call comes from, as it has shares; none within the process.
pub fn caller<B>(request: &Request<B>) -> Option<IpAddr> {
    let from = request.extensions().get::<TcpConnectInfo>()?.remote_addr()?;
    Some(holder(from.ip()))
}

/// The messages of a call, stopped at the first that is too large, has no room or is late; or its answers,
/// stopped at the first that has no room, which keep its place.
pub struct GatedBody {
    body: Body,
    what: What,
}

enum What {
    Asked(Asked),
    Answer(Answer),
}

/// The messages that a call is asked with, as they come.
struct Asked {
    frame: Frame,
    limit: MessageLimit,
    /// The message of a method that is asked with one.
    only: Option<Only>,
    /// Places for the bytes of a message that waits for its rest.
    gathered: Places,
    /// The end of the wait for the rest of a message.
    late: Option<Pin<Box<Sleep>>>,
    counts: Arc<GateCounts>,
}

/// The only message of a call. Its last piece waits here for the end of the call: who reads such a message
/// waits for that too, with the message decoded, which takes a multiple of its bytes.
#[derive(Default)]
struct Only {
    bytes: usize,
    last: Option<Bytes>,
    has_ended: bool,
}

impl Asked {
    /// Lets a piece pass, or keeps it. A message that is whole with it waits no more, unless it is the only
    /// one.
    fn pass(&mut self, piece: Bytes) -> Result<Option<Bytes>, Status> {
        let bytes_max = self.limit.bytes_max;
        let whole = self.frame.pass(&piece, bytes_max).map_err(|bytes| {
            self.counts.messages_too_large.count();
            let why = format!("a message of {bytes} bytes, the limit of its method is {bytes_max}");
            Status::out_of_range(why)
        })?;
        self.counts.messages.add(whole);
        let Some(only) = &mut self.only else {
            if whole > 0 {
                self.stop_waiting();
            }
            return Ok(Some(piece));
        };
        only.bytes += piece.len();
        if piece.is_empty() || whole == 0 && only.last.is_none() {
            return Ok(Some(piece));
        }
        if whole > 1 || only.last.is_some() || self.frame.came() > 0 {
            return Err(Failure::invalid("more than the one message of a call").into());
        }
        only.last = Some(piece);
        Ok(None)
    }

    /// Notes that the call has ended; answers what was kept until then.
    fn end(&mut self) -> Option<Bytes> {
        self.stop_waiting();
        let only = self.only.as_mut()?;
        only.has_ended = true;
        only.last.take()
    }

    fn has_ended(&self) -> bool {
        self.only.as_ref().is_some_and(|only| only.has_ended)
    }

    fn stop_waiting(&mut self) {
        self.gathered.hold(0);
        self.late = None;
    }

    /// The bytes that have come of what is waited for.
    fn came(&self) -> usize {
        self.only.as_ref().map_or_else(|| self.frame.came(), |only| only.bytes)
    }

    /// Hands on what comes of a body.
    fn poll(
        &mut self,
        body: &mut Body,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        loop {
            if self.has_ended() {
                return Poll::Ready(None);
            }
            let frame = match Pin::new(&mut *body).poll_frame(cx) {
                Poll::Pending => return self.poll_given_up(cx).map(|failure| Some(Err(failure.into()))),
                Poll::Ready(frame) => frame.transpose()?,
            };
            let data = match frame.map(http_body::Frame::into_data) {
                Some(Ok(data)) => match self.pass(data)? {
                    Some(passed) => passed,
                    None => continue,
                },
                // Nobody reads what an only message has behind it.
                last => match self.end() {
                    Some(kept) => kept,
                    None => return Poll::Ready(last.and_then(Result::err).map(Ok)),
                },
            };
            return Poll::Ready(Some(Ok(http_body::Frame::data(data))));
        }
    }

    /// Gives up a message of which a part came, where that has no room, or the rest is not here in time.
    /// Asked when nothing more is here: what comes in one piece, or without a wait, costs nothing, and nobody
    /// who reads a message rests in the middle of it before this was asked. Refused at once: messages that
    /// waited for room would keep their parts, and their connections' windows, from those that would give
    /// room back.
    fn poll_given_up(&mut self, cx: &mut Context<'_>) -> Poll<Failure> {
        let came = self.came();
        if came == 0 {
            return Poll::Pending;
        }
        if !self.gathered.hold(came) {
            self.counts.messages_without_room.count();
            let why = "messages that came in part leave no room for this one: send it again, later";
            return Poll::Ready(Failure::new(Code::Busy, why));
        }
        let late = self.late.get_or_insert_with(|| Box::pin(tokio::time::sleep(ARRIVAL_MAX)));
        ready!(late.as_mut().poll(cx));
        self.counts.messages_late.count();
        let why =
            format!("{came} bytes of a message came, and not its end within {ARRIVAL_MAX:?}: send it again");
        Poll::Ready(Failure::new(Code::Busy, why))
    }
}

/// The position of a body in a sequence of messages.
enum Frame {
    /// Within the head of a message: how many of its bytes came, and those of the length.
    Head(usize, [u8; 4]),
    /// Within a message: bytes that came behind its head, and that are still to come.
    Message(usize, usize),
}

impl Frame {
    /// Returns how many messages are whole with `data`. `Err`: the length of one that is too large.
    fn pass(&mut self, mut data: &[u8], bytes_max: usize) -> Result<u64, usize> {
        let mut whole = 0;
        while data.has_remaining() {
            match self {
                Frame::Message(came, left) => {
                    let passed = data.len().min(*left);
                    data.advance(passed);
                    *came += passed;
                    *left -= passed;
                }
                Frame::Head(came, length) => {
                    let byte = data.get_u8();
                    if *came > 0 {
                        length[*came - 1] = byte;
                    }
                    *came += 1;
                    if *came < FRAME_HEAD_BYTES {
                        continue;
                    }
                    match u32::from_be_bytes(*length) as usize {
                        bytes if bytes > bytes_max => return Err(bytes),
                        bytes => *self = Frame::Message(0, bytes),
                    }
                }
            }
            if let Frame::Message(_, 0) = self {
                *self = Frame::Head(0, [0; 4]);
                whole += 1;
            }
        }
        Ok(whole)
    }

    /// The bytes that have come of the message that is not whole.
    fn came(&self) -> usize {
        match self {
            Frame::Head(came, _) => *came,
            Frame::Message(came, _) => FRAME_HEAD_BYTES + came,
        }
    }
}

impl HttpBody for GatedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let GatedBody { body, what } = &mut *self;
        match what {
            What::Asked(asked) => asked.poll(body, cx),
            What::Answer(answer) => answer.poll(body, cx),
        }
    }

    fn is_end_stream(&self) -> bool {
        let is_kept =
            matches!(&self.what, What::Asked(Asked { only: Some(only), .. }) if only.last.is_some());
        self.body.is_end_stream() && !is_kept
    }

    fn size_hint(&self) -> http_body::SizeHint {
        match &self.what {
            What::Asked(_) => http_body::SizeHint::default(), // a piece may be kept
            What::Answer(_) => self.body.size_hint(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::GateOptions;
    use futures::channel::mpsc;
    use futures::stream::{self, Stream, StreamExt};
    use http_body_util::{BodyExt, StreamBody};
    use proto::MESSAGE_BYTES_MAX;
    use std::convert::Infallible;
    use tokio::time::Instant;
    use tower::service_fn;

    const DEADLINE: Duration = Duration::from_secs(7200);

    fn head(bytes: usize) -> Vec<u8> {
        [&[0][..], &(bytes as u32).to_be_bytes()].concat()
    }

    /// The messages that a streaming call's service reads when these pieces come from one address.
    fn asked(gate: &Gate, from: &str, pieces: impl Stream<Item = Bytes> + Send + 'static) -> Body {
        asked_by(proto::messages::APPEND, gate, from, pieces)
    }

    fn asked_by(
        path: &str,
        gate: &Gate,
        from: &str,
        pieces: impl Stream<Item = Bytes> + Send + 'static,
    ) -> Body {
        let pieces = pieces.map(|piece| Ok::<_, Status>(http_body::Frame::data(piece)));
        let mut request = Request::new(Body::new(StreamBody::new(pieces)));
        *request.uri_mut() = path.parse().unwrap();
        let remote_addr = Some(format!("{from}:1").parse().unwrap());
        request.extensions_mut().insert(TcpConnectInfo { local_addr: None, remote_addr });
        let mut echo = gate.layer(service_fn(async |request: Request<Body>| {
            Ok::<_, Infallible>(Response::new(request.into_body()))
        }));
        echo.call(request).now_or_never().unwrap().unwrap().into_body()
    }

    /// Reads what is here; answers why no more is read.
    fn refused(body: &mut Body) -> Option<Failure> {
        while let Some(frame) = body.frame().now_or_never() {
            if let Err(status) = frame.expect("more may come") {
                return Some(status.into());
            }
        }
        None
    }

    /// Reads to the end.
    async fn read(body: Body) -> Result<Bytes, Failure> {
        let read = tokio::time::timeout(DEADLINE, body.collect()).await.expect("an end");
        read.map(|read| read.to_bytes()).map_err(Failure::from)
    }

    /// A method that is asked with one message, of 24 MiB.
    const HEARTBEAT: &str = "/flotilla.scm.v1.Scm/Heartbeat";

    /// Whole messages whose calls did not end were held, decoded, without an end.
    #[tokio::test(start_paused = true)]
    async fn the_only_message_of_a_call_waits_for_the_end_of_that_as_for_its_own() {
        let gate = Gate::new(GateOptions { gathered_bytes_max: 1000, ..GateOptions::default() });
        let send = |rest: Vec<Vec<u8>>| {
            let (end, ended) = futures::channel::oneshot::channel::<()>();
            let pieces = stream::iter([head(395), vec![7; 395]].into_iter().chain(rest).map(Bytes::from));
            let silent = stream::once(ended).filter_map(async |_| None);
            (end, asked_by(HEARTBEAT, &gate, "10.0.0.1", pieces.chain(silent)))
        };
        let ((end, mut first), (_late, mut second)) = (send(vec![]), send(vec![]));
        for body in [&mut first, &mut second] {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), head(395));
            assert!(body.frame().now_or_never().is_none() && !body.is_end_stream(), "it is not whole yet");
        }
        let (_end, mut third) = send(vec![]);
        assert_eq!(refused(&mut third).map(|failure| failure.code), Some(Code::Busy));
        drop(end);
        assert_eq!(read(first).await.unwrap(), vec![7; 395]);
        let (_end, mut third) = send(vec![]);
        assert_eq!(refused(&mut third), None, "its room is free");
        let begun = Instant::now();
        let late = read(second).await.unwrap_err();
        assert_eq!((late.code, begun.elapsed().as_secs()), (Code::Busy, 60), "{late}");
        assert_eq!((gate.counts().messages_without_room.get(), gate.counts().messages_late.get()), (1, 1));
        for more in [vec![0], head(0)] {
            assert_eq!(refused(&mut send(vec![more]).1).map(|failure| failure.code), Some(Code::Invalid));
        }
        assert_eq!(refused(&mut send(vec![vec![]]).1), None, "nothing more came");
    }

    #[tokio::test]
    async fn the_only_message_of_a_call_that_ends_with_it_needs_no_room() {
        let gate = Gate::new(GateOptions { gathered_bytes_max: 0, ..GateOptions::default() });
        for bytes in [0, 1, 100_000] {
            let message = [head(bytes), vec![7; bytes]].concat();
            let body = asked_by(HEARTBEAT, &gate, "10.0.0.1", stream::iter([message.clone().into()]));
            assert_eq!(read(body).await.unwrap(), message);
        }
        assert_eq!(read(asked_by(HEARTBEAT, &gate, "10.0.0.1", stream::empty())).await.unwrap(), "");
    }

    /// Bodies come cut anywhere.
    #[test]
    fn lengths_are_found_wherever_a_body_is_cut() {
        let message = |bytes: usize| [head(bytes), vec![7; bytes]].concat();
        let body = [message(3), message(0), message(100), message(99), message(101)].concat();
        for cut in 1..body.len() {
            let mut frame = Frame::Head(0, [0; 4]);
            let passed: Result<u64, usize> = body.chunks(cut).map(|data| frame.pass(data, 100)).sum();
            assert_eq!(passed, Err(101), "in pieces of {cut}");
            let mut frame = Frame::Head(0, [0; 4]);
            let passed: Result<u64, usize> = body.chunks(cut).map(|data| frame.pass(data, 101)).sum();
            assert_eq!((passed, frame.came()), (Ok(5), 0), "messages in pieces of {cut}");
            let mut frame = Frame::Head(0, [0; 4]);
            assert_eq!(
                (frame.pass(&body[..cut.min(8)], 101), frame.came()),
                (Ok(u64::from(cut >= 8)), cut.min(8) % 8)
            );
        }
    }

    /// Twenty-five half-sent messages took half a GiB, a thousand a machine.
    #[tokio::test]
    async fn of_half_sent_messages_an_address_has_its_share_and_others_theirs() {
        let gate = Gate::new(GateOptions::default());
        let most = Bytes::from(vec![0; MESSAGE_BYTES_MAX - 1]);
        let send = |from: &str| {
            let pieces = [head(MESSAGE_BYTES_MAX).into(), most.clone()];
            let mut body = asked(&gate, from, stream::iter(pieces).chain(stream::pending()));
            refused(&mut body).map_or(Ok(body), Err)
        };
        let mut first: Vec<Body> = (0..10).map(|_| send("10.0.0.1").unwrap()).collect();
        let failure = send("10.0.0.1").unwrap_err();
        assert_eq!((failure.code, failure.retry), (Code::Busy, proto::Retry::Here), "{failure}");
        let second: Vec<Body> = (0..10).map(|_| send("10.0.0.2").unwrap()).collect();
        let third = send("10.0.0.3").unwrap();
        assert!(send("10.0.0.3").is_err(), "of all");
        assert_eq!(gate.counts().messages_without_room.get(), 2);
        first.pop();
        assert!(send("10.0.0.1").is_ok(), "what is dropped leaves its room");
        drop((first, second, third));
        assert!((0..10).map(|_| send("10.0.0.3")).collect::<Vec<_>>().iter().all(Result::is_ok));
    }

    #[tokio::test]
    async fn a_message_leaves_its_room_when_it_is_whole_and_the_next_takes_its_own() {
        let gate = Gate::new(GateOptions { gathered_bytes_max: 1000, ..GateOptions::default() });
        let open = || {
            let (pieces, came) = mpsc::unbounded::<Vec<u8>>();
            (pieces, asked(&gate, "10.0.0.1", came.map(Bytes::from)))
        };
        let ((to_one, mut one), (to_other, mut other)) = (open(), open());
        to_one.unbounded_send([head(900), vec![7; 895]].concat()).unwrap();
        assert_eq!(refused(&mut one), None);
        to_other.unbounded_send(head(1000)).unwrap();
        // The message is whole, and of the next one 95 bytes came.
        to_one.unbounded_send([vec![7; 5], head(900), vec![7; 90]].concat()).unwrap();
        assert_eq!((refused(&mut one), refused(&mut other)), (None, None));
        to_other.unbounded_send(vec![7; 900]).unwrap();
        assert_eq!(refused(&mut other), None, "905 bytes and 95");
        to_one.unbounded_send(vec![7]).unwrap();
        assert_eq!(refused(&mut one).map(|failure| failure.code), Some(Code::Busy));
        drop(one);
        to_other.unbounded_send(vec![7; 95]).unwrap();
        assert_eq!(refused(&mut other), None, "1000 bytes");
    }

    #[tokio::test]
    async fn a_message_that_nobody_waits_for_needs_no_room() {
        let gate = Gate::new(GateOptions { gathered_bytes_max: 0, ..GateOptions::default() });
        let whole = [head(100_000), vec![7; 100_000], head(0)].concat();
        let pieces = [whole.clone().into(), head(100_000).into(), vec![7; 100_000].into(), whole.into()];
        let read = read(asked(&gate, "10.0.0.1", stream::iter(pieces))).await.unwrap();
        assert_eq!((read.len(), gate.counts().messages.get()), (3 * 100_005 + 2 * 5, 5));
    }

    /// The bytes one by one, each after a second.
    fn dripping(bytes: Vec<u8>) -> impl Stream<Item = Bytes> + Send {
        stream::iter(bytes).then(|byte| async move {
            tokio::time::sleep(Duration::from_secs(1)).await;
            Bytes::from(vec![byte])
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_has_a_minute_from_its_first_byte_on_and_a_call_all_the_time() {
        let gate = Gate::new(GateOptions::default());
        let message = [head(55), vec![7; 55]].concat();
        let idle = stream::once(tokio::time::sleep(Duration::from_secs(3600)).map(|()| Bytes::new()));
        let pieces =
            dripping([message.clone(), message.clone()].concat()).chain(idle).chain(dripping(message));
        assert_eq!(read(asked(&gate, "10.0.0.1", pieces)).await.unwrap().len(), 3 * 60);

        let begun = Instant::now();
        let slow = dripping([head(57), vec![7; 57]].concat());
        let late = read(asked(&gate, "10.0.0.1", slow)).await.unwrap_err();
        assert_eq!((late.code, begun.elapsed().as_secs()), (Code::Busy, 61), "{late}");
        let silent = stream::iter([head(57).into()]).chain(stream::pending());
        let late = read(asked(&gate, "10.0.0.1", silent)).await.unwrap_err();
        assert_eq!((late.code, begun.elapsed().as_secs()), (Code::Busy, 121), "{late}");
        assert_eq!(gate.counts().messages_late.get(), 2);
    }
}
