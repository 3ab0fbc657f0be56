use crate::AppendError;
use std::sync::{Arc, Mutex};
use tokio::sync::oneshot;

type Outcome = Result<(), AppendError>;
type Callback = Box<dyn FnOnce(Outcome) + Send>;

/// The token of an append that is not yet durable: it resolves after the sync that covers the append, in
/// append order.
#[must_use = "an append is durable only when its token has resolved"]
pub struct FlushToken {
    slot: Arc<Mutex<Slot>>,
}

/// The writer's end of a token. Dropped unresolved, it fails the token: a stopped writer loses nobody.
pub(crate) struct Completion {
    slot: Option<Arc<Mutex<Slot>>>,
}

enum Slot {
    Waiting(Option<Callback>),
    Done(Outcome),
}

pub(crate) fn token() -> (FlushToken, Completion) {
    let slot = Arc::new(Mutex::new(Slot::Waiting(None)));
    (FlushToken { slot: slot.clone() }, Completion { slot: Some(slot) })
}

impl FlushToken {
    /// Waits until the append is durable or has failed. Cancellation safe: the append goes on without its
    /// observer.
    pub async fn durable(self) -> Result<(), AppendError> {
        let (sender, outcome) = oneshot::channel();
        self.on_durable(move |outcome| {
            let _ = sender.send(outcome);
        });
        outcome.await.expect("a token always resolves, at the latest when the writer is dropped")
    }

    /// Runs `then` when the append is durable or has failed; calls of one log come in append order. It runs
    /// in the log's writer, so it must be quick.
    pub fn on_durable(self, then: impl FnOnce(Result<(), AppendError>) + Send + 'static) {
        let mut slot = self.slot.lock().expect("callbacks run outside the lock, so no holder panics");
        match &mut *slot {
            Slot::Waiting(callback) => *callback = Some(Box::new(then)),
            Slot::Done(outcome) => {
                let outcome = outcome.clone();
                drop(slot);
                then(outcome);
            }
        }
    }
}

impl Completion {
    pub(crate) fn resolve(mut self, outcome: Outcome) {
        self.resolve_once(outcome);
    }

    fn resolve_once(&mut self, outcome: Outcome) {
        let Some(slot) = self.slot.take() else { return };
        let before = {
            let mut slot = slot.lock().expect("callbacks run outside the lock, so no holder panics");
            std::mem::replace(&mut *slot, Slot::Done(outcome.clone()))
        };
        if let Slot::Waiting(Some(callback)) = before {
            callback(outcome);
        }
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        self.resolve_once(Err(AppendError::Poisoned { why: "the log was closed".into() }));
    }
}
