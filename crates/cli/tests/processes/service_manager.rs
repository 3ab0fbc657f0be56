//! Messages of real processes to systemd, on a socket of the test's own, and what `flotilla health` says of
//! them.

use crate::commands::flotilla;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
const WATCHDOG: Duration = Duration::from_secs(1);

/// One process, and who listens to it.
struct Notifying {
    child: Child,
    socket: UnixDatagram,
    dir: TempDir,
}

impl Notifying {
    /// `options` of `words`, with the directory in place of `DIR`.
    fn start(words: &str, environment: &[(&str, &str)]) -> Notifying {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let log = std::fs::File::create(log_file(dir.path())).unwrap();
        let root = dir.path().display().to_string();
        let mut command = Command::new(crate::binary());
        command.args(words.split_whitespace().map(|word| word.replace("DIR", &root)));
        command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", WATCHDOG.as_micros().to_string());
        command.envs(environment.iter().copied());
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        Notifying { child, socket, dir }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(log_file(self.dir.path())).unwrap_or_default()
    }

    fn hears_within(&self, within: Duration) -> Option<String> {
        self.socket.set_read_timeout(Some(within)).unwrap();
        let mut bytes = [0u8; 4096];
        let len = self.socket.recv(&mut bytes).ok()?;
        Some(String::from_utf8(bytes[..len].to_vec()).unwrap())
    }

    /// The messages up to the one that has a line with this beginning.
    fn hears(&self, line: &str) -> Vec<String> {
        let give_up = Instant::now() + DEADLINE;
        let mut heard = Vec::new();
        loop {
            heard.extend(self.hears_within(DEADLINE));
            if heard.last().is_some_and(|message| message.lines().any(|said| said.starts_with(line))) {
                return heard;
            }
            assert!(Instant::now() < give_up, "no {line}, but {heard:?}\n{}", self.log());
        }
    }

    fn signal(&self, signal: &str) {
        let killed = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(killed.unwrap().success());
    }
}

impl Drop for Notifying {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn log_file(dir: &Path) -> PathBuf {
    dir.join("log")
}

/// Nobody listens on port 1.
const ALONE: &str = "server --roles datanode --rpc 127.0.0.1:0 --disk DIR/disk --scm 127.0.0.1:1";

fn health(http: &str, more: &[&str]) -> (bool, String) {
    let output = flotilla(&[&["health", "--http", http], more].concat(), None);
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

#[test]
fn a_node_that_waits_for_others_has_started_and_is_not_killed_by_the_watchdog() {
    let http = testkit::free_addresses(1).remove(0);
    let process = Notifying::start(&format!("{ALONE} --http {http}"), &[]);
    let before = process.hears("READY=1");
    assert!(before[0].contains("EXTEND_TIMEOUT_USEC="), "{before:?}");
    assert!(before.iter().all(|message| !message.contains("WATCHDOG=1")), "{before:?}");
    process.hears("STATUS=datanode: not ready: SCM at 127.0.0.1:1");
    for _ in 0..3 {
        process.hears("WATCHDOG=1");
    }
    let (is_ready, said) = health(&http, &["--within", "1s"]);
    assert!(!is_ready && said.starts_with("datanode: not ready: SCM at 127.0.0.1:1"), "{said}");
    assert_eq!(health(&http, &["--live"]), (true, "ok\n".to_owned()));

    // Hung, as seen from outside.
    process.signal("-STOP");
    let give_up = Instant::now() + DEADLINE;
    while process.hears_within(WATCHDOG * 2).is_some() {
        assert!(Instant::now() < give_up, "it is heard after SIGSTOP");
    }
    process.signal("-CONT");
    process.hears("WATCHDOG=1");

    process.signal("-TERM");
    process.hears("STOPPING=1");
}

#[test]
fn a_watchdog_of_another_process_gets_no_pings() {
    let words = format!("{ALONE} --http 127.0.0.1:0");
    let process = Notifying::start(&words, &[("WATCHDOG_PID", "1")]);
    process.hears("READY=1");
    process.hears("STATUS=datanode: not ready");
    assert_eq!(process.hears_within(WATCHDOG * 3), None);
}

#[test]
fn a_dev_cluster_has_started_when_it_takes_writes() {
    let http = testkit::free_addresses(1).remove(0);
    let (_, port) = http.rsplit_once(':').unwrap();
    let words = format!("dev --data DIR/data --s3-port 0 --rpc-port 0 --http-port {port}");
    let mut process = Notifying::start(&words, &[]);
    process.hears("READY=1");
    process.hears("WATCHDOG=1");
    let (is_ready, said) = health(&http, &["--within", "60s"]);
    assert!(is_ready && said.contains("s3: ready\n"), "{said}");
    process.signal("-TERM");
    process.hears("STOPPING=1");
    assert!(process.child.wait().unwrap().success(), "{}", process.log());
    let (is_ready, said) = health(&http, &[]);
    assert!(!is_ready && said.contains(&format!("ask http://{http}/readyz")), "{said}");
}
