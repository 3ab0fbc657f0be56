use crate::server::{SMALL_BYTES, Server};
use httpd::{Limits, Plain, Transport};
use std::io;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Two pieces of an answer go at once. With Nagle's algorithm the second waits for the acknowledgement of the
/// first, which Linux delays by 40 ms once a connection is no longer new.
#[tokio::test]
async fn small_answers_do_not_wait_for_acknowledgements() {
    let server = Server::start(Limits::default()).await;
    let mut client = server.connect().await;
    let mut times = Vec::new();
    for _ in 0..60 {
        let begin = Instant::now();
        let answer = client.get("/in-two").await;
        times.push(begin.elapsed());
        assert_eq!((answer.status, answer.body.len()), (200, SMALL_BYTES));
    }
    let mut late = times.split_off(30);
    late.sort();
    // The quick ones: others may have the processor.
    assert!(late[late.len() / 4] < Duration::from_millis(25), "{late:?}");
}

#[tokio::test]
async fn an_address_has_so_many_connections_and_no_more() {
    let limits = Limits { connections_max: 3, connections_per_address_max: 2, ..Limits::default() };
    let server = Server::start(limits).await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    for client in [&mut first, &mut second] {
        client.send("GET /wait HTTP/1.1\r\nhost: t\r\n\r\n").await;
    }
    server.wait_until("none is idle", |server| server.of_port("requests_under_way") == 2).await;

    let mut third = server.connect().await;
    let answer = third.get("/small").await;
    assert_eq!((answer.status, answer.header("retry-after")), (503, Some("1")), "{}", answer.head);
    assert!(answer.text().starts_with("SlowDown: Your address"), "{}", answer.text());
    assert_eq!(server.refused("address"), 1);

    // Another address of this machine has room, once.
    let mut other = server.connect_from(2).await;
    other.send("GET /wait HTTP/1.1\r\nhost: t\r\n\r\n").await;
    server.wait_until("none is idle", |server| server.of_port("requests_under_way") == 3).await;
    let mut fourth = server.connect_from(3).await;
    assert_eq!(fourth.get("/small").await.status, 503);
    assert_eq!(server.refused("connections"), 1);

    drop(first);
    server.wait_until("a place came back", |server| server.of_port("connections") == 2).await;
    let mut again = server.connect().await;
    assert_eq!(again.get("/small").await.status, 200);
    server.go.add_permits(2);
    assert_eq!(second.answer().await.text(), "waited");
    assert_eq!(other.answer().await.text(), "waited");
}

#[tokio::test]
async fn a_connection_ends_after_so_many_requests() {
    let limits = Limits { requests_per_connection_max: 3, ..Limits::default() };
    let server = Server::start(limits).await;
    let mut client = server.connect().await;
    for _ in 0..2 {
        assert_eq!(client.get("/small").await.header("connection"), None);
    }
    let last = client.get("/small").await;
    assert_eq!((last.status, last.header("connection")), (200, Some("close")));
    assert_eq!(client.ended().await, b"");
}

/// A transport as TLS will be: something has to come before there is a stream.
#[derive(Clone)]
struct Knock;

impl Transport for Knock {
    type Stream = TcpStream;

    async fn open(&self, mut connection: TcpStream) -> io::Result<TcpStream> {
        match connection.read_u8().await? {
            b'!' => Ok(connection),
            _ => Err(io::Error::other("not the word")),
        }
    }
}

#[tokio::test]
async fn a_handshake_that_hangs_or_fails_ends_its_connection_alone() {
    let limits = Limits { head_max: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start_with(limits, 8, Knock).await;
    let mut hangs = server.connect().await;
    let mut fails = server.connect().await;
    fails.send("?").await;
    let mut knows = server.connect().await;
    knows.send("!").await;
    assert_eq!(knows.get("/small").await.status, 200);
    assert_eq!(hangs.ended().await, b"");
    assert_eq!(fails.ended().await, b"");
    server.wait_until("both counted", |server| server.closed("handshake") == 2).await;
    assert_eq!(knows.get("/small").await.status, 200);
}

/// Hundreds that do nothing, and one that works among them.
#[tokio::test]
async fn idle_connections_are_in_nobodys_way() {
    let server = Server::start_with(Limits::default(), 4, Plain).await;
    let mut idle = Vec::new();
    for _ in 0..300 {
        idle.push(server.connect().await);
    }
    let mut client = server.connect().await;
    for _ in 0..50 {
        assert_eq!(client.get("/work/small").await.status, 200);
    }
    assert_eq!(server.of_port("connections"), 301);
    drop(idle);
    server.wait_until("they are gone", |server| server.of_port("connections") == 1).await;
}
