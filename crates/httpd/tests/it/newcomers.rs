use crate::http2;
use crate::server::{Client, DEADLINE, SMALL_BYTES, Server};
use axum::http::StatusCode;
use httpd::Limits;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::{Instant, timeout};

/// A client that came again and again until it was let in.
async fn let_in(server: &Server) -> Client {
    let give_up = Instant::now() + DEADLINE;
    loop {
        let mut client = server.connect().await;
        if client.get("/small").await.status == 200 {
            return client;
        }
        assert!(Instant::now() < give_up, "nobody makes room");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn an_address_at_its_limit_loses_its_connection_that_is_idle_longest() {
    let server = Server::start(Limits { connections_per_address_max: 2, ..Limits::default() }).await;
    let mut other = server.connect_from(2).await;
    let mut first = server.connect().await;
    let mut second = server.connect().await;
    let mut newcomer = server.connect().await;
    assert_eq!(newcomer.get("/small").await.status, 200);
    assert_eq!(first.ended().await, b"");
    assert_eq!(second.get("/small").await.status, 200);
    assert_eq!(other.get("/small").await.status, 200);
    server.wait_until("it is counted", |server| server.closed("displaced") == 1).await;
    assert_eq!(server.refused("address"), 0);
}

#[tokio::test]
async fn a_full_table_makes_room_where_one_address_has_most() {
    let server = Server::start(Limits { connections_max: 4, ..Limits::default() }).await;
    let mut other = server.connect_from(2).await;
    let mut crowd = Vec::new();
    for _ in 0..3 {
        crowd.push(server.connect().await);
    }
    let mut newcomers = [server.connect_from(3).await, server.connect_from(4).await];
    for newcomer in &mut newcomers {
        assert_eq!(newcomer.get("/small").await.status, 200);
        assert_eq!(crowd.remove(0).ended().await, b"");
    }
    assert_eq!(other.get("/small").await.status, 200);
    assert_eq!(crowd[0].get("/small").await.status, 200);
    server.wait_until("they are counted", |server| server.closed("displaced") == 2).await;
    assert_eq!(server.refused("connections"), 0);
}

#[tokio::test]
async fn who_has_a_request_under_way_or_half_of_one_stays_until_it_is_answered() {
    // Whether a connection is idle is looked at each second.
    let limits = Limits {
        connections_max: 3,
        head_max: DEADLINE,
        transfer_idle_max: Duration::from_secs(4),
        ..Limits::default()
    };
    let server = Server::start(limits).await;
    let (half_sent, rest) = ("GET /small HTTP/1.1\r\nho", "st: t\r\n\r\n");
    let mut half = server.connect().await;
    half.send(half_sent).await;
    let received = "flotilla_http_bytes_total{port=\"test\",direction=\"in\"}";
    let has_come = |server: &Server| server.metric(received) == half_sent.len() as u64;
    server.wait_until("half a head has come", has_come).await;
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nhost: t\r\n\r\n").await;
    let (mut client, connection) = http2::connect(&server).await;
    let waiting = tokio::spawn(client.send_request(http2::request("/wait")));
    server.wait_until("they are under way", |server| server.of_port("requests_under_way") == 2).await;

    assert_eq!(server.connect().await.get("/small").await.status, 503);
    assert_eq!((server.refused("connections"), server.closed("displaced")), (1, 0));
    server.go.add_permits(2);
    assert_eq!(busy.answer().await.text(), "waited");
    assert_eq!(timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap().status(), StatusCode::OK);

    let mut first = let_in(&server).await;
    first.send("GET /wait HTTP/1.1\r\nhost: t\r\n\r\n").await;
    server.wait_until("it is under way", |server| server.of_port("requests_under_way") == 1).await;
    let _second = let_in(&server).await;
    assert_eq!(busy.ended().await, b"");
    let _ = timeout(DEADLINE, connection).await.expect("it is closed");
    half.send(rest).await;
    assert_eq!(half.answer().await.status, 200);
    server.wait_until("two made room", |server| server.closed("displaced") == 2).await;
}

/// Both come in one moment, now the one first, now the other.
#[tokio::test]
async fn a_request_that_comes_with_a_newcomer_is_answered_or_not_begun() {
    let server = Server::start(Limits { connections_max: 1, ..Limits::default() }).await;
    for round in 0..40 {
        let mut idle = server.connect().await;
        server.wait_until("it has the place", |server| server.of_port("connections") == 1).await;
        let ask = || assert!(idle.0.try_write(b"GET /in-two HTTP/1.1\r\nhost: t\r\n\r\n").unwrap() > 0);
        // Nothing here lets the server go on before both are there.
        let newcomer = match round % 2 {
            0 => {
                ask();
                std::net::TcpStream::connect(server.address).unwrap()
            }
            _ => {
                let newcomer = std::net::TcpStream::connect(server.address).unwrap();
                ask();
                newcomer
            }
        };
        newcomer.set_nonblocking(true).unwrap();
        let mut newcomer = Client(TcpStream::from_std(newcomer).unwrap());
        match newcomer.get("/small").await.status {
            200 => assert_eq!(idle.ended().await, b"", "round {round}"),
            status => {
                assert_eq!((status, idle.answer().await.body.len()), (503, SMALL_BYTES), "round {round}");
            }
        }
        drop((idle, newcomer));
        server.wait_until("both are gone", |server| server.of_port("connections") == 0).await;
    }
    assert!(server.closed("displaced") > 0, "some lost their places");
}
