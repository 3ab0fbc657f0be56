//! A cluster under load from S3, and what a drill asks of it.

use crate::binary;
use crate::drills::{REST, Writers, Written, assert_all_there};
use crate::s3::S3;
use proto::Naming;
use proto::scm::scm_client::ScmClient;
use proto::scm::*;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, Detour, SECRET_KEY};
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;
use tonic::{Response, Status};

/// Silence after which SCM gives a node up in these drills.
pub(super) const DEAD_AFTER: Duration = Duration::from_secs(10);
/// Silence after which SCM relies on a node no more.
const STALE_AFTER: Duration = Duration::from_secs(3);
/// The time for which a pipeline that closes may be without a leader until its members end by themselves.
pub(super) const QUASI_CLOSE_AFTER: Duration = Duration::from_secs(10);
/// The time for which a disk or a group may be broken until SCM replaces it.
pub(super) const FAULT_GRACE: Duration = Duration::from_secs(5);
/// The time from the loss of something to three good replicas of everything: far more than it takes, on a
/// machine that does other things too.
pub(super) const REPAIRED_WITHIN: Duration = Duration::from_secs(180);
/// The time within which some member leads SCM again.
const LED_WITHIN: Duration = Duration::from_secs(60);
/// The longest time without an acknowledgement, all writers together, while something is being lost: a writer
/// leaves a silent pipeline after two seconds, and may find that the next one has lost the same node.
const STAND_STILL_MAX: Duration = Duration::from_secs(4);
const STAND_STILL_AMONG_TESTS_MAX: Duration = Duration::from_secs(60);
pub(super) const DATANODES: usize = 5;
/// Objects that every drill begins with: enough to close several containers.
const OBJECTS_FIRST: usize = 60;

/// Settings that are not as in most drills.
pub(super) struct Setup {
    pub(super) scms: usize,
    pub(super) datanodes: usize,
    pub(super) disks_per_datanode: usize,
    pub(super) pipelines_per_disk: u32,
    /// Small, so that a few hundred objects close many containers.
    pub(super) container_bytes_max: u64,
    /// The place of the first datanode's first disk, if not beside the others.
    pub(super) first_disk: Option<PathBuf>,
    /// The place of all disks of datanodes, if not in the cluster's directory.
    pub(super) disks_at: Option<PathBuf>,
    /// The ways on which others reach the first datanodes, if not where they are bound.
    pub(super) detours: Vec<Detour>,
    pub(super) datanode_args: &'static str,
    pub(super) dead_after: Duration,
    pub(super) fault_grace: Duration,
    pub(super) quasi_close_after: Duration,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            scms: 1,
            datanodes: DATANODES,
            disks_per_datanode: 1,
            pipelines_per_disk: 2,
            container_bytes_max: 8 << 20,
            first_disk: None,
            disks_at: None,
            detours: Vec::new(),
            datanode_args: "",
            dead_after: DEAD_AFTER,
            fault_grace: FAULT_GRACE,
            quasi_close_after: QUASI_CLOSE_AFTER,
        }
    }
}

type Scm = ScmClient<InterceptedService<Channel, Naming>>;

pub(super) struct Drill {
    pub(super) cluster: Cluster,
    scms: Vec<Scm>,
    naming: Naming,
    pub(super) s3: S3,
}

impl Drill {
    pub(super) async fn start(setup: Setup) -> Drill {
        let options = ClusterOptions {
            scms: setup.scms,
            oms: 1,
            disks_per_datanode: setup.disks_per_datanode,
            pipelines_per_disk: setup.pipelines_per_disk,
            container_bytes_max: setup.container_bytes_max,
            datanodes: setup.datanodes,
            first_disk: setup.first_disk,
            disks_at: setup.disks_at,
            detours: setup.detours,
            datanode_args: setup.datanode_args.to_owned(),
            om_args: String::new(),
            scm_args: format!(
                "--stale-after {}s --dead-after {}s --member-fault-grace {}s --quasi-close-after {}s",
                STALE_AFTER.as_secs(),
                setup.dead_after.as_secs(),
                setup.fault_grace.as_secs(),
                setup.quasi_close_after.as_secs()
            ),
        };
        let cluster = Cluster::start(binary(), &options);
        // Lazily: SCM may be away for a while, and is asked again.
        let naming = Naming::default();
        let connect = |address: &String| {
            let uri = format!("http://{address}").parse().unwrap();
            ScmClient::with_interceptor(Channel::builder(uri).connect_lazy(), naming.clone())
        };
        let scms = cluster.scm_addresses.iter().map(connect).collect();
        let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "drill");
        s3.create_bucket().await.unwrap();
        Drill { cluster, scms, naming, s3 }
    }

    pub(super) fn writers(&self, first: u64) -> Writers {
        let rest = if is_campaign() { Duration::ZERO } else { REST };
        Writers::paced(&self.s3, first, rest)
    }

    /// Writers that have written something, of which some containers are closed already.
    pub(super) async fn load(&self) -> Writers {
        let writers = self.writers(0);
        writers.progress(OBJECTS_FIRST).await;
        self.until("closed containers", REPAIRED_WITHIN, async || {
            match self.containers(ContainerState::ContainerClosed).await.len() {
                closed @ 0..3 => Err(format!("{closed} are closed")),
                _ => Ok(()),
            }
        })
        .await;
        writers
    }

    /// The answer of the SCM that leads, as soon as one does. It may lose the lead at any moment, so the
    /// whole call is repeated.
    pub(super) async fn scm<T>(&self, call: impl AsyncFn(Scm) -> Result<Response<T>, Status>) -> T {
        let give_up = Instant::now() + LED_WITHIN;
        loop {
            let mut refusals = Vec::new();
            for scm in &self.scms {
                let mut answer = call(scm.clone()).await;
                if answer.as_ref().is_err_and(|refusal| self.naming.learn(refusal)) {
                    answer = call(scm.clone()).await;
                }
                match answer {
                    Ok(answer) => return answer.into_inner(),
                    Err(status) => refusals.push(status.message().to_owned()),
                }
            }
            assert!(Instant::now() < give_up, "SCM refuses: {refusals:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// Whether one of the SCMs leads; an error says why the last that was asked does not.
    pub(super) async fn scm_leads(&self) -> Result<(), String> {
        let mut refusal = String::new();
        for scm in &self.scms {
            match scm.clone().get_cluster_status(GetClusterStatusRequest {}).await {
                Ok(_) => return Ok(()),
                Err(status) => refusal = status.to_string(),
            }
        }
        Err(refusal)
    }

    pub(super) async fn pipelines(&self) -> Vec<Pipeline> {
        self.scm(async |mut scm| scm.list_pipelines(ListPipelinesRequest {}).await).await.pipelines
    }

    pub(super) async fn datanodes(&self) -> Vec<DatanodeInfo> {
        self.scm(async |mut scm| scm.list_datanodes(ListDatanodesRequest {}).await).await.datanodes
    }

    pub(super) async fn containers(&self, state: ContainerState) -> Vec<ContainerInfo> {
        let request = ListContainersRequest { state: state as i32, ..ListContainersRequest::default() };
        self.scm(async |mut scm| scm.list_containers(request).await).await.containers
    }

    pub(super) async fn status(&self) -> ClusterStatus {
        self.scm(async |mut scm| scm.get_cluster_status(GetClusterStatusRequest {}).await).await
    }

    /// The number SCM gave to the datanode at this place of the cluster's list; the last one, if it was
    /// wiped.
    pub(super) async fn node_at(&self, at: usize) -> u64 {
        let port = self.cluster.datanode_addresses[at].clone();
        let datanodes = self.datanodes().await.into_iter().filter(|datanode| datanode.address == port);
        datanodes.map(|datanode| datanode.node).max().expect("it has registered")
    }

    pub(super) async fn state_of(&self, node: u64) -> NodeState {
        let datanodes = self.datanodes().await;
        datanodes.iter().find(|info| info.node == node).expect("it has registered").state()
    }

    /// Whether so many datanodes are there and speak.
    pub(super) async fn healthy(&self, count: usize) -> Result<(), String> {
        let datanodes = self.datanodes().await;
        let healthy = datanodes.iter().filter(|info| info.state() == NodeState::NodeHealthy).count();
        (healthy == count).then_some(()).ok_or(format!("{healthy} nodes are healthy"))
    }

    /// The light of three good copies: no pipeline closes for good, and what lacks something says so.
    pub(super) async fn whole_or_in_trouble(&self) -> Result<(), String> {
        let mut closing = self.pipelines().await;
        closing.retain(|pipeline| pipeline.state().is_closing());
        if !closing.is_empty() {
            return Err(format!("these close still: {closing:?}"));
        }
        let mut live = self.in_state(PipelineState::PipelineOpen).await;
        live.extend(self.in_state(PipelineState::PipelineAllocated).await);
        let is_live = |pipeline: u64| live.iter().any(|live| live.pipeline == pipeline);
        let unsaid = |info: &ContainerInfo| match info.state() {
            ContainerState::ContainerClosed => info.troubles.is_empty() && good_besides(info, None) != 3,
            ContainerState::ContainerQuasiClosed => info.troubles.is_empty(),
            ContainerState::ContainerOpen => !is_live(info.pipeline),
            ContainerState::ContainerDeleted | ContainerState::Unspecified => false,
        };
        let containers = self.containers(ContainerState::Unspecified).await;
        let unsaid: Vec<&ContainerInfo> = containers.iter().filter(|info| unsaid(info)).collect();
        unsaid.is_empty().then_some(()).ok_or_else(|| format!("nobody says what these lack: {unsaid:?}"))
    }

    pub(super) async fn in_state(&self, state: PipelineState) -> Vec<Pipeline> {
        self.pipelines().await.into_iter().filter(|pipeline| pipeline.state() == state).collect()
    }

    /// Waits for a condition, which says what is missing while it does not hold.
    pub(super) async fn until(
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
        println!("{what}: after {:.1} s", started.elapsed().as_secs_f64());
        started.elapsed()
    }

    /// Whether no pipeline that takes data has a member there (on `disk` of it, if that is named), and there
    /// are some.
    pub(super) async fn replaced_without(&self, node: u64, disk: Option<&[u8]>) -> Result<(), String> {
        let pipelines = self.pipelines().await;
        let of_state = |state| pipelines.iter().filter(move |pipeline| pipeline.state() == state);
        let live = || of_state(PipelineState::PipelineOpen).chain(of_state(PipelineState::PipelineAllocated));
        let is_there = |pipeline: &&Pipeline| {
            let mut members = pipeline.members.iter();
            members.any(|member| member.node == node && disk.is_none_or(|disk| member.disk == disk))
        };
        let with = live().filter(is_there).count();
        let open = of_state(PipelineState::PipelineOpen).count();
        match with == 0 && open >= 2 {
            true => Ok(()),
            false => Err(format!("{with} pipelines have node {node}, {open} are open")),
        }
    }

    /// The pipelines with a member there are over, and each closed container has three good replicas on other
    /// nodes in service.
    pub(super) async fn repaired_without(&self, node: u64) -> Result<(), String> {
        let unended = self.pipelines().await.into_iter().filter(|pipeline| {
            let is_member = pipeline.members.iter().any(|member| member.node == node);
            is_member && pipeline.state() != PipelineState::PipelineClosed
        });
        let unended: Vec<u64> = unended.map(|pipeline| pipeline.pipeline).collect();
        if !unended.is_empty() {
            return Err(format!("pipelines {unended:?} are not over"));
        }
        self.whole_besides(Some(node)).await
    }

    /// Whether nothing closes, and each closed container has exactly three good replicas.
    pub(super) async fn whole(&self) -> Result<(), String> {
        let pipelines = self.pipelines().await;
        let closing: Vec<u64> = pipelines
            .iter()
            .filter(|pipeline| pipeline.state().is_closing())
            .map(|pipeline| pipeline.pipeline)
            .collect();
        if !closing.is_empty() {
            return Err(format!("pipelines {closing:?} are closing"));
        }
        let status = self.status().await;
        if status.unhealthy + status.different + status.missing + status.under_replicated > 0 {
            return Err(format!("{status:?}"));
        }
        self.whole_besides(None).await
    }

    async fn whole_besides(&self, node: Option<u64>) -> Result<(), String> {
        let quasi_closed = self.containers(ContainerState::ContainerQuasiClosed).await.len();
        let closed = self.containers(ContainerState::ContainerClosed).await;
        let lacking: Vec<_> = closed
            .iter()
            .map(|container| (container.container, good_besides(container, node)))
            .filter(|(_, good)| *good != 3)
            .collect();
        let status = self.status().await;
        if quasi_closed + status.undecided as usize == 0 && lacking.is_empty() && !closed.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{quasi_closed} containers are quasi-closed, {} undecided, (container, good replicas): {lacking:?}; {} copies under way, {} failed, \
             waiting: {:?}, tasks {:?}, safe mode waits for {:?}",
            status.undecided,
            status.copies_under_way,
            status.copies_failed,
            status.copies_waiting,
            status.tasks,
            status.safe_mode_waits
        ))
    }

    /// Ends the load, and the drill: everything acknowledged is there, and everything closed has three good
    /// replicas.
    pub(super) async fn settle(&self, writers: Writers) -> Written {
        let written = writers.stop().await;
        assert_eq!(written.errors, Vec::<String>::new(), "writers notice nothing");
        assert_all_there(&self.s3, &written.acknowledged).await;
        self.until("three good replicas of everything", REPAIRED_WITHIN, async || self.whole().await).await;
        assert_all_there(&self.s3, &written.acknowledged).await;
        written
    }
}

/// Closed replicas on healthy nodes in service, `node` apart, that end alike.
pub(super) fn good_besides(container: &ContainerInfo, node: Option<u64>) -> usize {
    let there = container.replicas.iter().filter(|info| {
        let on = info.node.as_ref().map_or(0, |on| on.node);
        Some(on) != node
            && info.node_state() == NodeState::NodeHealthy
            && info.duty() == NodeDuty::NodeInService
            && !info.disk_lost
    });
    let ends: Vec<_> = there
        .filter_map(|info| info.replica.as_ref())
        .filter(|replica| replica.state() == ReplicaState::ReplicaClosed && replica.unhealthy.is_empty())
        .map(|replica| (replica.last_term, replica.last_index, replica.blocks))
        .collect();
    ends.iter().filter(|end| ends.first() == Some(end)).count()
}

/// Whether this is `./dev drill cluster`, which has the machine for itself.
pub(super) fn is_campaign() -> bool {
    std::env::var_os("FLOTILLA_DRILL_REPEAT").is_some()
}

/// The results of a drill, for its line of JSON.
pub(super) struct Shown {
    pub(super) objects: usize,
    pub(super) figures: Vec<(&'static str, f64)>,
}

impl Shown {
    /// The results of a drill of which nothing is measured.
    pub(super) fn of(objects: usize) -> Shown {
        Shown { objects, figures: Vec::new() }
    }
}

/// The longest time for which writers stood still since `from`, in seconds. Where the whole test command runs
/// beside the drill on two cores, seconds say little.
pub(super) fn stood_still(writers: &Writers, from: Instant) -> f64 {
    let longest = writers.longest_silence_since(from);
    let limit = if is_campaign() { STAND_STILL_MAX } else { STAND_STILL_AMONG_TESTS_MAX };
    assert!(longest <= limit, "no write was acknowledged for {longest:?}");
    longest.as_secs_f64()
}
