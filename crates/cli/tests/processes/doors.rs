//! A process as those find it who may not come in: its ports, its files, its command line.

use crate::binary;
use reqwest::{Client, Method, StatusCode};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;
use testkit::{Process, Ready};
use tonic::Status;
use tonic::codegen::{Body as _, Bytes, Service, http};
use tonic::transport::{Channel, Endpoint};

const DEADLINE: Duration = Duration::from_secs(60);

fn start_dev(dir: &Path) -> (Process, Ready) {
    let data = dir.join("data").display().to_string();
    let line = format!("dev --data {data} --s3-port 0 --rpc-port 0 --http-port 0");
    Process::start(binary(), dir, "dev", line.split_whitespace().map(str::to_owned).collect())
}

/// The most memory that a process took, in bytes.
fn peak_memory(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

struct OneFrame(Option<Bytes>);

impl tonic::codegen::Body for OneFrame {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        std::task::Poll::Ready(self.0.take().map(|data| Ok(http_body::Frame::data(data))))
    }
}

/// A frame after which nothing comes, and no end.
struct HalfSent(OneFrame);

impl tonic::codegen::Body for HalfSent {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        match std::pin::Pin::new(&mut self.0).poll_frame(cx) {
            std::task::Poll::Ready(None) => std::task::Poll::Pending,
            frame => frame,
        }
    }
}

/// Sends all but the last byte of a message, and waits for an answer for as long as the task runs.
pub(crate) fn half_sent(
    mut channel: Channel,
    path: &'static str,
    length: usize,
) -> tokio::task::JoinHandle<()> {
    let head = [&[0][..], &u32::try_from(length).unwrap().to_be_bytes()].concat();
    let body = HalfSent(OneFrame(Some([head, vec![0; length - 1]].concat().into())));
    tokio::spawn(async move {
        let request = grpc(path, tonic::body::Body::new(body));
        std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
        drop(channel.call(request).await);
    })
}

fn grpc(path: &str, body: tonic::body::Body) -> http::Request<tonic::body::Body> {
    let request =
        http::Request::builder().method("POST").uri(path).header("content-type", "application/grpc");
    request.header("te", "trailers").body(body).unwrap()
}

/// Sends a message as it is, and waits until the answer ends. Answers how it ended, if that was said.
pub(crate) async fn send(mut channel: Channel, path: &str, message: &[u8]) -> Option<Status> {
    let head = [&[0][..], &u32::try_from(message.len()).unwrap().to_be_bytes()].concat();
    let request = grpc(path, tonic::body::Body::new(OneFrame(Some([&head, message].concat().into()))));
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.unwrap();
    // A refusal may come before all was sent, and break the call.
    let answer = channel.call(request).await.ok()?;
    let mut status = Status::from_header_map(answer.headers());
    let mut body = answer.into_body();
    while let Some(frame) = std::future::poll_fn(|cx| std::pin::Pin::new(&mut body).poll_frame(cx)).await {
        let trailers = frame.ok().and_then(|frame| frame.into_trailers().ok());
        status = trailers.and_then(|trailers| Status::from_header_map(&trailers)).or(status);
    }
    status
}

/// Eight MiB of empty heartbeats were 590 MiB in memory, and each method took as much.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_of_a_stranger_cost_no_more_memory_than_their_bytes() {
    const MESSAGE_BYTES: usize = 8 << 20;
    const GROWTH_BYTES_MAX: u64 = 200 << 20;
    let dir = tempfile::tempdir().unwrap();
    let (process, ready) = start_dev(dir.path());
    let endpoint = Endpoint::from_shared(format!("http://{}", ready["RPC"])).unwrap();
    let channel = endpoint.connect().await.unwrap();
    let before = peak_memory(process.pid());
    // A part of two bytes, in each of the first fields: in most of them a structure.
    for (path, _) in proto::MessageLimit::of_all() {
        let fields: &[u8] = if path.ends_with("/Heartbeats") { &[1] } else { &[1, 3, 5, 6] };
        for field in fields {
            let message: Vec<u8> = [field << 3 | 2, 0].repeat(MESSAGE_BYTES / 2);
            tokio::time::timeout(DEADLINE, send(channel.clone(), path, &message)).await.expect("an end");
        }
    }
    let grown = peak_memory(process.pid()) - before;
    assert!(grown < GROWTH_BYTES_MAX, "{} MiB", grown >> 20);
    assert_eq!(reqwest::get(format!("{}/readyz", ready["HTTP"])).await.unwrap().status(), StatusCode::OK);
}

/// Nine bytes, for which room for all that they announce would be taken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frame_that_is_announced_as_larger_than_any_is_refused_by_its_head() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    const GO_AWAY: u8 = 7;
    const FRAME_SIZE_ERROR: u8 = 6;
    let dir = tempfile::tempdir().unwrap();
    let (_process, ready) = start_dev(dir.path());
    let mut stranger = tokio::net::TcpStream::connect(&ready["RPC"]).await.unwrap();
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let length = u32::to_be_bytes((64 << 10) + 1);
    let data = [length[1], length[2], length[3], 0, 0, 0, 0, 0, 1];
    let said = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &settings, &data].concat();
    stranger.write_all(&said).await.unwrap();
    let mut answer = Vec::new();
    tokio::time::timeout(DEADLINE, stranger.read_to_end(&mut answer)).await.unwrap().unwrap();
    let mut codes = Vec::new();
    while let Some((head, rest)) = answer.split_at_checked(9) {
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        if head[3] == GO_AWAY {
            codes.push(rest[7]);
        }
        answer = rest[length..].to_vec();
    }
    assert_eq!(codes, [FRAME_SIZE_ERROR]);
}

/// A page that has given its own name our address (DNS rebinding), and one that sends to ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_of_a_browser_do_not_write_the_registry() {
    let dir = tempfile::tempdir().unwrap();
    let (_process, ready) = start_dev(dir.path());
    let url = format!("{}/v1/kv/a", ready["HTTP"]);
    let http = Client::new();
    let ask = async |method: Method, headers: &[(&str, &str)]| {
        let mut request = http.request(method, &url).body("value");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        request.send().await.unwrap().status()
    };
    for headers in [
        &[("host", "evil.example.com")][..],
        &[("host", "127.0.0.1.evil.example.com:80")],
        &[("origin", "http://evil.example.com")],
        &[("origin", "null")],
        &[("sec-fetch-site", "cross-site")],
    ] {
        for method in [Method::PUT, Method::POST, Method::DELETE, Method::GET] {
            assert_eq!(ask(method.clone(), headers).await, StatusCode::FORBIDDEN, "{method} {headers:?}");
        }
    }
    assert_eq!(ask(Method::GET, &[]).await, StatusCode::NOT_FOUND, "nothing was written");
    for host in ["localhost", "scm.flotilla", "node1:7480"] {
        assert!(ask(Method::PUT, &[("host", host)]).await.is_success(), "{host}");
    }
    assert_eq!(ask(Method::GET, &[]).await, StatusCode::OK);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_it_keeps_is_for_its_owner_alone_and_its_secret_stands_in_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, ready) = start_dev(dir.path());
    let mut count = 0;
    let mut left = vec![dir.path().join("data")];
    while let Some(path) = left.pop() {
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        let mode = metadata.permissions().mode();
        assert_eq!(mode & 0o077, 0, "{}: {mode:o}", path.display());
        count += 1;
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).unwrap().flatten().map(|entry| entry.path()));
        }
    }
    assert!(count > 50, "{count} files and directories");
    let credentials = fs::read_to_string(dir.path().join("data/credentials")).unwrap();
    assert!(credentials.contains(&ready["SECRET_KEY"]));
    assert!(process.terminate().success());
    let said = process.log();
    assert!(said.contains("data/credentials") && !said.contains(&ready["SECRET_KEY"]), "{said}");
}

/// Of a gateway that has its secret from a file, and of one whose secret everybody sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_secret_key_is_read_from_a_file_and_one_on_the_command_line_is_warned_of() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key");
    fs::write(&key, "long-enough-secret\n").unwrap();
    let warned = |secret: &str| {
        let name = if secret.contains("file") { "file" } else { "open" };
        let line = format!(
            "server --roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --http 127.0.0.1:0 --scm 127.0.0.1:1 \
             --access-key KEY {secret}"
        );
        let args = line.split_whitespace().map(str::to_owned).collect();
        let mut process = Process::spawn(binary(), dir.path(), name, args);
        let deadline = std::time::Instant::now() + DEADLINE;
        while !process.log().contains("started") {
            assert!(std::time::Instant::now() < deadline, "{}", process.log());
            std::thread::sleep(Duration::from_millis(20));
        }
        process.kill9();
        process.log().contains("everybody on this machine sees --secret-key")
    };
    assert!(!warned(&format!("--secret-key-file {}", key.display())));
    assert!(warned("--secret-key long-enough-secret"));
}
