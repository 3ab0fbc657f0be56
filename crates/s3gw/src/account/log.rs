use super::line::Line;
use metrics::{Counter, Exposition, Metric};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use tracing::{info, warn};

const LINES: Metric =
    Metric { name: "flotilla_s3_request_log_lines_total", help: "Requests written to the request log." };
const LOST: Metric = Metric {
    name: "flotilla_s3_request_log_lost_total",
    help: "Requests that are not in the request log: the queue was full, or the file could not be written.",
};

/// The most requests that wait to be written: some 300 bytes each, and their keys, 4 KiB at most. At 100 000
/// requests a second that is [`GATHER`] twice.
const QUEUE_MAX: usize = 4096;

/// The time for which requests are gathered once one has come. Waking a thread for each would cost more than
/// writing it down.
const GATHER: Duration = Duration::from_millis(20);

/// The bytes of lines after which a round is written.
const ROUND_BYTES_MAX: usize = 1 << 20;

/// The file that requests are written to, a line each, by a thread of its own. Nothing that happens to it
/// holds up a request.
pub struct RequestLog {
    path: PathBuf,
    orders: SyncSender<Order>,
    shared: Arc<Shared>,
    writer: Mutex<Option<JoinHandle<()>>>,
}

/// A line to be written; `None`: the writer is to look at the flags beside the queue, `reopen` and `close`.
type Order = Option<Line>;

/// A look whether the file system has room for more lines, and why not.
type HasRoom = Box<dyn Fn() -> io::Result<()> + Send>;

#[derive(Default)]
struct Shared {
    lines: Counter,
    lost_for_queue: Counter,
    lost_for_file: Counter,
    reopen: AtomicBool,
    close: AtomicBool,
}

impl RequestLog {
    /// Opens the log's file, or makes it for its owner alone. What is in it stays. Nothing is written while
    /// `has_room` says so: anybody may make requests, and others keep what matters on the same disk.
    pub fn open(path: &Path, has_room: HasRoom) -> io::Result<RequestLog> {
        let file = open_file(path)?;
        let (orders, queue) = sync_channel(QUEUE_MAX);
        let shared = Arc::<Shared>::default();
        let writer = Writer {
            path: path.to_owned(),
            file,
            has_room,
            shared: shared.clone(),
            failing: false,
            torn: false,
        };
        let thread = std::thread::Builder::new().name("s3-request-log".to_owned());
        let writer = thread.spawn(move || writer.run(&queue))?;
        Ok(RequestLog { path: path.to_owned(), orders, shared, writer: Mutex::new(Some(writer)) })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Has the file opened again by its name: it was renamed, and a new one is to be begun.
    pub fn reopen(&self) {
        self.shared.reopen.store(true, Ordering::Release);
        self.wake();
    }

    /// Writes what waits, and ends; what comes later is lost. Gives up after `within`: the disk may hang.
    pub async fn close(&self, within: Duration) {
        self.shared.close.store(true, Ordering::Release);
        self.wake();
        let Some(writer) = self.writer.lock().expect("no holder panics").take() else { return };
        let ended = async {
            while !writer.is_finished() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        if tokio::time::timeout(within, ended).await.is_err() {
            warn!(path = %self.path.display(), "the request log's last lines were not written in time");
        }
    }

    #[cfg(test)]
    pub(super) fn lines(&self) -> u64 {
        self.shared.lines.get()
    }

    pub(super) fn write(&self, line: Line) {
        if self.orders.try_send(Some(line)).is_err() {
            self.shared.lost_for_queue.count();
        }
    }

    /// Wakes the writer; where the queue is full it is awake.
    fn wake(&self) {
        match self.orders.try_send(None) {
            Ok(()) | Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {}
        }
    }
}

/// Adds the log's counts to the metrics: where there is no log, nothing is written and nothing lost.
pub(super) fn expose(log: Option<&RequestLog>, exposition: &mut Exposition) {
    let count = |counter: fn(&Shared) -> &Counter| log.map_or(0, |log| counter(&log.shared).get());
    exposition.counter(LINES, &[], count(|shared| &shared.lines));
    exposition.counter(LOST, &[("reason", "queue")], count(|shared| &shared.lost_for_queue));
    exposition.counter(LOST, &[("reason", "file")], count(|shared| &shared.lost_for_file));
}

/// A log is no data file: nothing that was acknowledged depends on it.
#[allow(clippy::disallowed_methods)]
fn open_file(path: &Path) -> io::Result<File> {
    // Opening a pipe waits until somebody reads it.
    if std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe; a file is wanted"));
    }
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

struct Writer {
    path: PathBuf,
    file: File,
    has_room: HasRoom,
    shared: Arc<Shared>,
    /// True when writing has failed since the last round that was written.
    failing: bool,
    /// True when the file ends within a line that could not be cut off again.
    torn: bool,
}

impl Writer {
    fn run(mut self, queue: &Receiver<Order>) {
        let mut text = Vec::new();
        while let Ok(first) = queue.recv() {
            if !self.shared.close.load(Ordering::Acquire) && first.is_some() {
                std::thread::sleep(GATHER);
            }
            if self.shared.reopen.swap(false, Ordering::AcqRel) {
                self.reopen();
            }
            let mut lines = 0;
            for order in [first].into_iter().chain(queue.try_iter()) {
                if let Some(line) = order {
                    line.write_to(&mut text);
                    lines += 1;
                }
                if text.len() >= ROUND_BYTES_MAX {
                    self.write_round(&text, std::mem::take(&mut lines));
                    text.clear();
                }
            }
            self.write_round(&text, lines);
            text.clear();
            if self.shared.close.load(Ordering::Acquire) {
                return;
            }
        }
    }

    /// Opens the file anew; where the new one cannot be had, the old one is written on.
    fn reopen(&mut self) {
        match open_file(&self.path) {
            Ok(file) => {
                (self.file, self.torn) = (file, false);
                info!(path = %self.path.display(), "the request log was opened again");
            }
            Err(error) => {
                warn!(path = %self.path.display(), %error, "the request log cannot be opened again; the old file is written on");
            }
        }
    }

    fn write_round(&mut self, text: &[u8], lines: u64) {
        if lines == 0 {
            return;
        }
        let (written, error) = match (self.has_room)().and_then(|()| self.mend()) {
            Ok(()) => write_as_far(&mut self.file, text),
            Err(error) => (0, Some(error)),
        };
        let whole = text[..written].iter().filter(|byte| **byte == b'\n').count() as u64;
        self.shared.lines.add(whole);
        self.shared.lost_for_file.add(lines - whole);
        let path = self.path.display();
        match error {
            None => {
                if std::mem::take(&mut self.failing) {
                    info!(%path, "the request log is written again");
                }
            }
            Some(error) => {
                let begun = text[..written].iter().rev().take_while(|byte| **byte != b'\n').count();
                self.torn |= begun > 0 && self.cut(begun as u64).is_err();
                if !std::mem::replace(&mut self.failing, true) {
                    warn!(%path, %error, "the request log cannot be written; requests go on without it");
                }
            }
        }
    }

    /// Ends the line that a full disk broke off.
    fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            self.file.write_all(b"\n")?;
            self.torn = false;
        }
        Ok(())
    }

    /// Takes back the beginning of a line that there was no room for.
    fn cut(&self, bytes: u64) -> io::Result<()> {
        let length = self.file.metadata()?.len();
        self.file.set_len(length.saturating_sub(bytes))
    }
}

fn write_as_far(file: &mut impl Write, text: &[u8]) -> (usize, Option<io::Error>) {
    let mut written = 0;
    while written < text.len() {
        match file.write(&text[written..]) {
            Ok(0) => return (written, Some(io::ErrorKind::WriteZero.into())),
            Ok(bytes) => written += bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (written, Some(error)),
        }
    }
    (written, None)
}
