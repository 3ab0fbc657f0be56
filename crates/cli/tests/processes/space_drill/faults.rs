//! Harm to whoever has a part in deletions: each is killed, leaders most often, and comes back; all are
//! killed at once; a disk fills, and is emptied again.

use crate::commands::admin_once;
use crate::small_disk::SmallDisk;
use rand::rngs::SmallRng;
use rand::seq::SliceRandom;
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

/// The kinds of harm, and how often each comes in a round: the gateway most often, as it is in the middle of
/// some PUT each time.
const KINDS: [(&str, usize); 11] = [
    ("all-killed", 1),
    ("full-disk", 1),
    ("power-cut", 2),
    ("gateway", 8),
    ("om", 2),
    ("om-leader", 3),
    ("scm", 1),
    ("scm-leader", 2),
    ("pipeline-leader", 3),
    ("datanode", 3),
    ("datanode-away", 2),
];

/// The kinds that are done to a file system of its own.
const NEED_A_DISK: [&str; 2] = ["full-disk", "power-cut"];

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
    let (mut harm, mut to_come) = (Harm::new(), Vec::new());
    while !over.load(Ordering::Relaxed) {
        if to_come.is_empty() {
            to_come = round(store.first_disk.is_some(), &mut random);
        }
        let done = match to_come.pop().expect("a round has some") {
            "all-killed" => kill_all(&mut store.cluster),
            "full-disk" => fill(over, store.first_disk.as_ref().expect("it is in no round without")),
            "power-cut" => {
                let Some(done) = cut_power(over, &mut store, &mut random) else { continue };
                done
            }
            kind => kill(over, &mut store.cluster, kind, &mut random),
        };
        *harm.entry(done).or_default() += 1;
        rest(over, Duration::from_millis(random.random_range(200..2_000)));
    }
    (store, harm)
}

/// Each kind of harm as often as it is to come, in some order.
fn round(has_small_disk: bool, random: &mut SmallRng) -> Vec<&'static str> {
    let kinds = KINDS.into_iter().filter(|(kind, _)| has_small_disk || !NEED_A_DISK.contains(kind));
    let mut round: Vec<_> = kinds.flat_map(|(kind, times)| std::iter::repeat_n(kind, times)).collect();
    round.shuffle(random);
    round
}

/// The kinds of which there was none; not every machine allows what is done to a disk.
pub(super) fn missed(harm: &Harm) -> Vec<&'static str> {
    let kinds = KINDS.into_iter().map(|(kind, _)| kind);
    kinds.filter(|kind| !NEED_A_DISK.contains(kind) && !harm.contains_key(kind)).collect()
}

fn kill_all(cluster: &mut Cluster) -> &'static str {
    cluster.kill9_all();
    cluster.start_all_again();
    "all-killed"
}

fn fill(over: &AtomicBool, disk: &SmallDisk) -> &'static str {
    disk.fill_but(LEFT_BYTES);
    rest(over, FULL_FOR);
    disk.make_room();
    "full-disk"
}

/// The first datanode's machine loses power: what was not synced is lost, acknowledged deletions are not.
fn cut_power(over: &AtomicBool, store: &mut Store, random: &mut SmallRng) -> Option<&'static str> {
    let dark = store.first_disk.as_ref().expect("it is in no round without").cut_power()?;
    let first = &mut store.cluster.datanodes[0];
    first.kill9();
    rest(over, Duration::from_millis(random.random_range(0..800)));
    dark.power_on();
    first.start_again();
    Some("power-cut")
}

fn kill(over: &AtomicBool, cluster: &mut Cluster, kind: &'static str, random: &mut SmallRng) -> &'static str {
    let away = match kind {
        "gateway" => Duration::ZERO,
        "datanode-away" => AWAY,
        _ => Duration::from_millis(random.random_range(0..800)),
    };
    let (done, process) = victim(cluster, kind, random);
    process.kill9();
    rest(over, away);
    process.start_again();
    done
}

/// The process that this kind of harm hits: where nobody says who leads, any of those that may, and another
/// kind.
fn victim<'a>(
    cluster: &'a mut Cluster,
    kind: &'static str,
    random: &mut SmallRng,
) -> (&'static str, &'a mut Process) {
    let leader = match kind {
        "om-leader" => om_leader(cluster, random),
        "scm-leader" => scm_leader(cluster),
        "pipeline-leader" => pipeline_leader(cluster, random),
        _ => None,
    };
    let (any, all) = match kind {
        "gateway" => return (kind, &mut cluster.gateway),
        "om" | "om-leader" => ("om", &mut cluster.oms),
        "scm" | "scm-leader" => ("scm", &mut cluster.scms),
        "datanode" | "pipeline-leader" => ("datanode", &mut cluster.datanodes),
        "datanode-away" => (kind, &mut cluster.datanodes),
        _ => unreachable!("{kind} kills nobody"),
    };
    match leader {
        Some(at) => (kind, &mut all[at]),
        None => {
            let at = random.random_range(0..all.len());
            (any, &mut all[at])
        }
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
