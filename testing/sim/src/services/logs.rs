//! The logs of the processes, which `--trace` shows beside the events.

use crate::world::{Trace, running};
use std::fmt;
use tracing::Level;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

/// The world's time, and the process that is running.
struct WorldTime(Trace);

impl FormatTime for WorldTime {
    fn format_time(&self, out: &mut Writer<'_>) -> fmt::Result {
        let now_ms = self.0.now().as_secs_f64() * 1000.0;
        match running() {
            Some(process) => write!(out, "{now_ms:>11.3} ms  {process}"),
            None => write!(out, "{now_ms:>11.3} ms"),
        }
    }
}

/// Prints the logs from here on, in this process.
pub(crate) fn print(trace: &Trace) {
    let logs = tracing_subscriber::fmt().with_timer(WorldTime(trace.clone())).with_max_level(Level::INFO);
    // A second run of a process prints none.
    let _ = logs.with_ansi(false).with_writer(std::io::stderr).try_init();
}
