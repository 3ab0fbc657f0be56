// The tests touch only files of their own.
#![allow(clippy::disallowed_methods)]

use super::*;
use crate::request_body::RequestBody;
use futures::StreamExt;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

const WITHIN: Duration = Duration::from_secs(10);

fn open(log: &Path) -> Arc<Accounts> {
    Accounts::new(Some(RequestLog::open(log, Box::new(|| Ok(()))).unwrap()))
}

fn account(accounts: &Arc<Accounts>, path: &str) -> Account {
    let (body, progress) = RequestBody::new(Body::empty());
    let request = Request::get(path).body(Body::new(body)).unwrap();
    let mut account = accounts.open(&request, RequestId::random(), progress);
    account.told.is_operation("GetObject", None);
    account
}

/// Closes the log and reads it.
async fn lines(accounts: &Accounts) -> Vec<Value> {
    let log = accounts.log().unwrap();
    log.close(WITHIN).await;
    let text = std::fs::read_to_string(log.path()).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

async fn wait_until(holds: impl Fn() -> bool) {
    let holds = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::time::timeout(WITHIN, holds).await.unwrap();
}

fn exposed(accounts: &Accounts) -> String {
    let mut exposition = Exposition::default();
    accounts.expose(&mut exposition);
    exposition.finish()
}

fn answer(frames: Vec<Result<&'static str, std::io::Error>>) -> Response {
    Response::new(Body::from_stream(futures::stream::iter(frames)))
}

#[tokio::test]
async fn the_end_of_a_request_is_known_whoever_ends_it() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = open(&dir.path().join("log"));
    // An answer that is read to its end.
    let response = account(&accounts, "/b/done").answer(Response::new(Body::from("data")));
    axum::body::to_bytes(response.into_body(), 100).await.unwrap();
    // Of this body the HTTP layer knows the length, and does not ask for its end.
    let response = account(&accounts, "/b/counted").answer(Response::new(Body::from("data")));
    let mut body = response.into_body().into_data_stream();
    body.next().await.unwrap().unwrap();
    drop(body);
    // An object's body does not know its length: the answer's head says how long it is.
    let mut response = answer(vec![Ok("da"), Ok("ta")]);
    response.headers_mut().insert("content-length", "4".parse().unwrap());
    let mut body = account(&accounts, "/b/said").answer(response).into_body().into_data_stream();
    body.next().await.unwrap().unwrap();
    body.next().await.unwrap().unwrap();
    drop(body);
    // A client that left before it was answered, and one that left in the middle.
    drop(account(&accounts, "/b/unanswered"));
    let response = account(&accounts, "/b/left").answer(answer(vec![Ok("da"), Ok("ta")]));
    let mut body = response.into_body().into_data_stream();
    body.next().await.unwrap().unwrap();
    drop(body);
    // The store had no more, or wrong bytes.
    let broken = vec![Ok("da"), Err(std::io::Error::other("checksum"))];
    let response = account(&accounts, "/b/cut").answer(answer(broken));
    axum::body::to_bytes(response.into_body(), 100).await.unwrap_err();
    drop(account(&accounts, "/b/head").answer_head(Response::new(Body::from("length"))));

    let found: Vec<_> = lines(&accounts).await;
    let found: Vec<_> = found
        .iter()
        .map(|line| {
            let text = |name: &str| line[name].as_str().unwrap().to_owned();
            (text("key"), text("end"), line["status"].as_u64(), line["bytes_out"].as_u64().unwrap())
        })
        .collect();
    let expect = [
        ("done", "done", Some(200), 4),
        ("counted", "done", Some(200), 4),
        ("said", "done", Some(200), 4),
        ("unanswered", "left", None, 0),
        ("left", "left", Some(200), 2),
        ("cut", "cut", Some(200), 2),
        ("head", "done", Some(200), 0),
    ];
    let expect = expect.map(|(key, end, status, bytes)| (key.to_owned(), end.to_owned(), status, bytes));
    assert_eq!(found, expect);
    let text = exposed(&accounts);
    for line in [
        "flotilla_s3_requests_total{operation=\"GetObject\",class=\"2xx\"} 4",
        "flotilla_s3_requests_total{operation=\"GetObject\",class=\"left\"} 2",
        "flotilla_s3_requests_total{operation=\"GetObject\",class=\"cut\"} 1",
        "flotilla_s3_request_seconds_count{operation=\"GetObject\"} 5",
        "flotilla_s3_body_bytes_total{operation=\"GetObject\",direction=\"out\"} 16",
        "flotilla_s3_request_log_lines_total 7",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_body_that_broke_off_is_a_client_that_left() {
    let dir = tempfile::tempdir().unwrap();
    let accounts = open(&dir.path().join("log"));
    let frames = futures::stream::iter([Ok("abc"), Err(std::io::Error::other("reset"))]);
    let (body, progress) = RequestBody::new(Body::from_stream(frames));
    let request = Request::put("/b/k").body(()).unwrap().map(|()| Body::empty());
    let account = accounts.open(&request, RequestId::random(), progress);
    axum::body::to_bytes(Body::new(body), 100).await.unwrap_err();
    let mut refusal = Response::new(Body::empty());
    *refusal.status_mut() = StatusCode::BAD_REQUEST;
    account.answer(refusal);
    let lines = lines(&accounts).await;
    assert_eq!(
        (&lines[0]["end"], &lines[0]["status"], &lines[0]["bytes_in"]),
        (&"left".into(), &400.into(), &3.into())
    );
}

#[tokio::test]
async fn what_is_refused_says_why() {
    let accounts = Accounts::new(None);
    for (code, admitted) in [("SlowDown", false), ("SignatureDoesNotMatch", false), ("NoSuchKey", true)] {
        let mut account = account(&accounts, "/b/k");
        if admitted {
            account.told.is_admitted();
        }
        account.error(code);
    }
    let text = exposed(&accounts);
    for (reason, count) in [("busy", 1), ("signature", 1), ("invalid", 0), ("not_implemented", 0)] {
        let line = format!("flotilla_s3_requests_refused_total{{reason=\"{reason}\"}} {count}");
        assert!(text.contains(&line), "{line} is not in\n{text}");
    }
}

#[tokio::test]
async fn a_renamed_file_is_left_for_a_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let (path, old) = (dir.path().join("log"), dir.path().join("log.1"));
    let accounts = open(&path);
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    drop(account(&accounts, "/b/first"));
    let log = accounts.log().unwrap();
    wait_until(|| log.lines() == 1).await;
    std::fs::rename(&path, &old).unwrap();
    log.reopen();
    wait_until(|| path.exists()).await;
    drop(account(&accounts, "/b/second"));
    assert_eq!(lines(&accounts).await[0]["key"], "second");
    assert!(std::fs::read_to_string(&old).unwrap().contains("\"first\""));
}

#[tokio::test]
async fn a_full_disk_costs_lines_and_no_request() {
    let accounts = open(Path::new("/dev/full"));
    for _ in 0..3 {
        drop(account(&accounts, "/b/k"));
    }
    accounts.log().unwrap().close(WITHIN).await;
    let text = exposed(&accounts);
    assert!(text.contains("flotilla_s3_request_log_lost_total{reason=\"file\"} 3\n"), "{text}");
    assert!(text.contains("flotilla_s3_request_log_lines_total 0\n"), "{text}");
    // The log takes nothing any more; the request is none the worse for it.
    drop(account(&accounts, "/b/k"));
    assert!(exposed(&accounts).contains("flotilla_s3_request_log_lost_total{reason=\"queue\"} 1\n"));
}

/// Anybody may have lines written, and SCM may keep what it knows on the same disk.
#[tokio::test]
async fn the_room_that_others_need_is_left_to_them() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    let has_room = Arc::new(AtomicBool::new(false));
    let asked = has_room.clone();
    let look = move || match asked.load(Ordering::Relaxed) {
        true => Ok(()),
        false => Err(std::io::Error::from(std::io::ErrorKind::StorageFull)),
    };
    let accounts = Accounts::new(Some(RequestLog::open(&path, Box::new(look)).unwrap()));
    drop(account(&accounts, "/b/left"));
    let lost = "flotilla_s3_request_log_lost_total{reason=\"file\"} 1\n";
    wait_until(|| exposed(&accounts).contains(lost)).await;
    has_room.store(true, Ordering::Relaxed);
    drop(account(&accounts, "/b/written"));
    let lines = lines(&accounts).await;
    assert_eq!(lines.len(), 1, "{lines:?}");
}

#[test]
fn a_pipe_or_a_directory_is_no_log() {
    let dir = tempfile::tempdir().unwrap();
    assert!(RequestLog::open(dir.path(), Box::new(|| Ok(()))).is_err());
    assert!(RequestLog::open(&dir.path().join("missing/log"), Box::new(|| Ok(()))).is_err());
}
