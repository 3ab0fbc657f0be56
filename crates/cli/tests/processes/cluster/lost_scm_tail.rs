use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown};
use super::lost_scm_leader::leader;
use crate::commands::{admin_json, flotilla};
use crate::drills::{assert_all_come_back, assert_none_wrong};
use proto::scm::{ClosePipelineRequest, ContainerState, PipelineState};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

/// Containers that the survivor knows nothing of.
const DRAWN_AFTERWARDS: usize = 3;

/// Two of three SCMs are lost for good, with the newest of what they decided: the third one was away, and is
/// made the only member by force. It gives no number out again that the others gave out, and nobody reads
/// another's bytes.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup { scms: 3, ..Setup::default() }).await;
    let writers = drill.load().await;
    let before = writers.written();
    writers.progress(20).await;
    let first = leader(&drill);
    let survivor = (first + 1) % 3;
    let replicas = replicas(&drill);
    drill.cluster.scms[survivor].kill9();
    let known = numbers(&drill).await;
    drill
        .until("containers that the survivor does not know", REPAIRED_WITHIN, async || {
            let drawn = numbers(&drill).await.len() - known.len();
            (drawn >= DRAWN_AFTERWARDS).then_some(()).ok_or(format!("{drawn} were drawn"))
        })
        .await;
    writers.progress(20).await;
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new(), "writers notice nothing");
    let drawn = numbers(&drill).await;
    let kept = directories(&drill);

    let lost: Vec<usize> = (0..3).filter(|at| *at != survivor).collect();
    for at in &lost {
        drill.cluster.scms[*at].kill9();
        std::fs::remove_dir_all(meta(&drill, *at)).unwrap();
    }
    let mut command: Vec<String> = ["debug", "unsafe-reset-membership"].map(str::to_owned).to_vec();
    command.push(meta(&drill, survivor));
    command.extend(["--group", "scm", "--reason", "a drill", "--yes"].map(str::to_owned));
    command.extend(lost.iter().flat_map(|at| ["--lost".to_owned(), replicas[*at].to_string()]));
    let reset = flotilla(&command.iter().map(String::as_str).collect::<Vec<_>>(), None);
    assert!(reset.status.success(), "{command:?}: {reset:?}");
    drill.cluster.scms[survivor].start_again();
    let started = Instant::now();
    drill.until("SCM that leads", REPAIRED_WITHIN, async || drill.scm_leads().await).await;
    for at in lost {
        drill.cluster.scms[at].start_again();
    }
    let healthy = drill.cluster.datanodes.len();
    drill.until("healthy nodes", REPAIRED_WITHIN, async || drill.healthy(healthy).await).await;
    assert_all_come_back(&drill.s3, &before.acknowledged).await;
    let refused = assert_none_wrong(&drill.s3, &written.acknowledged).await;

    // What it does not know the last container of gets no next one from it: its pipelines are closed, and
    // others take their place.
    for pipeline in drill.in_state(PipelineState::PipelineOpen).await {
        let request = ClosePipelineRequest { pipeline: pipeline.pipeline };
        drill.scm(async |mut scm| scm.close_pipeline(request).await).await;
    }
    let anew = async || {
        let open = drill.in_state(PipelineState::PipelineOpen).await;
        let new = open.iter().filter(|pipeline| !drawn.contains_key(&pipeline.first_container)).count();
        (new >= 2 && new == open.len()).then_some(()).ok_or_else(|| format!("{new} are new: {open:?}"))
    };
    drill.until("new pipelines", REPAIRED_WITHIN, anew).await;
    let writers = drill.writers(written.next);
    writers.progress(30).await;
    drill
        .until("containers of its own", REPAIRED_WITHIN, async || {
            let new = numbers(&drill).await.into_keys().filter(|number| !drawn.contains_key(number)).count();
            (new >= DRAWN_AFTERWARDS).then_some(()).ok_or(format!("{new} are new"))
        })
        .await;
    let more = writers.stop().await;
    assert_eq!(more.errors, Vec::<String>::new());
    let highest = drawn.keys().max().expect("there are some");
    for (container, pipeline) in numbers(&drill).await {
        match drawn.get(&container) {
            Some(of) => assert_eq!(*of, pipeline, "container {container} was given out a second time"),
            None => {
                assert!(container > *highest, "{container} is new, and below {highest}, which was given out")
            }
        }
    }
    assert_all_come_back(&drill.s3, &more.acknowledged).await;
    assert_all_come_back(&drill.s3, &before.acknowledged).await;
    assert_none_wrong(&drill.s3, &written.acknowledged).await;
    let gone: Vec<_> = kept.difference(&directories(&drill)).cloned().collect();
    assert!(gone.is_empty(), "SCM knows nothing of these, and had them deleted: {gone:?}");
    let works = started.elapsed();
    Shown {
        objects: written.acknowledged.len() + more.acknowledged.len(),
        figures: vec![
            ("lost_containers", (drawn.len() - known.len()) as f64),
            ("refused_objects", refused as f64),
            ("works_s", works.as_secs_f64()),
        ],
    }
}

/// The containers with segments on any disk, by node: only those of which somebody knows too much may go, and
/// nothing here is one of them.
fn directories(drill: &Drill) -> BTreeSet<(usize, String)> {
    let nodes = 0..drill.cluster.datanodes.len();
    let on =
        |node: usize| std::fs::read_dir(drill.cluster.disk(node, 0).join("containers")).into_iter().flatten();
    let named = nodes.flat_map(|node| {
        let kept = on(node).flatten().filter(|dir| {
            let files = std::fs::read_dir(dir.path()).into_iter().flatten().flatten();
            files.count() > 0
        });
        kept.map(move |dir| (node, dir.file_name().to_string_lossy().into_owned())).collect::<Vec<_>>()
    });
    named.collect()
}

/// All containers that SCM has drawn, with their pipelines.
async fn numbers(drill: &Drill) -> BTreeMap<u64, u64> {
    let containers = drill.containers(ContainerState::Unspecified).await;
    containers.iter().map(|info| (info.container, info.pipeline)).collect()
}

/// The replicas of SCM's members, in the order of the cluster's list.
fn replicas(drill: &Drill) -> Vec<u64> {
    let roles = admin_json(&drill.cluster.scm_address, &["scm", "roles"]);
    let members = roles["members"].as_array().unwrap();
    let of = |address: &String| members.iter().find(|member| member["address"] == **address).unwrap();
    drill.cluster.scm_addresses.iter().map(|address| of(address)["replica"].as_u64().unwrap()).collect()
}

fn meta(drill: &Drill, at: usize) -> String {
    drill.cluster.path().join(format!("scm{}", at + 1)).display().to_string()
}
