//! What others on the machine see: files, command lines, logs, terminals, signals; and a page in
//! an operator's browser.

use super::house::House;
use super::keys::Keys;
use super::request::Request;
use super::{Failed, Seen};
use crate::binary;
use crate::commands::flotilla;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::{Process, Ready};

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
    let ended = |process: &&Process| {
        let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap_or_default();
        // Nobody has reaped it yet.
        status.is_empty() || status.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
    };
    match house.processes().filter(ended).count() {
        0 => Ok(format!("all {} processes go on", house.processes().count())),
        ended => Err(format!("SIGHUP ended {ended} processes")),
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

/// A gateway that logs all there is, of itself and of the libraries below it.
pub(super) async fn debug_log(house: &House) -> Seen {
    let dir = tempfile::tempdir().map_err(|why| why.to_string())?;
    let (gateway, ready) = chatty_gateway(house, dir.path())?;
    let host = ready["S3_ENDPOINT"].trim_start_matches("http://").to_owned();
    let keys =
        Keys { access_key: house.keys.access_key.clone(), secret_key: house.keys.secret_key.clone(), host };
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

fn chatty_gateway(house: &House, dir: &Path) -> Result<(Process, Ready), Failed> {
    let key = dir.join("key");
    fs::write(&key, &house.keys.secret_key).map_err(|why| why.to_string())?;
    let line = format!(
        "RUST_LOG=trace {} server --roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --http 127.0.0.1:0 --scm {} \
         --access-key {} --secret-key-file {}",
        binary().display(),
        house.cluster.scm_address,
        house.keys.access_key,
        key.display()
    );
    Ok(Process::start(Path::new("/usr/bin/env"), dir, "chatty", super::super::words(&line)))
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
