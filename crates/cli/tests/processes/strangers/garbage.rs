use super::Store;
use super::crowd::target;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};

/// A stranger waits for an answer as long.
const ANSWER_WITHIN: Duration = Duration::from_millis(500);
/// How much at a time: another one each as soon as one has left.
const AT_ONCE: usize = 8;

/// Throws what nobody should send at every port until `stay` is over, each kind at least once. Answers how
/// much was thrown.
pub(super) async fn throw(store: &Store, stay: Duration) -> usize {
    let begun = Instant::now();
    let lies = lies(store);
    let mut count = 0;
    let mut seed = 1u64;
    while count == 0 || begun.elapsed() < stay {
        for (lie, bytes) in &lies {
            let answer = said(&store.s3_address, bytes).await;
            assert!(!answer.starts_with("HTTP/1.1 2"), "{lie} is taken: {answer}");
            count += 1;
        }
        let mut thrown = Vec::new();
        for _ in 0..AT_ONCE {
            for address in store.other_addresses.iter().chain([&store.s3_address]) {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let (address, bytes) = (address.clone(), garbage(seed));
                thrown.push(tokio::spawn(async move { said(&address, &bytes).await }));
            }
            datagram(&store.dns, &garbage(seed)).await;
            count += 1;
        }
        count += thrown.len();
        for one in thrown {
            one.await.expect("it does not panic");
        }
    }
    count
}

/// Requests that must not be carried out, and what they are.
fn lies(store: &Store) -> Vec<(&'static str, Vec<u8>)> {
    let (put, host) = (target(&store.s3.put_url("lie")), &store.s3_address);
    let head = |more: &str| format!("PUT {put} HTTP/1.1\r\nhost: {host}\r\n{more}").into_bytes();
    let form = format!(
        "POST /first HTTP/1.1\r\nhost: {host}\r\ncontent-type: Multipart/form-data; boundary=x\r\ncontent-length: 9000\r\n\r\n--x"
    );
    let long = format!("x-long: {}\r\n", "a".repeat(64 << 10));
    let many: String = (0..1000).map(|number| format!("x-many-{number}: a\r\n")).collect();
    let with = |head: Vec<u8>, body: &[u8]| [&head, body].concat();
    vec![
        ("a long header", head(&format!("{long}content-length: 0\r\n\r\n"))),
        ("many headers", head(&format!("{many}content-length: 0\r\n\r\n"))),
        ("a form", form.into_bytes()),
        ("a body that stops", with(head("content-length: 1000\r\n\r\n"), b"short")),
        ("chunks that stop", with(head("transfer-encoding: chunked\r\n\r\n"), b"5\r\nhello\r\n")),
        (
            "chunks that are none",
            with(head("transfer-encoding: chunked\r\n\r\n"), b"zz\r\nhello\r\n0\r\n\r\n"),
        ),
        (
            "a chunk too long",
            with(head("transfer-encoding: chunked\r\n\r\n"), b"ffffffffffffffff1\r\nhello\r\n0\r\n\r\n"),
        ),
        ("two lengths", with(head("content-length: 5\r\ncontent-length: 6\r\n\r\n"), b"hello!")),
        ("another expectation", with(head("expect: the-best\r\ncontent-length: 5\r\n\r\n"), b"hello")),
        (
            "aws-chunks of another length",
            with(
                head(
                    "x-amz-content-sha256: STREAMING-UNSIGNED-PAYLOAD-TRAILER\r\nx-amz-trailer: x-amz-checksum-crc32\r\n\
                      x-amz-decoded-content-length: 5\r\ncontent-length: 20\r\n\r\n",
                ),
                b"6\r\nhello!\r\n0\r\n\r\n    ",
            ),
        ),
    ]
}

/// Random bytes, behind the beginning of something known or behind nothing.
fn garbage(seed: u64) -> Vec<u8> {
    let beginnings: [&[u8]; 7] = [
        b"",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\n",
        b"POST /flotilla.Scm/Heartbeat HTTP/1.1\r\ncontent-type: application/grpc\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x40\x12\x34\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00",
        b"PUT /v1/kv/a HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n",
    ];
    let mut state = seed | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let beginning = beginnings[(next() % beginnings.len() as u64) as usize];
    let count = next() % 2000;
    let random: Vec<u8> = (0..count).map(|_| next() as u8).collect();
    [beginning, &random].concat()
}

/// Says it and no more; what is answered, as far as it comes soon.
async fn said(address: &str, bytes: &[u8]) -> String {
    let Ok(mut connection) = TcpStream::connect(address).await else { panic!("{address} does not listen") };
    let mut answer = Vec::new();
    // It may be refused before all was said.
    let _ = connection.write_all(bytes).await;
    let _ = connection.shutdown().await;
    let _ =
        tokio::time::timeout(ANSWER_WITHIN, (&mut connection).take(64 << 10).read_to_end(&mut answer)).await;
    String::from_utf8_lossy(&answer).into_owned()
}

async fn datagram(address: &str, bytes: &[u8]) {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a socket");
    socket.send_to(&bytes[..bytes.len().min(1400)], address).await.expect("it is sent");
}
