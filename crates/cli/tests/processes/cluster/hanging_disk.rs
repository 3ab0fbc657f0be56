use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, stood_still};
use crate::commands::flotilla;
use crate::drills::{Readers, assert_all_there};
use crate::small_disk::SmallDisk;
use proto::scm::DiskState;
use std::time::{Duration, Instant};

const DISK_BYTES: u64 = 1 << 30;
/// The time after which a disk hangs that does nothing, and what two heartbeats and a machine that stalls
/// take.
const SHOWN_WITHIN: Duration = Duration::from_secs(60);
/// The time for which its node stays like that, with everything that can be known of it known.
const STAYS: Duration = Duration::from_secs(20);
/// The p99 of reads: some ask the node that hangs first, for what is in its memory or not.
const P99_MAX: Duration = Duration::from_secs(1);

/// The disk of one of five datanodes hangs: what is written or synced there waits. SCM shows it, other
/// members lead, pipelines elsewhere take the place of those that have one there, and readers find what they
/// ask for. Once the disk goes on, so does its node, with what it has.
pub(super) async fn run() -> Option<Shown> {
    let disk = SmallDisk::mount(DISK_BYTES)?;
    let setup = Setup {
        first_disk: Some(disk.root().join("disk1")),
        datanode_args: "--reserve-bytes 33554432",
        ..Setup::default()
    };
    let drill = Drill::start(setup).await;
    let writers = drill.load().await;
    let before = writers.stop().await;
    assert_eq!(before.errors, Vec::<String>::new());
    let writers = drill.writers(before.next);
    let readers = Readers::start(&drill.s3, &before.acknowledged);
    let node = drill.node_at(0).await;
    assert_eq!(state(&drill, node).await, DiskState::Works);

    let frozen = disk.freeze()?;
    let froze = Instant::now();
    let hangs = async || match state(&drill, node).await {
        DiskState::Hangs => Ok(()),
        state => Err(format!("it is {state:?}")),
    };
    let shown = drill.until("a disk that hangs", SHOWN_WITHIN, hangs).await;
    let replaced = async || drill.replaced_without(node, None).await;
    drill.until("replaced pipelines", REPAIRED_WITHIN, replaced).await;
    let replaced = froze.elapsed();
    writers.progress(30).await;
    tokio::time::sleep(STAYS).await;
    let still = stood_still(&writers, froze);
    hangs().await.expect("nothing has changed");
    let status = flotilla(&["admin", "--scm", &drill.cluster.scm_address, "--json", "status"], None);
    let says = String::from_utf8_lossy(&status.stdout);
    assert!(says.contains("disk-hanging"), "{says}");
    let reads = readers.stop().await;
    assert_eq!(reads.errors, Vec::<String>::new(), "every read finds a replica");
    let took = reads.took(froze..Instant::now());
    let p99 = took[took.len() * 99 / 100];
    assert!(p99 <= P99_MAX, "the 99th percentile of {} reads is {p99:?}", took.len());

    drop(frozen);
    let works = async || match state(&drill, node).await {
        DiskState::Works => Ok(()),
        state => Err(format!("it is {state:?}")),
    };
    let went_on = drill.until("a disk that works", REPAIRED_WITHIN, works).await;
    let written = drill.settle(writers).await;
    assert_all_there(&drill.s3, &before.acknowledged).await;
    drop(drill);
    Some(Shown {
        objects: before.acknowledged.len() + written.acknowledged.len(),
        figures: vec![
            ("shown_s", shown.as_secs_f64()),
            ("replaced_s", replaced.as_secs_f64()),
            ("stood_still_s", still),
            ("reads", took.len() as f64),
            ("read_p99_ms", p99.as_secs_f64() * 1000.0),
            ("went_on_s", went_on.as_secs_f64()),
        ],
    })
}

async fn state(drill: &Drill, node: u64) -> DiskState {
    let datanodes = drill.datanodes().await;
    let info = datanodes.iter().find(|info| info.node == node).expect("it has registered");
    info.disks.first().expect("it has a disk").state()
}
