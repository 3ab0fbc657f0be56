use crate::admission;
use crate::leader::Leader;
use crate::leadership::Leadership;
use crate::seat::Seats;
use futures::{Stream, StreamExt};
use proto::scm::scm_server::Scm;
use proto::scm::*;
use proto::{Code, Failure};
use std::pin::Pin;
use std::sync::Arc;
use tokio::sync::Semaphore;
use tokio_stream::wrappers::WatchStream;
use tonic::{Request, Response, Status};

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

    /// The cluster as it is and changes, for as long as this member leads.
    fn views(&self) -> Result<impl Stream<Item = Result<ClusterView, Status>> + Send + use<>, Failure> {
        let leader = self.leader()?;
        let permit = self.watchers.clone().try_acquire_owned().map_err(|_| {
            let limit = leader.options.watchers_max;
            Failure::new(Code::Busy, format!("{limit} watches are open, which is the limit"))
        })?;
        let views = WatchStream::new(leader.view.subscribe()).map(move |view| {
            let _held_while_streaming = &permit;
            Ok(ClusterView::clone(&view))
        });
        Ok(views.take_until(leader.stop.clone().cancelled_owned()))
    }
}

/// Writes the calls that the leader answers, each with what it makes of its request, beside those that need
/// more than a leader.
macro_rules! scm_service {
    ($($call:ident($leader:ident, $asked:ident: $request:ident) -> $response:ident $answer:block)*) => {
        #[tonic::async_trait]
        impl Scm for ScmService {
            type WatchStream = Pin<Box<dyn Stream<Item = Result<ClusterView, Status>> + Send>>;

            async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
                Ok(Response::new(Box::pin(self.views()?)))
            }

            async fn introduce(&self, _: Request<IntroduceRequest>) -> Result<Response<IntroduceResponse>, Status> {
                Ok(Response::new(self.seats.introduction()))
            }

            async fn join_scm(&self, request: Request<JoinScmRequest>) -> Result<Response<JoinScmResponse>, Status> {
                let joined = admission::join(&*self.leader()?, &self.seats, request.into_inner()).await?;
                Ok(Response::new(joined))
            }

            async fn remove_scm_member(
                &self,
                request: Request<RemoveScmMemberRequest>,
            ) -> Result<Response<RemoveScmMemberResponse>, Status> {
                admission::remove(&*self.leader()?, &self.seats, &request.into_inner().address).await?;
                Ok(Response::new(RemoveScmMemberResponse {}))
            }

            $(async fn $call(&self, request: Request<$request>) -> Result<Response<$response>, Status> {
                let leader = self.leader()?;
                let ($leader, $asked) = (&*leader, request.into_inner());
                let answer: Result<$response, Failure> = async { $answer }.await;
                Ok(Response::new(answer?))
            })*
        }
    };
}

scm_service! {
    register(leader, request: RegisterRequest) -> RegisterResponse {
        register::register(leader, request).await
    }
    heartbeat(leader, request: HeartbeatRequest) -> HeartbeatResponse {
        heartbeat::heartbeat(leader, request).await
    }
    register_om(leader, request: RegisterOmRequest) -> RegisterOmResponse {
        oms::register(leader, request).await
    }
    om_heartbeat(leader, request: OmHeartbeatRequest) -> OmHeartbeatResponse {
        oms::heartbeat(leader, request).await
    }
    allocate_container(leader, request: AllocateContainerRequest) -> AllocateContainerResponse {
        containers::allocate(leader, request).await
    }
    // A leader that was just deposed may answer from what it knew: replicas move slowly, and readers ask
    // again.
    locate_containers(leader, request: LocateContainersRequest) -> LocateContainersResponse {
        containers::locate(leader, request)
    }
    discard_blocks(leader, request: DiscardBlocksRequest) -> DiscardBlocksResponse {
        discards::discard_blocks(leader, request)
    }
    note_fences(leader, request: NoteFencesRequest) -> NoteFencesResponse {
        om_groups::note_fences(leader, request).await
    }

    list_datanodes(leader, _request: ListDatanodesRequest) -> ListDatanodesResponse {
        Ok(ListDatanodesResponse { datanodes: cluster::datanodes(leader) })
    }
    set_node_duty(leader, request: SetNodeDutyRequest) -> SetNodeDutyResponse {
        cluster::set_node_duty(leader, request).await.map(|()| SetNodeDutyResponse {})
    }
    get_cluster_status(leader, _request: GetClusterStatusRequest) -> ClusterStatus {
        Ok(cluster::status(leader))
    }
    set_switches(leader, request: SetSwitchesRequest) -> ClusterStatus {
        cluster::set_switches(leader, request).await
    }
    get_racks(leader, _request: GetRacksRequest) -> Racks {
        Ok(racks::racks(leader))
    }
    set_racks(leader, request: SetRacksRequest) -> Racks {
        racks::set_racks(leader, request).await
    }
    get_space(leader, _request: GetSpaceRequest) -> SpaceStatus {
        Ok(space::status(leader))
    }
    explain_space(leader, request: ExplainSpaceRequest) -> ContainerSpace {
        space::explain(leader, &request)
    }

    list_pipelines(leader, _request: ListPipelinesRequest) -> ListPipelinesResponse {
        Ok(pipelines::list(leader))
    }
    create_pipeline(leader, request: CreatePipelineRequest) -> CreatePipelineResponse {
        pipelines::create_pipeline(leader, request).await
    }
    close_pipeline(leader, request: ClosePipelineRequest) -> ClosePipelineResponse {
        pipelines::close_pipeline(leader, request).await.map(|()| ClosePipelineResponse {})
    }
    accept_loss(leader, request: AcceptLossRequest) -> AcceptLossResponse {
        pipelines::accept_loss(leader, request).await
    }
    transfer_leader(leader, request: TransferLeaderRequest) -> TransferLeaderResponse {
        pipelines::transfer_leader(leader, request).map(|()| TransferLeaderResponse {})
    }

    list_containers(leader, request: ListContainersRequest) -> ListContainersResponse {
        Ok(containers::list_containers(leader, &request))
    }
    close_container(leader, request: CloseContainerRequest) -> CloseContainerResponse {
        containers::close(leader, request).map(|()| CloseContainerResponse {})
    }
    accept_container_loss(leader, request: AcceptContainerLossRequest) -> AcceptContainerLossResponse {
        containers::accept_loss(leader, request).await
    }
    drop_replica(leader, request: DropReplicaRequest) -> DropReplicaResponse {
        containers::drop_replica(leader, &request).map(|()| DropReplicaResponse {})
    }

    list_oms(leader, _request: ListOmsRequest) -> ListOmsResponse {
        Ok(om_groups::list(leader))
    }
    set_om_duty(leader, request: SetOmDutyRequest) -> SetOmDutyResponse {
        om_groups::set_duty(leader, request).await.map(|()| SetOmDutyResponse {})
    }
    transfer_om_leader(leader, request: TransferOmLeaderRequest) -> TransferOmLeaderResponse {
        om_groups::transfer_leader(leader, request)
    }
    create_om_group(leader, _request: CreateOmGroupRequest) -> CreateOmGroupResponse {
        om_groups::create(leader).await
    }
    give_up_om_group(leader, request: GiveUpOmGroupRequest) -> GiveUpOmGroupResponse {
        om_groups::give_up(leader, request).await.map(|()| GiveUpOmGroupResponse {})
    }
    begin_om_restore(leader, request: BeginOmRestoreRequest) -> BeginOmRestoreResponse {
        om_groups::begin_restore(leader, request).await
    }
    end_om_restore(leader, request: EndOmRestoreRequest) -> EndOmRestoreResponse {
        om_groups::end_restore(leader, request).await.map(|()| EndOmRestoreResponse {})
    }

    list_scm_members(leader, _request: ListScmMembersRequest) -> ListScmMembersResponse {
        Ok(members::list(leader))
    }
    transfer_scm_leader(leader, request: TransferScmLeaderRequest) -> TransferScmLeaderResponse {
        members::transfer(leader, request).await.map(|()| TransferScmLeaderResponse {})
    }
}
