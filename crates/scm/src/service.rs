use crate::leader::Leader;
use crate::leadership::Leadership;
use crate::view;
use futures::{Stream, StreamExt};
use proto::scm::scm_server::Scm;
use proto::scm::*;
use proto::{Code, Failure};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};
use types::{ContainerId, NodeId, PipelineId};

mod heartbeat;
mod register;

/// Containers of one question; one answer stays well below the message limit.
const LOCATE_CONTAINERS_MAX: usize = 10_000;

/// SCM over gRPC. Only the leader answers.
#[derive(Clone)]
pub(crate) struct ScmService {
    leadership: Arc<Leadership>,
    watchers: Arc<Semaphore>,
}

impl ScmService {
    pub(crate) fn new(leadership: Arc<Leadership>) -> ScmService {
        let watchers = Arc::new(Semaphore::new(leadership.options.watchers_max));
        ScmService { leadership, watchers }
    }

    fn leader(&self) -> Result<Arc<Leader>, Failure> {
        self.leadership.leader()
    }
}

#[tonic::async_trait]
impl Scm for ScmService {
    async fn register(
        &self,
        request: Request<RegisterRequest>,
    ) -> Result<Response<RegisterResponse>, Status> {
        let response = register::register(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    async fn heartbeat(
        &self,
        request: Request<HeartbeatRequest>,
    ) -> Result<Response<HeartbeatResponse>, Status> {
        let response = heartbeat::heartbeat(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    async fn allocate_container(
        &self,
        request: Request<AllocateContainerRequest>,
    ) -> Result<Response<AllocateContainerResponse>, Status> {
        let leader = self.leader()?;
        let AllocateContainerRequest { pipeline, after } = request.into_inner();
        // Asked before: the answer stands in the tables and needs no log entry.
        let known = leader.read(|tables, _| {
            let record = tables.container(ContainerId(after));
            record.filter(|record| record.pipeline == pipeline && record.next != 0).map(|record| record.next)
        });
        if let Some(container) = known {
            return Ok(Response::new(AllocateContainerResponse { container }));
        }
        let command = AllocateContainerCommand { pipeline, after };
        let reply = leader.propose(scm_command::Command::AllocateContainer(command)).await?;
        if !reply.refused.is_empty() {
            return Err(Failure::new(Code::NotFound, reply.refused).into());
        }
        Ok(Response::new(AllocateContainerResponse { container: reply.container }))
    }

    type WatchStream = Pin<Box<dyn Stream<Item = Result<ClusterView, Status>> + Send>>;

    async fn watch(&self, _request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let leader = self.leader()?;
        let permit = self.watchers.clone().try_acquire_owned().map_err(|_| {
            let limit = leader.options.watchers_max;
            Failure::new(Code::Busy, format!("{limit} watches are open, which is the limit"))
        })?;
        let views = WatchStream::new(leader.view.subscribe()).map(move |view| {
            let _held_while_streaming = &permit;
            Ok(ClusterView::clone(&view))
        });
        Ok(Response::new(Box::pin(views.take_until(leader.stop.clone().cancelled_owned()))))
    }

    // Where a container's replicas are does not change yet, so a leader that was just deposed answers right too.
    async fn locate_containers(
        &self,
        request: Request<LocateContainersRequest>,
    ) -> Result<Response<LocateContainersResponse>, Status> {
        let leader = self.leader()?;
        let containers = request.into_inner().containers;
        if containers.len() > LOCATE_CONTAINERS_MAX {
            let asked = containers.len();
            let message = format!("asked for {asked} containers, at most {LOCATE_CONTAINERS_MAX} at a time");
            return Err(Failure::new(Code::TooLarge, message).into());
        }
        let locations = leader.read(|tables, _| {
            let locate = |container: u64| {
                let record = tables.container(ContainerId(container))?;
                let pipeline = tables.pipeline(PipelineId(record.pipeline))?;
                let nodes = pipeline.members.iter().map(|member| NodeId(member.node));
                let replicas = view::node_addresses(tables, nodes);
                Some(ContainerLocation { container, pipeline: record.pipeline, replicas })
            };
            containers.into_iter().filter_map(locate).collect()
        });
        Ok(Response::new(LocateContainersResponse { locations }))
    }

    async fn list_datanodes(
        &self,
        _request: Request<ListDatanodesRequest>,
    ) -> Result<Response<ListDatanodesResponse>, Status> {
        let now = Instant::now();
        let datanodes = self.leader()?.read(|tables, nodes| {
            let leads = |node: NodeId| {
                let led = |record: &&PipelineRecord| nodes.pipeline_seen(record).leader == Some(node);
                tables.live_pipelines_on(node).filter(led).count() as u32
            };
            let info = |(&node, record): (&NodeId, &NodeRecord)| DatanodeInfo {
                node: node.0,
                uuid: record.uuid.clone(),
                address: record.address.clone(),
                state: nodes.state(node, now) as i32,
                last_heartbeat_age_ms: nodes.age(node, now).as_millis() as u64,
                disks: nodes.disks(node).to_vec(),
                pipelines: tables.live_pipelines_on(node).count() as u32,
                leaders: leads(node),
                ..DatanodeInfo::default()
            };
            tables.nodes().iter().map(info).collect()
        });
        Ok(Response::new(ListDatanodesResponse { datanodes }))
    }

    async fn list_pipelines(
        &self,
        _request: Request<ListPipelinesRequest>,
    ) -> Result<Response<ListPipelinesResponse>, Status> {
        let pipelines = self.leader()?.read(|tables, nodes| {
            tables.pipelines().values().map(|record| view::pipeline(record, tables, nodes)).collect()
        });
        Ok(Response::new(ListPipelinesResponse { pipelines }))
    }

    async fn list_containers(
        &self,
        _request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        Err(Status::unimplemented("list_containers"))
    }

    async fn create_pipeline(
        &self,
        _request: Request<CreatePipelineRequest>,
    ) -> Result<Response<CreatePipelineResponse>, Status> {
        Err(Status::unimplemented("create_pipeline"))
    }

    async fn close_pipeline(
        &self,
        _request: Request<ClosePipelineRequest>,
    ) -> Result<Response<ClosePipelineResponse>, Status> {
        Err(Status::unimplemented("close_pipeline"))
    }

    async fn close_container(
        &self,
        _request: Request<CloseContainerRequest>,
    ) -> Result<Response<CloseContainerResponse>, Status> {
        Err(Status::unimplemented("close_container"))
    }

    async fn transfer_leader(
        &self,
        _request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        Err(Status::unimplemented("transfer_leader"))
    }

    async fn set_node_duty(
        &self,
        _request: Request<SetNodeDutyRequest>,
    ) -> Result<Response<SetNodeDutyResponse>, Status> {
        Err(Status::unimplemented("set_node_duty"))
    }

    async fn get_cluster_status(
        &self,
        _request: Request<GetClusterStatusRequest>,
    ) -> Result<Response<ClusterStatus>, Status> {
        Err(Status::unimplemented("get_cluster_status"))
    }

    async fn set_switches(
        &self,
        _request: Request<SetSwitchesRequest>,
    ) -> Result<Response<ClusterStatus>, Status> {
        Err(Status::unimplemented("set_switches"))
    }
}
