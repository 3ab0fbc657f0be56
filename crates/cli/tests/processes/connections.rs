//! Connections of a real gateway: slow clients, early refusals, and what signals do to those there are.

use crate::binary;
use crate::s3::S3;
use futures::future::join_all;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;
use testkit::{Process, Ready};

const DEADLINE: Duration = Duration::from_secs(60);

/// Far above what sockets hold.
const OBJECT_BYTES: usize = 24 << 20;

fn start(dir: &Path, more: &str) -> (Process, Ready, S3) {
    let data = dir.join("data").display().to_string();
    let line = format!("dev --data {data} --s3-port 0 --rpc-port 0 --http-port 0 {more}");
    let args = line.split_whitespace().map(str::to_owned).collect();
    let (process, ready) = Process::start(binary(), dir, "dev", args);
    let s3 = S3::new(&ready["S3_ENDPOINT"], &ready["ACCESS_KEY"], &ready["SECRET_KEY"], "first");
    (process, ready, s3)
}

/// Begins a request and does nothing more.
fn send_head(method: &str, url: &reqwest::Url, headers: &str) -> TcpStream {
    let address = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let mut stream = TcpStream::connect(&address).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let target = &url.as_str()[url.origin().ascii_serialization().len()..];
    write!(stream, "{method} {target} HTTP/1.1\r\nhost: {address}\r\n{headers}\r\n").unwrap();
    stream
}

fn signal(process: &Process, signal: &str) {
    assert!(Command::new("kill").args([signal, &process.pid().to_string()]).status().unwrap().success());
}

async fn value(ready: &Ready, name: &str, labels: &[(&str, &str)]) -> f64 {
    let page = reqwest::get(format!("{}/metrics", ready["HTTP"])).await.unwrap().text().await.unwrap();
    Scrape::parse(&page).unwrap().value(name, labels).unwrap_or_else(|| panic!("{name} is not in\n{page}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_readers_cost_others_nothing_and_are_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let (process, ready, s3) = start(dir.path(), "--s3-requests-max 4 --s3-transfer-idle-max 5s");
    s3.create_bucket().await.unwrap();
    s3.put("large", vec![7; OBJECT_BYTES]).await.unwrap();
    s3.put("small", vec![7; 4096]).await.unwrap();
    // Five times as many as may be worked for, each when nobody is worked for any more who was there before.
    let mut readers = Vec::new();
    let give_up = Instant::now() + DEADLINE;
    for _ in 0..20 {
        let mut reader = send_head("GET", &s3.get_url("large", None), "");
        let mut status = [0; 12];
        reader.read_exact(&mut status).unwrap();
        assert_eq!(&status, b"HTTP/1.1 200");
        readers.push(reader);
        while value(&ready, "flotilla_http_requests_working", &[("port", "s3")]).await > 0.0 {
            assert!(Instant::now() < give_up, "for one who does not read\n{}", process.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    let let_go = [("port", "s3"), ("reason", "slow_reader")];
    let mut served = 0;
    while value(&ready, "flotilla_http_connections_closed_total", &let_go).await < 20.0 {
        assert_eq!(s3.get("small").await.unwrap().map(|body| body.len()), Some(4096));
        served += 1;
        assert!(Instant::now() < give_up, "{}", process.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    assert!(served > 0);
    assert_eq!(value(&ready, "flotilla_http_requests_refused_total", &[("port", "s3")]).await, 0.0);
    assert_eq!(value(&ready, "flotilla_http_requests_working_max", &[("port", "s3")]).await, 4.0);
    drop(readers);
}

/// Lists have memory of their own, and their address half of it: 8 of 16 MiB here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_that_nobody_takes_are_refused_at_last_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let (process, ready, s3) =
        start(dir.path(), "--s3-memory-bytes 8388608 --s3-transfer-idle-max 10m --s3-bytes-per-second-min 0");
    s3.create_bucket().await.unwrap();
    // A page of a MiB, as each `&` takes five bytes of it: more than sockets hold.
    let keys: Vec<String> = (0..200).map(|n| format!("{n:03}{}", "&".repeat(1000))).collect();
    for put in join_all(keys.iter().map(|key| s3.put(key, vec![7]))).await {
        put.unwrap();
    }
    let list = || {
        let mut list = send_head("GET", &s3.list_url(), "");
        let mut status = [0; 12];
        list.read_exact(&mut status).unwrap();
        (String::from_utf8(status.to_vec()).unwrap(), list)
    };
    let mut lists = Vec::new();
    loop {
        let (status, stream) = list();
        if status == "HTTP/1.1 503" {
            break;
        }
        assert_eq!(status, "HTTP/1.1 200");
        lists.push(stream);
        assert!(lists.len() < 16, "there is no end\n{}", process.log());
    }
    assert!(lists.len() >= 4, "{} are there", lists.len());
    assert!(value(&ready, "flotilla_http_bodies_refused_total", &[("port", "s3")]).await >= 1.0);
    for _ in 0..4 {
        s3.put("small", vec![7; 4096]).await.unwrap();
        assert_eq!(s3.get("small").await.unwrap().map(|body| body.len()), Some(4096));
    }
    assert_eq!(value(&ready, "flotilla_client_memory_refused_total", &[]).await, 0.0);
    drop(lists);
    let give_up = Instant::now() + DEADLINE;
    while list().0 != "HTTP/1.1 200" {
        assert!(Instant::now() < give_up, "after they have left\n{}", process.log());
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// As Node and Python's `http.client` do: all of the body is written before anything is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_refusal_is_read_by_a_client_that_is_still_sending() {
    let dir = tempfile::tempdir().unwrap();
    let (_process, _, s3) = start(dir.path(), "");
    let url = s3.put_url("a");
    let (signed, _) = url.as_str().split_once("X-Amz-Signature=").unwrap();
    let wrong = format!("{signed}X-Amz-Signature={}", "0".repeat(64)).parse().unwrap();
    let length = 8 << 20;
    let mut ids = Vec::new();
    for _ in 0..3 {
        let mut stream = send_head("PUT", &wrong, &format!("content-length: {length}\r\n"));
        for _ in 0..length >> 16 {
            stream.write_all(&[7; 1 << 16]).expect("nobody closes while the client writes");
        }
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        let (_, id) = answer.split_once("x-amz-request-id: ").expect("an id in the head");
        let id = &id[..16];
        assert!(answer.contains(&format!("<RequestId>{id}</RequestId>")), "{answer}");
        ids.push(u64::from_str_radix(id, 16).unwrap());
    }
    assert!(ids.windows(2).all(|pair| pair[0].abs_diff(pair[1]) > 1 << 32), "{ids:x?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_signal_ends_what_the_first_lets_finish_and_sighup_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (mut process, _, s3) = start(dir.path(), "");
    s3.create_bucket().await.unwrap();
    signal(&process, "-HUP");
    s3.put("a", vec![7; 100]).await.unwrap();

    let url = s3.put_url("b");
    let mut uploading = send_head("PUT", &url, "content-length: 9\r\nexpect: 100-continue\r\n");
    let mut go_on = [0; 25];
    uploading.read_exact(&mut go_on).unwrap();
    assert_eq!(&go_on, b"HTTP/1.1 100 Continue\r\n\r\n", "its body is waited for");
    signal(&process, "-TERM");
    let give_up = Instant::now() + DEADLINE;
    let address = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    while TcpStream::connect(&address).is_ok() {
        assert!(Instant::now() < give_up, "{}", process.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It would finish the upload, and end with success.
    signal(&process, "-HUP");
    assert_eq!(process.terminate().code(), Some(128 + 15), "{}", process.log());
}
