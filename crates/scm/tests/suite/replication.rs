//! Replicas come and go at pretended datanodes, which carry out what the real SCM asks of them.

use crate::datanodes::{Datanode, register};
use crate::server::{DEADLINE, Server};
use flotilla_scm::ScmOptions;
use proto::scm::*;
use proto::{Code, Failure};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Nodes with replicas, some of them silent.
struct Nodes {
    datanodes: Vec<Datanode>,
    replicas: BTreeMap<u64, BTreeMap<u64, ContainerReplica>>,
    silent: Vec<u64>,
}

/// Nodes that are silent while a test waits, or while the machine stands still, are neither passed over nor
/// given up.
fn options() -> ScmOptions {
    ScmOptions {
        stale_after: Duration::from_secs(30),
        dead_after: Duration::from_secs(600),
        member_fault_grace: Duration::from_secs(600),
        ..ScmOptions::default()
    }
}

fn closed(container: u64) -> ContainerReplica {
    ContainerReplica {
        container,
        pipeline: 1,
        state: ReplicaState::ReplicaClosed as i32,
        last_term: 1,
        last_index: 40,
        blocks: 3,
        payload_bytes: 10,
        disk_bytes: 10,
        released: true,
        ..ContainerReplica::default()
    }
}

impl Nodes {
    async fn start(server: &mut Server, count: u8) -> Nodes {
        let datanodes = register(server, count).await;
        Nodes { datanodes, replicas: BTreeMap::new(), silent: Vec::new() }
    }

    /// The nodes report, and do what they are told: SCM's first pipeline has rolled once, so that container 1
    /// is closed.
    async fn beat(&mut self, server: &mut Server) {
        let pipelines = server.pipelines().await;
        for datanode in self.datanodes.clone() {
            if self.silent.contains(&datanode.node) {
                continue;
            }
            let replicas = self.replicas.entry(datanode.node).or_default();
            let mut reports = datanode.reports(&pipelines);
            for report in &mut reports {
                (report.applied_index, report.last_index) = (50, 50);
                let told = pipelines.iter().find(|pipeline| pipeline.pipeline == report.pipeline).unwrap();
                if told.state() == PipelineState::PipelineClosing {
                    report.set_state(MemberState::Ended);
                }
            }
            let over = |pipeline: u64| {
                let told = pipelines.iter().find(|told| told.pipeline == pipeline);
                told.is_none_or(|told| told.state() == PipelineState::PipelineClosed)
            };
            reports.retain(|report| !over(report.pipeline));
            let containers = replicas.values().cloned().collect();
            let answer = datanode.report_all(server, reports, containers).await.unwrap();
            for task in answer.tasks {
                match task.task.unwrap() {
                    task::Task::Copy(copy) => {
                        assert!(!copy.sources.is_empty());
                        replicas.insert(copy.container, closed(copy.container));
                    }
                    task::Task::Delete(delete) => {
                        replicas.remove(&delete.container);
                    }
                    _ => {}
                }
            }
        }
    }

    /// Beats until nodes that speak, in their order, have it.
    async fn holders_become(&mut self, server: &mut Server, container: u64, wanted: impl Fn(&[u64]) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let holders: Vec<u64> = self.holders(container);
            if wanted(&holders) {
                return;
            }
            assert!(Instant::now() < deadline, "replicas on {holders:?}; {:#?}", status(server).await);
            self.beat(server).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// [`Server::becomes`], while the nodes speak.
    async fn beat_until(
        &mut self,
        server: &mut Server,
        what: &str,
        wanted: impl AsyncFn(&mut Server) -> bool,
    ) {
        let deadline = Instant::now() + DEADLINE;
        while !wanted(server).await {
            assert!(Instant::now() < deadline, "no {what}; {:#?}", status(server).await);
            self.beat(server).await;
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn holders(&self, container: u64) -> Vec<u64> {
        let has = self.replicas.iter().filter(|(_, replicas)| replicas.contains_key(&container));
        has.map(|(node, _)| *node).filter(|node| !self.silent.contains(node)).collect()
    }
}

async fn status(server: &mut Server) -> ClusterStatus {
    server.client.get_cluster_status(GetClusterStatusRequest {}).await.unwrap().into_inner()
}

async fn list(server: &mut Server, request: ListContainersRequest) -> ListContainersResponse {
    server.client.list_containers(request).await.unwrap().into_inner()
}

async fn set_duty(server: &mut Server, node: u64, duty: NodeDuty, force: bool) -> Result<(), Failure> {
    let request = SetNodeDutyRequest { node, duty: duty as i32, for_ms: 0, force };
    server.client.set_node_duty(request).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_nodes_replicas_are_made_up_for_and_its_pipelines_replaced() {
    let dir = tempfile::tempdir().unwrap();
    // A silent node is waited for, and those that speak must not be silent for as long.
    let options =
        ScmOptions { stale_after: Duration::from_secs(5), dead_after: Duration::from_secs(8), ..options() };
    let mut server = Server::start_with(dir.path(), options).await;
    let mut nodes = Nodes::start(&mut server, 5).await;
    // There is room for six, but for no more than four where the first three nodes had filled up before the
    // others came.
    nodes.beat_until(&mut server, "pipelines", async |server| server.pipelines().await.len() >= 4).await;
    let pipelines = server.pipelines().await;
    let members: Vec<u64> = pipelines[0].members.iter().map(|member| member.node).collect();
    for node in &members {
        nodes.replicas.entry(*node).or_default().insert(1, closed(1));
    }
    nodes.beat(&mut server).await;
    let is_closed = async |server: &mut Server| {
        let request = ListContainersRequest { container: 1, ..ListContainersRequest::default() };
        list(server, request).await.containers[0].state() == ContainerState::ContainerClosed
    };
    nodes.beat_until(&mut server, "closed container", is_closed).await;
    nodes.silent.push(members[0]);
    let died = members[0];
    nodes.holders_become(&mut server, 1, |holders| holders.len() == 3).await;
    let after = server.pipelines().await;
    for pipeline in &after {
        let with_dead = pipeline.members.iter().any(|member| member.node == died);
        let takes_data =
            matches!(pipeline.state(), PipelineState::PipelineAllocated | PipelineState::PipelineOpen);
        assert!(!(with_dead && takes_data), "{pipeline:#?}");
    }
    // It comes back with its replica: one is too many, and exactly one goes. The round in which it speaks
    // again may take that one already.
    nodes.silent.clear();
    assert_eq!(nodes.holders(1).len(), 4);
    nodes.holders_become(&mut server, 1, |holders| holders.len() == 3).await;
    for _ in 0..20 {
        nodes.beat(&mut server).await;
        assert_eq!(nodes.holders(1).len(), 3);
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_is_emptied_before_it_is_decommissioned() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    let mut nodes = Nodes::start(&mut server, 4).await;
    let pipelines = server.pipelines_become("pipelines", |pipelines| pipelines.len() >= 4).await;
    let members: Vec<u64> = pipelines[0].members.iter().map(|member| member.node).collect();
    for node in &members {
        nodes.replicas.entry(*node).or_default().insert(1, closed(1));
    }
    nodes.beat(&mut server).await;
    let leaving = members[2];
    assert_eq!(
        set_duty(&mut server, 99, NodeDuty::NodeDecommissioning, false).await.unwrap_err().code,
        Code::NotFound
    );
    let wrong = set_duty(&mut server, leaving, NodeDuty::NodeDecommissioned, true).await.unwrap_err();
    assert_eq!(wrong.code, Code::Invalid);
    set_duty(&mut server, leaving, NodeDuty::NodeDecommissioning, false).await.unwrap();
    let refused = set_duty(&mut server, members[0], NodeDuty::NodeDecommissioning, false).await.unwrap_err();
    assert!(refused.message.contains("2 nodes would be left"), "{refused}");

    nodes.holders_become(&mut server, 1, |holders| holders.len() == 4).await;
    let deadline = Instant::now() + DEADLINE;
    loop {
        nodes.beat(&mut server).await;
        let datanodes = server.datanodes().await;
        let info = datanodes.iter().find(|datanode| datanode.node == leaving).unwrap();
        if info.duty() == NodeDuty::NodeDecommissioned {
            assert_eq!((info.containers_waiting, info.pipelines_waiting), (0, 0));
            break;
        }
        assert!(Instant::now() < deadline, "{info:#?} {:#?}", server.pipelines().await);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    // In service again it gets pipelines, and there is one replica too many.
    set_duty(&mut server, leaving, NodeDuty::NodeInService, false).await.unwrap();
    nodes.holders_become(&mut server, 1, |holders| holders.len() == 3).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_leader_moves_nothing_until_it_knows_enough() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    assert!(!status(&mut server).await.safe_mode, "there is nothing to wait for");
    let mut nodes = Nodes::start(&mut server, 4).await;
    let pipelines = server.pipelines_become("pipelines", |pipelines| pipelines.len() >= 4).await;
    let members: Vec<u64> = pipelines[0].members.iter().map(|member| member.node).collect();
    for node in &members {
        nodes.replicas.entry(*node).or_default().insert(1, closed(1));
    }
    nodes.beat(&mut server).await;
    let settled = async |server: &mut Server| {
        let status = status(server).await;
        status.containers_open + 1 == status.containers
    };
    server.becomes("settled container", settled).await;
    server.stop().await;

    // Nobody has spoken yet, and nobody may be taken for dead.
    let mut server = Server::start_with(dir.path(), options()).await;
    let waiting = status(&mut server).await;
    assert!(waiting.safe_mode);
    assert!(waiting.safe_mode_waits[0].contains("full reports of 3 of 4 nodes"), "{waiting:#?}");
    assert_eq!(waiting.missing, 0, "nothing is known to be missing");
    for datanode in &mut nodes.datanodes {
        datanode.register(&mut server).await.unwrap();
    }
    nodes.beat(&mut server).await;
    server.becomes("end of safe mode", async |server| !status(server).await.safe_mode).await;

    // An operator holds it.
    let set = |safe_mode| SetSwitchesRequest {
        safe_mode: Some(safe_mode),
        balancer: Some(true),
        replication: None,
        reclaim: None,
    };
    let held = server.client.set_switches(set(true)).await.unwrap().into_inner();
    assert!(held.safe_mode && held.switches.unwrap().balancer);
    assert!(held.safe_mode_waits[0].contains("operator"));
    assert!(!server.client.set_switches(set(false)).await.unwrap().into_inner().safe_mode);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_are_listed_by_what_is_asked() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    let mut nodes = Nodes::start(&mut server, 3).await;
    server.pipelines_become("pipelines", |pipelines| pipelines.len() == 4).await;
    for node in 1..=3 {
        let bad = if node == 2 { "checksum of block 7".to_owned() } else { String::new() };
        let replica = ContainerReplica { unhealthy: bad, released: false, ..closed(1) };
        nodes.replicas.entry(node).or_default().insert(1, replica);
    }
    nodes.beat(&mut server).await;
    let all = list(&mut server, ListContainersRequest::default()).await;
    assert_eq!(all.containers.iter().map(|info| info.container).collect::<Vec<_>>(), [1, 2, 3, 4]);
    let page = list(&mut server, ListContainersRequest { after: 1, limit: 2, ..Default::default() }).await;
    assert_eq!((page.containers.len(), page.containers[0].container, page.more), (2, 2, true));
    let on_node = list(&mut server, ListContainersRequest { node: 2, ..Default::default() }).await;
    assert_eq!((on_node.containers.len(), on_node.more), (1, false));
    let unhealthy = ListContainersRequest {
        trouble: ContainerTrouble::ContainerUnhealthy as i32,
        ..ListContainersRequest::default()
    };
    // The trouble may be seen before the container is settled as closed, and what it lacks with the look
    // after that.
    let found_all = async |server: &mut Server| {
        let status = status(server).await;
        (status.unhealthy, status.under_replicated, status.missing) == (1, 1, 0)
    };
    server.becomes("trouble", found_all).await;
    let found = list(&mut server, unhealthy).await.containers.remove(0);
    let brief = (found.container, found.state(), found.blocks, found.replicas.len());
    assert_eq!(brief, (1, ContainerState::ContainerClosed, 3, 3));
    assert_eq!(found.replicas[1].replica.as_ref().unwrap().unhealthy, "checksum of block 7");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operators_move_leaders_and_settle_containers() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    let mut nodes = Nodes::start(&mut server, 3).await;
    server.pipelines_become("pipelines", |pipelines| pipelines.len() == 4).await;
    nodes.beat(&mut server).await;
    let open = |pipelines: &[Pipeline]| pipelines.iter().all(|p| p.state() == PipelineState::PipelineOpen);
    let pipelines = server.pipelines_become("open", open).await;
    let leader = pipelines[0].leader_node;
    let to = pipelines[0].members[2].clone();
    server.client.transfer_leader(TransferLeaderRequest { pipeline: 1, node: to.node }).await.unwrap();
    server.client.close_container(CloseContainerRequest { container: 1 }).await.unwrap();
    let of_leader = nodes.datanodes.iter().find(|datanode| datanode.node == leader).unwrap();
    let answer = of_leader.report(&mut server, of_leader.reports(&pipelines)).await.unwrap();
    let told: Vec<_> = answer.tasks.into_iter().map(|task| task.task.unwrap()).collect();
    let expected = [
        task::Task::MoveLeader(MoveLeader { pipeline: 1, to_replica: to.replica }),
        task::Task::Roll(RollContainer { pipeline: 1, container: 1 }),
    ];
    assert_eq!(told, expected);
    // What cannot be is said.
    let request = TransferLeaderRequest { pipeline: 9, node: 0 };
    let failure = Failure::from(server.client.transfer_leader(request).await.unwrap_err());
    assert_eq!(failure.code, Code::NotFound);
    let failure = server.client.close_container(CloseContainerRequest { container: 99 }).await.unwrap_err();
    assert_eq!(Failure::from(failure).code, Code::NotFound);
    let created =
        server.client.create_pipeline(CreatePipelineRequest { nodes: vec![3, 2, 1] }).await.unwrap();
    assert_eq!(created.into_inner().pipeline, 5);
    let failure =
        server.client.create_pipeline(CreatePipelineRequest { nodes: vec![1, 1, 2] }).await.unwrap_err();
    assert_eq!(Failure::from(failure).code, Code::Invalid);
    server.stop().await;
}
