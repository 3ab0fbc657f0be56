//! Noticing rolls.

use super::Inventory;
use crate::pipeline::Pipeline;
use std::sync::Arc;

impl Inventory {
    /// Says each time a pipeline has another open container that it, and so the one before it, are to be
    /// looked at; ends with the pipeline. May be dropped anywhere: the next process looks at everything.
    pub(crate) async fn follow(self, pipeline: Arc<Pipeline>) {
        let mut open = pipeline.open.clone();
        loop {
            let container = open.borrow_and_update().container;
            self.look_again(pipeline.disk.id, container);
            if open.wait_for(|open| open.container != container).await.is_err() {
                // The pipeline is over: no log reads its containers any more.
                return self.look_again_at_pipeline(pipeline.id);
            }
        }
    }
}
