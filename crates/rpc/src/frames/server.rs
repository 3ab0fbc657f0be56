use super::body::{Call, Events, Incoming, send};
use super::counts::{CloseReason, FrameCounts};
use super::ends::Ends;
use super::head::{HELLO_BYTES, Head, Kind, Malformed, heard, hello};
use super::headers;
use super::reader::{Ended, Side, read};
use super::resets::Resets;
use super::wire::{Unsent, Wire};
use super::writer::{NOTHING_TAKEN_MAX, write};
use crate::gate::Room;
use crate::limits::{CALLS_PER_CONNECTION_MAX, PING_INTERVAL, Windows};
use bytes::Bytes;
use proto::{Code, Failure, Retry};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::transport::server::TcpConnectInfo;
use tower::{Service, ServiceExt};

/// The time after connecting in which a client has to say hello.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// The most calls of a connection: twice what a client of ours begins, as a call that is over there may not
/// be over here yet.
const CALLS_MAX: usize = 2 * CALLS_PER_CONNECTION_MAX as usize;
/// The time in which the last answers are written when all calls are over.
const FLUSH_MAX: Duration = Duration::from_secs(1);

/// The services of a port.
pub(crate) trait Calls:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send> + Clone + Send + 'static
{
}

impl<S> Calls for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static
{
}

/// Answers the calls of one connection until it ends, or until `stop` and all calls are over. `room` has
/// places for what nobody takes.
pub(crate) async fn serve<S: Calls>(
    (mut input, mut output): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin + Send + 'static),
    from: TcpConnectInfo,
    service: S,
    room: Room,
    counts: Arc<FrameCounts>,
    stop: CancellationToken,
) {
    let windows = Windows::default();
    let mut said = [0; HELLO_BYTES];
    if !matches!(tokio::time::timeout(HELLO_MAX, input.read_exact(&mut said)).await, Ok(Ok(_))) {
        counts.ended(CloseReason::NoHello).count();
        return;
    }
    // A client that speaks another version hears which one this is.
    if output.write_all(&hello(windows)).await.is_err() {
        counts.ended(CloseReason::Broken).count();
        return;
    }
    let peer = match heard(&said) {
        Ok(peer) => peer,
        Err(malformed) => {
            let ended = Ended::from(malformed);
            tracing::debug!(from = ?from.remote_addr, %ended, "refuse a connection");
            counts.ended(ended.end()).count();
            return;
        }
    };
    let wire = Arc::new(Wire::new(windows, peer, Some(room), counts));
    let writer = wire.clone();
    let mut writing = JoinSet::new();
    writing.spawn(async move { write(&writer, output).await });
    let (mut ends, peer) = (Ends::of(&wire), from.remote_addr);
    let mut calls = Answering { wire: &wire, from, service, resets: Resets::since(Instant::now()) };
    tokio::select! {
        ended = read(&wire, input, &mut calls) => {
            tracing::debug!(from = ?peer, %ended, "a connection ended");
            ends.end(ended.end(), ended.to_string());
        }
        Some(Ok(Err(ended))) = writing.join_next() => {
            tracing::debug!(from = ?peer, %ended, "cannot write to a connection");
            ends.end(ended.end(), ended.to_string());
        }
        () = leave(&wire, &stop) => ends.end(CloseReason::Stopping, "the process is stopping".to_owned()),
    };
    // What the writer has not written by then stays unwritten.
    let _ = tokio::time::timeout(FLUSH_MAX, writing.join_next()).await;
}

async fn leave(wire: &Wire, stop: &CancellationToken) {
    stop.cancelled().await;
    wire.leave();
    wire.emptied().await;
}

/// The server's side of a connection, which is sent calls and answers them.
struct Answering<'a, S> {
    wire: &'a Arc<Wire>,
    from: TcpConnectInfo,
    service: S,
    resets: Resets,
}

impl<S: Calls> Side for Answering<'_, S> {
    const HOLDS_BACK: bool = true;
    const PINGS_AFTER: Duration = PING_INTERVAL.saturating_add(Duration::from_secs(1));

    fn on_frame(&mut self, head: Head, payload: Bytes) -> Result<(), Malformed> {
        match head.kind {
            Kind::Open => self.open(head.stream, payload),
            Kind::Reset => match self.wire.given_up(head.stream)? {
                true => self.resets.count(Instant::now()),
                false => Ok(()),
            },
            _ => Err(Malformed::Stream),
        }
    }

    fn on_end(&mut self, _: u32) {}
}

impl<S: Calls> Answering<'_, S> {
    fn open(&mut self, id: u32, head: Bytes) -> Result<(), Malformed> {
        if self.wire.calls() >= CALLS_MAX {
            return Err(Malformed::Stream);
        }
        let (sender, events) = mpsc::unbounded_channel();
        let events = Events { wire: self.wire.clone(), id, events };
        let mut request = headers::request(head, Body::new(Incoming { events, call: Some(()) }))?;
        request.extensions_mut().insert(self.from.clone());
        if self.wire.opened(id, sender)? {
            let answering = answer(self.wire.clone(), id, self.service.clone(), request);
            self.wire.attach(id, tokio::spawn(answering).abort_handle());
        }
        Ok(())
    }
}

async fn answer<S: Calls>(wire: Arc<Wire>, id: u32, service: S, request: Request<Body>) {
    // The call is dropped with the task, whoever ends that.
    let call = Call { wire, id, _keeps: () };
    let Ok(response) = service.oneshot(request).await;
    let sending = async {
        call.wire.send_headers(id, Kind::Answer, headers::of_response(&response))?;
        send(&call.wire, id, response.into_body(), NOTHING_TAKEN_MAX).await
    };
    let sent = match sending.await {
        Err(Unsent::NotTaken) => {
            call.wire.counts().answers_not_taken.count();
            call.wire.send_headers(id, Kind::Trailers, headers::of_trailers(&not_taken()))
        }
        sent => sent,
    };
    if sent.is_ok() {
        call.wire.finish(id);
    }
}

/// The end of an answer that stood still. What was asked for may have been done.
fn not_taken() -> HeaderMap {
    let why =
        format!("what this answer had was not taken within {NOTHING_TAKEN_MAX:?}: ask again for the rest");
    let failure = Failure { retry: Retry::Unknown, ..Failure::new(Code::Busy, why) };
    let mut trailers = HeaderMap::new();
    Status::from(failure).add_header(&mut trailers).expect("a sentence can be a header");
    trailers
}
