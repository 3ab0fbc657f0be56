//! What the gate does with calls over HTTP/2; frames have theirs.

use super::connection::GateConnection;
use super::{Gate, GateOptions};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::TokioIo;
use proto::{Code, Failure};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::server::NamedService;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};
use tower::{ServiceExt, service_fn};

const DEADLINE: Duration = Duration::from_secs(120);

/// A service that reads all that it is asked with, and says how that went; or answers with a MiB, or reads
/// nothing.
#[derive(Clone)]
struct Reads;

const MIB: usize = 1 << 20;

impl NamedService for Reads {
    const NAME: &'static str = "reads.Reads";
}

impl Service<Request<Body>> for Reads {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        async move {
            if request.uri().path().ends_with("/Answer") {
                let mut ok = HeaderMap::new();
                Status::ok("").add_header(&mut ok).unwrap();
                let message = http_body::Frame::data(Bytes::from(vec![7; MIB]));
                let frames = stream::iter([message, http_body::Frame::trailers(ok)]).map(Ok::<_, Status>);
                return Ok(Response::new(Body::new(StreamBody::new(frames))));
            }
            if request.uri().path().ends_with("/Never") {
                std::future::pending::<()>().await;
            }
            let read = request.into_body().collect().await;
            Ok(read.err().unwrap_or_else(|| Status::ok("")).into_http())
        }
        .boxed()
    }
}

/// A connection within the process to a server behind `gate`.
async fn connected(gate: &Gate) -> Channel {
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let theirs = GateConnection::new(theirs, gate.connections.take(None).unwrap(), gate.counts.clone());
    let incoming = stream::iter([Ok::<_, std::io::Error>(theirs)]).chain(stream::pending());
    let serving = gate.server().add_routes(Routes::new(Reads)).serve_with_incoming(incoming);
    tokio::spawn(serving);
    let mut ours = Some(TokioIo::new(ours));
    let connect =
        move |_| std::future::ready(ours.take().ok_or(Status::unavailable("one connection is made")));
    let endpoint = Endpoint::from_static("http://within").initial_stream_window_size(64 << 10);
    endpoint.connect_with_connector(service_fn(connect)).await.unwrap()
}

/// Asks with a message whose last byte comes when that is said.
async fn ask(channel: Channel, bytes: usize, last: oneshot::Receiver<()>) -> Result<(), Failure> {
    let most = [&[0][..], &(bytes as u32).to_be_bytes(), &vec![7; bytes - 1]].concat();
    let last = stream::once(last).map(|_| Bytes::from_static(&[7]));
    let pieces = stream::iter([Bytes::from(most)])
        .chain(last)
        .map(|piece| Ok::<_, Status>(http_body::Frame::data(piece)));
    let body = Body::new(StreamBody::new(pieces));
    let asking = channel.oneshot(Request::post("/reads.Reads/Read").body(body).unwrap());
    let answer = tokio::time::timeout(DEADLINE, asking).await.expect("an answer").unwrap();
    let status = Status::from_header_map(answer.headers()).unwrap();
    if status.code() == tonic::Code::Ok { Ok(()) } else { Err(status.into()) }
}

#[tokio::test(start_paused = true)]
async fn half_sent_messages_have_their_room_and_their_time_over_http2() {
    let gate = Gate::new(GateOptions { gathered_bytes_max: 100_000, ..GateOptions::default() });
    let channel = connected(&gate).await;
    let begun = Instant::now();
    let (says_last, asks): (Vec<_>, Vec<_>) = (0..3)
        .map(|_| {
            let (say_last, last) = oneshot::channel();
            (say_last, ask(channel.clone(), 45_000, last).boxed())
        })
        .unzip();
    let (refused, _, asks) = futures::future::select_all(asks).await;
    let refused = refused.unwrap_err();
    assert_eq!((refused.code, begun.elapsed().as_secs()), (Code::Busy, 0), "{refused}");
    assert_eq!(gate.counts().messages_without_room.get(), 1);
    let late = futures::future::join_all(asks).await;
    assert!(late.iter().all(|late| late.as_ref().is_err_and(|late| late.code == Code::Busy)), "{late:?}");
    assert_eq!((begun.elapsed().as_secs(), gate.counts().messages_late.get()), (60, 2));
    drop(says_last);

    // Their room is free, and the connection goes on.
    let (say_last, last) = oneshot::channel();
    let whole = ask(channel, 60_000, last);
    let say = async {
        tokio::time::sleep(Duration::from_secs(59)).await;
        say_last.send(()).unwrap();
    };
    assert_eq!(futures::future::join(whole, say).await.0, Ok(()));
}

async fn answer(channel: &Channel) -> Body {
    let asking = channel.clone().oneshot(Request::post("/reads.Reads/Answer").body(Body::empty()).unwrap());
    tokio::time::timeout(DEADLINE, asking).await.expect("an answer").unwrap().into_body()
}

/// Reads an answer to its end, and says how that was.
async fn taken(answer: Body) -> Result<usize, Failure> {
    let taken = tokio::time::timeout(DEADLINE, answer.collect()).await.expect("an end")?;
    match Status::from_header_map(taken.trailers().unwrap()).unwrap() {
        status if status.code() == tonic::Code::Ok => Ok(taken.to_bytes().len()),
        status => Err(status.into()),
    }
}

#[tokio::test(start_paused = true)]
async fn answers_that_nobody_takes_have_their_room_and_their_time_over_http2() {
    let gate = Gate::new(GateOptions { untaken_bytes_max: 2 * MIB, ..GateOptions::default() });
    let channel = connected(&gate).await;
    let begun = Instant::now();
    let (first, second) = (answer(&channel).await, answer(&channel).await);
    let refused = taken(answer(&channel).await).await.unwrap_err();
    assert_eq!((refused.code, refused.retry), (Code::Busy, proto::Retry::Unknown), "{refused}");
    assert_eq!(gate.counts().answers_without_room.get(), 1);
    assert_eq!(taken(first).await, Ok(MIB));
    assert_eq!(taken(answer(&channel).await).await, Ok(MIB), "what is taken leaves its room");
    assert_eq!(begun.elapsed().as_secs(), 0);

    // The window is all that comes of an answer that is not taken.
    let until_closed = async {
        while gate.counts().frames.answers_not_taken.get() == 0 {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(DEADLINE, until_closed).await.expect("its connection is closed");
    assert!((60..65).contains(&begun.elapsed().as_secs()), "{:?}", begun.elapsed());
    assert!(second.collect().await.is_err());
    let channel = connected(&gate).await;
    let both = [answer(&channel).await, answer(&channel).await];
    for answer in both {
        assert_eq!(taken(answer).await, Ok(MIB), "the room is free");
    }
}

#[tokio::test(start_paused = true)]
async fn little_comes_over_http2_that_is_not_read() {
    const PIECE_BYTES: usize = 16 << 10;
    const CALLS: usize = 20;
    const WINDOW_BYTES: usize = 2 << 20;
    let gate = Gate::new(GateOptions::default());
    let channel = connected(&gate).await;
    let pieces = Arc::<AtomicUsize>::default();
    let calls: Vec<_> = (0..CALLS)
        .map(|_| {
            let counted = pieces.clone();
            let frames = stream::repeat_with(move || {
                counted.fetch_add(1, Ordering::Relaxed);
                Ok::<_, Status>(http_body::Frame::data(Bytes::from(vec![7; PIECE_BYTES])))
            });
            let request = Request::post("/reads.Reads/Never").body(Body::new(StreamBody::new(frames)));
            tokio::spawn(channel.clone().oneshot(request.unwrap()))
        })
        .collect();
    // Time passes once nobody has anything to do.
    tokio::time::sleep(Duration::from_secs(1)).await;
    // Two pieces of a call are with its sender.
    let bytes = pieces.load(Ordering::Relaxed) * PIECE_BYTES;
    assert!((WINDOW_BYTES..WINDOW_BYTES + 2 * CALLS * PIECE_BYTES).contains(&bytes), "{bytes} bytes");
    drop(calls);
}
