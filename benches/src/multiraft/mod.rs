//! Why a node carries many logs: three nodes with twelve spinning disks each, simulated, and the real
//! `crates/raftlog` on every disk. What is simulated, what is not, and how to read the figures:
//! benches/README.md.
//!
//! All of it runs on tokio's paused clock and one thread, so a second of it costs little and a seed decides
//! everything.

mod cluster;
mod figures;
mod gateway;
mod network;
mod placement;
mod time;
mod workload;

pub use cluster::{DISKS_PER_NODE, NODES};
pub use figures::{Latencies, Outcome, print_comparison};
pub use workload::Load;

use cluster::Cluster;
use gateway::Gateway;
use std::time::Duration;
use time::SLOWED;
use tokio::time::{Instant, sleep_until};

/// One run of three nodes under a load.
#[derive(Clone, Copy, Debug)]
pub struct World {
    /// Raft groups; each has a replica on every node, number i on disk i mod 12.
    pub logs: usize,
    pub load: Load,
    pub seed: u64,
    /// The time before anything is measured.
    pub warm_up: Duration,
    pub measured: Duration,
}

impl World {
    /// Runs the world on a runtime of one thread whose clock is paused. What was begun while measuring is
    /// waited for, so slow writes count as much as fast ones.
    pub async fn run(self) -> Outcome {
        let cluster = Cluster::start(self.logs, self.seed).await;
        let gateway = Gateway::new(cluster.clone(), self.seed);
        let began = Instant::now();
        let measure_from = began + self.warm_up * SLOWED;
        let measure_to = measure_from + self.measured * SLOWED;
        let arrivals = tokio::spawn(self.load.run(gateway.clone(), self.seed, measure_to));

        sleep_until(measure_from).await;
        let busy_before = cluster.busy();
        let device_bytes_before = cluster.device_bytes();
        sleep_until(measure_to).await;
        let busy = cluster.busy();
        let device_bytes = cluster.device_bytes();
        arrivals.await.expect("arrivals do not panic");

        let utilization = busy
            .iter()
            .zip(&busy_before)
            .map(|(after, before)| (*after - *before).as_secs_f64() / (self.measured * SLOWED).as_secs_f64());
        let writes = gateway.take_writes();
        Outcome::new(
            self,
            writes,
            measure_from..measure_to,
            utilization.collect(),
            device_bytes - device_bytes_before,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(logs: usize, seed: u64, load: Load) -> Outcome {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("start tokio");
        let (warm_up, measured) = (Duration::from_millis(500), Duration::from_secs(4));
        runtime.block_on(World { logs, load, seed, warm_up, measured }.run())
    }

    #[test]
    fn the_same_seed_gives_the_same_figures() {
        for load in [Load::Open { bytes_per_second: 100_000_000 }, Load::Closed { writers: 8 }] {
            let first = run(15, 7, load);
            assert!(first.chunks.count() > 100, "{first:?}");
            assert_eq!(first, run(15, 7, load));
            assert_ne!(first, run(15, 8, load));
        }
    }

    #[test]
    fn many_logs_are_faster_than_one_under_the_same_load() {
        let load = Load::Open { bytes_per_second: 100_000_000 };
        let share = |logs| run(logs, 3, load).chunks.share_under(Duration::from_millis(200));
        let (one, many) = (share(1), share(12));
        assert!(many > one && many > 0.9, "one log: {one}, twelve: {many}");
    }
}
