use metrics::{Counter, Exposition, Metric};
use std::sync::{Arc, LazyLock};

const FRAMES: Metric = Metric {
    name: "flotilla_rpc_frames_sent_total",
    help: "Frames of calls that were written, by the end of the connection that this process is.",
};
const WRITES: Metric =
    Metric { name: "flotilla_rpc_frame_writes_total", help: "Writes in which these went together." };

/// Counts of the frames that one end of connections sent.
#[derive(Debug, Default)]
pub struct FrameCounts {
    pub frames_sent: Counter,
    pub writes: Counter,
}

impl FrameCounts {
    /// Those of all connections that this process made.
    pub fn of_clients() -> &'static Arc<FrameCounts> {
        static OF_CLIENTS: LazyLock<Arc<FrameCounts>> = LazyLock::new(Arc::default);
        &OF_CLIENTS
    }

    pub(crate) fn expose(&self, exposition: &mut Exposition, end: &str) {
        exposition.counter(FRAMES, &[("end", end)], self.frames_sent.get());
        exposition.counter(WRITES, &[("end", end)], self.writes.get());
    }
}
