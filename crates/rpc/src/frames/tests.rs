use super::head::{HEAD_BYTES, HELLO_BYTES, Head, Kind, hello};
use super::wire::Wire;
use super::{CloseReason, FrameCounts, FrameLink, headers, serve};
use crate::limits::{PING_INTERVAL, RESETS_PER_SECOND_MAX, SILENCE_MAX, Windows};
use crate::{Gate, GateOptions};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream;
use http_body_util::{BodyExt, StreamBody};
use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Request, Response};
use tonic::transport::server::{Connected, TcpConnectInfo};
use tower::{Layer, ServiceExt, service_fn};

const DEADLINE: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

/// A port whose service depends on the path: `/echo` sends back what comes, `/endless` sends on and on,
/// `/never` answers nothing, `/refused` has much to say, `/read` says how it went to read what comes.
struct Port {
    address: String,
    stop: CancellationToken,
    serving: JoinHandle<()>,
    /// Calls whose work was not dropped yet.
    working: Arc<AtomicUsize>,
}

struct Working(Arc<AtomicUsize>);

impl Working {
    fn begin(count: &Arc<AtomicUsize>) -> Working {
        count.fetch_add(1, Ordering::SeqCst);
        Working(count.clone())
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Bytes that are counted while they are held.
struct Piece {
    bytes: Vec<u8>,
    _held: Working,
}

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

fn trailers() -> http_body::Frame<Bytes> {
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", "0".parse().unwrap());
    http_body::Frame::trailers(trailers)
}

async fn answer(request: Request<Body>, working: Working) -> Result<Response<Body>, Infallible> {
    let body = match request.uri().path() {
        "/echo" => {
            let frames = stream::unfold((request.into_body(), working), |(mut body, working)| async {
                match body.frame().await {
                    Some(Ok(frame)) => Some((Ok::<_, Status>(frame), (body, working))),
                    Some(Err(status)) => Some((Err(status), (body, working))),
                    None => None,
                }
            });
            Body::new(StreamBody::new(frames.chain(stream::iter([Ok(trailers())]))))
        }
        "/endless" => {
            let part = Bytes::from(vec![7; 100_000]);
            let frames = stream::repeat_with(move || {
                let _ = &working;
                Ok::<_, Status>(http_body::Frame::data(part.clone()))
            });
            Body::new(StreamBody::new(frames))
        }
        "/pieces" => {
            let count = working.0.clone();
            let frames = stream::repeat_with(move || {
                let piece = Piece { bytes: vec![7; 64 << 10], _held: Working::begin(&count) };
                Ok::<_, Status>(http_body::Frame::data(Bytes::from_owner(piece)))
            });
            Body::new(StreamBody::new(frames))
        }
        "/refused" => {
            let mut trailers = HeaderMap::new();
            Status::not_found("no such thing".repeat(10_000)).add_header(&mut trailers).unwrap();
            let trailers = Ok::<_, Status>(http_body::Frame::trailers(trailers));
            Body::new(StreamBody::new(stream::iter([trailers])))
        }
        "/read" => {
            let read = request.into_body().collect().await;
            return Ok(read.err().unwrap_or_else(|| Status::ok("")).into_http());
        }
        "/small" => Body::new(StreamBody::new(stream::iter([Ok::<_, Status>(trailers())]))),
        _ => {
            std::future::pending::<()>().await;
            drop(working);
            Body::empty()
        }
    };
    Ok(Response::new(body))
}

impl Port {
    async fn open() -> Port {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (stop, working) = (CancellationToken::new(), Arc::<AtomicUsize>::default());
        let (stopping, counted) = (stop.clone(), working.clone());
        let serving = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let tcp = tokio::select! {
                    accepted = listener.accept() => accepted.unwrap().0,
                    () = stopping.cancelled() => break,
                };
                let counted = counted.clone();
                let service = service_fn(move |request| answer(request, Working::begin(&counted)));
                let (from, counts) = (tcp.connect_info(), Arc::<FrameCounts>::default());
                let room = Gate::new(GateOptions::default()).room(&from);
                connections.spawn(serve(tcp.into_split(), from, service, room, counts, stopping.clone()));
            }
            connections.join_all().await;
        });
        Port { address, stop, serving, working }
    }

    fn link(&self) -> FrameLink {
        FrameLink::new(&self.address, Windows::default())
    }

    /// A connection on which hello was said, and heard.
    async fn raw(&self) -> TcpStream {
        let mut tcp = TcpStream::connect(&self.address).await.unwrap();
        tcp.write_all(&hello(Windows::default())).await.unwrap();
        tcp.read_exact(&mut [0; HELLO_BYTES]).await.unwrap();
        tcp
    }

    async fn until_working(&self, count: usize) {
        until_working(&self.working, count).await;
    }
}

async fn until_working(working: &AtomicUsize, count: usize) {
    let until = async {
        while working.load(Ordering::SeqCst) != count {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, until).await.expect("calls that nobody waits for are dropped");
}

fn request(path: &str, body: Body) -> Request<Body> {
    Request::builder().uri(path).header("te", "trailers").body(body).unwrap()
}

async fn call(link: &FrameLink, path: &str, body: Body) -> Result<Response<Body>, Status> {
    let called = link.clone().oneshot(request(path, body));
    tokio::time::timeout(DEADLINE, called).await.expect("an answer")
}

fn bytes_of(seed: usize, count: usize) -> Bytes {
    (0..count).map(|n| (n * 31 + seed * 7 + n / 251) as u8).collect()
}

fn in_parts(bytes: Bytes, part: usize) -> Body {
    let mut parts = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let part = rest.split_to(part.min(rest.len()));
        parts.push(Ok::<_, Status>(http_body::Frame::data(part)));
    }
    Body::new(StreamBody::new(stream::iter(parts)))
}

async fn echo(link: &FrameLink, bytes: &Bytes, part: usize) {
    let answer = call(link, "/echo", in_parts(bytes.clone(), part)).await.unwrap();
    let collected =
        tokio::time::timeout(DEADLINE, answer.into_body().collect()).await.expect("all of it").unwrap();
    assert_eq!(collected.trailers().unwrap()["grpc-status"], "0");
    assert!(collected.to_bytes() == bytes, "{} bytes in parts of {part} come back as they were", bytes.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bodies_of_all_sizes_come_back_as_they_were() {
    let port = Port::open().await;
    let link = port.link();
    for (bytes, part) in
        [(0, 1), (1, 1), (5, 2), (4096, 4096), (70_000, 70_000), (70_000, 100), (9 * MIB, MIB)]
    {
        echo(&link, &bytes_of(bytes, bytes), part).await;
    }
}

/// The least windows there may be, so that all of them are used up all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_calls_beside_each_other_share_a_connection_with_little_room() {
    let port = Port::open().await;
    let link = FrameLink::new(&port.address, Windows { stream_bytes: 64 << 10, connection_bytes: 128 << 10 });
    let calls = (0..40).map(|n| {
        let link = link.clone();
        tokio::spawn(async move {
            for round in 0..2 {
                let bytes = bytes_of(n * 10 + round, (n * 7919 + round * 104_729) % 400_000);
                echo(&link, &bytes, 1 + (n * 6311) % 100_000).await;
            }
        })
    });
    for done in futures::future::join_all(calls).await {
        done.unwrap();
    }
    port.until_working(0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_slowly_holds_up_nobody_and_what_is_given_up_takes_no_room() {
    let port = Port::open().await;
    let link = FrameLink::new(&port.address, Windows { stream_bytes: 300_000, connection_bytes: 4_000_000 });
    let mut slow = Vec::new();
    for _ in 0..8 {
        let mut answer = call(&link, "/endless", Body::empty()).await.unwrap().into_body();
        answer.frame().await.unwrap().unwrap();
        slow.push(answer);
    }
    echo(&link, &bytes_of(1, 5 * MIB), MIB).await;
    drop(slow);
    // Far more than the connection has room for, were it not given back.
    for _ in 0..100 {
        let mut answer = call(&link, "/endless", Body::empty()).await.unwrap().into_body();
        answer.frame().await.unwrap().unwrap();
    }
    echo(&link, &bytes_of(2, 5 * MIB), MIB).await;
    port.until_working(0).await;
}

/// A thousand messages made for such callers would fill the memory from which the others are read.
#[tokio::test]
async fn nothing_is_made_for_who_has_no_room_for_it() {
    let port = Port::open().await;
    let link = FrameLink::new(&port.address, Windows { stream_bytes: 68 << 10, connection_bytes: 1 << 24 });
    let mut slow = Vec::new();
    for _ in 0..20 {
        let mut answer = call(&link, "/pieces", Body::empty()).await.unwrap().into_body();
        answer.frame().await.unwrap().unwrap();
        slow.push(answer);
    }
    port.until_working(0).await;
    for answer in &mut slow {
        for _ in 0..5 {
            answer.frame().await.unwrap().unwrap();
        }
    }
    port.until_working(0).await;
}

/// What is read goes on while calls that nobody reads hold nearly all of the connection's window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_goes_on_in_what_slow_ones_leave_of_the_window() {
    let port = Port::open().await;
    let windows = Windows { stream_bytes: 4 << 20, connection_bytes: 9 << 20 };
    let link = FrameLink::new(&port.address, windows);
    let mut slow = Vec::new();
    for _ in 0..2 {
        let mut answer = call(&link, "/endless", Body::empty()).await.unwrap().into_body();
        answer.frame().await.unwrap().unwrap();
        slow.push(answer);
    }
    for round in 0..3 {
        echo(&link, &bytes_of(round, 9 * MIB), MIB).await;
    }
    drop(slow);
    port.until_working(0).await;
}

#[tokio::test]
async fn the_work_of_a_call_that_is_given_up_is_dropped() {
    let port = Port::open().await;
    let link = port.link();
    let waiting = tokio::spawn({
        let link = link.clone();
        async move { call(&link, "/never", Body::empty()).await.map(drop) }
    });
    port.until_working(1).await;
    waiting.abort();
    port.until_working(0).await;
    // The work is dropped when the call's connection ends, too.
    let waiting = tokio::spawn(async move { call(&link, "/never", Body::empty()).await.map(drop) });
    port.until_working(1).await;
    port.serving.abort();
    assert_eq!(waiting.await.unwrap().unwrap_err().code(), tonic::Code::Unavailable);
    port.until_working(0).await;
}

#[tokio::test]
async fn a_server_that_stops_finishes_what_it_took_and_takes_no_more() {
    let port = Port::open().await;
    let link = port.link();
    let (to_body, parts) = tokio::sync::mpsc::channel(1);
    let parts = tokio_stream::wrappers::ReceiverStream::new(parts);
    let parts = parts.map(|part: Bytes| Ok::<_, Status>(http_body::Frame::data(part)));
    let mut answer = call(&link, "/echo", Body::new(StreamBody::new(parts))).await.unwrap().into_body();
    port.stop.cancel();
    // The client hears that the server takes no more calls.
    let refused = async {
        while call(&link, "/small", Body::empty()).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, refused).await.expect("no calls are taken");
    to_body.send(bytes_of(1, 1000)).await.unwrap();
    let part = answer.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(part, bytes_of(1, 1000));
    assert!(!port.serving.is_finished());
    drop(to_body);
    while let Some(frame) = answer.frame().await {
        frame.unwrap();
    }
    tokio::time::timeout(DEADLINE, port.serving).await.expect("it ends with the last call").unwrap();
}

#[tokio::test]
async fn a_link_connects_anew_after_its_server_came_back() {
    let port = Port::open().await;
    let link = port.link();
    echo(&link, &bytes_of(1, 10), 10).await;
    port.stop.cancel();
    port.serving.await.unwrap();
    let listener = TcpListener::bind(&port.address).await;
    let refused = call(&link, "/small", Body::empty()).await;
    assert!(listener.is_err() || refused.is_err(), "nobody answers");
    drop(listener);
    let elsewhere = FrameLink::new("127.0.0.1:1", Windows::default());
    let failures =
        futures::future::join_all((0..20).map(|_| call(&elsewhere, "/small", Body::empty()))).await;
    assert!(
        failures.iter().all(|failed| failed.as_ref().is_err_and(|e| e.code() == tonic::Code::Unavailable))
    );
}

fn frame(kind: Kind, stream: u32, payload: &[u8], is_last: bool) -> Vec<u8> {
    let head = Head { bytes: payload.len() as u32, stream, kind, is_last };
    [&head.encode()[..], payload].concat()
}

fn opened(stream: u32, path: &str) -> Vec<u8> {
    frame(Kind::Open, stream, &headers::of_request(&request(path, Body::empty())).unwrap(), false)
}

/// Whether the server closes a connection on which these bytes came, within so long.
async fn is_closed_after(port: &Port, bytes: &[u8], within: Duration) -> bool {
    let mut tcp = port.raw().await;
    // It may be closed before all is written.
    let _ = tcp.write_all(bytes).await;
    let mut answer = Vec::new();
    tokio::time::timeout(within, tcp.read_to_end(&mut answer)).await.is_ok()
}

#[tokio::test]
async fn what_no_peer_of_ours_sends_ends_its_connection_and_no_other() {
    let port = Port::open().await;
    let link = port.link();
    echo(&link, &bytes_of(1, 10), 10).await;
    let mut wrong_sum = opened(1, "/never");
    wrong_sum[12] ^= 1;
    let last_twice = [opened(1, "/never"), frame(Kind::Data, 1, b"", true), frame(Kind::Data, 1, b"", true)];
    let part = vec![1; 200_000];
    let too_much: Vec<u8> = [opened(1, "/never")]
        .into_iter()
        .chain((0..22).map(|_| frame(Kind::Data, 1, &part, false)))
        .flatten()
        .collect();
    let tiny: Vec<u8> = std::iter::once(opened(1, "/never"))
        .chain((0..80_000).map(|_| frame(Kind::Data, 1, b"x", false)))
        .flatten()
        .collect();
    let endless_credit =
        [frame(Kind::Credit, 0, &u32::MAX.to_le_bytes(), false), frame(Kind::Credit, 0, &[0xff; 4], false)];
    for (what, bytes) in [
        ("a wrong checksum", wrong_sum),
        ("a call twice", [opened(1, "/never"), opened(1, "/never")].concat()),
        ("a call with number 0", opened(0, "/never")),
        ("data for a call that never was", frame(Kind::Data, 9, b"x", false)),
        ("a path that is none", frame(Kind::Open, 1, &[1, 0, 0], false)),
        ("an answer to nothing", frame(Kind::Answer, 1, &[200, 0], false)),
        ("empty data", [opened(1, "/never"), frame(Kind::Data, 1, b"", false)].concat()),
        ("two ends", last_twice.concat()),
        ("more than the window", too_much),
        ("more frames than the window", tiny),
        ("endless credit", endless_credit.concat()),
    ] {
        assert!(is_closed_after(&port, &bytes, DEADLINE).await, "{what}");
    }
    let a_while = Duration::from_millis(1500);
    assert!(!is_closed_after(&port, &opened(1, "/never"), a_while).await, "what is right goes on");
    echo(&link, &bytes_of(2, 100_000), 1000).await;
    port.until_working(0).await;
}

/// Calls whose answers nobody reads are not answered without end.
#[tokio::test]
async fn who_asks_on_and_on_and_reads_nothing_is_not_heard_any_more() {
    let port = Port::open().await;
    let mut tcp = port.raw().await;
    let asking = async {
        for stream in 1.. {
            let call = [opened(stream, "/small"), frame(Kind::Data, stream, b"", true)].concat();
            if tcp.write_all(&call).await.is_err() {
                return stream;
            }
            if stream % 500 == 0 {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        }
        unreachable!("it asks on and on")
    };
    let asked = tokio::time::timeout(DEADLINE, asking).await.expect("it is closed at last");
    assert!(asked < 1_000_000, "{asked}");
}

/// Whatever is missing of an answer, its caller hears that the connection ended.
#[tokio::test]
async fn an_answer_that_is_cut_at_any_byte_is_an_error() {
    let head = headers::of_response(&Response::new(()));
    let answer = [
        frame(Kind::Answer, 1, &head, false),
        frame(Kind::Data, 1, b"hello", false),
        frame(Kind::Trailers, 1, &headers::of_trailers(&HeaderMap::new()), true),
    ]
    .concat();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    for cut in 0..=answer.len() {
        let ask = async {
            let answer = call(&FrameLink::new(&address, Windows::default()), "/echo", Body::empty()).await?;
            answer.into_body().collect().await.map(|collected| collected.to_bytes())
        };
        let serve = async {
            let (mut tcp, _) = listener.accept().await.unwrap();
            tcp.read_exact(&mut [0; HELLO_BYTES]).await.unwrap();
            tcp.write_all(&hello(Windows::default())).await.unwrap();
            tcp.read_exact(&mut [0; HEAD_BYTES]).await.unwrap();
            tcp.write_all(&answer[..cut]).await.unwrap();
            // Reading on, so that the end is an end and no reset.
            tcp.shutdown().await.unwrap();
            let mut rest = BytesMut::new();
            while tcp.read_buf(&mut rest).await.is_ok_and(|count| count > 0) {}
        };
        let (heard, ()) =
            tokio::time::timeout(DEADLINE, futures::future::join(ask, serve)).await.expect("an end");
        match cut == answer.len() {
            true => assert_eq!(heard.unwrap(), &b"hello"[..]),
            false => assert_eq!(heard.unwrap_err().code(), tonic::Code::Unavailable, "cut at {cut}"),
        }
    }
}

#[tokio::test]
async fn a_refusal_with_more_to_say_than_fits_is_heard_as_one() {
    let port = Port::open().await;
    let answer = call(&port.link(), "/refused", Body::empty()).await.unwrap();
    let trailers = answer.into_body().collect().await.unwrap().trailers().cloned().unwrap();
    let status = Status::from_header_map(&trailers).unwrap();
    assert_eq!(status.code(), tonic::Code::NotFound);
    assert!(status.message().starts_with("no such thingno such thing"), "{}", status.message());
}

/// A connection within the process, whose time passes while nothing else happens.
struct Pipe {
    io: DuplexStream,
    counts: Arc<FrameCounts>,
    working: Arc<AtomicUsize>,
    serving: JoinHandle<()>,
}

impl Pipe {
    /// A connection on which a hello was said that lets as little be sent as any may.
    async fn open() -> Pipe {
        Pipe::with_windows(64 << 10).await
    }

    async fn with_windows(bytes: u32) -> Pipe {
        Pipe::behind(&Gate::new(GateOptions::default()), bytes).await
    }

    async fn behind(gate: &Gate, window_bytes: u32) -> Pipe {
        let (mut io, theirs) = tokio::io::duplex(MIB);
        let (counts, working) = (Arc::<FrameCounts>::default(), Arc::<AtomicUsize>::default());
        let counted = working.clone();
        let service = gate.layer(service_fn(move |request| answer(request, Working::begin(&counted))));
        let from = TcpConnectInfo { local_addr: None, remote_addr: None };
        let stop = CancellationToken::new();
        let room = gate.room(&from);
        let serving = serve(tokio::io::split(theirs), from, service, room, counts.clone(), stop);
        let serving = tokio::spawn(serving);
        let windows = Windows { stream_bytes: window_bytes, connection_bytes: window_bytes };
        io.write_all(&hello(windows)).await.unwrap();
        io.read_exact(&mut [0; HELLO_BYTES]).await.unwrap();
        Pipe { io, counts, working, serving }
    }

    /// Lets so much more be sent, on all calls together and on one.
    async fn more_credit(&mut self, stream: u32, bytes: u32) {
        for stream in [0, stream] {
            self.io.write_all(&frame(Kind::Credit, stream, &bytes.to_le_bytes(), false)).await.unwrap();
        }
    }

    /// The next frame of a kind, while pings are answered.
    async fn next(&mut self, kind: Kind) -> (Head, Bytes) {
        loop {
            let mut head = [0; HEAD_BYTES];
            self.io.read_exact(&mut head).await.unwrap();
            let head = Head::decode(&head).unwrap();
            let mut payload = vec![0; head.bytes as usize];
            self.io.read_exact(&mut payload).await.unwrap();
            if head.kind == kind {
                return (head, payload.into());
            }
            if head.kind == Kind::Ping {
                self.io.write_all(&frame(Kind::Pong, 0, b"", false)).await.unwrap();
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_of_which_nothing_is_taken_ends_with_a_status_and_its_connection_goes_on() {
    let mut pipe = Pipe::open().await;
    let begun = Instant::now();
    for stream in 1..=3 {
        pipe.io.write_all(&opened(stream, "/endless")).await.unwrap();
    }
    for _ in 1..=3 {
        let (_, trailers) = pipe.next(Kind::Trailers).await;
        let status = Status::from_header_map(&headers::of(trailers).unwrap()).unwrap();
        let failure = proto::Failure::from(status);
        assert_eq!((failure.code, failure.retry), (proto::Code::Busy, proto::Retry::Unknown));
    }
    let stood = begun.elapsed();
    assert!((60..65).contains(&stood.as_secs()), "{stood:?}");
    assert_eq!(pipe.counts.answers_not_taken.get(), 3);
    until_working(&pipe.working, 0).await;
    // What is taken slowly is not given up, where each piece is taken within a minute.
    pipe.io.write_all(&opened(4, "/endless")).await.unwrap();
    for _ in 0..50 {
        tokio::time::sleep(Duration::from_millis(1500)).await;
        pipe.more_credit(4, 3500).await;
    }
    assert_eq!(pipe.counts.answers_not_taken.get(), 3);
    pipe.io.write_all(&opened(5, "/small")).await.unwrap();
    assert_eq!(pipe.next(Kind::Trailers).await.0.stream, 5);
    // Who takes a byte at a time, for ever, is given up.
    let begun = Instant::now();
    pipe.io.write_all(&opened(6, "/endless")).await.unwrap();
    while pipe.counts.answers_not_taken.get() < 5 {
        assert!(begun.elapsed() < DEADLINE, "it goes on");
        pipe.more_credit(6, 65).await;
        tokio::time::sleep(Duration::from_millis(1500)).await;
    }
    let ended = [pipe.next(Kind::Trailers).await.0.stream, pipe.next(Kind::Trailers).await.0.stream];
    assert_eq!(ended, [4, 6]);
    drop(pipe.io);
    pipe.serving.await.unwrap();
    assert_eq!(pipe.counts.ended(CloseReason::Closed).get(), 1);
}

/// A client that lets everything be sent, says again and again that it is there, and never reads.
#[tokio::test(start_paused = true)]
async fn a_connection_whose_socket_takes_nothing_is_over_with_all_that_waits_for_it() {
    let mut pipe = Pipe::with_windows(1 << 30).await;
    for stream in 1..=30 {
        pipe.io.write_all(&opened(stream, "/endless")).await.unwrap();
    }
    let begun = Instant::now();
    while pipe.io.write_all(&frame(Kind::Ping, 0, b"", false)).await.is_ok() {
        assert!(begun.elapsed() < DEADLINE, "it goes on");
        tokio::time::sleep(Duration::from_secs(2)).await;
    }
    let stood = begun.elapsed();
    assert!((60..70).contains(&stood.as_secs()), "{stood:?}");
    pipe.serving.await.unwrap();
    assert_eq!(pipe.counts.ended(CloseReason::Deaf).get(), 1);
    until_working(&pipe.working, 0).await;
}

#[tokio::test(start_paused = true)]
async fn who_asks_is_not_asked_whether_he_is_there() {
    let mut pipe = Pipe::open().await;
    for _ in 0..5 {
        tokio::time::sleep(PING_INTERVAL).await;
        pipe.io.write_all(&frame(Kind::Ping, 0, b"", false)).await.unwrap();
        let mut head = [0; HEAD_BYTES];
        pipe.io.read_exact(&mut head).await.unwrap();
        assert_eq!(Head::decode(&head).unwrap().kind, Kind::Pong);
    }
    let heard = Instant::now();
    pipe.next(Kind::Ping).await;
    let mut nothing = [0];
    assert_eq!(pipe.io.read(&mut nothing).await.unwrap(), 0, "who does not answer is gone");
    assert_eq!(heard.elapsed().as_secs(), SILENCE_MAX.as_secs());
    assert_eq!(pipe.counts.ended(CloseReason::Silent).get(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_gives_up_more_calls_than_may_be_under_way_in_a_second_is_cut_off() {
    let mut pipe = Pipe::open().await;
    let calls = 2 * RESETS_PER_SECOND_MAX - 1;
    for stream in 1..=calls {
        if stream == RESETS_PER_SECOND_MAX {
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        let call = [opened(stream, "/never"), frame(Kind::Reset, stream, b"", false)].concat();
        pipe.io.write_all(&call).await.unwrap();
    }
    pipe.io.write_all(&opened(calls + 1, "/small")).await.unwrap();
    assert_eq!(pipe.next(Kind::Trailers).await.0.stream, calls + 1, "as many each second are fine");
    let next = calls + 2;
    // It may be closed before all is written.
    let call = [opened(next, "/never"), frame(Kind::Reset, next, b"", false)].concat();
    let _ = pipe.io.write_all(&call).await;
    pipe.serving.await.unwrap();
    assert_eq!(pipe.counts.ended(CloseReason::Resets).get(), 1);
    until_working(&pipe.working, 0).await;
}

/// A call with so much of a message of 60 000 bytes.
fn asked(stream: u32, bytes: usize) -> Vec<u8> {
    let message = [&[0][..], &60_000u32.to_be_bytes(), &vec![7; 60_000]].concat();
    [opened(stream, "/read"), frame(Kind::Data, stream, &message[..bytes], bytes == message.len())].concat()
}

#[tokio::test(start_paused = true)]
async fn half_sent_messages_have_their_room_and_their_time_and_their_connection_goes_on() {
    let gate = Gate::new(GateOptions { gathered_bytes_max: 100_000, ..GateOptions::default() });
    let mut pipe = Pipe::behind(&gate, 64 << 10).await;
    let begun = Instant::now();
    for (stream, bytes) in [(1, 40_000), (2, 40_000), (3, 40_000), (4, 60_005)] {
        pipe.io.write_all(&asked(stream, bytes)).await.unwrap();
        // Each is read before the next one comes.
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let mut ended = Vec::new();
    while ended.len() < 4 {
        let answered = tokio::time::timeout(DEADLINE, pipe.next(Kind::Answer));
        let (head, answer) = answered.await.expect("an answer");
        let status = Status::from_header_map(headers::response(answer).unwrap().headers()).unwrap();
        let code = (status.code() != tonic::Code::Ok).then(|| proto::Failure::from(status).code);
        ended.push((head.stream, code, begun.elapsed().as_secs()));
    }
    // One message had no room, and two had no rest; the whole one needed no room.
    ended.sort_by_key(|(stream, _, after)| (*after, *stream));
    let busy = Some(proto::Code::Busy);
    assert_eq!(ended, [(3, busy, 0), (4, None, 0), (1, busy, 60), (2, busy, 60)]);
    assert_eq!((gate.counts().messages_without_room.get(), gate.counts().messages_late.get()), (1, 2));
    pipe.io.write_all(&asked(5, 60_000)).await.unwrap();
    pipe.io.write_all(&frame(Kind::Data, 5, &[7; 5], true)).await.unwrap();
    let (head, answer) = pipe.next(Kind::Answer).await;
    assert_eq!(
        (head.stream, &headers::response(answer).unwrap().headers()["grpc-status"]),
        (5, &"0".parse().unwrap())
    );
    until_working(&pipe.working, 0).await;
    assert_eq!(pipe.counts.ended(CloseReason::Closed).get(), 0);
}

#[tokio::test(start_paused = true)]
async fn answers_that_nobody_takes_have_their_room_and_their_connection_goes_on() {
    let gate = Gate::new(GateOptions { untaken_bytes_max: 150_000, ..GateOptions::default() });
    let mut pipe = Pipe::behind(&gate, 64 << 10).await;
    pipe.io.write_all(&opened(1, "/endless")).await.unwrap();
    assert_eq!(pipe.next(Kind::Data).await.0.stream, 1);
    pipe.io.write_all(&opened(2, "/endless")).await.unwrap();
    let (head, trailers) = pipe.next(Kind::Trailers).await;
    let failure = proto::Failure::from(Status::from_header_map(&headers::of(trailers).unwrap()).unwrap());
    assert_eq!((head.stream, failure.code), (2, proto::Code::Busy), "{failure}");
    assert_eq!(gate.counts().answers_without_room.get(), 1);
    // What is given up leaves its room.
    pipe.io.write_all(&frame(Kind::Reset, 1, b"", false)).await.unwrap();
    until_working(&pipe.working, 0).await;
    pipe.io.write_all(&opened(3, "/endless")).await.unwrap();
    pipe.more_credit(3, 64 << 10).await;
    assert_eq!(pipe.next(Kind::Data).await.0.stream, 3);
    assert_eq!(gate.counts().answers_without_room.get(), 1);
}

#[tokio::test(start_paused = true)]
async fn small_answers_that_nobody_takes_have_their_room_on_all_connections_together() {
    let gate = Gate::new(GateOptions { untaken_bytes_max: 400_000, ..GateOptions::default() });
    let wire = || {
        let room = gate.room(&TcpConnectInfo { local_addr: None, remote_addr: None });
        Wire::new(Windows::default(), Windows::default(), Some(room), Arc::default())
    };
    let answer = |wire: &Wire, calls: std::ops::Range<u32>| {
        for id in calls {
            assert!(wire.opened(id, tokio::sync::mpsc::unbounded_channel().0).unwrap());
            assert!(wire.send_headers(id, Kind::Trailers, Bytes::from(vec![7; 1000])).is_ok());
            wire.finish(id);
        }
    };
    let (first, second, patience) = (wire(), wire(), Duration::from_secs(1));
    answer(&first, 1..301);
    assert!(first.has_room(patience).await);
    // Little is not counted, whatever there is of it elsewhere.
    answer(&second, 1..101);
    assert!(second.has_room(patience).await);
    answer(&second, 101..201);
    assert!(!second.has_room(patience).await, "its calls are over, and what they said is not");
    let batch = first.to_write().await.unwrap();
    assert!(!second.has_room(patience).await, "what is being written is not taken yet");
    assert_eq!(batch.frames, 300);
    first.written(&batch.data, batch.frames);
    assert!(second.has_room(patience).await);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_and_not_read_has_its_room_and_its_connection_goes_on() {
    let gate = Gate::new(GateOptions { gathered_bytes_max: 600_000, ..GateOptions::default() });
    let (mut first, mut second) = (Pipe::behind(&gate, 64 << 10).await, Pipe::behind(&gate, 64 << 10).await);
    let send = async |pipe: &mut Pipe, stream, bytes| {
        pipe.io.write_all(&opened(stream, "/never")).await.unwrap();
        pipe.io.write_all(&frame(Kind::Data, stream, &vec![7; bytes], false)).await.unwrap();
        // What comes behind this has been looked at after it.
        pipe.io.write_all(&opened(stream + 1, "/small")).await.unwrap();
        pipe.next(Kind::Trailers).await.0.stream
    };
    assert_eq!(send(&mut first, 1, 400_000).await, 2);
    // Little is not counted, whatever there is of it elsewhere.
    assert_eq!(send(&mut second, 1, 100_000).await, 2);
    second.io.write_all(&opened(3, "/never")).await.unwrap();
    second.io.write_all(&frame(Kind::Data, 3, &[7; 200_000], false)).await.unwrap();
    let reset = tokio::time::timeout(DEADLINE, second.next(Kind::Reset)).await.expect("it is given up");
    assert_eq!(reset.0.stream, 3);
    assert_eq!((first.counts.calls_unread.get(), second.counts.calls_unread.get()), (0, 1));
    // What is given up leaves its room, and a call that was refused its place.
    first.io.write_all(&frame(Kind::Reset, 1, b"", false)).await.unwrap();
    until_working(&first.working, 0).await;
    assert_eq!(send(&mut second, 4, 200_000).await, 5);
    assert_eq!(second.counts.calls_unread.get(), 1);
    until_working(&second.working, 2).await;
}

/// Two addresses had all the room for messages for hours.
#[tokio::test(start_paused = true)]
async fn what_is_not_read_for_a_minute_is_given_up_and_what_is_read_slowly_is_not() {
    let mut pipe = Pipe::behind(&Gate::new(GateOptions::default()), 64 << 10).await;
    pipe.io.write_all(&opened(1, "/never")).await.unwrap();
    pipe.io.write_all(&frame(Kind::Data, 1, &[7; 200_000], false)).await.unwrap();
    let begun = Instant::now();
    let mut pings = 0;
    let reset = loop {
        tokio::select! {
            reset = pipe.next(Kind::Reset) => break reset,
            // Whoever says nothing is closed.
            () = tokio::time::sleep(Duration::from_secs(1)) => {
                pings += 1;
                pipe.io.write_all(&frame(Kind::Ping, 0, b"", false)).await.unwrap();
            }
        }
        assert!(begun.elapsed() < 2 * DEADLINE, "it is kept");
    };
    assert_eq!((reset.0.stream, pipe.counts.calls_unread.get()), (1, 1));
    assert!(begun.elapsed() >= Duration::from_secs(60), "after {:?}, {pings} pings", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn what_is_read_within_a_minute_is_not_late_however_much_more_came() {
    let mut unread = super::wire::Unread::new();
    for _ in 0..100 {
        unread.came += 10;
        assert!(!unread.is_late(Instant::now()));
        tokio::time::sleep(Duration::from_secs(50)).await;
        unread.came += 10;
        assert!(!unread.is_late(Instant::now()));
        unread.read = unread.came - 10;
    }
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(50)).await;
        let _ = unread.is_late(Instant::now());
    }
    assert!(unread.is_late(Instant::now()));
}
