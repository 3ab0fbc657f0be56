//! An SCM that a test plays: it remembers what datanodes say, and answers what the test wants them to do.
//! What the real one decides is tested with it.

use proto::scm;
use proto::scm::scm_server::{Scm, ScmServer};
use proto::scm::*;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tonic::service::Routes;
use tonic::{Request, Response, Status};

pub(crate) const CLUSTER: &str = "c0ffee";

/// All that one node has said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Said {
    pub(crate) replicas: BTreeMap<u64, ContainerReplica>,
    pub(crate) is_complete: bool,
    pub(crate) tasks: Vec<TaskReport>,
    pub(crate) beats: u64,
    pub(crate) disks: Vec<DiskReport>,
    pub(crate) pipelines: Vec<PipelineReport>,
    pub(crate) full_reports: u64,
    /// Whether the last heartbeat began a full report.
    begins: bool,
}

/// All that one node is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Told {
    pub(crate) tasks: Vec<Task>,
    pub(crate) report_all: bool,
    /// Whether heartbeats fail, after they were read.
    pub(crate) deaf: bool,
    /// Whether the node is told what a node that SCM does not know is told.
    pub(crate) unknown: bool,
}

#[derive(Default)]
struct State {
    uuids: Vec<Vec<u8>>,
    said: BTreeMap<u64, Said>,
    told: BTreeMap<u64, Told>,
}

#[derive(Default)]
struct Service {
    state: Mutex<State>,
    beats: watch::Sender<u64>,
}

#[derive(Clone)]
pub(crate) struct PlayedScm {
    service: Arc<Service>,
    pub(crate) address: String,
    /// The server, which ends with the last handle.
    _server: Arc<JoinSet<()>>,
}

impl PlayedScm {
    pub(crate) async fn start() -> PlayedScm {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let service = Arc::new(Service::default());
        let routes = Routes::new(ScmServer::from_arc(service.clone()));
        let mut tasks = JoinSet::new();
        tasks.spawn(rpc::serve(listener, routes, std::future::pending()));
        PlayedScm { service, address, _server: Arc::new(tasks) }
    }

    pub(crate) fn tell(&self, node: u64, change: impl FnOnce(&mut Told)) {
        change(self.service.lock().told.entry(node).or_default());
    }

    pub(crate) fn said(&self, node: u64) -> Said {
        self.service.lock().said.get(&node).cloned().unwrap_or_default()
    }

    /// Waits until what a node has said is as it should be.
    pub(crate) async fn wait(&self, node: u64, what: &str, is_so: impl Fn(&Said) -> bool) -> Said {
        let mut beats = self.service.beats.subscribe();
        let waiting = async {
            loop {
                let said = self.said(node);
                if is_so(&said) {
                    return said;
                }
                beats.changed().await.unwrap();
            }
        };
        match timeout(crate::cluster::DEADLINE, waiting).await {
            Ok(said) => said,
            Err(_) => panic!("node {node} never said {what}: {:#?}", self.said(node)),
        }
    }
}

impl Service {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

fn not_played<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("no test needs it"))
}

#[tonic::async_trait]
impl Scm for Service {
    type WatchStream = tokio_stream::Empty<Result<ClusterView, Status>>;

    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let uuid = request.into_inner().uuid.to_vec();
        let mut state = self.lock();
        let known = state.uuids.iter().position(|known| *known == uuid);
        let position = known.unwrap_or_else(|| {
            state.uuids.push(uuid);
            state.uuids.len() - 1
        });
        let node = position as u64 + 1;
        state.told.entry(node).or_default().unknown = false;
        state.said.entry(node).or_default().begins = false;
        Ok(Response::new(RegisterResponse { node, cluster: CLUSTER.to_owned() }))
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        let request = request.into_inner();
        let told = self.lock().told.entry(request.node).or_default().clone();
        self.beats.send_modify(|beats| *beats += 1);
        if told.deaf {
            return Err(Status::unavailable("played"));
        }
        if told.unknown {
            return Ok(Response::new(HeartbeatResponse { register_again: true, ..Default::default() }));
        }
        let mut state = self.lock();
        let said = state.said.entry(request.node).or_default();
        said.beats += 1;
        said.disks = request.disks;
        said.pipelines = request.pipelines;
        if request.report_begins {
            (said.replicas, said.is_complete) = Default::default();
            // One that is sent again, because it was not answered in time, is the same.
            said.full_reports += u64::from(!said.begins);
        }
        said.begins = request.report_begins;
        said.replicas.extend(request.containers.into_iter().map(|it| (it.container, it)));
        request.containers_gone.iter().for_each(|gone| drop(said.replicas.remove(gone)));
        said.is_complete |= request.report_ends;
        said.tasks = request.tasks;
        let told_now = state.told.entry(request.node).or_default();
        // Until the report begins: an answer that comes too late is lost.
        told_now.report_all &= !request.report_begins;
        let report_all = told_now.report_all;
        drop(state);
        self.beats.send_modify(|beats| *beats += 1);
        Ok(Response::new(HeartbeatResponse { tasks: told.tasks, report_all, ..Default::default() }))
    }

    async fn allocate_container(
        &self,
        request: Request<AllocateContainerRequest>,
    ) -> Result<Response<AllocateContainerResponse>, Status> {
        let container = request.into_inner().after + 1;
        Ok(Response::new(AllocateContainerResponse { container }))
    }

    async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        not_played()
    }

    async fn locate_containers(
        &self,
        _: Request<LocateContainersRequest>,
    ) -> Result<Response<LocateContainersResponse>, Status> {
        not_played()
    }

    async fn list_datanodes(
        &self,
        _: Request<ListDatanodesRequest>,
    ) -> Result<Response<ListDatanodesResponse>, Status> {
        not_played()
    }

    async fn list_pipelines(
        &self,
        _: Request<ListPipelinesRequest>,
    ) -> Result<Response<ListPipelinesResponse>, Status> {
        not_played()
    }

    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        not_played()
    }

    async fn create_pipeline(
        &self,
        _: Request<CreatePipelineRequest>,
    ) -> Result<Response<CreatePipelineResponse>, Status> {
        not_played()
    }

    async fn close_pipeline(
        &self,
        _: Request<ClosePipelineRequest>,
    ) -> Result<Response<ClosePipelineResponse>, Status> {
        not_played()
    }

    async fn accept_loss(
        &self,
        _: Request<AcceptLossRequest>,
    ) -> Result<Response<AcceptLossResponse>, Status> {
        not_played()
    }

    async fn accept_container_loss(
        &self,
        _: Request<AcceptContainerLossRequest>,
    ) -> Result<Response<AcceptContainerLossResponse>, Status> {
        not_played()
    }

    async fn drop_replica(
        &self,
        _: Request<DropReplicaRequest>,
    ) -> Result<Response<DropReplicaResponse>, Status> {
        not_played()
    }

    async fn get_space(&self, _: Request<GetSpaceRequest>) -> Result<Response<SpaceStatus>, Status> {
        not_played()
    }

    async fn explain_space(
        &self,
        _: Request<ExplainSpaceRequest>,
    ) -> Result<Response<ContainerSpace>, Status> {
        not_played()
    }

    async fn get_racks(&self, _: Request<GetRacksRequest>) -> Result<Response<Racks>, Status> {
        not_played()
    }

    async fn set_racks(&self, _: Request<SetRacksRequest>) -> Result<Response<Racks>, Status> {
        not_played()
    }

    async fn close_container(
        &self,
        _: Request<CloseContainerRequest>,
    ) -> Result<Response<CloseContainerResponse>, Status> {
        not_played()
    }

    async fn transfer_leader(
        &self,
        _: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        not_played()
    }

    async fn set_node_duty(
        &self,
        _: Request<SetNodeDutyRequest>,
    ) -> Result<Response<SetNodeDutyResponse>, Status> {
        not_played()
    }

    async fn get_cluster_status(
        &self,
        _: Request<GetClusterStatusRequest>,
    ) -> Result<Response<ClusterStatus>, Status> {
        not_played()
    }

    async fn set_switches(&self, _: Request<SetSwitchesRequest>) -> Result<Response<ClusterStatus>, Status> {
        not_played()
    }

    async fn introduce(&self, _: Request<IntroduceRequest>) -> Result<Response<IntroduceResponse>, Status> {
        not_played()
    }

    async fn join_scm(&self, _: Request<JoinScmRequest>) -> Result<Response<JoinScmResponse>, Status> {
        not_played()
    }

    async fn list_scm_members(
        &self,
        _: Request<ListScmMembersRequest>,
    ) -> Result<Response<ListScmMembersResponse>, Status> {
        not_played()
    }

    async fn transfer_scm_leader(
        &self,
        _: Request<TransferScmLeaderRequest>,
    ) -> Result<Response<TransferScmLeaderResponse>, Status> {
        not_played()
    }

    async fn remove_scm_member(
        &self,
        _: Request<RemoveScmMemberRequest>,
    ) -> Result<Response<RemoveScmMemberResponse>, Status> {
        not_played()
    }

    async fn register_om(
        &self,
        _: Request<scm::RegisterOmRequest>,
    ) -> Result<Response<scm::RegisterOmResponse>, Status> {
        not_played()
    }

    async fn om_heartbeat(
        &self,
        _: Request<scm::OmHeartbeatRequest>,
    ) -> Result<Response<scm::OmHeartbeatResponse>, Status> {
        not_played()
    }

    async fn note_fences(
        &self,
        _: Request<scm::NoteFencesRequest>,
    ) -> Result<Response<scm::NoteFencesResponse>, Status> {
        not_played()
    }

    async fn discard_blocks(
        &self,
        _: Request<scm::DiscardBlocksRequest>,
    ) -> Result<Response<scm::DiscardBlocksResponse>, Status> {
        not_played()
    }

    async fn list_oms(
        &self,
        _: Request<scm::ListOmsRequest>,
    ) -> Result<Response<scm::ListOmsResponse>, Status> {
        not_played()
    }

    async fn set_om_duty(
        &self,
        _: Request<scm::SetOmDutyRequest>,
    ) -> Result<Response<scm::SetOmDutyResponse>, Status> {
        not_played()
    }

    async fn transfer_om_leader(
        &self,
        _: Request<scm::TransferOmLeaderRequest>,
    ) -> Result<Response<scm::TransferOmLeaderResponse>, Status> {
        not_played()
    }

    async fn give_up_om_group(
        &self,
        _: Request<scm::GiveUpOmGroupRequest>,
    ) -> Result<Response<scm::GiveUpOmGroupResponse>, Status> {
        not_played()
    }

    async fn create_om_group(
        &self,
        _: Request<scm::CreateOmGroupRequest>,
    ) -> Result<Response<scm::CreateOmGroupResponse>, Status> {
        not_played()
    }

    async fn begin_om_restore(
        &self,
        _: Request<scm::BeginOmRestoreRequest>,
    ) -> Result<Response<scm::BeginOmRestoreResponse>, Status> {
        not_played()
    }

    async fn end_om_restore(
        &self,
        _: Request<scm::EndOmRestoreRequest>,
    ) -> Result<Response<scm::EndOmRestoreResponse>, Status> {
        not_played()
    }
}
