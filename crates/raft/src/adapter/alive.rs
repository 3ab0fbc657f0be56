use std::sync::Arc;
use tokio::sync::oneshot;

/// Held by everything of a group that keeps files open. openraft's tasks end some time after it says that it
/// has stopped, and drop what they own then.
#[derive(Clone)]
pub(crate) struct Alive {
    _until_dropped: Arc<oneshot::Sender<()>>,
}

/// Resolves, with an error, when the last [`Alive`] was dropped.
pub(crate) type Gone = oneshot::Receiver<()>;

impl Alive {
    pub(crate) fn new() -> (Alive, Gone) {
        let (until_dropped, gone) = oneshot::channel();
        (Alive { _until_dropped: Arc::new(until_dropped) }, gone)
    }
}
