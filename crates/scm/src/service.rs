use crate::admission;
use crate::leader::Leader;
use crate::leadership::Leadership;
use crate::locate;
use crate::seat::Seats;
use crate::view;
use futures::{Stream, StreamExt};
use proto::scm::scm_server::Scm;
use proto::scm::*;
use proto::{Code, Failure};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};
use types::ContainerId;

mod cluster;
mod containers;
mod discards;
mod heartbeat;
mod members;
mod om_groups;
mod oms;
mod pipelines;
mod racks;
mod register;
mod space;

/// The most containers of one question: the answer stays well below the message limit.
const LOCATE_CONTAINERS_MAX: usize = 10_000;

/// SCM over gRPC. Only the leader answers, but every member introduces itself.
#[derive(Clone)]
pub(crate) struct ScmService {
    leadership: Arc<Leadership>,
    seats: Arc<Seats>,
    watchers: Arc<Semaphore>,
}

impl ScmService {
    pub(crate) fn new(leadership: Arc<Leadership>, seats: Arc<Seats>) -> ScmService {
        let watchers = Arc::new(Semaphore::new(leadership.options.watchers_max));
        ScmService { leadership, seats, watchers }
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
        // A call that was made before has its answer in the tables, and needs no log entry.
        let known = leader.tables.read(|tables| {
            let record = tables.container(ContainerId(after));
            tables.container_after(record.filter(|record| record.pipeline == pipeline)?)
        });
        if let Some(ContainerId(container)) = known {
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

    // A leader that was just deposed may answer from what it knew: replicas move slowly, and readers ask
    // again.
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
        let locations = leader.read(|world| {
            let locate = |container| locate::locate(world, ContainerId(container));
            containers.into_iter().filter_map(locate).collect()
        });
        Ok(Response::new(LocateContainersResponse { locations }))
    }

    async fn list_datanodes(
        &self,
        _request: Request<ListDatanodesRequest>,
    ) -> Result<Response<ListDatanodesResponse>, Status> {
        let datanodes = cluster::datanodes(&*self.leader()?);
        Ok(Response::new(ListDatanodesResponse { datanodes }))
    }

    async fn list_pipelines(
        &self,
        _request: Request<ListPipelinesRequest>,
    ) -> Result<Response<ListPipelinesResponse>, Status> {
        let pipelines = self.leader()?.read(|world| {
            let pipeline = |record| view::pipeline_with_health(record, world);
            world.tables.pipelines().values().map(pipeline).collect()
        });
        Ok(Response::new(ListPipelinesResponse { pipelines }))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        let listed = containers::list_containers(&*self.leader()?, &request.into_inner());
        Ok(Response::new(listed))
    }

    async fn create_pipeline(
        &self,
        request: Request<CreatePipelineRequest>,
    ) -> Result<Response<CreatePipelineResponse>, Status> {
        let created = pipelines::create_pipeline(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(created))
    }

    async fn close_pipeline(
        &self,
        request: Request<ClosePipelineRequest>,
    ) -> Result<Response<ClosePipelineResponse>, Status> {
        pipelines::close_pipeline(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(ClosePipelineResponse {}))
    }

    async fn accept_loss(
        &self,
        request: Request<AcceptLossRequest>,
    ) -> Result<Response<AcceptLossResponse>, Status> {
        let accepted = pipelines::accept_loss(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(accepted))
    }

    async fn accept_container_loss(
        &self,
        request: Request<AcceptContainerLossRequest>,
    ) -> Result<Response<AcceptContainerLossResponse>, Status> {
        let left = containers::accept_loss(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(left))
    }

    async fn drop_replica(
        &self,
        request: Request<DropReplicaRequest>,
    ) -> Result<Response<DropReplicaResponse>, Status> {
        containers::drop_replica(&*self.leader()?, request.get_ref())?;
        Ok(Response::new(DropReplicaResponse {}))
    }

    async fn close_container(
        &self,
        request: Request<CloseContainerRequest>,
    ) -> Result<Response<CloseContainerResponse>, Status> {
        let container = ContainerId(request.into_inner().container);
        self.leader()?.plan(|world, replication| replication.rolls.want(container, world))?;
        Ok(Response::new(CloseContainerResponse {}))
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        pipelines::transfer_leader(&*self.leader()?, request.into_inner())?;
        Ok(Response::new(TransferLeaderResponse {}))
    }

    async fn set_node_duty(
        &self,
        request: Request<SetNodeDutyRequest>,
    ) -> Result<Response<SetNodeDutyResponse>, Status> {
        cluster::set_node_duty(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(SetNodeDutyResponse {}))
    }

    async fn get_cluster_status(
        &self,
        _request: Request<GetClusterStatusRequest>,
    ) -> Result<Response<ClusterStatus>, Status> {
        Ok(Response::new(cluster::status(&*self.leader()?)))
    }

    async fn get_space(&self, _request: Request<GetSpaceRequest>) -> Result<Response<SpaceStatus>, Status> {
        Ok(Response::new(space::status(&*self.leader()?)))
    }

    async fn explain_space(
        &self,
        request: Request<ExplainSpaceRequest>,
    ) -> Result<Response<ContainerSpace>, Status> {
        Ok(Response::new(space::explain(&*self.leader()?, request.get_ref())?))
    }

    async fn get_racks(&self, _request: Request<GetRacksRequest>) -> Result<Response<Racks>, Status> {
        Ok(Response::new(racks::racks(&*self.leader()?)))
    }

    async fn set_racks(&self, request: Request<SetRacksRequest>) -> Result<Response<Racks>, Status> {
        Ok(Response::new(racks::set_racks(&*self.leader()?, request.into_inner()).await?))
    }

    async fn set_switches(
        &self,
        request: Request<SetSwitchesRequest>,
    ) -> Result<Response<ClusterStatus>, Status> {
        Ok(Response::new(cluster::set_switches(&*self.leader()?, request.into_inner()).await?))
    }

    async fn register_om(
        &self,
        request: Request<RegisterOmRequest>,
    ) -> Result<Response<RegisterOmResponse>, Status> {
        Ok(Response::new(oms::register(&*self.leader()?, request.into_inner()).await?))
    }

    async fn om_heartbeat(
        &self,
        request: Request<OmHeartbeatRequest>,
    ) -> Result<Response<OmHeartbeatResponse>, Status> {
        Ok(Response::new(oms::heartbeat(&*self.leader()?, request.into_inner()).await?))
    }

    async fn discard_blocks(
        &self,
        request: Request<DiscardBlocksRequest>,
    ) -> Result<Response<DiscardBlocksResponse>, Status> {
        Ok(Response::new(discards::discard_blocks(&*self.leader()?, request.into_inner())?))
    }

    async fn note_fences(
        &self,
        request: Request<NoteFencesRequest>,
    ) -> Result<Response<NoteFencesResponse>, Status> {
        Ok(Response::new(om_groups::note_fences(&*self.leader()?, request.into_inner()).await?))
    }

    async fn list_oms(&self, _request: Request<ListOmsRequest>) -> Result<Response<ListOmsResponse>, Status> {
        Ok(Response::new(om_groups::list(&*self.leader()?)))
    }

    async fn set_om_duty(
        &self,
        request: Request<SetOmDutyRequest>,
    ) -> Result<Response<SetOmDutyResponse>, Status> {
        om_groups::set_duty(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(SetOmDutyResponse {}))
    }

    async fn transfer_om_leader(
        &self,
        request: Request<TransferOmLeaderRequest>,
    ) -> Result<Response<TransferOmLeaderResponse>, Status> {
        Ok(Response::new(om_groups::transfer_leader(&*self.leader()?, request.into_inner())?))
    }

    async fn give_up_om_group(
        &self,
        request: Request<GiveUpOmGroupRequest>,
    ) -> Result<Response<GiveUpOmGroupResponse>, Status> {
        om_groups::give_up(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(GiveUpOmGroupResponse {}))
    }

    async fn create_om_group(
        &self,
        _request: Request<CreateOmGroupRequest>,
    ) -> Result<Response<CreateOmGroupResponse>, Status> {
        Ok(Response::new(om_groups::create(&*self.leader()?).await?))
    }

    async fn begin_om_restore(
        &self,
        request: Request<BeginOmRestoreRequest>,
    ) -> Result<Response<BeginOmRestoreResponse>, Status> {
        Ok(Response::new(om_groups::begin_restore(&*self.leader()?, request.into_inner()).await?))
    }

    async fn end_om_restore(
        &self,
        request: Request<EndOmRestoreRequest>,
    ) -> Result<Response<EndOmRestoreResponse>, Status> {
        om_groups::end_restore(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(EndOmRestoreResponse {}))
    }

    async fn introduce(
        &self,
        _request: Request<IntroduceRequest>,
    ) -> Result<Response<IntroduceResponse>, Status> {
        Ok(Response::new(self.seats.introduction()))
    }

    async fn join_scm(&self, request: Request<JoinScmRequest>) -> Result<Response<JoinScmResponse>, Status> {
        let joined = admission::join(&*self.leader()?, &self.seats, request.into_inner()).await?;
        Ok(Response::new(joined))
    }

    async fn list_scm_members(
        &self,
        _request: Request<ListScmMembersRequest>,
    ) -> Result<Response<ListScmMembersResponse>, Status> {
        Ok(Response::new(members::list(&*self.leader()?)))
    }

    async fn transfer_scm_leader(
        &self,
        request: Request<TransferScmLeaderRequest>,
    ) -> Result<Response<TransferScmLeaderResponse>, Status> {
        members::transfer(&*self.leader()?, request.into_inner()).await?;
        Ok(Response::new(TransferScmLeaderResponse {}))
    }

    async fn remove_scm_member(
        &self,
        request: Request<RemoveScmMemberRequest>,
    ) -> Result<Response<RemoveScmMemberResponse>, Status> {
        admission::remove(&*self.leader()?, &self.seats, &request.into_inner().address).await?;
        Ok(Response::new(RemoveScmMemberResponse {}))
    }
}
