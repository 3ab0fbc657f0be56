use super::harness::{DEAD_AFTER, Drill, QUASI_CLOSE_AFTER, REPAIRED_WITHIN, Setup, Shown, stood_still};
use super::stuck_pipelines::leads;
use crate::drills::assert_all_there;
use crate::small_disk::SmallDisk;
use proto::scm::{NodeState, PipelineState};
use std::time::Instant;

const DISK_BYTES: u64 = 1 << 30;
/// The datanode that is lost, or whose disk is full.
const LOST: usize = 0;
/// A datanode that is killed while the one is lost, given up, too, and started again.
const AGAIN: usize = 1;

/// One of three datanodes is lost for good: the other two take writes for as long as it takes, also after one
/// of them was away so long that all pipelines closed. With an empty one in its place everything has three
/// good replicas.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup { datanodes: 3, ..Setup::default() }).await;
    let writers = drill.load().await;
    let lost = drill.node_at(LOST).await;
    drill.cluster.datanodes[LOST].kill9();
    let killed = Instant::now();
    let is_dead = async || match drill.state_of(lost).await {
        NodeState::NodeDead => Ok(()),
        state => Err(format!("it is {state:?}")),
    };
    drill.until("a dead node", DEAD_AFTER + REPAIRED_WITHIN, is_dead).await;
    writers.progress(20).await;
    let still = stood_still(&writers, killed);
    let on_two = writers.stop().await;
    assert_eq!(on_two.errors, Vec::<String>::new(), "two members are enough");
    let said = async || drill.whole_or_in_trouble().await;
    drill.until("a word of what has two copies", REPAIRED_WITHIN, said).await;

    // Nothing can be written now, and what can end ends.
    let again = drill.node_at(AGAIN).await;
    drill.cluster.datanodes[AGAIN].kill9();
    let is_dead = async || match drill.state_of(again).await {
        NodeState::NodeDead => Ok(()),
        state => Err(format!("it is {state:?}")),
    };
    drill.until("a second dead node", DEAD_AFTER + REPAIRED_WITHIN, is_dead).await;
    let none_open = async || match drill.in_state(PipelineState::PipelineOpen).await.len() {
        0 => Ok(()),
        open => Err(format!("{open} are open")),
    };
    drill.until("no open pipeline", REPAIRED_WITHIN, none_open).await;
    tokio::time::sleep(2 * QUASI_CLOSE_AFTER).await;
    drill.cluster.datanodes[AGAIN].start_again();
    drill.until("two nodes", REPAIRED_WITHIN, async || drill.healthy(2).await).await;
    let takes = async || drill.s3.put("again", vec![7; 5000]).await;
    drill.until("writes", REPAIRED_WITHIN, takes).await;
    // A pipeline that closes may have taken that still.
    let with_it = async || {
        let open = drill.in_state(PipelineState::PipelineOpen).await;
        let with_it = open.iter().filter(|open| open.members.iter().any(|member| member.node == lost));
        match (with_it.count(), open.len()) {
            (with_it, open) if with_it == open && open > 0 => Ok(()),
            (with_it, open) => Err(format!("it is a member of {with_it} of {open}")),
        }
    };
    drill.until("pipelines of which the dead one is the third", REPAIRED_WITHIN, with_it).await;
    let writers = drill.writers(on_two.next);
    writers.progress(20).await;

    drill.cluster.add_datanode();
    let added = Instant::now();
    let without = async || drill.replaced_without(lost, None).await;
    drill.until("pipelines of three", REPAIRED_WITHIN, without).await;
    let repaired = async || drill.repaired_without(lost).await;
    drill.until("three good replicas elsewhere", REPAIRED_WITHIN, repaired).await;
    let repaired = added.elapsed();
    writers.progress(20).await;
    let more = writers.stop().await;
    assert_eq!(more.errors, Vec::<String>::new());
    let acknowledged = [on_two.acknowledged, more.acknowledged].concat();
    assert_all_there(&drill.s3, &acknowledged).await;
    Shown {
        objects: acknowledged.len(),
        figures: vec![("stood_still_s", still), ("repaired_s", repaired.as_secs_f64())],
    }
}

/// The disk of one of three datanodes runs full, for good, and it leads: others lead what it led, and two
/// members take writes.
pub(super) async fn and_full() -> Option<Shown> {
    let disk = SmallDisk::mount(DISK_BYTES)?;
    let drill = Drill::start(Setup {
        datanodes: 3,
        first_disk: Some(disk.root().join("disk1")),
        datanode_args: "--reserve-bytes 33554432",
        ..Setup::default()
    })
    .await;
    let full = drill.node_at(LOST).await;
    let writers = drill.load().await;
    let loaded = writers.stop().await;
    let open = drill.in_state(PipelineState::PipelineOpen).await;
    drill.until("one that leads them all", REPAIRED_WITHIN, async || leads(&drill, full, &open)).await;
    disk.fill_but(0);
    let filled = Instant::now();
    let takes = async || drill.s3.put("first", vec![7; 5000]).await;
    let first = drill.until("writes", REPAIRED_WITHIN, takes).await;
    let writers = drill.writers(loaded.next);
    writers.progress(20).await;
    let others_lead = async || {
        let open = drill.in_state(PipelineState::PipelineOpen).await;
        let of_full = open.iter().filter(|open| open.leader_node == full || open.leader_node == 0).count();
        match (open.len(), of_full) {
            (1.., 0) => Ok(()),
            (open, _) => Err(format!("{of_full} of {open} are led by it, or by nobody")),
        }
    };
    drill.until("other leaders", REPAIRED_WITHIN, others_lead).await;
    writers.progress(20).await;
    let led_elsewhere = filled.elapsed();
    let on_two = writers.stop().await;
    assert_eq!(on_two.errors, Vec::<String>::new(), "two members are enough");
    disk.make_room();
    let writers = drill.writers(on_two.next);
    writers.progress(20).await;
    let more = drill.settle(writers).await;
    let acknowledged = [loaded.acknowledged, on_two.acknowledged].concat();
    assert_all_there(&drill.s3, &acknowledged).await;
    drop(drill);
    Some(Shown {
        objects: acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("first_write_s", first.as_secs_f64()),
            ("led_elsewhere_s", led_elsewhere.as_secs_f64()),
        ],
    })
}
