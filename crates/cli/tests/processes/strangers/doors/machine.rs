//! What others on the machine see: files, command lines, logs, terminals, signals; and a page in
//! an operator's browser.

use super::house::House;
use super::keys::{Keys, UNSIGNED_PAYLOAD};
use super::request::Request;
use super::{Failed, Seen};
use crate::binary;
use crate::commands::flotilla;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::{Process, Ready};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const DEADLINE: Duration = Duration::from_secs(60);

pub(super) async fn browser(house: &House) -> Seen {
    let http = house.cluster.scm_ready["HTTP"].trim_start_matches("http://");
    let ask = async |method: &'static str, host: &str, (name, value): (&str, &str)| {
        let request = Request::new(method, "/v1/kv/door").host(host).body("value");
        house.keys.unsigned(request).with(name, value).ask(http).await
    };
    let nothing = ("accept", "*/*");
    for (host, header) in [
        ("evil.example.com", nothing),
        ("127.0.0.1.evil.example.com", nothing),
        (http, ("origin", "http://evil.example.com")),
        (http, ("origin", "null")),
        (http, ("sec-fetch-site", "cross-site")),
    ] {
        for method in ["PUT", "DELETE", "GET"] {
            let answer = ask(method, host, header).await?;
            if answer.status != 403 {
                return Err(format!("{method} at {host} with {header:?} is answered {}", answer.said()));
            }
        }
    }
    let found = ask("GET", http, nothing).await?;
    if found.status != 404 {
        return Err(format!("a page has written the registry: {}", found.said()));
    }
    ask("PUT", http, nothing).await?.succeeds("an operator's write")?;
    ask("GET", http, nothing).await?.succeeds("an operator's read")?;
    Ok("403 for two hosts and three pages; an operator writes".to_owned())
}

pub(super) async fn sighup(house: &House) -> Seen {
    house.processes().for_each(Process::hang_up);
    house.put("after-sighup", "text").await?;
    house.still_has("after-sighup", Some("text")).await?;
    match house.processes().filter(|process| has_ended(process)).count() {
        0 => Ok(format!("all {} processes go on", house.processes().count())),
        ended => Err(format!("SIGHUP ended {ended} processes")),
    }
}

fn has_ended(process: &Process) -> bool {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
    // Nobody has reaped it yet.
    status.is_empty() || status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
}

/// The signal that ends a gateway lets it finish an upload first; another one ends it at once, and SIGHUP
/// does not.
pub(super) async fn second_signal(house: &House) -> Seen {
    const AT_ONCE: Duration = Duration::from_secs(5);
    let mut said = Vec::new();
    for (signal, code) in [("-TERM", 128 + 15), ("-INT", 128 + 2)] {
        let dir = tempfile::tempdir().map_err(|why| why.to_string())?;
        let (mut draining, _half) = draining_gateway(house, dir.path(), signal).await?;
        let begun = Instant::now();
        draining.signal(signal);
        let (ended, took) = (draining.wait_end(), begun.elapsed());
        if ended.code() != Some(code) || took > AT_ONCE {
            return Err(format!("a second {signal} ended an upload after {took:?}, with {ended}"));
        }
        said.push(format!("{signal} twice: {code}"));
    }
    house.still_has("half-sent", None).await?;
    let dir = tempfile::tempdir().map_err(|why| why.to_string())?;
    let (mut draining, mut half) = draining_gateway(house, dir.path(), "-TERM").await?;
    let mut answer = String::new();
    half.write_all(UPLOAD).await.map_err(|why| why.to_string())?;
    half.read_to_string(&mut answer).await.map_err(|why| why.to_string())?;
    let ended = draining.wait_end();
    if !ended.success() || !answer.starts_with("HTTP/1.1 200") {
        return Err(format!("after one signal an upload is answered {answer:?}, and then: {ended}"));
    }
    house.still_has("half-sent", Some("uploaded")).await?;
    Ok(format!("{}; an upload ends well after one, and SIGHUP", said.join(", ")))
}

const UPLOAD: &[u8] = b"uploaded";

/// A gateway that has got a signal, and SIGHUP, and waits for [`UPLOAD`] from the connection.
async fn draining_gateway(house: &House, dir: &Path, signal: &str) -> Result<(Process, TcpStream), Failed> {
    let (process, _, keys) = gateway(house, dir, "", 0o600)?;
    let put = Request::new("PUT", "/first/half-sent").header("x-amz-content-sha256", UNSIGNED_PAYLOAD);
    let put = keys.in_headers(put).with("content-length", &UPLOAD.len().to_string());
    let half = put.begin(&keys.host).await?;
    process.signal(signal);
    let give_up = Instant::now() + DEADLINE;
    while TcpStream::connect(&keys.host).await.is_ok() {
        if Instant::now() > give_up {
            return Err(format!("after {signal} a gateway still takes connections"));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    process.hang_up();
    while !process.log().contains("SIGHUP") {
        if has_ended(&process) || Instant::now() > give_up {
            return Err(format!("after {signal} SIGHUP does something else: {}", process.log()));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    match has_ended(&process) {
        true => Err(format!("after {signal} nobody waits for an upload: {}", process.log())),
        false => Ok((process, half)),
    }
}

pub(super) async fn file_modes(house: &House) -> Seen {
    const SEEN_MIN: usize = 50;
    let mut left: Vec<_> = ["scm1", "scm2", "scm3", "om", "dn1", "dn2", "dn3"]
        .map(|name| house.cluster.path().join(name))
        .into_iter()
        .collect();
    // The datanode's parent is the test's.
    let made_by_others = left[4..].to_vec();
    let mut seen = 0;
    while let Some(path) = left.pop() {
        // Others come and go.
        let Ok(metadata) = fs::symlink_metadata(&path) else { continue };
        if metadata.is_dir() {
            left.extend(fs::read_dir(&path).into_iter().flatten().flatten().map(|entry| entry.path()));
        }
        let mode = metadata.permissions().mode() & 0o7777;
        if mode & 0o077 != 0 && !made_by_others.contains(&path) {
            return Err(format!("everybody may look into {}: {mode:o}", path.display()));
        }
        seen += 1;
    }
    match seen > SEEN_MIN {
        true => Ok(format!("{seen} files and directories are their owner's alone")),
        false => Err(format!("only {seen} files and directories were found")),
    }
}

pub(super) async fn terminal(house: &House) -> Seen {
    const COMMAND: &str = "\u{1b}]0;owned\u{7}\u{1b}[2J\u{9b}31m\u{202e}txt";
    const SHOWN: &str = "\\u001b]0;owned\\u0007\\u001b[2J\\u009b31m\\u202etxt";
    house.put(&format!("terminal/{COMMAND}"), "text").await?;
    let fs = |words: &[&str]| {
        let scm = ["fs", "--scm", &house.cluster.scm_address];
        let output = flotilla(&[&scm, words].concat(), None);
        (
            String::from_utf8_lossy(&output.stdout).into_owned(),
            String::from_utf8_lossy(&output.stderr).into_owned(),
        )
    };
    let missing = format!("/s3v/first/terminal/{COMMAND}missing");
    let (listed, said) = fs(&["-ls", "/s3v/first/terminal"]);
    let (_, complaint) = fs(&["-cat", &missing]);
    for (what, text) in
        [("-ls", &listed), ("what -ls says", &said), ("-cat of what is not there", &complaint)]
    {
        let commands = |c: &char| (c.is_control() && *c != '\n') || *c == '\u{202e}';
        if let Some(c) = text.chars().find(commands) {
            return Err(format!("{what} prints a raw {c:?}: {}", text.escape_debug()));
        }
    }
    match listed.contains(SHOWN) && complaint.contains(SHOWN) {
        true => Ok(format!("a terminal gets {SHOWN}")),
        false => Err(format!("names are not shown: {listed} {said} {complaint}")),
    }
}

pub(super) async fn secret_in_ps(house: &House) -> Seen {
    let mut lines = 0;
    for process in house.processes() {
        let line = fs::read(format!("/proc/{}/cmdline", process.pid())).map_err(|why| why.to_string())?;
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        if line.contains(&house.keys.secret_key) {
            return Err(format!("everybody on this machine sees the secret key: {line}"));
        }
        lines += usize::from(line.contains(&house.keys.access_key));
    }
    match lines {
        1 => Ok("the gateway's line has the access key and --secret-key-file".to_owned()),
        _ => Err(format!("{lines} command lines have an access key")),
    }
}

/// The file of a key is silently taken where its owner alone may read it, and with a warning where others
/// may.
pub(super) async fn secret_file(house: &House) -> Seen {
    const WARNING: &str = "everybody on this machine may read the secret key";
    for (mode, is_warned_of) in [(0o600, false), (0o644, true)] {
        let dir = tempfile::tempdir().map_err(|why| why.to_string())?;
        let (process, _, keys) = gateway(house, dir.path(), "", mode)?;
        asks(&keys).await.map_err(|why| format!("the key of a file of mode {mode:o}: {why}"))?;
        shows_no_key(house, &process)?;
        if process.log().contains(WARNING) != is_warned_of {
            return Err(format!("of a key in a file of mode {mode:o} is said: {}", process.log()));
        }
    }
    house.processes().try_for_each(|process| shows_no_key(house, process))?;
    Ok("a key of mode 600 is taken, one of 644 is warned of, and neither is told to anybody".to_owned())
}

fn shows_no_key(house: &House, process: &Process) -> Result<(), Failed> {
    let line = fs::read(format!("/proc/{}/cmdline", process.pid())).map_err(|why| why.to_string())?;
    let shown = [String::from_utf8_lossy(&line).replace('\0', " "), process.logs().concat()].concat();
    match shown.lines().find(|line| line.contains(&house.keys.secret_key)) {
        Some(line) => Err(format!("others see the secret key: {line}")),
        None => Ok(()),
    }
}

/// A gateway that logs all there is, of itself and of the libraries below it.
pub(super) async fn debug_log(house: &House) -> Seen {
    let dir = tempfile::tempdir().map_err(|why| why.to_string())?;
    let (gateway, ready, keys) = gateway(house, dir.path(), "RUST_LOG=trace", 0o600)?;
    let mut signatures = asks(&keys).await?;
    let output = flotilla(&["admin", "log", "--rpc", &ready["RPC"], "trace"], None);
    if !output.status.success() {
        return Err(format!("admin log: {}", String::from_utf8_lossy(&output.stderr)));
    }
    signatures.extend(asks(&keys).await?);
    let give_up = Instant::now() + DEADLINE;
    // What shows that it would be seen: the log is of these requests.
    while !gateway.log().contains("connection ends") {
        if Instant::now() > give_up {
            return Err(format!("nothing of level debug is logged: {}", gateway.log()));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let log = gateway.log();
    let lower = log.to_ascii_lowercase();
    for told in ["aws4-hmac-sha256", "authorization", "signature="] {
        if let Some(line) = lower.lines().find(|line| line.contains(told)) {
            return Err(format!("the log of level trace has {told:?}: {line}"));
        }
    }
    match signatures.iter().chain([&keys.secret_key]).find(|secret| log.contains(*secret)) {
        Some(secret) => {
            Err(format!("the log of level trace has {secret}, which is a right signature or the key"))
        }
        None => Ok(format!(
            "{} lines with RUST_LOG=trace and `admin log trace`, none with one of {} signatures",
            log.lines().count(),
            signatures.len()
        )),
    }
}

/// A gateway beside that of the house, which starts with `env` and these words before its own, has the key in
/// a file of that mode, and logs into `dir`; and the keys to it.
fn gateway(house: &House, dir: &Path, env: &str, mode: u32) -> Result<(Process, Ready, Keys), Failed> {
    let key = dir.join("key");
    fs::write(&key, &house.keys.secret_key).map_err(|why| why.to_string())?;
    fs::set_permissions(&key, fs::Permissions::from_mode(mode)).map_err(|why| why.to_string())?;
    let line = format!(
        "{env} {} server --roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --http 127.0.0.1:0 --scm {} \
         --access-key {} --secret-key-file {}",
        binary().display(),
        house.cluster.scm_address,
        house.keys.access_key,
        key.display()
    );
    let (process, ready) =
        Process::start(Path::new("/usr/bin/env"), dir, "another", super::super::words(&line));
    let host = ready["S3_ENDPOINT"].trim_start_matches("http://").to_owned();
    Ok((process, ready, Keys { host, ..house.keys.clone() }))
}

/// Signed rightly and wrongly, in headers and in a URL. Answers the right signatures.
async fn asks(keys: &Keys) -> Result<Vec<String>, Failed> {
    let get = || Request::new("GET", "/first/here");
    let mut signatures = Vec::new();
    for is_in_url in [false, true] {
        let sent = || match is_in_url {
            true => keys.in_url(get(), 600),
            false => keys.in_headers(get()),
        };
        let right = sent();
        signatures.push(right.signature().to_owned());
        right.ask(&keys.host).await?.succeeds("a signed GET")?;
        let wrong = sent();
        signatures.push(wrong.signature().to_owned());
        let answer = wrong.forged().ask(&keys.host).await?;
        answer.refuses("a wrong signature", 403, "SignatureDoesNotMatch")?;
    }
    Ok(signatures)
}
