use crate::server::Server;
use httpd::Limits;
use std::time::Duration;

#[tokio::test]
async fn half_sent_heads_are_closed_with_a_word_and_silent_connections_may_stay() {
    let limits = Limits { head_max: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start(limits).await;
    let mut silent = server.connect().await;
    let mut between = server.connect().await;
    assert_eq!(between.get("/small").await.status, 200);

    let mut halves = Vec::new();
    // The last three are half of what HTTP/2 begins with, and two that begin as it does.
    for half in [
        "G",
        "GET /small HTTP/1.1\r\n",
        "GET /small HTTP/1.1\r\nhost: t\r\nx-a: b",
        "PRI",
        "PRI /small HTTP/1.1\r\nhost: t\r\nx-a: b",
        "PRI * HTTP/2.0\r\n\r\nS",
    ] {
        let mut client = server.connect().await;
        client.send(half).await;
        halves.push(client);
    }
    for mut client in halves {
        let text = String::from_utf8(client.ended().await).unwrap();
        assert!(text.starts_with("HTTP/1.1 408 Request Timeout\r\n"), "{text}");
        assert!(text.contains("\r\n\r\nRequestTimeout: ") && text.contains("x-request-id: "), "{text}");
    }
    server.wait_until("six were closed for it", |server| server.closed("head_timeout") == 6).await;
    assert_eq!(silent.get("/small").await.status, 200);
    assert_eq!(between.get("/small").await.status, 200);
}

/// One byte at a time, each in time by itself.
#[tokio::test]
async fn heads_that_come_byte_by_byte_are_closed_too() {
    let limits = Limits { head_max: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start(limits).await;
    let client = server.connect().await;
    let (mut from, mut to) = client.0.into_split();
    let sending = tokio::spawn(async move {
        use tokio::io::AsyncWriteExt;
        for byte in b"GET /small HTTP/1.1\r\n".iter().cycle() {
            if to.write_all(&[*byte]).await.is_err() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    });
    let mut text = String::new();
    let read = tokio::io::AsyncReadExt::read_to_string(&mut from, &mut text);
    // A reset may come instead of the end: the client goes on writing.
    let _ = tokio::time::timeout(crate::server::DEADLINE, read).await.expect("closed in time");
    assert!(text.starts_with("HTTP/1.1 408 "), "{text}");
    sending.abort();
}

#[tokio::test]
async fn connections_without_requests_are_closed() {
    let limits = Limits { idle_max: Duration::from_millis(300), ..Limits::default() };
    let server = Server::start(limits).await;
    let mut silent = server.connect().await;
    let mut used = server.connect().await;
    assert_eq!(used.get("/small").await.status, 200);
    assert_eq!(silent.ended().await, b"");
    assert_eq!(used.ended().await, b"");
    server.wait_until("both were idle", |server| server.closed("idle") == 2).await;
}

#[tokio::test]
async fn heads_above_a_limit_are_refused() {
    let limits = Limits { head_bytes_max: 9000, ..Limits::default() };
    let server = Server::start(limits).await;
    let with = |headers: String| format!("GET /small HTTP/1.1\r\nhost: t\r\n{headers}\r\n");
    let check = async |head: String, status: u16| {
        let mut client = server.connect().await;
        client.send(&head).await;
        let answer = client.answer().await;
        assert_eq!(answer.status, status, "{}", answer.head);
        if status != 200 {
            client.ended().await;
        }
    };
    let many = |count: usize| with((0..count).map(|n| format!("x-{n}: y\r\n")).collect());
    let long = |bytes: usize| {
        let without = with("x-a: \r\n".to_owned()).len();
        with(format!("x-a: {}\r\n", "y".repeat(bytes - without)))
    };
    check(many(99), 200).await;
    check(many(100), 431).await;
    check(long(9000), 200).await;
    check(long(9001), 431).await;
    check(long(60_000), 431).await;
    server.wait_until("counted", |server| server.closed("head_too_large") >= 2).await;
}

#[tokio::test]
async fn requests_have_ids_of_which_none_follows_from_another() {
    let server = Server::start(Limits::default()).await;
    let mut client = server.connect().await;
    let mut ids = Vec::new();
    for _ in 0..20 {
        let answer = client.get("/id").await;
        let id = u64::from_str_radix(&answer.text(), 16).unwrap();
        assert_eq!(answer.header("x-request-id"), Some(answer.text().as_str()));
        ids.push(id);
    }
    let apart = ids.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) > 1 << 32).count();
    assert_eq!(apart, 19, "{ids:x?}");
}
