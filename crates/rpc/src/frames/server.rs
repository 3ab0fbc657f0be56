use super::body::{Call, Event, Events, Incoming, send};
use super::counts::FrameCounts;
use super::head::{HELLO_BYTES, Head, Kind, Malformed, heard, hello};
use super::headers;
use super::reader::{Side, read};
use super::wire::Wire;
use super::writer::write;
use crate::limits::CALLS_PER_CONNECTION_MAX;
use crate::limits::Windows;
use bytes::Bytes;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::transport::server::TcpConnectInfo;
use tower::{Service, ServiceExt};

/// A client has said hello when it has been connected for so long.
const HELLO_MAX: Duration = Duration::from_secs(5);
/// Calls of a connection. Twice what a client of ours begins: a call that is over there may not be over here yet.
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

/// Ends a connection's calls with it, however it is dropped.
struct Ends<'a>(&'a Wire);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.end(&Status::unavailable("the process is stopping"));
    }
}

/// Answers the calls of one connection until it ends, or until `stop` and all calls are over.
pub(crate) async fn serve<S: Calls>(
    (mut input, mut output): (impl AsyncRead + Unpin, impl AsyncWrite + Unpin + Send + 'static),
    from: TcpConnectInfo,
    service: S,
    counts: Arc<FrameCounts>,
    stop: CancellationToken,
) {
    let windows = Windows::default();
    let mut said = [0; HELLO_BYTES];
    if !matches!(tokio::time::timeout(HELLO_MAX, input.read_exact(&mut said)).await, Ok(Ok(_))) {
        return;
    }
    // One that speaks otherwise hears which version this is.
    if output.write_all(&hello(windows)).await.is_err() {
        return;
    }
    let peer = match heard(&said) {
        Ok(peer) => peer,
        Err(malformed) => {
            tracing::debug!(from = ?from.remote_addr, %malformed, "refuse a connection");
            return;
        }
    };
    let wire = Arc::new(Wire::new(windows, peer, counts));
    let writer = wire.clone();
    let mut writing = JoinSet::new();
    writing.spawn(async move {
        if let Err(error) = write(&writer, output).await {
            writer.end(&Status::unavailable(format!("the connection broke: {error}")));
        }
    });
    let _ends = Ends(&wire);
    let mut calls = Answering { wire: &wire, from, service };
    let why = tokio::select! {
        ended = read(&wire, input, &mut calls) => ended.to_string(),
        () = leave(&wire, &stop) => "the process is stopping".to_owned(),
    };
    wire.end(&Status::unavailable(why));
    // What it has not written by then it does not write.
    let _ = tokio::time::timeout(FLUSH_MAX, writing.join_next()).await;
}

async fn leave(wire: &Wire, stop: &CancellationToken) {
    stop.cancelled().await;
    wire.leave();
    wire.emptied().await;
}

/// What a server is sent, and answers.
struct Answering<'a, S> {
    wire: &'a Arc<Wire>,
    from: TcpConnectInfo,
    service: S,
}

impl<S: Calls> Side for Answering<'_, S> {
    const HOLDS_BACK: bool = true;

    fn on_frame(&mut self, head: Head, payload: Bytes) -> Result<(), Malformed> {
        match head.kind {
            Kind::Open => self.open(head.stream, payload),
            Kind::Reset => {
                self.wire
                    .received(head.stream, Event::Broken(Status::cancelled("the caller gave the call up")))?;
                self.wire.finish(head.stream);
                Ok(())
            }
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
    // Dropped with the task, whoever ends that.
    let call = Call { wire, id, _keeps: () };
    let Ok(response) = service.oneshot(request).await;
    let Some(head) = headers::of_response(&response) else { return };
    let sent = match call.wire.send_headers(id, Kind::Answer, head) {
        Ok(()) => send(&call.wire, id, response.into_body()).await,
        Err(over) => Err(over),
    };
    if sent.is_ok() {
        call.wire.finish(id);
    }
}
