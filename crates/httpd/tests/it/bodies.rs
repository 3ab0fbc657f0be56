use crate::server::{Client, Server};
use httpd::Limits;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

/// A client that writes all of its body before it reads, as most do, still reads why it was refused.
#[tokio::test]
async fn an_early_refusal_is_read_by_a_client_that_is_still_sending() {
    let server = Server::start(Limits::default()).await;
    for _ in 0..5 {
        let mut client = server.connect().await;
        let length = 12 << 20;
        client.send(&format!("PUT /refuse HTTP/1.1\r\nhost: t\r\ncontent-length: {length}\r\n\r\n")).await;
        let piece = vec![b'x'; 1 << 20];
        for _ in 0..length / piece.len() {
            client.0.write_all(&piece).await.expect("nobody closes while the client writes");
        }
        assert_eq!(client.answer().await.status, 403);
        client.ended().await;
    }
}

/// But only a little is read of it, and only for a while.
#[tokio::test]
async fn a_refused_client_that_never_stops_sending_is_left() {
    let limits =
        Limits { linger_bytes_max: 1 << 20, linger_max: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start(limits).await;
    let head = "PUT /refuse HTTP/1.1\r\nhost: t\r\ncontent-length: 1000000000\r\n\r\n";
    let mut sends = server.connect().await;
    sends.send(head).await;
    let piece = vec![b'x'; 1 << 20];
    let mut sent = 0;
    while sends.0.write_all(&piece).await.is_ok() {
        sent += piece.len();
        assert!(sent < 500 << 20, "it reads and reads");
    }
    let mut stands: Client = server.connect().await;
    stands.send(head).await;
    assert_eq!(stands.answer().await.status, 403);
    server.wait_until("both are gone", |server| server.of_port("connections") == 0).await;
}
