use super::counts::CloseReason;
use super::wire::Wire;
use std::sync::Arc;
use tonic::Status;

/// The guard of a connection's end: when it is dropped, for whatever reason, the calls end and the end is
/// counted.
pub(super) struct Ends {
    wire: Arc<Wire>,
    why: CloseReason,
}

impl Ends {
    pub(super) fn of(wire: &Arc<Wire>) -> Ends {
        Ends { wire: wire.clone(), why: CloseReason::Stopping }
    }

    /// Ends the connection's calls now, and has its end counted for this reason.
    pub(super) fn end(&mut self, why: CloseReason, said: String) {
        self.why = why;
        self.wire.end(&Status::unavailable(said));
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        self.wire.end(&Status::unavailable("the process is stopping"));
        self.wire.counts().ended(self.why).count();
    }
}
