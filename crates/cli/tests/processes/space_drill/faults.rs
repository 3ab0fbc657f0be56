//! Harm to whoever has a part in deletions: each is killed, leaders most often, and comes back; all lose
//! power at once; a disk fills, and is emptied again.

use crate::commands::admin_once;
use crate::small_disk::SmallDisk;
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use testkit::{Cluster, Process};

/// A datanode that is away for so long finds, when it is back, that others have deleted meanwhile.
const AWAY: Duration = Duration::from_secs(8);
const FULL_FOR: Duration = Duration::from_secs(4);
const LEFT_BYTES: u64 = 256 << 10;
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// The number of times that each kind of harm was done.
pub(super) type Harm = BTreeMap<&'static str, u64>;

/// A cluster, and the file system of its first disk where that has one of its own.
pub(super) struct Store {
    pub(super) cluster: Cluster,
    // Behind its processes, which use it.
    pub(super) first_disk: Option<SmallDisk>,
}

/// Does harm until it is told to stop.
pub(super) struct Faults {
    over: Arc<AtomicBool>,
    thread: JoinHandle<(Store, Harm)>,
}

impl Faults {
    pub(super) fn start(store: Store, seed: u64) -> Faults {
        let over = Arc::<AtomicBool>::default();
        let until = over.clone();
        let thread = std::thread::spawn(move || harm_until(&until, store, seed));
        Faults { over, thread }
    }

    /// The cluster, of which all run.
    pub(super) async fn stop(self) -> (Store, Harm) {
        self.over.store(true, Ordering::Relaxed);
        tokio::task::spawn_blocking(|| self.thread.join().expect("it does not panic"))
            .await
            .expect("nor this")
    }
}

fn harm_until(over: &AtomicBool, mut store: Store, seed: u64) -> (Store, Harm) {
    let mut random = SmallRng::seed_from_u64(seed);
    let mut harm = Harm::new();
    while !over.load(Ordering::Relaxed) {
        let done = match random.random_range(0..26) {
            0 => lose_power(&mut store.cluster),
            1 => fill(over, &store),
            drawn => kill(over, &mut store.cluster, drawn, &mut random),
        };
        *harm.entry(done).or_default() += 1;
        rest(over, Duration::from_millis(random.random_range(200..2_000)));
    }
    (store, harm)
}

fn lose_power(cluster: &mut Cluster) -> &'static str {
    cluster.kill9_all();
    cluster.start_all_again();
    "power"
}

fn fill(over: &AtomicBool, store: &Store) -> &'static str {
    let Some(disk) = &store.first_disk else { return "none" };
    disk.fill_but(LEFT_BYTES);
    rest(over, FULL_FOR);
    disk.make_room();
    "full-disk"
}

fn kill(over: &AtomicBool, cluster: &mut Cluster, drawn: u32, random: &mut SmallRng) -> &'static str {
    let away = Duration::from_millis(random.random_range(0..800));
    let (name, process, away) = victim(cluster, drawn, away, random);
    process.kill9();
    rest(over, away);
    process.start_again();
    name
}

/// The gateway most often: it is in the middle of some PUT each time.
fn victim<'a>(
    cluster: &'a mut Cluster,
    drawn: u32,
    away: Duration,
    random: &mut SmallRng,
) -> (&'static str, &'a mut Process, Duration) {
    let [oms, scms, datanodes] = [cluster.oms.len(), cluster.scms.len(), cluster.datanodes.len()];
    match drawn {
        2..10 => ("gateway", &mut cluster.gateway, Duration::ZERO),
        10..12 => ("om", &mut cluster.oms[random.random_range(0..oms)], away),
        12..15 => match om_leader(cluster, random) {
            Some(at) => ("om-leader", &mut cluster.oms[at], away),
            None => ("om", &mut cluster.oms[random.random_range(0..oms)], away),
        },
        15 => ("scm", &mut cluster.scms[random.random_range(0..scms)], away),
        16..18 => match scm_leader(cluster) {
            Some(at) => ("scm-leader", &mut cluster.scms[at], away),
            None => ("scm", &mut cluster.scms[random.random_range(0..scms)], away),
        },
        18..21 => match pipeline_leader(cluster, random) {
            Some(at) => ("pipeline-leader", &mut cluster.datanodes[at], away),
            None => ("datanode", &mut cluster.datanodes[random.random_range(0..datanodes)], away),
        },
        21..24 => ("datanode", &mut cluster.datanodes[random.random_range(0..datanodes)], away),
        _ => ("datanode-away", &mut cluster.datanodes[random.random_range(0..datanodes)], AWAY),
    }
}

/// The place of the OM that leads one of the groups of names; `None`: nobody says so.
fn om_leader(cluster: &Cluster, random: &mut SmallRng) -> Option<usize> {
    let groups = admin_once(&cluster.scm_address, &["om", "groups"]).ok()?;
    let replicas = &some(&groups, random)?["replicas"];
    at(&cluster.om_addresses, leader(replicas)?)
}

fn scm_leader(cluster: &Cluster) -> Option<usize> {
    let roles = admin_once(&cluster.scm_address, &["scm", "roles"]).ok()?;
    at(&cluster.scm_addresses, leader(&roles["members"])?)
}

fn pipeline_leader(cluster: &Cluster, random: &mut SmallRng) -> Option<usize> {
    let pipelines = admin_once(&cluster.scm_address, &["pipeline", "list"]).ok()?;
    let pipeline = some(&pipelines, random)?;
    let members = pipeline["members"].as_array()?;
    let leads = members.iter().find(|member| member["node"] == pipeline["leader_node"])?;
    at(&cluster.datanode_addresses, &leads["address"])
}

fn some<'a>(list: &'a Value, random: &mut SmallRng) -> Option<&'a Value> {
    let list = list.as_array().filter(|list| !list.is_empty())?;
    list.get(random.random_range(0..list.len()))
}

/// The address of the one that leads.
fn leader(replicas: &Value) -> Option<&Value> {
    replicas.as_array()?.iter().find(|replica| replica["role"] == "leader").map(|replica| &replica["address"])
}

fn at(addresses: &[String], address: &Value) -> Option<usize> {
    addresses.iter().position(|of| address == of.as_str())
}

fn rest(over: &AtomicBool, long: Duration) {
    let until = Instant::now() + long;
    while Instant::now() < until && !over.load(Ordering::Relaxed) {
        std::thread::sleep(CHECK_INTERVAL);
    }
}
