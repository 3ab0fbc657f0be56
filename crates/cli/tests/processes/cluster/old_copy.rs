use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use super::lost_majority::all_have_everything;
use crate::commands::admin_once;
use crate::drills::{assert_all_come_back, assert_all_there, assert_none_wrong, put_again};
use proto::scm::{ContainerInfo, ContainerState, ContainerTrouble, Pipeline, PipelineState};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// The size of containers of which none closes before the members disagree.
const ONE_CONTAINER: u64 = 512 << 20;
/// The size of containers of which some are begun and closed in the history that is lost, so that the others
/// have never heard of them.
const MANY_CONTAINERS: u64 = 4 << 20;
/// The datanodes by what becomes of them: this one has everything that is acknowledged, ...
const KEEPER: usize = 0;
/// ... this one comes back with an old copy of its disk, ...
const OLD: usize = 1;
/// ... and this one is down while the first two take writes.
const AWAY: usize = 2;
/// The time for which the keeper's containers are watched: several rounds of SCM, in each of which it could
/// have a replica deleted.
const WATCHED: Duration = Duration::from_secs(10);

/// The time within which a member's disk has what it knows to be committed, and some.
const KNOWN_WITHIN: Duration = Duration::from_secs(3);

/// What becomes of the two histories.
struct Story {
    container_bytes_max: u64,
    /// Whether the keeper's ends with the entry with which a leader begins its term.
    ends_with_a_leader: bool,
    /// The objects of the other one.
    others: usize,
}

pub(super) async fn in_one_container() -> Shown {
    let story = Story { container_bytes_max: ONE_CONTAINER, ends_with_a_leader: false, others: 40 };
    run(story, async |_| {}).await
}

/// The others begin a term of the same number, and have the last container with nothing of the term before.
pub(super) async fn that_ended_with_a_leader() -> Shown {
    let story = Story { container_bytes_max: MANY_CONTAINERS, ends_with_a_leader: true, others: 240 };
    run(story, async |drill| {
        let last = drill.s3.get("last").await.unwrap();
        assert_eq!(last.as_deref(), Some(&b"last"[..]), "it was acknowledged, and its node knew that");
    })
    .await
}

/// SCM finds that the others have nothing of a container that was begun in the lost history, and settles that
/// it is deleted.
pub(super) async fn in_many_containers() -> Shown {
    let is_left =
        |info: &ContainerInfo| info.troubles.contains(&(ContainerTrouble::ContainerDiverged as i32));
    let story = Story { container_bytes_max: MANY_CONTAINERS, ends_with_a_leader: false, others: 40 };
    run(story, async |drill| {
        let settled =
            async || match drill.containers(ContainerState::ContainerDeleted).await.iter().any(is_left) {
                true => Ok(()),
                false => Err("each container was known to two members".to_owned()),
            };
        drill.until("a deleted container of which one replica is left", REPAIRED_WITHIN, settled).await;
    })
    .await
}

/// Two members acknowledge what the third one never hears of; one of the two is put back to before that, and
/// leads on with the third, without the one that has everything. What only that one has is told of, is never
/// deleted, and is read, as far as it knew it to be committed.
async fn run(story: Story, is_settled: impl AsyncFn(&Drill)) -> Shown {
    let mut drill = Drill::start(Setup {
        datanodes: 3,
        // Both histories are written to the same one.
        pipelines_per_disk: 1,
        container_bytes_max: story.container_bytes_max,
        dead_after: Duration::from_secs(600),
        quasi_close_after: Duration::from_secs(4),
        ..Setup::default()
    })
    .await;
    let writers = drill.writers(0);
    writers.progress(20).await;
    let before = writers.stop().await;
    let same = async || all_have_everything(&drill).await;
    drill.until("members that have everything", REPAIRED_WITHIN, same).await;

    let disk = drill.cluster.disk(OLD, 0);
    let copy = disk.with_extension("copy");
    drill.cluster.datanodes[OLD].kill9();
    copy_all(&disk, &copy);
    drill.cluster.datanodes[OLD].start_again();
    drill.until("all nodes", REPAIRED_WITHIN, async || drill.healthy(3).await).await;
    drill.cluster.datanodes[AWAY].kill9();
    let writers = drill.writers(before.next);
    // Containers are begun that a history which is a third as long does not come to.
    writers.progress(120).await;
    let kept = writers.stop().await;
    // The container that is open has something, also where one was full just now.
    drill.s3.put("last", b"last".to_vec()).await.unwrap();
    if story.ends_with_a_leader {
        lead_anew(&drill).await;
    }
    // What a member knows to be committed is on its disk some time after: of a container that was begun a
    // moment ago it knows nothing, and passes for one that nobody acknowledged.
    tokio::time::sleep(KNOWN_WITHIN).await;

    drill.cluster.datanodes[OLD].kill9();
    drill.cluster.datanodes[KEEPER].kill9();
    std::fs::remove_dir_all(&disk).unwrap();
    std::fs::rename(&copy, &disk).unwrap();
    drill.cluster.datanodes[OLD].start_again();
    drill.cluster.datanodes[AWAY].start_again();
    let writers = drill.writers(kept.next);
    writers.progress(story.others).await;
    let after = writers.stop().await;

    drill.cluster.datanodes[KEEPER].start_again();
    let back = Instant::now();
    let is_told = async || match drill.status().await.diverged {
        0 => Err("no container is called diverged".to_owned()),
        _ => Ok(()),
    };
    drill.until("a light", REPAIRED_WITHIN, is_told).await;
    let told = back.elapsed();
    assert_all_come_back(&drill.s3, &[before.acknowledged.clone(), after.acknowledged.clone()].concat())
        .await;
    tokio::time::sleep(WATCHED).await;
    let refused_at_first = assert_none_wrong(&drill.s3, &kept.acknowledged).await;
    is_settled(&drill).await;
    assert!(drill.status().await.diverged > 0, "the replica that has more is gone");
    assert_all_there(&drill.s3, &before.acknowledged).await;
    assert_all_there(&drill.s3, &after.acknowledged).await;
    let (count, refused) = (kept.acknowledged.len(), assert_none_wrong(&drill.s3, &kept.acknowledged).await);
    // What was acknowledged last that node does not know to be committed, of each pipeline.
    assert!(refused * 10 < count, "{refused} of {count} are not read where they are");
    assert!(refused <= refused_at_first, "{refused} are not read, and {refused_at_first} were not at first");
    // Somebody copies the objects anew, and then gives up whatever is in doubt. Where a container was closed
    // in the history that was lost, that is what the other two have.
    put_again(&drill.s3, &[before.acknowledged.clone(), after.acknowledged.clone()].concat()).await;
    let is_dropped = async || {
        // Both histories may have closed a container at one and the same entry: then it is no more than
        // different.
        let in_doubt = [ContainerTrouble::ContainerDiverged, ContainerTrouble::ContainerDifferent];
        let is_in_doubt = |info: &&ContainerInfo| info.troubles().any(|trouble| in_doubt.contains(&trouble));
        let containers = drill.containers(ContainerState::Unspecified).await;
        let mut refused = Vec::new();
        for info in containers.iter().filter(is_in_doubt) {
            let container = info.container.to_string();
            for node in info.replicas.iter().filter_map(|replica| replica.node.as_ref()) {
                let node = node.node.to_string();
                let command = ["container", "drop", &container, "--node", &node, "--accept-loss"];
                refused.extend(admin_once(&drill.cluster.scm_address, &command).err());
            }
        }
        let status = drill.status().await;
        match status.diverged + status.different {
            0 => Ok(()),
            left => Err(format!("{left} containers are in doubt still; refused: {refused:?}")),
        }
    };
    drill.until("no light", REPAIRED_WITHIN, is_dropped).await;
    drill.until("three good replicas of everything", REPAIRED_WITHIN, async || drill.whole().await).await;
    assert_all_there(&drill.s3, &[before.acknowledged.clone(), after.acknowledged.clone()].concat()).await;
    Shown {
        objects: before.acknowledged.len() + count + after.acknowledged.len(),
        figures: vec![
            ("told_s", told.as_secs_f64()),
            ("kept_objects", count as f64),
            ("refused_objects", refused as f64),
        ],
    }
}

/// Has the other of the two lead that are there, once: the others come to a term of the same number.
async fn lead_anew(drill: &Drill) {
    for before in drill.in_state(PipelineState::PipelineOpen).await {
        let number = before.pipeline.to_string();
        let asked = async || {
            let command = ["pipeline", "step-down", &number];
            admin_once(&drill.cluster.scm_address, &command).map(drop)
        };
        drill.until("a leader that steps down", REPAIRED_WITHIN, asked).await;
        let led = async || {
            let now = drill.in_state(PipelineState::PipelineOpen).await;
            let is_led = |now: &Pipeline| now.leader_node != 0 && now.leader_node != before.leader_node;
            match now.iter().any(|now| now.pipeline == before.pipeline && is_led(now)) {
                true => Ok(()),
                false => Err(format!("{now:?}")),
            }
        };
        drill.until("another leader", REPAIRED_WITHIN, led).await;
    }
}

fn copy_all(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").args([from, to]).status().unwrap();
    assert!(copied.success(), "copy {}", from.display());
}
