//! Messages to systemd where it runs this process as `Type=notify` (`deploy/flotilla.service`): lines in
//! datagrams to the socket that `NOTIFY_SOCKET` names, as sd_notify(3) and sd_watchdog_enabled(3) have it.
//! Elsewhere nothing is said.
//!
//! ```text
//! starting   EXTEND_TIMEOUT_USEC now and then   a log of hours may have to be read
//! READY=1    disks are opened, ports answer     not "others are there": three nodes that start one after another would wait
//! serving    WATCHDOG=1 and STATUS=             from a task that first hears each role say whether it is ready
//! STOPPING=1
//! ```
//!
//! The watchdog ends processes that hang: tasks that are not run, a lock that nobody gives back. It must not
//! end one that waits for other nodes, or a majority that goes would make the rest restart again and again.
//! So a role's "not ready" is an answer like "ready"; only no answer is none.

use anyhow::{Context, bail};
use std::ffi::{OsStr, OsString};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram as StdUnixDatagram};
use std::time::Duration;
use tokio::net::UnixDatagram;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tracing::{debug, warn};

/// The time between two looks at the roles, where the watchdog does not ask for more: what `systemctl status`
/// shows is no older.
const PULSE_INTERVAL_MAX: Duration = Duration::from_secs(10);
/// The time in which the next message comes while the process starts: several intervals, for a busy machine.
const START_EXTENDED_BY: Duration = Duration::from_secs(60);
/// The length of the line that `systemctl status` shows.
const STATUS_CHARS_MAX: usize = 240;
/// A service manager that does not take a message for this long does not hear it.
const SAY_MAX: Duration = Duration::from_secs(5);

/// The service manager's wishes, as the environment says them.
#[derive(Debug, Default)]
pub(crate) struct NotifyOptions {
    pub socket: Option<OsString>,
    /// The time after which the service manager kills a process that it has not heard; `None`: it does not.
    pub watchdog: Option<Duration>,
}

impl NotifyOptions {
    pub(crate) fn from_environment() -> NotifyOptions {
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        NotifyOptions {
            socket: std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()),
            watchdog: watchdog(number("WATCHDOG_USEC"), number("WATCHDOG_PID"), std::process::id()),
        }
    }

    /// The time between two messages: they come twice in the watchdog's time at least.
    fn pulse_interval(&self) -> Duration {
        self.watchdog.map_or(PULSE_INTERVAL_MAX, |watchdog| PULSE_INTERVAL_MAX.min(watchdog / 2))
    }
}

/// The watchdog's time; `None`: it watches nobody, or another process, whose environment this one inherited.
fn watchdog(microseconds: Option<u64>, pid: Option<u64>, own_pid: u32) -> Option<Duration> {
    let is_ours = pid.is_none_or(|pid| pid == u64::from(own_pid));
    microseconds.filter(|&microseconds| is_ours && microseconds > 0).map(Duration::from_micros)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Starting,
    Serving,
    Stopping,
}

impl Phase {
    fn message(self) -> Option<&'static str> {
        match self {
            Phase::Starting => None,
            Phase::Serving => Some("READY=1"),
            Phase::Stopping => Some("STOPPING=1\nSTATUS=stopping"),
        }
    }
}

/// The service manager as this process tells it things. Drop ends the pulse, as the end of the process does.
pub(crate) struct ServiceManager {
    /// `None` where nobody listens.
    listening: Option<Listening>,
}

struct Listening {
    phase: watch::Sender<Phase>,
    /// The last phase that was said.
    said: watch::Receiver<Phase>,
    pulse: JoinHandle<()>,
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.pulse.abort();
    }
}

impl ServiceManager {
    /// Tells that the process starts, from now on. `status` asks its roles how they are, for a line that
    /// people read.
    pub(crate) fn start<F, S>(options: &NotifyOptions, status: S) -> ServiceManager
    where
        F: Future<Output = String> + Send + 'static,
        S: Fn() -> F + Send + Sync + 'static,
    {
        let Some(address) = &options.socket else { return ServiceManager { listening: None } };
        let socket = match connect(address) {
            Ok(socket) => socket,
            Err(error) => {
                warn!(socket = ?address, error = format!("{error:#}"), "the service manager is told nothing");
                return ServiceManager { listening: None };
            }
        };
        let (phase, phases) = watch::channel(Phase::Starting);
        let (entered, said) = watch::channel(Phase::Starting);
        let watched = options.watchdog.is_some();
        let interval = options.pulse_interval();
        let pulse = Pulse { socket, phases, entered, interval, watched, status: String::new() };
        ServiceManager { listening: Some(Listening { phase, said, pulse: tokio::spawn(pulse.run(status)) }) }
    }

    /// Tells that disks are opened and ports answer.
    pub(crate) async fn ready(&self) {
        self.enter(Phase::Serving).await;
    }

    /// Tells that the process stops. It need not be ready any more; the watchdog is answered to the end.
    pub(crate) async fn stopping(&self) {
        self.enter(Phase::Stopping).await;
    }

    async fn enter(&self, phase: Phase) {
        let Some(listening) = &self.listening else { return };
        listening.phase.send_replace(phase);
        let mut said = listening.said.clone();
        // The process may end next: the message must be out before that.
        let _ = timeout(SAY_MAX, said.wait_for(|said| *said == phase)).await;
    }
}

/// The one task that speaks, so that nothing is said out of order, and whose messages prove that tasks are
/// run.
struct Pulse {
    socket: UnixDatagram,
    phases: watch::Receiver<Phase>,
    entered: watch::Sender<Phase>,
    interval: Duration,
    watched: bool,
    /// The status as it was said last.
    status: String,
}

impl Pulse {
    async fn run<F: Future<Output = String>, S: Fn() -> F>(mut self, status: S) {
        loop {
            let phase = *self.phases.borrow_and_update();
            if phase != *self.entered.borrow() {
                self.enter(phase).await;
            }
            let mut phases = self.phases.clone();
            // Roles that do not answer do not hold up the next phase, and get no ping.
            let beat = async {
                let status = if phase == Phase::Serving { one_line(&status().await) } else { String::new() };
                self.beat(phase, status).await;
                tokio::time::sleep(self.interval).await;
            };
            tokio::select! {
                () = beat => {}
                changed = phases.changed() => if changed.is_err() { return },
            }
        }
    }

    async fn enter(&self, phase: Phase) {
        if let Some(message) = phase.message()
            && let Err(error) = say(&self.socket, message).await
        {
            warn!(error = format!("{error:#}"), message, "the service manager does not hear");
        }
        self.entered.send_replace(phase);
    }

    async fn beat(&mut self, phase: Phase, status: String) {
        let mut lines = Vec::new();
        if phase == Phase::Starting {
            lines.push(format!("EXTEND_TIMEOUT_USEC={}", START_EXTENDED_BY.as_micros()));
            lines.push("STATUS=opening what is on the disks".to_owned());
        }
        if phase == Phase::Serving && status != self.status {
            lines.push(format!("STATUS={status}"));
        }
        if phase != Phase::Starting && self.watched {
            lines.push("WATCHDOG=1".to_owned());
        }
        if lines.is_empty() {
            return;
        }
        match say(&self.socket, &lines.join("\n")).await {
            Ok(()) => self.status = status,
            Err(error) => debug!(error = format!("{error:#}"), "the service manager does not hear"),
        }
    }
}

/// A text as one line that is not too long: a line end would begin another message, and a role that lists all
/// its pipelines is not read in one line.
fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(STATUS_CHARS_MAX).collect()
}

async fn say(socket: &UnixDatagram, message: &str) -> anyhow::Result<()> {
    let sent = timeout(SAY_MAX, socket.send(message.as_bytes())).await;
    sent.context("its queue stays full")?.context("send to NOTIFY_SOCKET")?;
    Ok(())
}

/// Connects to the service manager: `address` is a path, or after `@` a name in the abstract namespace.
fn connect(address: &OsStr) -> anyhow::Result<UnixDatagram> {
    let address = match address.as_bytes() {
        [b'/', ..] => SocketAddr::from_pathname(address).context("read the path")?,
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name).context("read the abstract name")?,
        _ => bail!("it is neither a path nor an abstract name"),
    };
    let socket = StdUnixDatagram::unbound().context("make a socket")?;
    socket.connect_addr(&address).context("connect")?;
    socket.set_nonblocking(true).context("make the socket non-blocking")?;
    Ok(UnixDatagram::from_std(socket)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use tokio::runtime::{Builder, Runtime};

    /// The time for one message: longer than a busy machine needs.
    const HEARD_WITHIN: Duration = Duration::from_secs(60);
    const WATCHDOG: Duration = Duration::from_millis(40);

    /// A service manager's side of the socket.
    struct Manager {
        socket: StdUnixDatagram,
        options: NotifyOptions,
        _dir: tempfile::TempDir,
    }

    impl Manager {
        fn listen() -> Manager {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("notify");
            let socket = StdUnixDatagram::bind(&path).unwrap();
            let options = NotifyOptions { socket: Some(path.into()), watchdog: Some(WATCHDOG) };
            Manager { socket, options, _dir: dir }
        }

        fn hears_within(&self, within: Duration) -> Option<String> {
            self.socket.set_read_timeout(Some(within)).unwrap();
            let mut bytes = [0u8; 4096];
            let len = self.socket.recv(&mut bytes).ok()?;
            Some(String::from_utf8(bytes[..len].to_vec()).unwrap())
        }

        /// The next message that has this line.
        fn hears(&self, line: &str) -> String {
            loop {
                let message = self.hears_within(HEARD_WITHIN);
                let message = message.unwrap_or_else(|| panic!("nobody says {line}"));
                if message.lines().any(|said| said == line) {
                    return message;
                }
            }
        }

        /// Forgets what was said, and hears no more.
        fn hears_nothing(&self) {
            self.socket.set_nonblocking(true).unwrap();
            while self.socket.recv(&mut [0u8; 4096]).is_ok() {}
            self.socket.set_nonblocking(false).unwrap();
            assert_eq!(self.hears_within(WATCHDOG * 10), None);
        }
    }

    fn one_worker() -> Runtime {
        Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
    }

    #[test]
    fn a_life_is_told_and_what_is_not_ready_feeds_the_watchdog_too() {
        let (manager, runtime) = (Manager::listen(), one_worker());
        runtime.block_on(async {
            let roles = async || "om: not ready:\nno majority".to_owned();
            let told = ServiceManager::start(&manager.options, roles);
            let starting = manager.hears("STATUS=opening what is on the disks");
            assert!(starting.contains("EXTEND_TIMEOUT_USEC=60000000"), "{starting}");
            told.ready().await;
            manager.hears("READY=1");
            manager.hears("STATUS=om: not ready: no majority");
            for _ in 0..3 {
                assert_eq!(manager.hears("WATCHDOG=1"), "WATCHDOG=1", "a status is said once");
            }
            told.stopping().await;
            manager.hears("STOPPING=1");
            manager.hears("WATCHDOG=1");
        });
    }

    #[test]
    fn an_executor_that_hangs_is_not_heard() {
        let (manager, runtime) = (Manager::listen(), one_worker());
        let told = runtime.block_on(async {
            let told = ServiceManager::start(&manager.options, async || String::new());
            told.ready().await;
            told
        });
        manager.hears("WATCHDOG=1");
        let (go_on, wait) = mpsc::channel::<()>();
        let (begun, has_begun) = mpsc::channel::<()>();
        runtime.spawn(async move {
            begun.send(()).unwrap();
            wait.recv()
        });
        has_begun.recv().unwrap();
        manager.hears_nothing();
        go_on.send(()).unwrap();
        manager.hears("WATCHDOG=1");
        drop(told);
    }

    #[test]
    fn a_role_that_does_not_answer_is_not_heard() {
        let (manager, runtime) = (Manager::listen(), one_worker());
        runtime.block_on(async {
            let told = ServiceManager::start(&manager.options, std::future::pending::<String>);
            told.ready().await;
            manager.hears("READY=1");
            manager.hears_nothing();
        });
    }

    #[tokio::test]
    async fn abstract_sockets_are_spoken_to_and_others_are_left() {
        let name = format!("flotilla-test-{}", uuid::Uuid::new_v4());
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let socket = StdUnixDatagram::bind_addr(&address).unwrap();
        socket.set_read_timeout(Some(HEARD_WITHIN)).unwrap();
        say(&connect(OsStr::new(&format!("@{name}"))).unwrap(), "READY=1").await.unwrap();
        let mut bytes = [0u8; 16];
        assert_eq!(socket.recv(&mut bytes).unwrap(), 7);
        assert_eq!(&bytes[..7], b"READY=1");
        for other in ["vsock:2:1234", "relative", "/nobody/listens"] {
            assert!(connect(OsStr::new(other)).is_err(), "{other}");
            let options = NotifyOptions { socket: Some(other.into()), watchdog: None };
            ServiceManager::start(&options, async || String::new()).ready().await;
        }
        ServiceManager::start(&NotifyOptions::default(), async || String::new()).ready().await;
    }

    #[test]
    fn another_process_watchdog_is_not_ours() {
        let check = |microseconds, pid, expected: Option<u64>| {
            assert_eq!(watchdog(microseconds, pid, 7), expected.map(Duration::from_micros));
        };
        check(Some(30), None, Some(30));
        check(Some(30), Some(7), Some(30));
        check(Some(30), Some(8), None);
        check(Some(0), None, None);
        check(None, Some(7), None);
        let interval = |watchdog| NotifyOptions { socket: None, watchdog }.pulse_interval();
        assert_eq!(interval(None), PULSE_INTERVAL_MAX);
        assert_eq!(interval(Some(Duration::from_secs(60))), PULSE_INTERVAL_MAX);
        assert_eq!(interval(Some(Duration::from_secs(3))), Duration::from_millis(1500));
    }
}
