use crate::campaign::Report;
use crate::cluster::{Cluster, DEADLINE, GROUPS, NODES, TIMING, client_of};
use crate::load::{Load, Written, assert_kept};
use flotilla_kvnode::{CallError, replica_id};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The words of the command on a group.
struct Said {
    status: Option<i32>,
    text: String,
}

impl Said {
    fn assert(&self, status: i32, words: &[&str]) {
        assert_eq!(self.status, Some(status), "{}", self.text);
        for word in words {
            assert!(self.text.contains(word), "`{word}` is missing in: {}", self.text);
        }
    }
}

/// The finished binary, which cargo puts beside this crate's own.
fn flotilla() -> PathBuf {
    let binary = Path::new(env!("CARGO_BIN_EXE_kvnode")).with_file_name("flotilla");
    assert!(binary.exists(), "build it first: ./dev cargo build --workspace --bin flotilla --test drills");
    binary
}

/// Runs `flotilla debug unsafe-reset-membership` on a group of a node that does not run, with all others said
/// to be lost.
fn reset(cluster: &Cluster, survivor: usize, group: u32, more: &[&str]) -> Said {
    let mut command = Command::new(flotilla());
    command.args(["debug", "unsafe-reset-membership"]).arg(cluster.data_dir(survivor).join("disk"));
    command.args(["--group", &format!("om-{group}"), "--reason", "a drill"]).args(more);
    for n in others(survivor) {
        command.args(["--lost", &replica_id(group, n as u64 + 1).to_string()]);
    }
    let output = tokio::task::block_in_place(|| command.output()).expect("run flotilla");
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    Said { status: output.status.code(), text }
}

fn others(survivor: usize) -> impl Iterator<Item = usize> {
    (0..NODES).filter(move |&n| n != survivor)
}

/// Two of three nodes are lost for good. The third serves nothing until it is made the only member by force,
/// offline; then it has everything it ever had, and takes writes. What is not lost but hangs is not taken for
/// lost.
pub(crate) async fn forced() -> Report {
    const SURVIVOR: usize = 0;
    let mut cluster = Cluster::start().await;
    let load = Load::start(&cluster, DEADLINE);
    cluster.wait_applied(SURVIVOR, 1, 200).await;
    let written = load.stop().await;
    cluster.wait_caught_up(SURVIVOR).await;

    // Two nodes that hang are not lost: their group is healthy, and goes on with them.
    cluster.stop_node(SURVIVOR).await;
    others(SURVIVOR).for_each(|n| cluster.processes[n].pause());
    reset(&cluster, SURVIVOR, 1, &["--yes"]).assert(1, &["may live", "did not answer within"]);
    others(SURVIVOR).for_each(|n| cluster.processes[n].go_on());
    cluster.start_node(SURVIVOR).await;
    cluster.wait_caught_up(SURVIVOR).await;
    assert_kept(&cluster, &written).await;

    lose_others(&mut cluster, SURVIVOR);
    let short = client_of(&cluster.addresses, 2 * TIMING.election_max);
    match short.read(1, b"anything").await {
        Err(CallError::GaveUp { .. }) => {}
        other => panic!("one of three serves: {other:?}"),
    }
    cluster.stop_node(SURVIVOR).await;
    for group in 1..=GROUPS {
        reset(&cluster, SURVIVOR, group, &[]).assert(0, &["nobody listens there", "nobody was given up"]);
        reset(&cluster, SURVIVOR, group, &["--yes"]).assert(0, &["has one member"]);
        reset(&cluster, SURVIVOR, group, &["--yes"]).assert(1, &["need no reset"]);
    }
    go_on_alone(&mut cluster, SURVIVOR).await;
    let kept = assert_kept(&cluster, &written).await;
    let acknowledged = kept + write_more(&cluster, SURVIVOR, &written).await;
    return_others(&mut cluster, SURVIVOR).await;
    assert_kept(&cluster, &written).await;
    Report { drill: "majority loss and forced recovery", failovers: Vec::new(), acknowledged }
}

/// Kills the other nodes for good, and closes the ports at which the survivor knew them: nobody listens
/// there.
fn lose_others(cluster: &mut Cluster, survivor: usize) {
    for n in others(survivor) {
        cluster.kill_node(n);
        cluster.network.take_down(n);
    }
}

async fn go_on_alone(cluster: &mut Cluster, survivor: usize) {
    cluster.start_node(survivor).await;
    for group in 1..=GROUPS {
        let (leader, _) = cluster.leader(group).await;
        assert_eq!(leader, survivor);
    }
}

async fn write_more(cluster: &Cluster, survivor: usize, before: &[Written]) -> u64 {
    let next = before.iter().map(Written::next_writer).max().unwrap_or(0);
    let load = Load::start_after(cluster, DEADLINE, next);
    let begun = cluster.group_facts_of_running(survivor, 1).await.applied;
    cluster.wait_applied(survivor, 1, begun + 50).await;
    let written = load.stop().await;
    assert_kept(cluster, &written).await
}

/// The lost come back after all, one after the other. With the first, two of the three old members are there,
/// and were a majority of them: they hear that they are dismissed, and the survivor goes on as it was.
async fn return_others(cluster: &mut Cluster, survivor: usize) {
    let mut terms = Vec::new();
    for group in 1..=GROUPS {
        terms.push(cluster.leader(group).await.1);
    }
    for n in others(survivor) {
        cluster.network.bring_up(n).await;
        cluster.start_node(n).await;
        for group in 1..=GROUPS {
            cluster.wait_removed(n, group).await;
        }
    }
    for (group, term) in (1..=GROUPS).zip(terms) {
        cluster.assert_undisturbed_on(&[survivor], group, survivor, term, 2 * TIMING.election_max).await;
        for n in others(survivor) {
            let facts = cluster.group_facts_of_running(n, group).await;
            assert!(!facts.is_leader && facts.is_removed, "node {} of group {group}: {facts:?}", n + 1);
        }
    }
}
