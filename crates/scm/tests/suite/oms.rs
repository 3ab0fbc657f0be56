//! OMs as SCM hears them, and a group of names that does what SCM wants at once.

use crate::server::Server;
use bytes::Bytes;
use flotilla_scm::ScmOptions;
use proto::scm::*;
use proto::{Code, Failure};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::sleep;

/// Far below the time after which one that is silent is dead.
const BEAT: Duration = Duration::from_millis(20);

/// An OM without a process.
#[derive(Clone, Default)]
struct Om {
    uuid: u8,
    om: u64,
    address: String,
    cluster: String,
    replica: Option<u64>,
    told: Option<OmGroup>,
    is_founded: bool,
    /// The backup of which it has rows, and whether it has all.
    restored: (Bytes, bool),
}

/// The members of group 0 as they are, by replica and OM, and what its log has come to.
#[derive(Default)]
struct Group {
    voters: Vec<OmMember>,
    last_index: u64,
    /// The replicas that an OM has begun: a leader makes no voter of another one, which nobody would begin
    /// then.
    begun: BTreeSet<u64>,
}

impl Om {
    fn new(uuid: u8) -> Om {
        Om { uuid, address: format!("om{uuid}:7400"), ..Om::default() }
    }

    async fn register(&mut self, server: &mut Server) -> Result<(), Failure> {
        let request = RegisterOmRequest {
            uuid: Bytes::from(vec![self.uuid; 16]),
            cluster: self.cluster.clone(),
            address: self.address.clone(),
            om: self.om,
        };
        let response = server.client.register_om(request).await?.into_inner();
        (self.om, self.cluster) = (response.om, response.cluster);
        Ok(())
    }

    fn request(&self, replicas: Vec<OmReplicaReport>) -> OmHeartbeatRequest {
        OmHeartbeatRequest {
            om: self.om,
            cluster: self.cluster.clone(),
            address: self.address.clone(),
            replicas,
            version: "1.2.3".to_owned(),
            ..OmHeartbeatRequest::default()
        }
    }

    async fn say(
        &self,
        server: &mut Server,
        replicas: Vec<OmReplicaReport>,
    ) -> Result<OmHeartbeatResponse, Failure> {
        Ok(server.client.om_heartbeat(self.request(replicas)).await?.into_inner())
    }

    fn reports(&self, group: &Group) -> Vec<OmReplicaReport> {
        let Some(replica) = self.replica else { return Vec::new() };
        let leader = group.voters.first().map_or(0, |first| first.replica);
        let is_member = group.voters.iter().any(|member| member.replica == replica);
        vec![OmReplicaReport {
            replica,
            term: 1,
            leader_replica: if is_member { leader } else { 0 },
            last_index: group.last_index,
            applied_index: group.last_index,
            members: group.voters.clone(),
            is_founded: self.is_founded,
            backup: self.restored.0.clone(),
            is_restored: self.restored.1,
            wanted: self.told.iter().flat_map(|told| &told.members).map(|member| member.replica).collect(),
            ..OmReplicaReport::default()
        }]
    }

    /// Says how it is, and does what it is told.
    async fn beat(&mut self, server: &mut Server, group: &mut Group) {
        let answer = self.say(server, self.reports(group)).await.unwrap();
        if answer.register_again {
            self.register(server).await.unwrap();
            return;
        }
        if answer.gone.iter().any(|gone| Some(gone.replica) == self.replica) {
            self.replica = None;
        }
        for successor in answer.successors {
            group.voters.sort_by_key(|voter| voter.replica != successor.replica);
        }
        self.told = answer.groups.into_iter().next();
        let Some(told) = &self.told else { return };
        let mine = told.members.iter().find(|member| member.om == self.om);
        if self.replica.is_none() {
            self.replica = mine.map(|mine| mine.replica);
            if !told.is_founded {
                *group = Group { voters: told.members.clone(), last_index: 1, ..Group::default() };
            }
        }
        group.begun.extend(self.replica);
        let leads = group.voters.first().is_some_and(|first| Some(first.replica) == self.replica);
        if leads && told.is_founded {
            self.is_founded = true;
            let are_begun = told.members.iter().all(|member| group.begun.contains(&member.replica));
            if are_begun && names(&told.members) != names(&group.voters) {
                group.voters = told.members.clone();
                group.last_index += 2;
            }
        }
    }
}

fn names(members: &[OmMember]) -> BTreeSet<(u64, u64)> {
    members.iter().map(|member| (member.replica, member.om)).collect()
}

/// Has all of these OMs send heartbeats until it is so.
async fn beat_until(
    server: &mut Server,
    group: &mut Group,
    oms: &mut [Om],
    what: &str,
    wanted: impl Fn(&ListOmsResponse) -> bool,
) -> ListOmsResponse {
    let deadline = tokio::time::Instant::now() + crate::server::DEADLINE;
    loop {
        for om in oms.iter_mut() {
            om.beat(server, group).await;
        }
        let list = list(server).await;
        if wanted(&list) {
            return list;
        }
        assert!(tokio::time::Instant::now() < deadline, "no {what}: {list:#?}");
        sleep(BEAT).await;
    }
}

async fn list(server: &mut Server) -> ListOmsResponse {
    server.client.list_oms(ListOmsRequest {}).await.unwrap().into_inner()
}

fn wanted_oms(list: &ListOmsResponse) -> BTreeSet<u64> {
    let members = list.groups[0].group.iter().flat_map(|group| &group.members);
    members.map(|member| member.om).collect()
}

/// The group has these OMs, in the record and as it says itself, and nothing is wrong with it.
fn is_well_on(list: &ListOmsResponse, oms: &[u64]) -> bool {
    wanted_oms(list) == oms.iter().copied().collect() && list.groups[0].problem.is_empty()
}

async fn registered(server: &mut Server, count: u8) -> Vec<Om> {
    let mut oms: Vec<Om> = (1..=count).map(Om::new).collect();
    for om in &mut oms {
        om.register(server).await.unwrap();
    }
    oms
}

/// Whoever has not spoken for five seconds is dead, and replaced: a machine that stands still for less
/// replaces nobody whom the test has alive.
fn options() -> ScmOptions {
    let (stale_after, dead_after) = (Duration::from_millis(2500), Duration::from_secs(5));
    ScmOptions { stale_after, dead_after, om_groups: 1, ..ScmOptions::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_of_names_is_founded_grows_and_outlives_its_members() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    let mut group = Group::default();
    let mut oms = registered(&mut server, 3).await;
    assert_eq!(oms.iter().map(|om| om.om).collect::<Vec<_>>(), [1, 2, 3]);
    let mut views = server.client.watch(WatchRequest {}).await.unwrap().into_inner();
    let found =
        beat_until(&mut server, &mut group, &mut oms, "group of three", |list| is_well_on(list, &[1, 2, 3]))
            .await;
    assert!(!found.groups[0].is_down && found.groups[0].leader_om != 0);
    assert_eq!(found.oms[0].version, "1.2.3");
    assert_eq!(
        (server.metric("flotilla_scm_om_groups"), server.metric("flotilla_scm_om_groups_down")),
        (1.0, 0.0)
    );
    let view = loop {
        let view = views.message().await.unwrap().unwrap();
        let votes = |group: &OmGroupView| group.members.iter().filter(|member| member.is_voter).count();
        if view.om_groups.iter().any(|group| votes(group) == 3) {
            break view;
        }
    };
    let first = &view.om_groups[0];
    assert_eq!(first.leader_om, found.groups[0].leader_om);
    assert!(first.members.iter().all(|member| member.address.ends_with(":7400")), "{first:?}");

    // The leader stays; of the two others one is silent, and one is emptied.
    let at = oms.iter().position(|om| om.om != first.leader_om).unwrap();
    let dead = oms.remove(at);
    let mut fourth = Om::new(4);
    fourth.register(&mut server).await.unwrap();
    oms.push(fourth);
    let now: Vec<u64> = oms.iter().map(|om| om.om).collect();
    let found = beat_until(&mut server, &mut group, &mut oms, "one in the place of the dead", |list| {
        is_well_on(list, &now)
    })
    .await;
    let of_dead = found.oms.iter().find(|info| info.om == dead.om).unwrap();
    assert_eq!(of_dead.state(), NodeState::NodeDead);

    let at = oms.iter().position(|om| om.om != first.leader_om).unwrap();
    let emptied = oms[at].clone();
    oms[at] = Om { uuid: 9, om: emptied.om, address: emptied.address.clone(), ..Om::default() };
    oms[at].register(&mut server).await.unwrap();
    assert_eq!(oms[at].om, 5, "an emptied directory is another OM");
    let now: Vec<u64> = oms.iter().map(|om| om.om).collect();
    let found = beat_until(&mut server, &mut group, &mut oms, "an emptied one in its own place", |list| {
        is_well_on(list, &now)
    })
    .await;
    let before = found.oms.iter().find(|info| info.om == emptied.om).unwrap();
    assert_eq!((before.state(), before.address.as_str()), (NodeState::NodeDead, ""));

    // The silent one comes back and finds that it was replaced.
    oms.push(dead);
    beat_until(&mut server, &mut group, &mut oms, "end of a replaced member", |list| {
        list.groups[0].replicas.len() == 3
            && list.oms.iter().filter(|om| om.state() == NodeState::NodeHealthy).count() == 4
    })
    .await;
    assert_eq!(oms.last().unwrap().replica, None);
    server.stop().await;

    let mut server = Server::start_with(dir.path(), options()).await;
    for om in &mut oms {
        let number = om.om;
        om.register(&mut server).await.unwrap();
        assert_eq!(om.om, number);
    }
    beat_until(&mut server, &mut group, &mut oms, "the same group", |list| is_well_on(list, &now)).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_om_is_emptied_at_an_operators_word_but_the_last_one() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    let mut group = Group::default();
    let mut oms = registered(&mut server, 1).await;
    beat_until(&mut server, &mut group, &mut oms, "group of one", |list| is_well_on(list, &[1])).await;
    let set = async |server: &mut Server, om: u64, duty: NodeDuty| {
        let request = SetOmDutyRequest { om, duty: duty as i32 };
        server.client.set_om_duty(request).await.map(drop).map_err(Failure::from)
    };
    let refused = set(&mut server, 1, NodeDuty::NodeDecommissioning).await.unwrap_err();
    assert!(refused.message.contains("last one"), "{refused:?}");
    assert_eq!(set(&mut server, 7, NodeDuty::NodeInService).await.unwrap_err().code, Code::NotFound);
    assert_eq!(set(&mut server, 1, NodeDuty::NodeInMaintenance).await.unwrap_err().code, Code::Invalid);
    let mut second = Om::new(2);
    second.register(&mut server).await.unwrap();
    oms.push(second);
    set(&mut server, 1, NodeDuty::NodeDecommissioning).await.unwrap();
    let emptied =
        |list: &ListOmsResponse| is_well_on(list, &[2]) && list.oms[0].duty() == NodeDuty::NodeDecommissioned;
    beat_until(&mut server, &mut group, &mut oms, "emptied OM", emptied).await;
    beat_until(&mut server, &mut group, &mut oms, "end of its replica", |list| {
        list.groups[0].replicas.len() == 1
    })
    .await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_member_leads_at_an_operators_word() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let mut group = Group::default();
    let transfer = async |server: &mut Server, group: u64, om: u64| {
        let moved = server.client.transfer_om_leader(TransferOmLeaderRequest { group, om }).await;
        moved.map(|moved| moved.into_inner().om).map_err(Failure::from)
    };
    assert_eq!(transfer(&mut server, 0, 0).await.unwrap_err().code, Code::NotFound);
    let mut oms = registered(&mut server, 1).await;
    beat_until(&mut server, &mut group, &mut oms, "group of one", |list| is_well_on(list, &[1])).await;
    assert_eq!(transfer(&mut server, 0, 0).await.unwrap_err().code, Code::PreconditionFailed);
    for uuid in 2..=4 {
        let mut om = Om::new(uuid);
        om.register(&mut server).await.unwrap();
        oms.push(om);
    }
    let is_whole = |list: &ListOmsResponse| wanted_oms(list).len() == 3 && list.groups[0].problem.is_empty();
    let list = beat_until(&mut server, &mut group, &mut oms, "group of three", is_whole).await;
    let mut others: Vec<u64> = wanted_oms(&list).into_iter().filter(|om| *om != 1).collect();
    let stands_by = (2..=4).find(|om| !others.contains(om)).unwrap();
    assert_eq!(transfer(&mut server, 0, stands_by).await.unwrap_err().code, Code::Invalid);
    // Whoever leads already is no wish at all; nobody in particular is another one.
    assert_eq!(transfer(&mut server, 0, 1).await, Ok(1));
    let next = transfer(&mut server, 0, 0).await.unwrap();
    assert!(others.contains(&next), "{next} of {others:?}");
    let leads = |om: u64| move |list: &ListOmsResponse| list.groups[0].leader_om == om;
    beat_until(&mut server, &mut group, &mut oms, "next leader", leads(next)).await;
    others.retain(|om| *om != next);
    assert_eq!(transfer(&mut server, 0, others[0]).await, Ok(others[0]));
    beat_until(&mut server, &mut group, &mut oms, "leader that was asked for", leads(others[0])).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_are_given_up_only_where_nobody_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    let give_up = async |server: &mut Server, group: u64| {
        let given_up = server.client.give_up_om_group(GiveUpOmGroupRequest { group }).await;
        given_up.map(drop).map_err(Failure::from)
    };
    assert_eq!(give_up(&mut server, 0).await.unwrap_err().code, Code::NotFound);
    assert_eq!(give_up(&mut server, 1).await.unwrap_err().code, Code::NotFound);
    let mut group = Group::default();
    let mut oms = registered(&mut server, 1).await;
    beat_until(&mut server, &mut group, &mut oms, "group of one", |list| is_well_on(list, &[1])).await;
    let first = oms[0].replica;
    let refused = give_up(&mut server, 0).await.unwrap_err();
    assert!(refused.message.contains("OM 1 has replica"), "{refused:?}");
    server.stop().await;

    let mut server = Server::start_with(dir.path(), options()).await;
    let refused = give_up(&mut server, 0).await.unwrap_err();
    assert!(refused.message.contains("has not told yet"), "{refused:?}");
    // Its directory is emptied.
    oms[0] = Om { uuid: 9, address: oms[0].address.clone(), ..Om::default() };
    oms[0].register(&mut server).await.unwrap();
    let found = beat_until(&mut server, &mut group, &mut oms, "lost group", |list| {
        list.oms[0].state() == NodeState::NodeDead && list.oms[1].state() == NodeState::NodeHealthy
    })
    .await;
    assert!(found.groups[0].is_down && found.groups[0].problem.contains("majority"), "{found:?}");
    assert_eq!(oms[0].replica, None, "nobody begins what may be elsewhere");
    give_up(&mut server, 0).await.unwrap();
    beat_until(&mut server, &mut group, &mut oms, "new group", |list| is_well_on(list, &[2])).await;
    assert_ne!(oms[0].replica, first);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_names_are_restored_where_nobody_has_any_and_are_served_when_all_rows_are_there() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start_with(dir.path(), options()).await;
    let [backup, other] = [7, 8].map(|byte| Bytes::from(vec![byte; 16]));
    let begin = async |server: &mut Server, backup: &Bytes, groups: &[u64]| {
        let request = BeginOmRestoreRequest { backup: backup.clone(), taken_ms: 1, groups: groups.to_vec() };
        let begun = server.client.begin_om_restore(request).await;
        begun.map(|begun| begun.into_inner().groups).map_err(Failure::from)
    };
    let end = async |server: &mut Server, backup: &Bytes| {
        let ended = server.client.end_om_restore(EndOmRestoreRequest { backup: backup.clone() }).await;
        ended.map(drop).map_err(Failure::from)
    };
    let mut group = Group::default();
    let mut oms = registered(&mut server, 1).await;
    beat_until(&mut server, &mut group, &mut oms, "group of one", |list| is_well_on(list, &[1])).await;
    let refused = begin(&mut server, &backup, &[0]).await.unwrap_err();
    assert_eq!(refused.code, Code::PreconditionFailed);
    assert!(refused.message.contains("its names are not lost"), "{refused:?}");

    // Its directory is emptied.
    oms[0] = Om { uuid: 9, address: oms[0].address.clone(), ..Om::default() };
    oms[0].register(&mut server).await.unwrap();
    let refused = begin(&mut server, &backup, &[0]).await.unwrap_err();
    assert_eq!(refused.code, Code::Unavailable, "it may come back a moment later: {refused:?}");
    let is_lost = |list: &ListOmsResponse| list.oms[0].state() == NodeState::NodeDead;
    beat_until(&mut server, &mut group, &mut oms, "lost group", is_lost).await;
    for (backup, groups, words) in [
        (&backup, &[0, 1][..], "never made a group 1"),
        (&Bytes::from_static(b"short"), &[0][..], "16 bytes"),
    ] {
        let refused = begin(&mut server, backup, groups).await.unwrap_err();
        assert!(refused.message.contains(words), "{refused:?}");
    }
    assert!(list(&mut server).await.groups[0].group.as_ref().unwrap().is_founded, "nothing was changed");

    assert_eq!(begin(&mut server, &backup, &[0]).await.unwrap(), [0]);
    let has_begun = |list: &ListOmsResponse| {
        let told = list.groups[0].group.clone().unwrap();
        told.backup == backup && list.groups[0].replicas.first().is_some_and(|it| it.report.is_some())
    };
    let begun = beat_until(&mut server, &mut group, &mut oms, "group for the rows", has_begun).await;
    assert!(begun.groups[0].is_down && begun.groups[0].problem.contains("being restored"), "{begun:#?}");
    assert_eq!(end(&mut server, &backup).await.unwrap_err().code, Code::Unavailable);
    assert_eq!(end(&mut server, &other).await.unwrap_err().code, Code::PreconditionFailed);
    for restored in [(backup.clone(), false), (other.clone(), true)] {
        oms[0].restored = restored;
        oms[0].beat(&mut server, &mut group).await;
        let refused = end(&mut server, &backup).await.unwrap_err();
        assert!(refused.message.contains("all rows of group 0"), "{refused:?}");
    }
    let refused = begin(&mut server, &backup, &[0]).await;
    assert_eq!(refused.unwrap_err().code, Code::PreconditionFailed, "it says that it has another's rows");
    oms[0].restored = (backup.clone(), true);
    oms[0].beat(&mut server, &mut group).await;
    assert_eq!(begin(&mut server, &backup, &[0]).await.unwrap(), [0], "once more");
    assert!(!list(&mut server).await.groups[0].group.as_ref().unwrap().is_founded);
    end(&mut server, &backup).await.unwrap();
    end(&mut server, &backup)
        .await
        .unwrap_or_else(|failure| assert_eq!(failure.code, Code::PreconditionFailed));
    let well =
        beat_until(&mut server, &mut group, &mut oms, "restored group", |list| is_well_on(list, &[2])).await;
    assert!(well.groups[0].group.as_ref().unwrap().backup.is_empty());
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_om_may_say_is_bounded_and_of_this_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let mut om = Om { uuid: 1, address: "nowhere".to_owned(), ..Om::default() };
    assert_eq!(om.register(&mut server).await.unwrap_err().code, Code::Invalid);
    let mut stranger = Om { cluster: "another".to_owned(), ..Om::new(1) };
    assert_eq!(stranger.register(&mut server).await.unwrap_err().code, Code::WrongCluster);
    om.address = "om1:7400".to_owned();
    assert!(om.say(&mut server, vec![]).await.unwrap().register_again);
    om.register(&mut server).await.unwrap();
    assert!(!om.say(&mut server, vec![]).await.unwrap().register_again);
    let replicas = vec![OmReplicaReport { replica: 1, ..OmReplicaReport::default() }; 2];
    assert_eq!(om.say(&mut server, replicas).await.unwrap_err().code, Code::Invalid);
    om.address = "moved:7400".to_owned();
    assert!(om.say(&mut server, vec![]).await.unwrap().register_again);
    // It may be a copy, as long as the other one was heard just now.
    let refused = om.register(&mut server).await.unwrap_err();
    assert!(refused.code == Code::PreconditionFailed && refused.message.contains("copy"), "{refused:?}");
    assert!(list(&mut server).await.oms[0].problem.contains("started at moved:7400"));
    let deadline = tokio::time::Instant::now() + crate::server::DEADLINE;
    while let Err(refused) = om.register(&mut server).await {
        assert!(tokio::time::Instant::now() < deadline, "{refused:?}");
        sleep(BEAT).await;
    }
    assert_eq!((om.om, list(&mut server).await.oms[0].address.as_str()), (1, "moved:7400"));
    server.stop().await;
}
