//! Tasks of a node that run on their own until the node stops: orders of SCM and streams, which end by
//! themselves, and loops, which may be dropped.

use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The tasks of a node. A cheap handle.
#[derive(Clone, Default)]
pub(crate) struct Workers {
    tasks: TaskTracker,
    stop: CancellationToken,
}

impl Workers {
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.tasks.spawn(work)
    }

    /// Spawns what may be dropped anywhere when the node stops.
    pub(crate) fn spawn_until_stop(&self, work: impl Future<Output = ()> + Send + 'static) {
        let stop = self.stop.clone();
        self.tasks.spawn(async move {
            stop.run_until_cancelled(work).await;
        });
    }

    pub(crate) fn stop(&self) -> &CancellationToken {
        &self.stop
    }

    /// Stops all tasks and waits for their ends.
    pub(crate) async fn end(&self) {
        self.stop.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
