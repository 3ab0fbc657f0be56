use super::body::{Call, Event, Events, Incoming, send};
use super::counts::FrameCounts;
use super::ends::Ends;
use super::head::{HELLO_BYTES, Head, Kind, Malformed, heard, hello};
use super::headers;
use super::reader::{Ended, Side, read};
use super::wire::Wire;
use super::writer::write;
use crate::limits::{CALLS_PER_CONNECTION_MAX, CONNECT_MAX, PING_INTERVAL, SILENCE_MAX, Windows};
use bytes::Bytes;
use futures::future::{BoxFuture, FutureExt, Shared};
use std::io;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

/// A way to one address: a connection that is made when the first call wants it, and again after it ended.
#[derive(Clone)]
pub(crate) struct FrameLink(Arc<Inner>);

struct Inner {
    address: String,
    windows: Windows,
    connection: Mutex<Option<Connecting>>,
}

/// A connection that is being made, or was: all calls that wait for it hear the same of it.
type Connecting = Shared<BoxFuture<'static, Result<Arc<Connection>, Status>>>;

impl FrameLink {
    pub(crate) fn new(address: &str, windows: Windows) -> FrameLink {
        FrameLink(Arc::new(Inner { address: address.to_owned(), windows, connection: Mutex::default() }))
    }

    fn connecting(&self) -> Connecting {
        let mut current = self.0.connection.lock().expect("no holder panics");
        let is_usable = |connecting: &&Connecting| match connecting.peek() {
            Some(Ok(connection)) => connection.wire.takes_calls(),
            Some(Err(_)) => false,
            None => true,
        };
        if let Some(connecting) = current.as_ref().filter(is_usable) {
            return connecting.clone();
        }
        let (address, windows) = (self.0.address.clone(), self.0.windows);
        let connecting = async move {
            let opened = Connection::open(&address, windows).await;
            opened.map(Arc::new).map_err(|error| not_connected(&address, error))
        };
        // A task of its own connects: who asked may be gone before the connection is there, and the next
        // caller is to hear how it went.
        let connecting = tokio::spawn(connecting).map(|connected| {
            connected.unwrap_or_else(|_| Err(Status::unavailable("the process is stopping")))
        });
        let connecting = connecting.boxed().shared();
        *current = Some(connecting.clone());
        connecting
    }

    async fn call(self, request: Request<Body>) -> Result<Response<Body>, Status> {
        let head = headers::of_request(&request);
        let head = head.ok_or_else(|| Status::invalid_argument("the headers of a call are too long"))?;
        let (id, call, events) = self.open(head).await?;
        send_beside(call.wire.clone(), id, request.into_body());
        call.answer(events).await
    }

    /// Begins the call on a connection that is there, or else on a new one.
    async fn open(&self, head: Bytes) -> Result<(u32, Call<Arc<Connection>>, Events), Status> {
        let mut is_new = false;
        loop {
            let connecting = self.connecting();
            is_new |= connecting.peek().is_none();
            let connection = connecting.await?;
            match connection.clone().begin(head.clone()) {
                Ok(begun) => return Ok(begun),
                Err(status) if is_new || connection.wire.takes_calls() => return Err(status),
                // The connection ended since it was looked at.
                Err(_) => {}
            }
        }
    }
}

impl Service<Request<Body>> for FrameLink {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        self.clone().call(request).boxed()
    }
}

/// The source of a status that says that nothing was sent, as there was no connection to send it on.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct NotConnected(io::Error);

fn not_connected(address: &str, error: io::Error) -> Status {
    let mut status = Status::unavailable(format!("connect to {address}: {error}"));
    status.set_source(Arc::new(NotConnected(error)));
    status
}

/// Sends a request's body at once as far as it is there, and the rest in a task beside the call. A service
/// may hold up its callers for as long as it likes.
fn send_beside(wire: Arc<Wire>, id: u32, body: Body) {
    let sender = wire.clone();
    let mut sending = async move {
        if send(&sender, id, body, Duration::MAX).await.is_err() {
            sender.reset(id);
        }
    }
    .boxed();
    if sending.as_mut().now_or_never().is_none() {
        wire.attach(id, tokio::spawn(sending).abort_handle());
    }
}

impl Call<Arc<Connection>> {
    async fn answer(self, mut events: Events) -> Result<Response<Body>, Status> {
        match events.events.recv().await {
            Some(Event::Answer(answer)) => {
                Ok(answer.map(|()| Body::new(Incoming { events, call: Some(self) })))
            }
            Some(Event::Broken(status)) => Err(status),
            _ => Err(Status::unavailable("the call was given up")),
        }
    }
}

pub(super) struct Connection {
    wire: Arc<Wire>,
    /// The tasks that read and write, which end with the connection.
    _tasks: JoinSet<()>,
}

impl Connection {
    async fn open(address: &str, windows: Windows) -> io::Result<Connection> {
        let mut tcp = timeout(CONNECT_MAX, TcpStream::connect(address)).await??;
        tcp.set_nodelay(true)?;
        tcp.write_all(&hello(windows)).await?;
        let mut answer = [0; HELLO_BYTES];
        timeout(SILENCE_MAX, tcp.read_exact(&mut answer)).await??;
        let counts = FrameCounts::of_clients();
        let peer = heard(&answer).map_err(|malformed| {
            let ended = Ended::from(malformed);
            counts.ended(ended.end()).count();
            io::Error::new(io::ErrorKind::InvalidData, ended)
        })?;
        let wire = Arc::new(Wire::new(windows, peer, None, counts.clone()));
        let (input, output) = tcp.into_split();
        let mut tasks = JoinSet::new();
        let (reader, address) = (wire.clone(), address.to_owned());
        tasks.spawn(async move {
            let mut ends = Ends::of(&reader);
            let ended = read(&reader, input, &mut Answers(&reader)).await;
            ends.end(ended.end(), format!("the connection to {address} ended: {ended}"));
        });
        let writer = wire.clone();
        tasks.spawn(async move {
            if let Err(ended) = write(&writer, output).await {
                writer.end(&Status::unavailable(format!("the connection ended: {ended}")));
            }
        });
        Ok(Connection { wire, _tasks: tasks })
    }

    fn begin(self: Arc<Self>, head: Bytes) -> Result<(u32, Call<Arc<Connection>>, Events), Status> {
        let (sender, events) = mpsc::unbounded_channel();
        let id = self.wire.open(head, sender, CALLS_PER_CONNECTION_MAX as usize)?;
        let wire = self.wire.clone();
        let events = Events { wire: wire.clone(), id, events };
        Ok((id, Call { wire, id, _keeps: self }, events))
    }
}

/// The client's side of a connection, which is sent answers.
struct Answers<'a>(&'a Wire);

impl Side for Answers<'_> {
    const HOLDS_BACK: bool = false;
    const PINGS_AFTER: Duration = PING_INTERVAL;

    fn on_frame(&mut self, head: Head, payload: Bytes) -> Result<(), Malformed> {
        let (wire, id) = (self.0, head.stream);
        match head.kind {
            Kind::Answer => wire.received(id, Event::Answer(Box::new(headers::response(payload)?)))?,
            Kind::Trailers => {
                wire.received(id, Event::Trailers(Box::new(headers::of(payload)?)))?;
                wire.finish(id);
            }
            Kind::Reset => {
                wire.received(id, Event::Broken(Status::unavailable("the other side gave the call up")))?;
                wire.finish(id);
            }
            Kind::Leaving => match payload.first_chunk() {
                Some(last) => wire.peer_leaves(u32::from_le_bytes(*last)),
                None => return Err(Malformed::Stream),
            },
            _ => return Err(Malformed::Stream),
        }
        Ok(())
    }

    fn on_end(&mut self, id: u32) {
        self.0.finish(id);
    }
}
