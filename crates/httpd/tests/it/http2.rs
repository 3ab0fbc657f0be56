use crate::server::{DEADLINE, SMALL_BYTES, Server};
use axum::body::{Body, Bytes};
use axum::http::{Request, StatusCode};
use http_body::Body as _;
use httpd::Limits;
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::pin::Pin;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// A connection that gives each answer a window of 64 KiB until it is read.
pub(crate) async fn connect(server: &Server) -> (SendRequest<Body>, JoinHandle<hyper::Result<()>>) {
    let stream = TcpStream::connect(server.address).await.unwrap();
    let mut builder = Builder::new(TokioExecutor::new());
    builder.initial_stream_window_size(64u32 << 10).initial_connection_window_size(16u32 << 20);
    let (client, connection) = builder.handshake(TokioIo::new(stream)).await.unwrap();
    (client, tokio::spawn(connection))
}

pub(crate) fn request(path: &str) -> Request<Body> {
    Request::get(format!("http://t{path}")).body(Body::empty()).unwrap()
}

async fn get(client: &mut SendRequest<Body>, path: &str) -> (StatusCode, Bytes) {
    let answer = timeout(DEADLINE, client.send_request(request(path))).await.unwrap().unwrap();
    assert!(answer.headers().contains_key("x-request-id"));
    let status = answer.status();
    (status, axum::body::to_bytes(Body::new(answer.into_body()), 1 << 20).await.unwrap())
}

#[tokio::test]
async fn an_answer_that_is_not_taken_ends_its_connection_though_the_socket_has_room() {
    let limits = Limits { transfer_idle_max: Duration::from_millis(700), ..Limits::default() };
    let server = Server::start(limits).await;
    let (mut client, connection) = connect(&server).await;
    let (status, body) = get(&mut client, "/small").await;
    assert_eq!((status, body.len()), (StatusCode::OK, SMALL_BYTES));

    let stopped = client.send_request(request("/large")).await.unwrap();
    // Other answers come over the same socket all the time.
    while !connection.is_finished() {
        let Ok(answer) = client.send_request(request("/small")).await else { break };
        let _ = axum::body::to_bytes(Body::new(answer.into_body()), 1 << 20).await;
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    server.wait_until("it was let go for it", |server| server.closed("slow_reader") == 1).await;
    drop(stopped);
}

#[tokio::test]
async fn answers_that_are_taken_slowly_but_steadily_are_served() {
    let limits = Limits { transfer_idle_max: Duration::from_millis(1500), ..Limits::default() };
    let server = Server::start(limits).await;
    let (mut client, _connection) = connect(&server).await;
    let mut body = client.send_request(request("/large")).await.unwrap().into_body();
    let mut bytes = 0;
    for _ in 0..60 {
        let frame = std::future::poll_fn(|cx| Pin::new(&mut body).poll_frame(cx));
        let frame = timeout(DEADLINE, frame).await.unwrap().unwrap().unwrap();
        bytes += frame.into_data().unwrap().len();
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert!(bytes > 100 << 10, "{bytes}");
    assert_eq!(server.closed("slow_reader"), 0);
}

#[tokio::test]
async fn a_connection_without_requests_and_one_that_had_all_of_them_end() {
    let limits =
        Limits { idle_max: Duration::from_millis(300), requests_per_connection_max: 3, ..Limits::default() };
    let server = Server::start(limits).await;
    let (_client, idle) = connect(&server).await;
    let _ = timeout(DEADLINE, idle).await.expect("idle for too long");

    let (mut client, connection) = connect(&server).await;
    for _ in 0..3 {
        assert_eq!(get(&mut client, "/small").await.0, StatusCode::OK);
    }
    timeout(DEADLINE, connection).await.expect("it ends by itself").unwrap().unwrap();
    server.wait_until("both are gone", |server| server.of_port("connections") == 0).await;
    assert_eq!((server.closed("idle"), server.closed("finished")), (1, 1));
}

#[tokio::test]
async fn heads_above_a_limit_are_refused_and_a_drain_finishes_what_runs() {
    let server = Server::start(Limits { head_bytes_max: 9000, ..Limits::default() }).await;
    let (mut client, connection) = connect(&server).await;
    let check = async |client: &mut SendRequest<Body>, headers: Vec<(String, String)>| {
        let mut request = request("/small");
        for (name, value) in headers {
            let name: axum::http::HeaderName = name.parse().unwrap();
            request.headers_mut().insert(name, value.parse().unwrap());
        }
        timeout(DEADLINE, client.send_request(request)).await.unwrap().map(|answer| answer.status().as_u16())
    };
    let many = |count: usize| (0..count).map(|n| (format!("x-{n}"), "y".to_owned())).collect();
    assert_eq!(check(&mut client, many(100)).await.unwrap(), 200);
    assert_eq!(check(&mut client, many(101)).await.unwrap(), 431);
    let long = vec![("x-a".to_owned(), "y".repeat(9000))];
    let refused = check(&mut client, long).await;
    assert_eq!(refused.unwrap(), 431);

    let waiting = tokio::spawn(client.send_request(request("/wait")));
    server.wait_until("it is under way", |server| server.of_port("requests_under_way") == 1).await;
    server.stop.cancel();
    server.go.add_permits(1);
    assert_eq!(timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap().status(), StatusCode::OK);
    timeout(DEADLINE, connection).await.expect("it ends").unwrap().unwrap();
}

const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A GET, whole.
fn get_frame(stream: u32, path: &str) -> Vec<u8> {
    const END_OF_STREAM_AND_HEADERS: u8 = 5;
    // `:method: GET` and `:scheme: http` of HPACK's table, `:path` and `:authority` as they are.
    let mut block = vec![0x82, 0x86, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend([0x01, 1, b't']);
    frame(HEADERS, END_OF_STREAM_AND_HEADERS, stream, &block)
}

/// Frames as they are, of a client that keeps to no rule.
struct Raw(TcpStream);

impl Raw {
    async fn connect(server: &Server) -> Raw {
        let mut raw = Raw(TcpStream::connect(server.address).await.unwrap());
        raw.send(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(), frame(SETTINGS, 0, 0, &[])].concat()).await;
        raw
    }

    async fn send(&mut self, frames: &[u8]) {
        self.0.write_all(frames).await.unwrap();
    }

    /// Reads until an answer to `stream` begins; `false`: the connection ended before that.
    async fn answered(&mut self, stream: u32) -> bool {
        self.find(HEADERS, stream).await.is_some()
    }

    /// Reads until there is such a frame of `stream`, and gives what is in it.
    async fn find(&mut self, kind: u8, stream: u32) -> Option<Vec<u8>> {
        let mut head = [0; 9];
        while self.0.read_exact(&mut head).await.is_ok() {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            self.0.read_exact(&mut payload).await.ok()?;
            if head[3] == kind && head[5..] == stream.to_be_bytes() {
                return Some(payload);
            }
        }
        None
    }
}

/// Also while another request is under way, which would keep the connection open for as long as it takes.
#[tokio::test]
async fn a_half_sent_head_ends_its_connection() {
    let limits = Limits { head_max: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start(limits).await;
    let mut client = Raw::connect(&server).await;
    client.send(&get_frame(1, "/wait")).await;
    server.wait_until("it is under way", |server| server.of_port("requests_under_way") == 1).await;
    let half = get_frame(3, "/small");
    client.send(&half[..half.len() - 1]).await;
    server.wait_until("it is closed", |server| server.closed("head_timeout") == 1).await;
    let mut sent = Vec::new();
    let _ = timeout(DEADLINE, client.0.read_to_end(&mut sent)).await.expect("it ends");
    assert!(!sent.windows(5).any(|word| word == b"HTTP/"), "no word of HTTP/1 among the frames");
}

#[tokio::test]
async fn more_streams_at_once_than_there_may_be_are_refused_before_anything_is_begun() {
    const REFUSED_STREAM: [u8; 4] = [0, 0, 0, 7];
    let server = Server::start(Limits { http2_streams_max: 2, ..Limits::default() }).await;
    let mut client = Raw::connect(&server).await;
    client.send(&[1, 3, 5].map(|stream| get_frame(stream, "/wait")).concat()).await;
    let refused = timeout(DEADLINE, client.find(RST_STREAM, 5)).await.unwrap();
    assert_eq!(refused.unwrap(), REFUSED_STREAM);
    server.wait_until("two are under way", |server| server.of_port("requests_under_way") == 2).await;
    server.go.add_permits(2);
    server.wait_until("they are answered", |server| server.of_port("requests_under_way") == 0).await;
    assert_eq!(server.of_port("requests_total"), 2);
}

#[tokio::test]
async fn a_connection_that_resets_more_streams_in_a_second_than_it_may_is_closed() {
    let server = Server::start(Limits { http2_resets_per_second_max: 10, ..Limits::default() }).await;
    let mut client = Raw::connect(&server).await;
    let mut streams = (1..).step_by(2);
    let mut resets = |count: usize| -> Vec<u8> {
        let opened_and_reset =
            |stream| [get_frame(stream, "/wait"), frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])];
        streams.by_ref().take(count).flat_map(opened_and_reset).flatten().collect()
    };
    let as_many_as_may_be = resets(10);
    client.send(&as_many_as_may_be).await;
    client.send(&get_frame(1001, "/small")).await;
    assert!(timeout(DEADLINE, client.answered(1001)).await.unwrap());
    server.wait_until("those are given up", |server| server.of_port("requests_under_way") == 0).await;
    let begun = server.of_port("requests_total");

    let mut other = Raw::connect(&server).await;
    other.send(&resets(11)).await;
    assert!(!timeout(DEADLINE, other.answered(1)).await.unwrap());
    server.wait_until("it is closed", |server| server.closed("resets") == 1).await;
    assert_eq!(server.of_port("requests_total"), begun, "nothing of it is begun");
    client.send(&get_frame(1003, "/small")).await;
    assert!(timeout(DEADLINE, client.answered(1003)).await.unwrap(), "others are served");
}

#[tokio::test]
async fn a_connection_that_makes_us_reset_streams_again_and_again_is_closed() {
    let server = Server::start(Limits { http2_stream_errors_max: 10, ..Limits::default() }).await;
    let mut client = Raw::connect(&server).await;
    // A window above what there may be is an error of its stream.
    let opened_and_wrong =
        |stream| [get_frame(stream, "/wait"), frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff])];
    let wrong = |streams: std::ops::Range<u32>| -> Vec<u8> {
        streams.step_by(2).flat_map(opened_and_wrong).flatten().collect()
    };
    client.send(&wrong(1..21)).await;
    client.send(&get_frame(21, "/small")).await;
    assert!(timeout(DEADLINE, client.answered(21)).await.unwrap());
    client.send(&wrong(23..25)).await;
    client.send(&get_frame(25, "/small")).await;
    assert!(!timeout(DEADLINE, client.answered(25)).await.unwrap());
    server.wait_until("it is closed", |server| server.closed("broken") == 1).await;
    server.wait_until("nothing of it goes on", |server| server.of_port("requests_under_way") == 0).await;
}
