//! Whoever has a part in deletions is killed, one after the other, and comes back.

use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::{Cluster, Process};

/// A datanode that is away for so long finds, when it is back, that others have deleted meanwhile.
const AWAY: Duration = Duration::from_secs(8);
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The number of times that each was killed.
pub(super) type Kills = BTreeMap<&'static str, u64>;

/// Kills until it is told to stop.
pub(super) struct Faults {
    over: Arc<AtomicBool>,
    thread: JoinHandle<(Cluster, Kills)>,
}

impl Faults {
    pub(super) fn start(cluster: Cluster, seed: u64) -> Faults {
        let over = Arc::<AtomicBool>::default();
        let until = over.clone();
        let thread = std::thread::spawn(move || kill_until(&until, cluster, seed));
        Faults { over, thread }
    }

    /// The cluster, of which all run.
    pub(super) async fn stop(self) -> (Cluster, Kills) {
        self.over.store(true, Ordering::Relaxed);
        tokio::task::spawn_blocking(|| self.thread.join().expect("it does not panic"))
            .await
            .expect("nor this")
    }
}

fn kill_until(over: &AtomicBool, mut cluster: Cluster, seed: u64) -> (Cluster, Kills) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut kills = Kills::new();
    while !over.load(Ordering::Relaxed) {
        let drawn = random.random_range(0..20);
        let (name, process, away) = victim(&mut cluster, drawn, &mut random);
        process.kill9();
        *kills.entry(name).or_default() += 1;
        rest(over, away);
        process.start_again();
        rest(over, Duration::from_millis(random.random_range(200..2_000)));
    }
    (cluster, kills)
}

/// The gateway most often: it is in the middle of some PUT each time.
fn victim<'a>(
    cluster: &'a mut Cluster,
    drawn: u32,
    random: &mut SmallRng,
) -> (&'static str, &'a mut Process, Duration) {
    let soon = Duration::from_millis(random.random_range(0..800));
    match drawn {
        0..10 => ("gateway", &mut cluster.gateway, Duration::ZERO),
        10..13 => ("om", &mut cluster.om, soon),
        13..16 => {
            let at = random.random_range(0..cluster.scms.len());
            ("scm", &mut cluster.scms[at], soon)
        }
        _ => {
            let at = random.random_range(0..cluster.datanodes.len());
            ("datanode", &mut cluster.datanodes[at], if drawn == 19 { AWAY } else { soon })
        }
    }
}

fn rest(over: &AtomicBool, long: Duration) {
    let until = Instant::now() + long;
    while Instant::now() < until && !over.load(Ordering::Relaxed) {
        std::thread::sleep(CHECK_INTERVAL);
    }
}
