//! A cluster of real processes loses a node for good, repairs itself, and lets another one go.

use crate::binary;
use crate::drills::{Writers, assert_all_there};
use crate::s3::S3;
use proto::scm::scm_client::ScmClient;
use proto::scm::*;
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY};
use tonic::transport::Channel;

/// Silence after which SCM gives a node up in this drill.
const DEAD_AFTER: Duration = Duration::from_secs(10);
/// From the death of a node to three good replicas of everything: far more than it takes, on a machine that does other things too.
const REPAIRED_WITHIN: Duration = Duration::from_secs(180);
/// Small, so that a few hundred objects close many containers.
const CONTAINER_BYTES_MAX: u64 = 8 << 20;
const DATANODES: usize = 5;

/// What a run has shown.
#[derive(Default)]
struct Shown {
    objects: usize,
    containers: usize,
    /// From the kill.
    replaced: Duration,
    repaired: Duration,
    /// From the operator's word.
    decommissioned: Duration,
}

struct Drill {
    cluster: Cluster,
    scm: ScmClient<Channel>,
    s3: S3,
}

impl Drill {
    async fn start() -> Drill {
        let options = ClusterOptions {
            disks_per_datanode: 1,
            pipelines_per_disk: 2,
            container_bytes_max: CONTAINER_BYTES_MAX,
            datanodes: DATANODES,
            scm_args: format!(
                "--stale-after 3s --dead-after {}s --member-fault-grace 60s",
                DEAD_AFTER.as_secs()
            ),
        };
        let cluster = Cluster::start(binary(), &options);
        let scm = ScmClient::connect(format!("http://{}", cluster.scm_address)).await.unwrap();
        let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "drill");
        s3.create_bucket().await.unwrap();
        Drill { cluster, scm, s3 }
    }

    async fn pipelines(&self) -> Vec<Pipeline> {
        let listed = self.scm.clone().list_pipelines(ListPipelinesRequest {}).await;
        listed.unwrap().into_inner().pipelines
    }

    async fn datanodes(&self) -> Vec<DatanodeInfo> {
        let listed = self.scm.clone().list_datanodes(ListDatanodesRequest {}).await;
        listed.unwrap().into_inner().datanodes
    }

    async fn containers(&self, state: ContainerState) -> Vec<ContainerInfo> {
        let request = ListContainersRequest { state: state as i32, ..ListContainersRequest::default() };
        self.scm.clone().list_containers(request).await.unwrap().into_inner().containers
    }

    async fn status(&self) -> ClusterStatus {
        self.scm.clone().get_cluster_status(GetClusterStatusRequest {}).await.unwrap().into_inner()
    }

    /// The number SCM gave to the datanode at this place of the cluster's list.
    async fn node_at(&self, at: usize) -> u64 {
        let port = self.cluster.datanode_addresses[at].clone();
        let datanodes = self.datanodes().await;
        datanodes.iter().find(|datanode| datanode.address == port).expect("it has registered").node
    }

    /// Waits for a condition, which says what is missing while it does not hold.
    async fn until(
        &self,
        what: &str,
        within: Duration,
        holds: impl AsyncFn() -> Result<(), String>,
    ) -> Duration {
        let started = Instant::now();
        while let Err(missing) = holds().await {
            assert!(started.elapsed() < within, "no {what} within {within:?}: {missing}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        started.elapsed()
    }

    /// No pipeline that takes data has a member there, and there are some.
    async fn replaced_without(&self, node: u64) -> Result<(), String> {
        let pipelines = self.pipelines().await;
        let open: Vec<&Pipeline> =
            pipelines.iter().filter(|pipeline| pipeline.state() == PipelineState::PipelineOpen).collect();
        let live = |pipeline: &&Pipeline| {
            matches!(pipeline.state(), PipelineState::PipelineAllocated | PipelineState::PipelineOpen)
        };
        let with = pipelines.iter().filter(live).filter(|pipeline| is_member(pipeline, node)).count();
        match with == 0 && open.len() >= 2 {
            true => Ok(()),
            false => Err(format!("{with} pipelines have node {node}, {} are open", open.len())),
        }
    }

    /// The pipelines with a member there are over, and each closed container has three good replicas on nodes in service.
    async fn repaired_without(&self, node: u64) -> Result<(), String> {
        let unended = self.pipelines().await.into_iter().filter(|pipeline| {
            is_member(pipeline, node) && pipeline.state() != PipelineState::PipelineClosed
        });
        let unended: Vec<u64> = unended.map(|pipeline| pipeline.pipeline).collect();
        if !unended.is_empty() {
            return Err(format!("pipelines {unended:?} are not over"));
        }
        let quasi_closed = self.containers(ContainerState::ContainerQuasiClosed).await.len();
        let closed = self.containers(ContainerState::ContainerClosed).await;
        let lacking: Vec<_> = closed
            .iter()
            .map(|container| (container.container, good_besides(container, node)))
            .filter(|(_, good)| *good != 3)
            .collect();
        if quasi_closed == 0 && lacking.is_empty() && !closed.is_empty() {
            return Ok(());
        }
        let status = self.status().await;
        Err(format!(
            "{quasi_closed} containers are quasi-closed, (container, good replicas): {lacking:?}; {} copies under way, {} failed, tasks {:?}",
            status.copies_under_way, status.copies_failed, status.tasks
        ))
    }
}

fn is_member(pipeline: &Pipeline, node: u64) -> bool {
    pipeline.members.iter().any(|member| member.node == node)
}

/// Closed replicas on healthy nodes in service, `node` apart, that end alike.
fn good_besides(container: &ContainerInfo, node: u64) -> usize {
    let there = container.replicas.iter().filter(|info| {
        let on = info.node.as_ref().map_or(0, |on| on.node);
        on != node && info.node_state() == NodeState::NodeHealthy && info.duty() == NodeDuty::NodeInService
    });
    let ends: Vec<_> = there
        .filter_map(|info| info.replica.as_ref())
        .filter(|replica| replica.state() == ReplicaState::ReplicaClosed && replica.unhealthy.is_empty())
        .map(|replica| (replica.last_term, replica.last_index, replica.blocks))
        .collect();
    ends.iter().filter(|end| ends.first() == Some(end)).count()
}

async fn run() -> Shown {
    let mut shown = Shown::default();
    let mut drill = Drill::start().await;
    let writers = Writers::start(&drill.s3, 0);
    writers.progress(150).await;
    drill
        .until("closed containers", REPAIRED_WITHIN, async || {
            match drill.containers(ContainerState::ContainerClosed).await.len() {
                0..4 => Err("less than four".to_owned()),
                _ => Ok(()),
            }
        })
        .await;

    // One node is lost for good, in the middle of writes.
    let lost = drill.node_at(1).await;
    drill.cluster.datanodes[1].kill9();
    let killed = Instant::now();
    drill.until("replaced pipelines", REPAIRED_WITHIN, async || drill.replaced_without(lost).await).await;
    shown.replaced = killed.elapsed();
    writers.progress(60).await;
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new(), "writers notice nothing");
    drill.until("repair", REPAIRED_WITHIN, async || drill.repaired_without(lost).await).await;
    shown.repaired = killed.elapsed();
    assert_all_there(&drill.s3, &written.acknowledged).await;

    // An operator takes another one out.
    let leaving = drill.node_at(3).await;
    let duty = NodeDuty::NodeDecommissioning as i32;
    let request = SetNodeDutyRequest { node: leaving, duty, ..SetNodeDutyRequest::default() };
    drill.scm.clone().set_node_duty(request).await.unwrap();
    let emptied = async || {
        let datanodes = drill.datanodes().await;
        let info = datanodes.iter().find(|info| info.node == leaving).expect("it stays listed");
        match info.duty() {
            NodeDuty::NodeDecommissioned => Ok(()),
            _ => Err(format!(
                "{} pipelines and {} containers wait",
                info.pipelines_waiting, info.containers_waiting
            )),
        }
    };
    shown.decommissioned = drill.until("decommissioned node", REPAIRED_WITHIN, emptied).await;
    drill
        .repaired_without(leaving)
        .await
        .expect("a node that is decommissioned holds nothing that others lack");
    drill.cluster.datanodes[3].terminate();
    assert_all_there(&drill.s3, &written.acknowledged).await;
    let status = drill.status().await;
    assert_eq!((status.missing, status.under_replicated), (0, 0), "{status:?}");
    shown.objects = written.acknowledged.len();
    shown.containers = drill.containers(ContainerState::ContainerClosed).await.len();
    shown
}

/// `./dev drill cluster`: as often as `FLOTILLA_DRILL_REPEAT` says, with one line of JSON at the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a minute of eight processes: ./dev drill cluster"]
async fn drill() {
    let repeat: usize =
        std::env::var("FLOTILLA_DRILL_REPEAT").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let mut all = Vec::new();
    for run_number in 1..=repeat {
        let shown = run().await;
        println!(
            "run {run_number}: {} objects, {} closed containers, pipelines replaced after {:?}, repaired after {:?}, decommissioned in {:?}",
            shown.objects, shown.containers, shown.replaced, shown.repaired, shown.decommissioned
        );
        all.push(shown);
    }
    let longest = |of: fn(&Shown) -> Duration| all.iter().map(of).max().unwrap_or_default().as_secs_f64();
    println!(
        "{}",
        serde_json::json!({
            "drill": "cluster",
            "runs": all.len(),
            "acknowledged_objects": all.iter().map(|shown| shown.objects).sum::<usize>(),
            "closed_containers": all.iter().map(|shown| shown.containers).sum::<usize>(),
            "dead_after_s": DEAD_AFTER.as_secs(),
            "replaced_s_max": longest(|shown| shown.replaced),
            "repaired_s_max": longest(|shown| shown.repaired),
            "decommissioned_s_max": longest(|shown| shown.decommissioned),
        })
    );
}
