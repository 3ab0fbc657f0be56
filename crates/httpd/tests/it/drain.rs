use crate::server::{DEADLINE, Server};
use httpd::Limits;
use tokio::net::TcpStream;
use tokio::time::timeout;

#[tokio::test]
async fn what_is_under_way_is_finished_and_nothing_else_begins() {
    let mut server = Server::start(Limits::default()).await;
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/small").await.status, 200);
    let mut silent = server.connect().await;
    let mut half = server.connect().await;
    half.send("GET /small HTTP/1.1\r\nho").await;
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nhost: t\r\n\r\n").await;
    server
        .wait_until("it is under way", |server| {
            server.of_port("requests_under_way") == 1 && server.of_port("connections") == 4
        })
        .await;

    server.stop.cancel();
    assert_eq!(idle.ended().await, b"");
    assert_eq!(silent.ended().await, b"");
    assert_eq!(half.ended().await, b"");
    assert!(TcpStream::connect(server.address).await.is_err(), "nobody listens any more");
    assert!(!server.task.is_finished(), "a request is under way");

    server.go.add_permits(1);
    let answer = busy.answer().await;
    assert_eq!((answer.status, answer.text()), (200, "waited".to_owned()));
    assert_eq!(busy.ended().await, b"");
    timeout(DEADLINE, &mut server.task).await.expect("it ends").unwrap();
    assert_eq!(server.of_port("connections"), 0);
}

#[tokio::test]
async fn dropped_it_ends_its_connections() {
    let server = Server::start(Limits::default()).await;
    let mut busy = server.connect().await;
    busy.send("GET /wait HTTP/1.1\r\nhost: t\r\n\r\n").await;
    server.wait_until("it is under way", |server| server.of_port("requests_under_way") == 1).await;
    server.task.abort();
    assert_eq!(busy.ended().await, b"");
}
