use super::counts::End;
use super::wire::Wire;
use std::sync::Arc;
use tonic::Status;

/// The end of a connection's calls and its count, however who works for it is dropped.
pub(super) struct Ends {
    wire: Arc<Wire>,
    why: End,
}

impl Ends {
    pub(super) fn of(wire: &Arc<Wire>) -> Ends {
        Ends { wire: wire.clone(), why: End::Stopping }
    }

    /// It ends now.
    pub(super) fn end(&mut self, why: End, said: String) {
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
