use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// One `flotilla` process of a test: its log and ready file lie in the test's directory, and it ends with the
/// test.
pub struct Process {
    binary: PathBuf,
    name: String,
    args: Vec<String>,
    dir: PathBuf,
    child: Option<Child>,
    starts: u32,
}

pub type Ready = HashMap<String, String>;

/// The time for a start: generous, because the whole suite may run on two busy cores.
const START_WITHIN: Duration = Duration::from_secs(60);
/// The time for a stop, as generous: what a server gives its parts to stop is half a minute in all.
const STOP_WITHIN: Duration = Duration::from_secs(60);

impl Process {
    /// Starts a process and waits until it is ready. `args` are as on the command line, without the program's
    /// name and `--ready-file`.
    pub fn start(binary: &Path, dir: &Path, name: &str, args: Vec<String>) -> (Process, Ready) {
        let mut process = Process::spawn(binary, dir, name, args);
        let ready = process.wait_ready();
        (process, ready)
    }

    /// Starts a process without waiting until it is ready.
    pub fn spawn(binary: &Path, dir: &Path, name: &str, args: Vec<String>) -> Process {
        let (binary, dir) = (binary.to_owned(), dir.to_owned());
        let mut process = Process { binary, name: name.to_owned(), args, dir, child: None, starts: 0 };
        process.spawn_again();
        process
    }

    pub fn spawn_again(&mut self) {
        assert!(self.child.is_none(), "{} still runs", self.name);
        self.starts += 1;
        let _ = std::fs::remove_file(self.ready_file());
        let log = File::create(self.log_file(self.starts)).expect("create the log file");
        let child = Command::new(&self.binary)
            .args(&self.args)
            .arg("--ready-file")
            .arg(self.ready_file())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("share the log file"))
            .stderr(log)
            .spawn()
            .expect("start the flotilla binary");
        self.child = Some(child);
    }

    /// The command line of the next start, as in `start`.
    pub fn set_args(&mut self, args: Vec<String>) {
        self.args = args;
    }

    pub fn start_again(&mut self) -> Ready {
        self.spawn_again();
        self.wait_ready()
    }

    pub fn wait_ready(&mut self) -> Ready {
        let give_up = Instant::now() + START_WITHIN;
        loop {
            if let Ok(text) = std::fs::read_to_string(self.ready_file()) {
                let values = text.lines().filter_map(|line| line.split_once('='));
                return values.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
            }
            if let Some(status) = self.child.as_mut().expect("started").try_wait().expect("ask for its state")
            {
                panic!("{} ended with {status} before it was ready:\n{}", self.name, self.log());
            }
            assert!(
                Instant::now() < give_up,
                "{} is not ready after {START_WITHIN:?}:\n{}",
                self.name,
                self.log()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Sends SIGSTOP: the process hangs from here on, its ports stay bound. Whatever ends it ends it still.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Sends SIGCONT: the process goes on.
    pub fn go_on(&self) {
        self.signal("-CONT");
    }

    /// Sends SIGHUP: the process is to open its files again.
    pub fn hang_up(&self) {
        self.signal("-HUP");
    }

    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(signal).arg(self.pid().to_string()).status();
        assert!(status.expect("run kill").success());
    }

    pub fn kill9(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("send SIGKILL");
        child.wait().expect("reap it");
    }

    /// Sends SIGTERM, and waits until the process has ended.
    pub fn terminate(&mut self) -> ExitStatus {
        self.signal("-TERM");
        self.wait_end()
    }

    /// Waits for a process that somebody has told to end.
    pub fn wait_end(&mut self) -> ExitStatus {
        let mut child = self.child.take().expect("it runs");
        let give_up = Instant::now() + STOP_WITHIN;
        loop {
            if let Some(status) = child.try_wait().expect("ask for its state") {
                return status;
            }
            if Instant::now() > give_up {
                let _ = child.kill();
                panic!("{} did not stop within {STOP_WITHIN:?} of SIGTERM:\n{}", self.name, self.log());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    pub fn pid(&self) -> u32 {
        self.child.as_ref().expect("it runs").id()
    }

    /// Bytes this process has caused to be written to a device so far (`write_bytes` of /proc/PID/io).
    pub fn device_bytes_written(&self) -> u64 {
        let path = format!("/proc/{}/io", self.pid());
        let text = std::fs::read_to_string(&path).expect("read the process's I/O counters");
        let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
        line.expect("the kernel counts write_bytes").parse().expect("a number")
    }

    /// The text that the process has written since its last start.
    pub fn log(&self) -> String {
        self.log_of(self.starts)
    }

    /// The texts that the process has written since each of its starts.
    pub fn logs(&self) -> Vec<String> {
        (1..=self.starts).map(|start| self.log_of(start)).collect()
    }

    fn log_of(&self, start: u32) -> String {
        let bytes = std::fs::read(self.log_file(start)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    fn log_file(&self, start: u32) -> PathBuf {
        self.dir.join(format!("{}.{start}.log", self.name))
    }

    fn ready_file(&self) -> PathBuf {
        self.dir.join(format!("{}.ready", self.name))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let log = self.log();
            let tail: Vec<&str> = log.lines().rev().take(40).collect();
            eprintln!("---- last lines of {}:", self.name);
            tail.iter().rev().for_each(|line| eprintln!("{line}"));
        }
    }
}
