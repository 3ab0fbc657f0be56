//! Noticing rolls.

use super::Inventory;
use crate::pipeline::Pipeline;
use std::sync::Arc;
use tokio_util::sync::CancellationToken;

impl Inventory {
    /// Says each time a pipeline has another open container that it, and so the one before it, are to be
    /// looked at; ends with the pipeline, or at `stop`.
    pub(crate) async fn follow(self, pipeline: Arc<Pipeline>, stop: CancellationToken) {
        let mut open = pipeline.open.clone();
        loop {
            let container = open.borrow_and_update().container;
            self.look_again(pipeline.disk.id, container);
            let rolled = open.wait_for(|open| open.container != container);
            // Both are safe to drop: the open container can be asked for again.
            tokio::select! {
                () = stop.cancelled() => return,
                rolled = rolled => if rolled.is_err() {
                    // The pipeline is over: no log reads its containers any more.
                    return self.look_again_at_pipeline(pipeline.id);
                },
            }
        }
    }
}
