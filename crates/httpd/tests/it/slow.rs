use crate::server::{Client, Server};
use httpd::{Limits, Plain};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpSocket;

/// With a small window, so that its kernel does not do the reading.
async fn small_window(server: &Server) -> Client {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(8 << 10).unwrap();
    Client(socket.connect(server.address).await.unwrap())
}

/// A byte, and a pause, again and again.
async fn read_bytewise(mut client: Client, pause: Duration) {
    while let Ok(1..) = client.0.read(&mut [0; 1]).await {
        tokio::time::sleep(pause).await;
    }
}

#[tokio::test]
async fn who_reads_a_byte_at_a_time_is_let_go_and_others_are_served() {
    let limits = Limits { transfer_idle_max: Duration::from_millis(700), ..Limits::default() };
    let server = Server::start_with(limits, 4, Plain).await;
    let mut readers = Vec::new();
    for _ in 0..100 {
        let mut client = small_window(&server).await;
        client.send("GET /work/large HTTP/1.1\r\nhost: t\r\n\r\n").await;
        readers.push(tokio::spawn(read_bytewise(client, Duration::from_millis(50))));
    }
    // Twenty-five times as many as there may be worked for, and nobody else hears of it.
    let mut client = server.connect().await;
    for _ in 0..50 {
        let answer = client.get("/work/small").await;
        assert_eq!(answer.status, 200, "{}", answer.head);
    }
    server.wait_until("all are let go", |server| server.closed("slow_reader") == 100).await;
    // What they have in their sockets they may go on reading for as long as they like.
    readers.iter().for_each(tokio::task::JoinHandle::abort);
    assert_eq!(server.of_port("requests_working"), 0);
    assert_eq!(client.get("/work/small").await.status, 200);
}

/// Slower than the network, faster than it must be, and for much longer than anybody may stand still.
#[tokio::test]
async fn who_reads_slowly_but_fast_enough_is_not_let_go() {
    let limits = Limits {
        transfer_idle_max: Duration::from_secs(5),
        bytes_per_second_min: 64 << 10,
        ..Limits::default()
    };
    let server = Server::start(limits).await;
    let mut client = small_window(&server).await;
    client.send("GET /large HTTP/1.1\r\nhost: t\r\n\r\n").await;
    let mut buffer = vec![0; 32 << 10];
    for _ in 0..90 {
        client.0.read_exact(&mut buffer).await.expect("it is served");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(server.closed("slow_reader"), 0);
}

#[tokio::test]
async fn bodies_that_come_too_slowly_hold_nothing_and_end() {
    // So long that a machine that stands still for a moment does not end the one that goes on.
    let limits = Limits { transfer_idle_max: Duration::from_secs(5), ..Limits::default() };
    let server = Server::start_with(limits, 2, Plain).await;
    let mut senders = Vec::new();
    for _ in 0..20 {
        let mut client = server.connect().await;
        client.send("PUT /work/read HTTP/1.1\r\nhost: t\r\ncontent-length: 9\r\n\r\nabc").await;
        senders.push(client);
    }
    let mut client = server.connect().await;
    server.wait_until("nobody is worked for", |server| server.of_port("requests_under_way") == 20).await;
    for _ in 0..20 {
        assert_eq!(client.get("/work/small").await.status, 200);
    }
    // One goes on, and is worked for again.
    senders[0].send("defghi").await;
    let answer = senders[0].answer().await;
    assert_eq!((answer.status, answer.text()), (200, "9".to_owned()));
    for sender in &mut senders[1..] {
        assert_eq!(sender.answer().await.status, 408);
    }
    assert_eq!(server.of_port("request_bodies_stalled_total"), 19);
    assert_eq!(server.of_port("requests_working"), 0);
}

/// Above the limit of slow clients, those that stood still the longest do not get all of their time.
#[tokio::test]
async fn too_many_slow_clients_are_let_go_sooner() {
    let limits = Limits { slow_max: 3, head_max: Duration::from_millis(400), ..Limits::default() };
    let server = Server::start(limits).await;
    let mut readers = Vec::new();
    for _ in 0..10 {
        let mut client = small_window(&server).await;
        client.send("GET /large HTTP/1.1\r\nhost: t\r\n\r\n").await;
        readers.push(client);
    }
    server.wait_until("all but three are gone", |server| server.closed("crowded") == 7).await;
    assert_eq!(server.of_port("connections"), 3);
    assert_eq!(server.of_port("transfers_slow"), 3);
}
