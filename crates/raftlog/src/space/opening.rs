//! Opening a log of a space, by one at a time.

use super::{Entry, LogSpace};
use crate::core::Core;
use crate::recovery::recover;
use crate::writer::Writer;
use crate::{Log, LogSpec, OpenError};
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl LogSpace {
    /// Opens a log, or creates it when its directory does not exist. A torn tail is cut (and logged); damage
    /// before the tail is an error and changes nothing. A log whose last handle was dropped is waited for;
    /// one that is in use is refused. Cancellation safe, except that a half-opened log may have been created.
    pub async fn open(self: &Arc<Self>, spec: LogSpec) -> Result<Log, OpenError> {
        let io_error = |source| OpenError::Io { log: spec.log, source };
        let claim = self.claim(&spec).await?;
        let space = self.disk.space().await.map_err(io_error)?;
        self.free.bytes.store(space.free_bytes, Ordering::Relaxed);
        self.spares.sweep().await.map_err(io_error)?;
        let recovered = recover(&self.disk, &spec).await?;
        let core = Arc::new(Core::new(spec, self.clone(), recovered.opened));
        let writer = Writer::new(
            core.clone(),
            recovered.hard_state,
            recovered.record,
            recovered.open,
            recovered.segment_index,
        );
        claim.opened(&core);
        // The task is owned by the log: it ends when the last handle is dropped, and `close` or the next
        // `open` wait for that.
        tokio::spawn(writer.run());
        Ok(Log::new(core))
    }

    async fn claim(self: &Arc<Self>, spec: &LogSpec) -> Result<Claim, OpenError> {
        let in_use =
            |why: &str| OpenError::Inconsistent { log: spec.log, why: format!("{} {why}", spec.dir) };
        loop {
            let open = {
                let mut logs = self.lock_logs();
                let open = match logs.get(&spec.dir) {
                    Some(Entry::Opening) => return Err(in_use("is being opened already")),
                    Some(Entry::Open(core)) => core.upgrade(),
                    None => None,
                };
                if open.is_none() {
                    logs.insert(spec.dir.clone(), Entry::Opening);
                }
                open
            };
            match open {
                None => return Ok(Claim { space: self.clone(), dir: spec.dir.clone(), done: false }),
                Some(core) if core.is_closing() => core.until_stopped().await,
                Some(_) => return Err(in_use("is open already")),
            }
        }
    }
}

/// A directory that is being opened; others may open it again when that fails.
struct Claim {
    space: Arc<LogSpace>,
    dir: String,
    done: bool,
}

impl Claim {
    fn opened(mut self, core: &Arc<Core>) {
        self.done = true;
        self.space.lock_logs().insert(self.dir.clone(), Entry::Open(Arc::downgrade(core)));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if !self.done {
            self.space.lock_logs().remove(&self.dir);
        }
    }
}
