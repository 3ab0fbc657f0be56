use std::sync::Arc;
use tokio::sync::watch;

/// A token that everything of a group holds which keeps files open. openraft's tasks end some time after it
/// says that it has stopped, and drop what they own then.
#[derive(Clone)]
pub(crate) struct Alive {
    _until_dropped: Arc<watch::Sender<()>>,
}

/// The end of the last [`Alive`].
pub(crate) struct Gone(watch::Receiver<()>);

impl Alive {
    pub(crate) fn new() -> (Alive, Gone) {
        let (until_dropped, gone) = watch::channel(());
        (Alive { _until_dropped: Arc::new(until_dropped) }, Gone(gone))
    }
}

impl Gone {
    /// Resolves when the last [`Alive`] was dropped.
    pub(crate) async fn wait(&self) {
        let mut alive = self.0.clone();
        while alive.changed().await.is_ok() {}
    }
}
