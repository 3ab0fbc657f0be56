//! Chunks of a pipeline that were proposed on this node and are not answered yet, whichever connection they
//! came over: one that comes again joins the first, instead of being appended on three disks a second time.

use futures::FutureExt;
use futures::future::{BoxFuture, Shared};
use raft::{Done, Proposal, ProposeError};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use types::Nonce;

/// The outcome of a chunk; all who wait hear the same.
pub(crate) type Outcome = Shared<BoxFuture<'static, Result<Done, ProposeError>>>;

/// The name by which a chunk is told apart: one that says the same of itself is the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ChunkName {
    pub nonce: Nonce,
    pub seq: u32,
    pub offset: u64,
    pub length: u64,
    pub seal: bool,
}

#[derive(Default)]
pub(crate) struct UnderWay {
    state: Arc<Mutex<State>>,
}

#[derive(Default)]
struct State {
    chunks: HashMap<ChunkName, Outcome>,
    /// The number of chunks at which those that have an answer are looked for: nobody may be waiting for one
    /// since a connection broke.
    sweep_at: usize,
}

const SWEEP_AT_MIN: usize = 256;

impl UnderWay {
    /// The outcome of a chunk that is under way. One that is answered is so no more: what was said of it may
    /// be of another time.
    pub(crate) fn get(&self, chunk: &ChunkName) -> Option<Outcome> {
        let outcome = self.state.lock().expect("no holder panics").chunks.get(chunk).cloned()?;
        outcome.clone().now_or_never().is_none().then_some(outcome)
    }

    /// Remembers a chunk until it is answered. There are about as many as the group has proposals in flight,
    /// and as many again.
    pub(crate) fn add(&self, chunk: ChunkName, proposal: Proposal) -> Outcome {
        let of_all = Arc::downgrade(&self.state);
        let outcome = async move {
            let done = proposal.done().await;
            if let Some(state) = of_all.upgrade() {
                state.lock().expect("no holder panics").chunks.remove(&chunk);
            }
            done
        };
        let outcome = outcome.boxed().shared();
        let mut state = self.state.lock().expect("no holder panics");
        state.chunks.insert(chunk, outcome.clone());
        let is_due = state.chunks.len() >= state.sweep_at.max(SWEEP_AT_MIN);
        let suspects: Vec<Outcome> =
            if is_due { state.chunks.values().cloned().collect() } else { Vec::new() };
        drop(state);
        if is_due {
            // Each chunk that has an answer removes itself.
            suspects.into_iter().for_each(|suspect| drop(suspect.now_or_never()));
            let mut state = self.state.lock().expect("no holder panics");
            state.sweep_at = state.chunks.len() * 2;
        }
        outcome
    }
}
