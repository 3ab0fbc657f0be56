use super::flaky_disk::FlakyDisk;
use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use super::lost_majority::all_have_everything;
use crate::drills::assert_all_there;
use crate::s3::S3;
use proto::scm::DiskState;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;

/// The size of the flaky disk: segments of two pipelines, and what they recycle.
const DISK_BYTES: u64 = 768 << 20;
/// The size of an object that is smaller than 64 KiB, so that it goes through the page cache, which shows
/// what never reached the disk.
const SMALL_BYTES: usize = 3000;
const AT_A_TIME: u64 = 8;
/// A disk fails with the first write that fails.
const ROUNDS_MAX: u64 = 200;
const ROUNDS_AFTERWARDS: u64 = 5;
/// The pipelines must live until their member is back.
const FAULT_GRACE: Duration = Duration::from_secs(120);

/// A write-back fails under a datanode, and with it an fsync; the process is started again, while the kernel
/// shows what the disk does not have. The member must not count that as its own: when the machine loses its
/// power too, its logs are still whole.
pub(super) async fn run() -> Option<Shown> {
    let disk = FlakyDisk::mount(DISK_BYTES)?;
    let setup = Setup {
        datanodes: 3,
        first_disk: Some(disk.root().join("disk1")),
        datanode_args: "--reserve-bytes 33554432",
        container_bytes_max: 512 << 20,
        fault_grace: FAULT_GRACE,
        ..Setup::default()
    };
    let mut drill = Drill::start(setup).await;
    let writers = drill.writers(0);
    writers.progress(30).await;
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new());
    let node = drill.node_at(0).await;
    // A member that is behind writes on meanwhile, and the device would lose what it has.
    drill
        .until("a member that has everything", REPAIRED_WITHIN, async || all_have_everything(&drill).await)
        .await;
    drill.cluster.datanodes[0].signal("-STOP");
    let armed = disk.fail_writes();
    drill.cluster.datanodes[0].signal("-CONT");
    assert!(armed > 0, "no segment has room that it did not use: this shows nothing");
    let failed_at = Instant::now();
    let mut rounds = 0;
    while !has_failed_disk(&drill, node).await {
        assert!(rounds < ROUNDS_MAX, "no write failed, of {armed} bytes");
        put_small(&drill.s3, rounds).await;
        rounds += 1;
    }
    let failed = failed_at.elapsed();
    disk.mend();
    let says = drill.cluster.datanodes[0].log();
    assert!(says.contains("failed"), "the datanode says nothing of its disk: {says}");
    drill.cluster.datanodes[0].kill9();
    start_again(&mut drill).await;
    assert_opens(&drill);
    for round in rounds..rounds + ROUNDS_AFTERWARDS {
        put_small(&drill.s3, round).await;
    }
    rounds += ROUNDS_AFTERWARDS;
    assert!(!has_failed_disk(&drill, node).await, "it fails again");

    drill.cluster.datanodes[0].kill9();
    disk.forget();
    start_again(&mut drill).await;
    assert_opens(&drill);
    for round in 0..rounds {
        check_small(&drill.s3, round).await;
    }
    let writers = drill.writers(written.next);
    writers.progress(20).await;
    let more = writers.stop().await;
    assert_eq!(more.errors, Vec::<String>::new());
    assert_all_there(&drill.s3, &written.acknowledged).await;
    assert_all_there(&drill.s3, &more.acknowledged).await;
    drop(drill);
    Some(Shown {
        objects: written.acknowledged.len() + more.acknowledged.len() + (rounds * AT_A_TIME) as usize,
        figures: vec![("armed_bytes", armed as f64), ("failed_s", failed.as_secs_f64())],
    })
}

fn assert_opens(drill: &Drill) {
    let log = drill.cluster.datanodes[0].log();
    assert!(!log.contains("cannot open a pipeline"), "a log ends before what it called durable:\n{log}");
}

/// The first datanode, until it has all that the others have.
async fn start_again(drill: &mut Drill) {
    let ready = drill.cluster.datanodes[0].start_again();
    drill.cluster.datanode_http[0] = ready["HTTP"].clone();
    drill
        .until("a member that has everything", REPAIRED_WITHIN, async || all_have_everything(drill).await)
        .await;
}

async fn has_failed_disk(drill: &Drill, node: u64) -> bool {
    let datanodes = drill.datanodes().await;
    let info = datanodes.iter().find(|info| info.node == node).expect("it has registered");
    info.disks.iter().any(|disk| disk.state() == DiskState::Failed)
}

fn small(round: u64, object: u64) -> (String, Vec<u8>) {
    let byte = (round * AT_A_TIME + object).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[0];
    (format!("small/{round}/{object}"), vec![byte; SMALL_BYTES])
}

/// Puts some objects at once, so that several entries of a log are under way.
async fn put_small(s3: &S3, round: u64) {
    let mut puts = JoinSet::new();
    for object in 0..AT_A_TIME {
        let (s3, (key, body)) = (s3.clone(), small(round, object));
        puts.spawn(async move { s3.put(&key, body).await });
    }
    for put in puts.join_all().await {
        put.expect("two members of three take it");
    }
}

async fn check_small(s3: &S3, round: u64) {
    for object in 0..AT_A_TIME {
        let (key, body) = small(round, object);
        let found = s3.get(&key).await.expect("it can be read");
        assert!(
            found.as_ref() == Some(&body),
            "{key} was acknowledged, and is {:?}",
            found.map(|it| it.len())
        );
    }
}
