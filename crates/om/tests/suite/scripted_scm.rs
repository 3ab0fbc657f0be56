//! An SCM that a test plays: it has one group of names, and answers heartbeats as
//! docs/adr/0013-scm-places-the-groups-of-names.md says. What the real one decides is tested with it.

use crate::server::DEADLINE;
use futures::StreamExt;
use futures::stream::BoxStream;
use proto::scm::scm_server::{Scm, ScmServer};
use proto::scm::*;
use proto::{Code, Failure};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};
use tonic::service::Routes;
use tonic::{Request, Response, Status};

pub(crate) struct ScriptedScm {
    pub(crate) address: String,
    service: Service,
    server: JoinHandle<()>,
}

impl Drop for ScriptedScm {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[derive(Clone)]
struct Service(Arc<Mutex<Record>>);

/// A record of all that the SCM knows, and of what the test wants.
pub(crate) struct Record {
    cluster: String,
    /// The directory's id and the address of each OM, by its number.
    oms: BTreeMap<u64, (Vec<u8>, String)>,
    next_om: u64,
    pub(crate) next_replica: u64,
    pub(crate) group: Option<OmGroup>,
    /// The last report of each OM.
    pub(crate) reports: BTreeMap<u64, Vec<OmReplicaReport>>,
    /// Founded groups are noted to be.
    pub(crate) notes: bool,
    /// OMs that are to have a replica.
    pub(crate) members_wanted: usize,
    /// The replicas that it has told are gone.
    pub(crate) gone: BTreeSet<u64>,
    /// The replicas that it tells are gone whatever their group says.
    pub(crate) orders_gone: BTreeSet<u64>,
    pub(crate) beats: u64,
    /// Groups that it tells of besides its own.
    pub(crate) other_groups: Vec<OmGroupView>,
    /// The answers about containers of which the SCM is asked to discard blocks; of all others: that they are
    /// gone.
    pub(crate) discards: BTreeMap<u64, DiscardState>,
    /// The blocks that the SCM was asked to discard, by container and local.
    pub(crate) discarded: BTreeSet<(u64, u64)>,
}

impl Record {
    /// The leader's report, as long as it is the only one that leads.
    pub(crate) fn leader(&self) -> Option<(u64, &OmReplicaReport)> {
        let reports = self.reports.iter().flat_map(|(om, reports)| reports.iter().map(|it| (*om, it)));
        let mut leaders: Vec<_> = reports.filter(|(_, it)| it.leader_replica == it.replica).collect();
        leaders.sort_by_key(|(_, it)| it.term);
        leaders.pop()
    }

    fn members(&self) -> &[OmMember] {
        self.group.as_ref().map_or(&[], |group| &group.members)
    }

    /// Whether the leader says that its voters are those wanted, and that it is in no change.
    pub(crate) fn is_as_wanted(&self) -> bool {
        let wanted: BTreeSet<u64> = self.members().iter().map(|member| member.replica).collect();
        self.leader().is_some_and(|(_, leader)| {
            let voters: BTreeSet<u64> = leader.members.iter().map(|it| it.replica).collect();
            !leader.is_changing && leader.members.iter().all(|it| it.is_voter) && voters == wanted
        })
    }

    fn view(&self) -> ClusterView {
        let leader_om = self.leader().map_or(0, |(om, _)| om);
        let view = |group: &OmGroup| OmGroupView {
            group: 0,
            members: group.members.clone(),
            leader_om,
            keys_bits: Some(0),
            lacks_room: false,
        };
        let om_groups = self.group.iter().map(view).collect();
        ClusterView { cluster: self.cluster.clone(), om_groups, ..ClusterView::default() }
    }

    fn draw_member(&mut self, om: u64) -> OmMember {
        self.next_replica += 1;
        let address = self.oms[&om].1.clone();
        OmMember { replica: self.next_replica, om, address, is_voter: true }
    }

    /// Puts a new replica at another OM in the place of an OM's.
    pub(crate) fn replace(&mut self, old: u64, new: u64) {
        let member = self.draw_member(new);
        let members = &mut self.group.as_mut().unwrap().members;
        let place = members.iter_mut().find(|member| member.om == old).unwrap();
        *place = member;
    }

    /// The number of the OM that registered last at this address.
    pub(crate) fn om_at(&self, address: &str) -> Option<u64> {
        self.oms.iter().rev().find(|(_, (_, at))| at == address).map(|(om, _)| *om)
    }

    fn register(&mut self, request: RegisterOmRequest) -> u64 {
        let RegisterOmRequest { uuid, address, om: known, .. } = request;
        let by_uuid = self.oms.iter().find(|(_, (it, _))| *it == uuid).map(|(om, _)| *om);
        let om = by_uuid.unwrap_or_else(|| {
            self.next_om += 1;
            if known != 0 { known } else { self.next_om }
        });
        self.oms.insert(om, (uuid.to_vec(), address));
        om
    }

    fn discard(&mut self, request: DiscardBlocksRequest) -> DiscardBlocksResponse {
        let blocks = request.containers.iter().flat_map(|unused| &unused.blocks);
        self.discarded.extend(blocks.map(|block| (block.container, block.local)));
        let progress = |unused: &UnusedBlocks| {
            assert!(unused.blocks.iter().all(|block| block.container == unused.container), "{unused:?}");
            let state = self.discards.get(&unused.container).copied().unwrap_or(DiscardState::DiscardGone);
            DiscardProgress { container: unused.container, state: state.into(), ..DiscardProgress::default() }
        };
        DiscardBlocksResponse { containers: request.containers.iter().map(progress).collect() }
    }

    fn beat(&mut self, om: u64, reports: Vec<OmReplicaReport>) -> OmHeartbeatResponse {
        if !self.oms.contains_key(&om) {
            return OmHeartbeatResponse { register_again: true, ..Default::default() };
        }
        self.beats += 1;
        let leads = reports.iter().find(|it| it.leader_replica == it.replica && it.replica != 0).cloned();
        let has_replica = reports.iter().any(|it| it.group == 0);
        // What nobody can know must not be made a member.
        let settled = reports.iter().filter(|it| it.leader_replica == it.replica && !it.is_changing);
        for leader in settled {
            assert!(leader.members.iter().all(|member| member.om != 0), "{leader:?}");
        }
        self.reports.insert(om, reports);
        self.place(om, has_replica, leads);
        let is_as_wanted = self.is_as_wanted();
        let reported: Vec<u64> = self.reports[&om].iter().map(|it| it.replica).collect();
        let wanted: Vec<u64> = self.members().iter().map(|member| member.replica).collect();
        let is_gone =
            |replica: &&u64| self.orders_gone.contains(replica) || is_as_wanted && !wanted.contains(replica);
        let gone = reported.iter().filter(is_gone);
        let gone: Vec<OmReplicaName> =
            gone.map(|replica| OmReplicaName { group: 0, replica: *replica }).collect();
        self.gone.extend(gone.iter().map(|name| name.replica));
        let is_member = self.members().iter().any(|member| member.om == om);
        let groups = self.group.iter().filter(|_| is_member || has_replica).cloned().collect();
        let address = |(om, (_, address)): (&u64, &(Vec<u8>, String))| NodeAddress {
            node: *om,
            address: address.clone(),
        };
        let addresses = self.oms.iter().map(address).collect();
        let om_groups = self.other_groups.clone();
        OmHeartbeatResponse { groups, gone, addresses, om_groups, ..OmHeartbeatResponse::default() }
    }

    /// Begins the group, takes over one that is there, notes that it is founded, and gives it members.
    fn place(&mut self, om: u64, has_replica: bool, leads: Option<OmReplicaReport>) {
        match (&mut self.group, leads) {
            (None, Some(leads)) => {
                self.next_replica = self.next_replica.max(leads.replica);
                self.group = Some(OmGroup {
                    group: 0,
                    members: leads.members,
                    is_founded: true,
                    ..OmGroup::default()
                });
            }
            (None, None) if !has_replica => {
                let members = vec![self.draw_member(om)];
                self.group = Some(OmGroup { group: 0, members, is_founded: false, ..OmGroup::default() });
            }
            (Some(group), Some(_)) if self.notes => group.is_founded = true,
            (None, None) | (Some(_), _) => {}
        }
        let is_founded = self.group.as_ref().is_some_and(|group| group.is_founded);
        if is_founded && self.members().len() < self.members_wanted {
            let taken: BTreeSet<u64> = self.members().iter().map(|member| member.om).collect();
            let others: Vec<u64> = self.oms.keys().copied().filter(|om| !taken.contains(om)).collect();
            if taken.len() + others.len() >= self.members_wanted {
                for om in others.into_iter().take(self.members_wanted - taken.len()) {
                    let member = self.draw_member(om);
                    self.group.as_mut().unwrap().members.push(member);
                }
            }
        }
    }
}

impl ScriptedScm {
    pub(crate) async fn start(cluster: &str) -> ScriptedScm {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let record = Record {
            cluster: cluster.to_owned(),
            oms: BTreeMap::new(),
            next_om: 100,
            next_replica: 10,
            group: None,
            reports: BTreeMap::new(),
            notes: true,
            members_wanted: 1,
            gone: BTreeSet::new(),
            orders_gone: BTreeSet::new(),
            beats: 0,
            other_groups: Vec::new(),
            discards: BTreeMap::new(),
            discarded: BTreeSet::new(),
        };
        let service = Service(Arc::new(Mutex::new(record)));
        let routes = Routes::new(ScmServer::new(service.clone()));
        let server = tokio::spawn(rpc::serve(listener, routes, std::future::pending()));
        ScriptedScm { address, service, server }
    }

    pub(crate) fn record(&self) -> MutexGuard<'_, Record> {
        self.service.0.lock().unwrap()
    }

    pub(crate) async fn until(&self, what: &str, holds: impl Fn(&Record) -> bool) {
        let give_up = Instant::now() + DEADLINE;
        loop {
            {
                let record = self.record();
                if holds(&record) {
                    return;
                }
                let Record { group, reports, .. } = &*record;
                assert!(Instant::now() < give_up, "not {what}: {group:?}\n{reports:#?}");
            }
            sleep(Duration::from_millis(2)).await;
        }
    }
}

fn not_played<T>() -> Result<Response<T>, Status> {
    Err(Status::unimplemented("no test needs it"))
}

macro_rules! scm {
    ($($method:ident, $request:ident => $response:ident;)*) => {
        #[tonic::async_trait]
        impl Scm for Service {
            type WatchStream = BoxStream<'static, Result<ClusterView, Status>>;

            async fn register_om(
                &self,
                request: Request<RegisterOmRequest>,
            ) -> Result<Response<RegisterOmResponse>, Status> {
                let request = request.into_inner();
                let mut record = self.0.lock().unwrap();
                let cluster = record.cluster.clone();
                if !request.cluster.is_empty() && request.cluster != cluster {
                    return Err(Failure::new(Code::WrongCluster, format!("this is cluster {cluster}")).into());
                }
                Ok(Response::new(RegisterOmResponse { om: record.register(request), cluster }))
            }

            async fn om_heartbeat(
                &self,
                request: Request<OmHeartbeatRequest>,
            ) -> Result<Response<OmHeartbeatResponse>, Status> {
                let OmHeartbeatRequest { om, replicas, .. } = request.into_inner();
                Ok(Response::new(self.0.lock().unwrap().beat(om, replicas)))
            }

            async fn discard_blocks(
                &self,
                request: Request<DiscardBlocksRequest>,
            ) -> Result<Response<DiscardBlocksResponse>, Status> {
                Ok(Response::new(self.0.lock().unwrap().discard(request.into_inner())))
            }

            async fn watch(&self, _: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
                let views = futures::stream::unfold((self.clone(), None), |(service, told)| async move {
                    loop {
                        let view = service.0.lock().unwrap().view();
                        if told.as_ref() != Some(&view) {
                            return Some((Ok(view.clone()), (service, Some(view))));
                        }
                        sleep(Duration::from_millis(20)).await;
                    }
                });
                Ok(Response::new(views.boxed()))
            }

            $(async fn $method(&self, _: Request<$request>) -> Result<Response<$response>, Status> {
                not_played()
            })*
        }
    };
}

scm! {
    register, RegisterRequest => RegisterResponse;
    heartbeat, HeartbeatRequest => HeartbeatResponse;
    allocate_container, AllocateContainerRequest => AllocateContainerResponse;
    locate_containers, LocateContainersRequest => LocateContainersResponse;
    list_datanodes, ListDatanodesRequest => ListDatanodesResponse;
    list_pipelines, ListPipelinesRequest => ListPipelinesResponse;
    list_containers, ListContainersRequest => ListContainersResponse;
    create_pipeline, CreatePipelineRequest => CreatePipelineResponse;
    close_pipeline, ClosePipelineRequest => ClosePipelineResponse;
    accept_loss, AcceptLossRequest => AcceptLossResponse;
    accept_container_loss, AcceptContainerLossRequest => AcceptContainerLossResponse;
    drop_replica, DropReplicaRequest => DropReplicaResponse;
    close_container, CloseContainerRequest => CloseContainerResponse;
    transfer_leader, TransferLeaderRequest => TransferLeaderResponse;
    set_node_duty, SetNodeDutyRequest => SetNodeDutyResponse;
    note_fences, NoteFencesRequest => NoteFencesResponse;
    list_oms, ListOmsRequest => ListOmsResponse;
    set_om_duty, SetOmDutyRequest => SetOmDutyResponse;
    transfer_om_leader, TransferOmLeaderRequest => TransferOmLeaderResponse;
    give_up_om_group, GiveUpOmGroupRequest => GiveUpOmGroupResponse;
    create_om_group, CreateOmGroupRequest => CreateOmGroupResponse;
    begin_om_restore, BeginOmRestoreRequest => BeginOmRestoreResponse;
    end_om_restore, EndOmRestoreRequest => EndOmRestoreResponse;
    get_cluster_status, GetClusterStatusRequest => ClusterStatus;
    set_switches, SetSwitchesRequest => ClusterStatus;
    get_space, GetSpaceRequest => SpaceStatus;
    explain_space, ExplainSpaceRequest => ContainerSpace;
    get_racks, GetRacksRequest => Racks;
    set_racks, SetRacksRequest => Racks;
    introduce, IntroduceRequest => IntroduceResponse;
    join_scm, JoinScmRequest => JoinScmResponse;
    list_scm_members, ListScmMembersRequest => ListScmMembersResponse;
    transfer_scm_leader, TransferScmLeaderRequest => TransferScmLeaderResponse;
    remove_scm_member, RemoveScmMemberRequest => RemoveScmMemberResponse;
}
