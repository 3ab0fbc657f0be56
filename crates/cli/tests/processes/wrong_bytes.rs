//! An object whose bytes are not those that were written: whoever reads it over S3 gets a broken connection,
//! never a whole answer.

use crate::dev::start;
use client::{Client, ClientOptions, S3_VOLUME};
use proto::om::Key;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

const DEADLINE: Duration = Duration::from_secs(60);

struct Answer {
    status: u16,
    content_length: usize,
    body: Vec<u8>,
}

impl Answer {
    fn is_whole(&self) -> bool {
        self.body.len() == self.content_length
    }
}

/// Reads until the body is whole or the connection ends; one that does neither is an error.
fn ask(method: &str, url: &reqwest::Url, headers: &str) -> Answer {
    let host = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let mut connection = TcpStream::connect(&host).unwrap();
    connection.set_read_timeout(Some(DEADLINE)).unwrap();
    let (path, query) = (url.path(), url.query().unwrap());
    write!(connection, "{method} {path}?{query} HTTP/1.1\r\nhost: {host}\r\n{headers}\r\n").unwrap();
    let (mut bytes, mut buffer) = (Vec::new(), vec![0; 1 << 16]);
    loop {
        let count = match connection.read(&mut buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => 0,
            Err(error) => panic!("neither a body nor an end within {DEADLINE:?}: {error}"),
        };
        bytes.extend_from_slice(&buffer[..count]);
        let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") else {
            assert!(count > 0, "the connection ended before the headers did");
            continue;
        };
        let head = std::str::from_utf8(&bytes[..end]).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        assert!(!head.contains("transfer-encoding"), "{head}");
        let content_length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let content_length = content_length.unwrap_or_else(|| panic!("{head}")).parse().unwrap();
        let body = &bytes[end + 4..];
        if count == 0 || (method != "HEAD" && body.len() >= content_length) {
            return Answer { status, content_length, body: body.to_vec() };
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_bytes_break_the_connection() {
    let dir = tempfile::tempdir().unwrap();
    let (_process, s3, rpc) = start(dir.path());
    let body = |count: usize, step: usize| (0..count).map(|n| ((n * step) >> 3) as u8).collect::<Vec<u8>>();
    let (one, two) = (body((5 << 20) + 1, 7), body(6 << 20, 11));
    s3.create_bucket().await.unwrap();
    s3.put("one", one.clone()).await.unwrap();
    s3.put("two", two.clone()).await.unwrap();

    // What OM knows of the bytes no longer fits them, as if the block had become another's.
    let client = Client::connect(ClientOptions { scm: rpc, ..ClientOptions::default() });
    client.ready(DEADLINE).await.unwrap();
    let found = async |name: &str| client.lookup(S3_VOLUME, "first", name.as_bytes()).await.unwrap();
    let (good, mut bad) = (found("one").await, found("two").await);
    bad.key = "bad".into();
    bad.pieces[0].crc ^= 1;
    let parts = Key {
        key: "parts".into(),
        size: good.size + bad.size,
        etag: "0123-2".to_owned(),
        part_sizes: vec![good.size, bad.size],
        pieces: [good.pieces, bad.pieces.clone()].concat(),
        ..Key::default()
    };
    for key in [bad, parts] {
        client.commit_key(S3_VOLUME, "first", key, None).await.unwrap();
    }

    let get = |key: &str, part: Option<u32>, headers: &str| ask("GET", &s3.get_url(key, part), headers);
    let check_broken = |answer: Answer, status: u16, wanted: &[u8], at_least: usize| {
        assert_eq!((answer.status, answer.content_length), (status, wanted.len()));
        assert!(!answer.is_whole() && answer.body.len() >= at_least, "{} bytes", answer.body.len());
        assert!(answer.body == wanted[..answer.body.len()], "what came before is right");
    };
    let check_whole = |answer: Answer, status: u16, wanted: &[u8]| {
        assert_eq!((answer.status, answer.content_length), (status, wanted.len()));
        assert!(answer.body == wanted);
    };
    check_whole(get("two", None, ""), 200, &two);
    check_broken(get("bad", None, ""), 200, &two, 0);
    check_broken(get("bad", None, "range: bytes=0-\r\n"), 206, &two, 0);
    // Less than a whole piece has only its replica's checksums.
    check_whole(get("bad", None, "range: bytes=1-1000000\r\n"), 206, &two[1..=1_000_000]);

    let whole = [one.clone(), two.clone()].concat();
    check_broken(get("parts", None, ""), 200, &whole, one.len());
    check_whole(get("parts", Some(1), ""), 206, &one);
    check_broken(get("parts", Some(2), ""), 206, &two, 0);
    let range = format!("range: bytes={}-\r\n", one.len() - 10);
    check_broken(get("parts", None, &range), 206, &whole[one.len() - 10..], 10);

    for (key, size) in [("bad", two.len()), ("parts", whole.len())] {
        let head = ask("HEAD", &s3.head_url(key), "connection: close\r\n");
        assert_eq!((head.status, head.content_length, head.body.len()), (200, size, 0), "{key}");
    }
    assert!(s3.get("bad").await.unwrap_err().contains("broke off"), "a stock client notices");
}
