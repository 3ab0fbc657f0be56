//! Tests of what real processes tell: the gateway's request log and metrics, their own logs as JSON, and what
//! they log changed while they run.

use crate::binary;
use crate::commands::flotilla;
use crate::s3::S3;
use serde_json::Value;
use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;
use testkit::{Process, Ready};

const DEADLINE: Duration = Duration::from_secs(60);

/// More than kernels keep of one connection.
const LARGE_BYTES: usize = 48 << 20;

fn start(dir: &Path, log: &Path) -> (Process, Ready) {
    let data = dir.join("data").display().to_string();
    let log = log.display().to_string();
    let line = format!(
        "dev --data {data} --s3-port 0 --rpc-port 0 --http-port 0 --log-format json --s3-request-log {log}"
    );
    Process::start(binary(), dir, "dev", line.split_whitespace().map(str::to_owned).collect())
}

fn bucket(ready: &Ready) -> S3 {
    S3::new(&ready["S3_ENDPOINT"], &ready["ACCESS_KEY"], &ready["SECRET_KEY"], "first")
}

fn lines(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last one may be under way.
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let parse = |line: &str| serde_json::from_str(line).unwrap_or_else(|why| panic!("{why}: {line}"));
    whole.lines().map(parse).collect()
}

/// The first line that is as wanted, once it is there.
async fn line(path: &Path, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    let give_up = Instant::now() + DEADLINE;
    loop {
        if let Some(found) = lines(path).into_iter().find(|line| wanted(line)) {
            return found;
        }
        assert!(Instant::now() < give_up, "no line of {what} in {:#?}", lines(path));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn scrape(ready: &Ready) -> Scrape {
    let answer = reqwest::get(format!("{}/metrics", ready["HTTP"])).await.unwrap();
    Scrape::parse(&answer.text().await.unwrap()).unwrap()
}

/// Asks for an object, takes the beginning of it and leaves.
fn leave_in_the_middle(url: &reqwest::Url) {
    let host = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let mut connection = TcpStream::connect(&host).unwrap();
    let (path, query) = (url.path(), url.query().unwrap());
    write!(connection, "GET {path}?{query} HTTP/1.1\r\nhost: {host}\r\n\r\n").unwrap();
    connection.read_exact(&mut [0; 1000]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_are_written_down_without_their_secrets() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("requests.log");
    let (mut process, ready) = start(dir.path(), &path);
    let s3 = bucket(&ready);
    s3.create_bucket().await.unwrap();
    s3.put("a/b c", vec![7; 5000]).await.unwrap();
    s3.put("large", vec![7; LARGE_BYTES]).await.unwrap();
    assert_eq!(s3.get("a/b c").await.unwrap().unwrap().len(), 5000);
    assert_eq!(s3.get("missing\n").await.unwrap(), None);
    let url = s3.get_url("a/b c", None);
    let forged = url.as_str().replace("X-Amz-Expires=600", "X-Amz-Expires=601");
    assert_eq!(reqwest::get(forged).await.unwrap().status(), 403);
    // Whoever holds a URL may write its names in another way.
    let respelled = url.as_str().replace("X-Amz-Credential=", "X-Amz-Credentia%6C=");
    assert_eq!(reqwest::get(format!("{respelled}&x=X-Amz-Credential=OTHER/x")).await.unwrap().status(), 403);
    assert_eq!(reqwest::get(respelled).await.unwrap().status(), 200);
    leave_in_the_middle(&s3.get_url("large", None));

    let put = line(&path, "the PUT", |line| line["operation"] == "PutObject").await;
    assert_eq!(
        (&put["bucket"], &put["key"], &put["status"]),
        (&"first".into(), &"a/b c".into(), &200.into())
    );
    assert_eq!((&put["bytes_in"], &put["end"]), (&5000.into(), &"done".into()));
    assert_eq!(put["access_key"], ready["ACCESS_KEY"].as_str());
    assert!(put["address"].as_str().unwrap().starts_with("127.0.0.1:"), "{put}");
    let get = line(&path, "the GET", |line| line["operation"] == "GetObject" && line["status"] == 200).await;
    assert_eq!(get["bytes_out"], 5000);
    assert!(get["first_byte_seconds"].as_f64().unwrap() <= get["seconds"].as_f64().unwrap(), "{get}");
    let missing = line(&path, "a missing key", |line| line["error"] == "NoSuchKey").await;
    assert_eq!((&missing["key"], &missing["status"]), (&"missing\n".into(), &404.into()));
    let refused = line(&path, "a wrong signature", |line| line["error"] == "SignatureDoesNotMatch").await;
    assert_eq!((&refused["operation"], &refused["access_key"]), (&Value::Null, &put["access_key"]));
    line(&path, "a respelled URL", |line| line["status"] == 200 && line["method"] == "GET").await;
    let verified = lines(&path).into_iter().filter(|line| line["status"] == 200);
    for line in verified {
        assert_eq!(line["access_key"], put["access_key"], "{line}");
    }
    let left = line(&path, "a client that left", |line| line["end"] == "left").await;
    assert_eq!((&left["key"], &left["status"]), (&"large".into(), &200.into()));
    assert!(left["bytes_out"].as_u64().unwrap() < LARGE_BYTES as u64, "{left}");

    let page = scrape(&ready).await;
    let of_gets =
        |class| page.value("flotilla_s3_requests_total", &[("operation", "GetObject"), ("class", class)]);
    assert_eq!((of_gets("2xx"), of_gets("4xx"), of_gets("left")), (Some(2.0), Some(1.0), Some(1.0)));
    assert_eq!(page.value("flotilla_s3_requests_refused_total", &[("reason", "signature")]), Some(2.0));
    for name in ["om_seconds_count", "read_seconds_count", "chunk_seconds_count"] {
        let count: f64 = page.with(&format!("flotilla_client_{name}"), &[]).map(|sample| sample.value).sum();
        assert!(count > 0.0, "{name}");
    }

    // Rotated as logrotate does it.
    let old = dir.path().join("requests.log.1");
    fs::rename(&path, &old).unwrap();
    process.hang_up();
    let give_up = Instant::now() + DEADLINE;
    while !path.exists() {
        assert!(Instant::now() < give_up, "{}", process.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    s3.put("after", vec![7; 10]).await.unwrap();
    line(&path, "what came after", |line| line["key"] == "after").await;
    assert!(!fs::read_to_string(&old).unwrap().contains("\"after\""));

    // Killed while requests come; what is in the file is whole, and a new process goes on behind it.
    let busy = tokio::spawn({
        let s3 = s3.clone();
        async move { while s3.put("busy", vec![7; 10]).await.is_ok() {} }
    });
    line(&path, "a busy gateway", |line| line["key"] == "busy").await;
    process.kill9();
    busy.await.unwrap();
    let killed = fs::read(&path).unwrap();
    assert_eq!(killed.last(), Some(&b'\n'));
    let ready = process.start_again();
    bucket(&ready).put("again", vec![7; 10]).await.unwrap();
    line(&path, "a new process", |line| line["key"] == "again").await;
    assert!(fs::read(&path).unwrap().starts_with(&killed));
    assert!(process.terminate().success());

    let signature = url.query_pairs().find(|(name, _)| name == "X-Amz-Signature").unwrap().1.into_owned();
    for file in [&path, &old] {
        assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
        let text = fs::read_to_string(file).unwrap();
        assert!(!text.to_lowercase().contains("signature=") && !text.contains(&signature));
        assert!(!text.contains(&ready["SECRET_KEY"]));
    }
    for log in process.logs() {
        assert!(!log.contains(&signature));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_go_on_without_their_log() {
    let dir = tempfile::tempdir().unwrap();
    let (process, ready) = start(dir.path(), Path::new("/dev/full"));
    let s3 = bucket(&ready);
    s3.create_bucket().await.unwrap();
    for n in 0..5 {
        s3.put(&format!("key-{n}"), vec![7; 100]).await.unwrap();
    }
    let give_up = Instant::now() + DEADLINE;
    loop {
        let page = scrape(&ready).await;
        if page.value("flotilla_s3_request_log_lost_total", &[("reason", "file")]) == Some(6.0) {
            break;
        }
        assert!(Instant::now() < give_up, "{}", process.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(process.log().matches("the request log cannot be written").count(), 1, "{}", process.log());
    drop(process);

    let args = ["dev", "--s3-port", "0", "--rpc-port", "0", "--http-port", "0", "--s3-request-log"];
    let data = dir.path().join("other").display().to_string();
    let output = flotilla(&[&args[..], &["/nowhere/requests.log", "--data", &data]].concat(), None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1), "{said}");
    assert!(said.contains("open /nowhere/requests.log (--s3-request-log): No such file"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_logged_changes_while_the_process_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (process, ready) = start(dir.path(), &dir.path().join("requests.log"));
    let s3 = bucket(&ready);
    s3.create_bucket().await.unwrap();
    let log = |words: &[&str]| {
        let args = [&["admin", "--json", "log", "--rpc", &ready["RPC"]], words].concat();
        let output = flotilla(&args, None);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        output.status.success().then(|| serde_json::from_slice::<Value>(&output.stdout).unwrap()).ok_or(said)
    };
    let at_start = log(&[]).unwrap();
    assert!(at_start["log"].as_str().unwrap().starts_with("warn,"), "{at_start}");
    let of_connections = |text: &str| text.matches("connection ends").count();
    assert_eq!(of_connections(&process.log()), 0);

    let changed = log(&["flotilla_httpd=debug"]).unwrap();
    assert_eq!(changed["before"], at_start["log"]);
    assert!(changed["log"].as_str().unwrap().ends_with(",flotilla_httpd=debug"), "{changed}");
    let give_up = Instant::now() + DEADLINE;
    while of_connections(&process.log()) == 0 {
        assert!(Instant::now() < give_up, "{}", process.log());
        // Each on a connection of its own, which ends with it.
        reqwest::Client::new().get(s3.get_url("missing", None)).send().await.unwrap();
    }
    let refused = log(&["flotilla_httpd=loud"]).unwrap_err();
    assert!(refused.contains("neither LEVEL nor MODULE=LEVEL"), "{refused}");
    assert_eq!(log(&["off"]).unwrap()["log"].as_str().unwrap().split(',').next(), Some("off"));
    assert_eq!(log(&["--reset"]).unwrap()["log"], at_start["log"]);

    // All of it is JSON, but for what `dev` says to people.
    let text = process.log();
    let events: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    assert_eq!(events.len(), text.lines().filter(|line| line.starts_with('{')).count(), "{text}");
    let change =
        events.iter().find(|event| event["message"] == "an operator changes what is logged").unwrap();
    assert_eq!((&change["level"], &change["fields"]["before"]), (&"WARN".into(), &at_start["log"]));
    let is_off = |event: &Value| event["fields"]["now"].as_str().is_some_and(|now| now.starts_with("off"));
    assert!(events.iter().any(is_off), "who makes it silent is told of: {text}");
}
