use super::connector::SimConnector;
use super::network::{Network, ProcessId};
use super::trace::Trace;
use disk::sim::SimDisk;
use std::cell::Cell;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Runtime;
use tonic::service::Routes;

/// A machine with disks and, while it is up, a process on it: a runtime with a clock of its own that moves
/// only when the world lets it.
pub struct Process {
    pub(super) id: ProcessId,
    /// At least one.
    pub(super) disks: Vec<SimDisk>,
    pub(super) runtime: Option<Runtime>,
    /// The drift of the process's clock: how much faster than the world's it runs, in parts per million.
    pub(super) drift_ppm: i64,
    /// The time that the process's clock has yet to move: less than a tick, unless the machine stands still.
    pub(super) owed_nanos: i64,
    /// Whether the machine stands still: nothing on it moves, and its clock goes on.
    pub(super) is_frozen: bool,
}

/// The things that a process is given when it starts.
#[derive(Clone)]
pub struct Context {
    pub process: ProcessId,
    /// The first of the machine's disks ...
    pub disk: SimDisk,
    /// ... and all of them.
    pub disks: Vec<SimDisk>,
    pub network: Network,
    pub trace: Trace,
}

impl Context {
    /// The way to other processes, as `raft` wants it.
    pub fn connector(&self) -> Arc<SimConnector> {
        Arc::new(SimConnector { network: self.network.clone(), from: self.process })
    }
}

impl Process {
    /// Starts a process that answers on what `main` returns. `main` runs inside the process, at its first
    /// tick.
    pub(super) fn start<F>(&mut self, network: &Network, trace: &Trace, main: impl FnOnce(Context) -> F)
    where
        F: Future<Output = Routes> + Send + 'static,
    {
        assert!(self.runtime.is_none(), "{} runs already", self.id);
        let incoming = network.up(self.id);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime without threads and sockets needs nothing");
        let context = Context {
            process: self.id,
            disk: self.disks[0].clone(),
            disks: self.disks.clone(),
            network: network.clone(),
            trace: trace.clone(),
        };
        let (main, network) = (main(context), network.clone());
        runtime.spawn(async move {
            let routes = main.await;
            super::connector::serve(network, routes, incoming).await;
        });
        self.runtime = Some(runtime);
    }

    /// Lets everything in the process that has something to do until then do it. Its clock moves whole ticks:
    /// none, one or more, as it drifts.
    pub(super) fn advance(&mut self, tick: Duration) {
        let tick_nanos = tick.as_nanos() as i64;
        self.owed_nanos += tick_nanos + tick_nanos * self.drift_ppm / 1_000_000;
        if self.is_frozen {
            return;
        }
        let ticks = self.owed_nanos / tick_nanos;
        self.owed_nanos -= ticks * tick_nanos;
        if let Some(runtime) = self.runtime.as_ref().filter(|_| ticks > 0) {
            RUNNING.set(Some(self.id));
            runtime.block_on(async { tokio::time::sleep(tick * ticks as u32).await });
            RUNNING.set(None);
        }
    }

    /// Lets the process go on, which finds that its clock has jumped.
    pub(super) fn thaw(&mut self, tick: Duration) {
        let ticks = self.owed_nanos / tick.as_nanos() as i64;
        self.owed_nanos -= ticks * tick.as_nanos() as i64;
        self.is_frozen = false;
        if let Some(runtime) = &self.runtime {
            RUNNING.set(Some(self.id));
            runtime.block_on(tokio::time::advance(tick * ticks as u32));
            RUNNING.set(None);
        }
    }
}

thread_local! {
    static RUNNING: Cell<Option<ProcessId>> = const { Cell::new(None) };
}

/// The process that this thread moves now.
pub fn running() -> Option<ProcessId> {
    RUNNING.get()
}
