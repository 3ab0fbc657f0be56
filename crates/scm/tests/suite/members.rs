//! Several SCMs that are started with the same list.

use crate::datanodes::register;
use crate::server::{DEADLINE, Server};
use flotilla_scm::ScmOptions;
use proto::scm::*;
use proto::{Code, Failure};
use std::path::PathBuf;
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};

/// Three places for SCMs, in the order in which SCM sorts them: the first is to found.
pub(crate) struct Places {
    dir: TempDir,
    addresses: Vec<String>,
}

impl Places {
    pub(crate) fn new() -> Places {
        let mut addresses = testkit::free_addresses(3);
        addresses.sort();
        Places { dir: tempfile::tempdir().unwrap(), addresses }
    }

    fn path(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("scm{at}"))
    }

    fn options(&self, at: usize) -> ScmOptions {
        ScmOptions {
            address: self.addresses[at].clone(),
            members: self.addresses.clone(),
            ..ScmOptions::default()
        }
    }

    pub(crate) async fn start(&self, at: usize) -> Server {
        Server::start_with(&self.path(at), self.options(at)).await
    }

    pub(crate) async fn start_all(&self) -> Vec<Server> {
        let mut servers = Vec::new();
        for at in 0..3 {
            servers.push(self.start(at).await);
        }
        for server in &servers {
            joined(server).await.unwrap();
        }
        servers
    }

    #[allow(clippy::disallowed_methods)] // the disk of a stopped server is lost
    fn empty(&self, at: usize) {
        std::fs::remove_dir_all(self.path(at)).unwrap();
    }

    #[allow(clippy::disallowed_methods)] // files of a stopped server are lost
    fn lose_all_but_the_stamp(&self, at: usize) {
        for entry in std::fs::read_dir(self.path(at)).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                std::fs::remove_dir_all(entry.path()).unwrap();
            }
        }
    }
}

async fn joined(server: &Server) -> Result<(), String> {
    let joined = tokio::time::timeout(DEADLINE, server.scm.joined()).await;
    joined.expect("it is decided whether it is a member").map_err(|error| format!("{error:#}"))
}

async fn waits(server: &Server, says: &str) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let readiness = server.scm.readiness();
        if readiness.as_ref().is_err_and(|why| why.contains(says)) {
            return;
        }
        assert!(Instant::now() < deadline, "it does not say `{says}` but: {readiness:?}");
        sleep(Duration::from_millis(10)).await;
    }
}

/// The leader's answer, and its position in `servers`.
pub(crate) async fn roles(servers: &mut [Server]) -> (usize, ListScmMembersResponse) {
    let deadline = Instant::now() + DEADLINE;
    loop {
        for (at, server) in servers.iter_mut().enumerate() {
            match server.client.list_scm_members(ListScmMembersRequest {}).await {
                Ok(answer) => return (at, answer.into_inner()),
                Err(status) => drop(status),
            }
        }
        assert!(Instant::now() < deadline, "nobody leads");
        sleep(Duration::from_millis(10)).await;
    }
}

fn voters(roles: &ListScmMembersResponse) -> Vec<(u64, &str)> {
    let voters = roles.members.iter().filter(|member| member.is_voter);
    voters.map(|member| (member.replica, member.address.as_str())).collect()
}

/// The leader's address, as far as who was asked knows it.
fn leader_of(roles: &ListScmMembersResponse) -> Option<&str> {
    let leader = roles.members.iter().find(|member| member.is_leader);
    leader.map(|member| member.address.as_str())
}

pub(crate) async fn stop(servers: Vec<Server>) {
    for server in servers {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_is_born_when_all_of_the_list_are_there() {
    let places = Places::new();
    let first = places.start(0).await;
    waits(&first, &format!("{} does not answer", places.addresses[2])).await;
    let third = places.start(2).await;
    waits(&third, &format!("{} does not answer", places.addresses[1])).await;
    let second = places.start(1).await;
    let mut servers = vec![first, second, third];
    for server in &servers {
        joined(server).await.unwrap();
    }
    let (_, told) = roles(&mut servers).await;
    let mut at: Vec<&str> = voters(&told).iter().map(|(_, address)| *address).collect();
    at.sort();
    assert_eq!(at, places.addresses);
    for server in &servers {
        assert_eq!(server.scm.cluster(), told.cluster);
        server.scm.readiness().unwrap();
    }

    // Two of them are enough from then on, whoever they are.
    stop(servers).await;
    let mut servers = vec![places.start(1).await, places.start(2).await];
    let (at, again) = roles(&mut servers).await;
    assert_eq!((voters(&again), &again.cluster), (voters(&told), &told.cluster));
    register(&mut servers[at], 3).await;
    stop(servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_stops_lets_another_lead_at_once_who_knows_all() {
    // A disk that stands still can hold up any of them.
    const CLUSTERS: usize = 5;
    // By themselves the others would notice its silence first, and that may have begun a heartbeat before it
    // was told to stop.
    let timing = raft::Timing::METADATA;
    let within = timing.election_min - timing.heartbeat;
    let mut all_took: Vec<Duration> = Vec::new();
    while all_took.iter().all(|took| *took >= within) {
        assert!(all_took.len() < CLUSTERS, "another led only after {all_took:?}");
        all_took.push(leader_stops_and_another_leads().await);
    }
}

/// Measures the time until another leads, in a new cluster.
async fn leader_stops_and_another_leads() -> Duration {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let (at, _) = roles(&mut servers).await;
    register(&mut servers[at], 3).await;
    let before = servers[at].pipelines_become("pipelines", |pipelines| pipelines.len() == 4).await;
    let stopping = servers.remove(at);
    let began = Instant::now();
    let another_leads = async {
        let (leader, told) = roles(&mut servers).await;
        (leader, told, began.elapsed())
    };
    let ((), (leader, told, took)) = tokio::join!(stopping.scm.shutdown(), another_leads);
    assert_eq!(told.members.len(), 3, "one that is away stays a member: {told:?}");
    let decided = |pipelines: &[Pipeline]| -> Vec<_> {
        pipelines.iter().map(|pipeline| (pipeline.pipeline, pipeline.members.clone())).collect()
    };
    assert_eq!(decided(&servers[leader].pipelines().await), decided(&before));
    stopping.stop().await;
    stop(servers).await;
    took
}

/// Others may have elected another one meanwhile: who is still heard by datanodes must not keep them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_hears_no_majority_serves_nobody() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let (at, _) = roles(&mut servers).await;
    let mut leader = servers.remove(at);
    let serves = async |server: &mut Server| {
        server.client.list_datanodes(ListDatanodesRequest {}).await.map_err(Failure::from)
    };
    serves(&mut leader).await.unwrap();
    stop(servers).await;
    waits(&leader, "a majority of its members does not answer").await;
    leader.becomes("silence", async |server| serves(server).await.is_err()).await;
    assert_eq!(serves(&mut leader).await.unwrap_err().code, Code::Unavailable);
    let introduced = leader.client.introduce(IntroduceRequest {}).await.unwrap().into_inner();
    assert_eq!(introduced.replica.unwrap().role, "leader of a minority");

    let other = places.start((at + 1) % 3).await;
    let mut both = vec![leader, other];
    let (again, _) = roles(&mut both).await;
    serves(&mut both[again]).await.unwrap();
    stop(both).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leadership_goes_where_an_operator_wants_it() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let (at, _) = roles(&mut servers).await;
    let to = (at + 1) % 3;
    let wanted = places.addresses[to].as_str();
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (at, before) = roles(&mut servers).await;
        if at == to {
            break;
        }
        transfer(&mut servers, wanted).await.unwrap();
        let (_, after) = roles(&mut servers).await;
        // Who was asked may not have heard of it yet, and later elections are of machines that stand still.
        // This one was to be won by it.
        let is_elsewhere = leader_of(&after).is_some_and(|leader| leader != wanted);
        assert!(!(is_elsewhere && after.term == before.term + 1), "to {wanted}: {before:?} {after:?}");
        assert!(Instant::now() < deadline, "no leader at {wanted}: {after:?}");
    }
    let failure = transfer(&mut servers, "nowhere:1").await.unwrap_err();
    assert_eq!(failure.code, Code::NotFound, "{failure}");
    // And to whomever is best.
    transfer(&mut servers, "").await.unwrap();
    stop(servers).await;
}

/// Transfers the lead: a leader answers, and the others hear and follow.
async fn transfer(servers: &mut [Server], address: &str) -> Result<(), Failure> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (at, _) = roles(servers).await;
        let request = TransferScmLeaderRequest { address: address.to_owned() };
        let answer = servers[at].client.transfer_scm_leader(request).await.map_err(Failure::from);
        match answer {
            Err(failure) if matches!(failure.code, Code::Unavailable | Code::NotLeader) => {
                assert!(Instant::now() < deadline, "to `{address}`: {failure}");
            }
            answer => return answer.map(drop),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_with_an_emptied_disk_comes_back_as_another_replica() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let (_, before) = roles(&mut servers).await;
    // The founder too: it must not found again.
    for at in [0, 2] {
        servers.remove(at).stop().await;
        places.empty(at);
        servers.insert(at, places.start(at).await);
        joined(&servers[at]).await.unwrap();
    }
    let (_, after) = roles(&mut servers).await;
    assert_eq!(after.cluster, before.cluster);
    let addresses: Vec<&str> = voters(&after).iter().map(|(_, address)| *address).collect();
    assert_eq!(addresses.len(), 3, "{after:?}");
    for address in &places.addresses {
        let replica = |told: &ListScmMembersResponse| {
            voters(told).iter().find(|(_, at)| at == address).map(|(replica, _)| *replica)
        };
        let (old, new) = (replica(&before).unwrap(), replica(&after).expect("it is a voter again"));
        let is_kept = *address == places.addresses[1];
        assert_eq!(old == new, is_kept, "{address}: {before:?} {after:?}");
        assert!(is_kept || voters(&before).iter().all(|(replica, _)| *replica != new), "an id twice");
    }
    stop(servers).await;
}

/// Nobody is left who could say that there was a cluster: but those that are away may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_ones_found_nothing_while_another_is_away() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let cluster = roles(&mut servers).await.1.cluster;
    stop(servers).await;
    places.empty(0);
    places.empty(1);
    let (first, second) = (places.start(0).await, places.start(1).await);
    waits(&first, &format!("{} does not answer", places.addresses[2])).await;
    waits(&second, &format!("{} does not answer", places.addresses[2])).await;
    // It alone is no majority, and it does not give places to others.
    let third = places.start(2).await;
    waits(&first, &format!("asked to join cluster {cluster}: none of its SCMs that answer leads it")).await;
    waits(&third, "no leader").await;
    stop(vec![first, second, third]).await;
}

/// Its stamp says that there was a cluster, though SCM's files are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn emptied_ones_found_nothing_beside_one_that_has_only_its_stamp() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let cluster = roles(&mut servers).await.1.cluster;
    stop(servers).await;
    places.empty(0);
    places.empty(2);
    places.lose_all_but_the_stamp(1);
    let second = places.start(1).await;
    let third = places.start(2).await;
    let first = places.start(0).await;
    waits(&first, &format!("asked to join cluster {cluster}: none of its SCMs that answer leads it")).await;
    waits(&second, &format!("this one belongs to cluster {cluster}, and no other member of it is there"))
        .await;
    assert_eq!(first.scm.cluster(), "");
    stop(vec![first, second, third]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_lists_are_told() {
    let places = Places::new();
    let refused = async |at: usize, members: Vec<String>| {
        let options = ScmOptions { members, ..places.options(at) };
        let error = Server::try_start(&places.path(at), options).await.err().expect("it must not start");
        format!("{error:#}")
    };
    let [a, b, c] = [0, 1, 2].map(|at| places.addresses[at].clone());
    let error = refused(0, vec![b.clone(), c.clone(), "127.0.0.1:1".to_owned()]).await;
    assert!(error.contains("is not in it"), "{error}");
    let error = refused(0, vec![a.clone(), b.clone()]).await;
    assert!(error.contains("give one or three"), "{error}");

    let first = places.start(0).await;
    let list = vec![a.clone(), b.clone(), "127.0.0.1:1".to_owned()];
    let options = ScmOptions { members: list, ..places.options(1) };
    let second = Server::start_with(&places.path(1), options).await;
    // Whoever of both asks first says so.
    let said = tokio::select! {
        said = joined(&first) => said.unwrap_err(),
        said = joined(&second) => said.unwrap_err(),
    };
    assert!(said.contains("was started with another list of SCMs"), "{said}");
    stop(vec![first, second]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_becomes_three() {
    let places = Places::new();
    let alone = |at: usize| ScmOptions { members: Vec::new(), ..places.options(at) };
    let mut only = Server::start_with(&places.path(1), alone(1)).await;
    let cluster = only.scm.cluster();
    register(&mut only, 3).await;
    // Its list does not have the new one.
    let early = places.start(0).await;
    let said = joined(&early).await.unwrap_err();
    assert!(said.contains("was started as the only SCM"), "{said}");
    early.stop().await;
    only.stop().await;

    let mut servers = places.start_all().await;
    let (at, told) = roles(&mut servers).await;
    assert_eq!((told.cluster.as_str(), voters(&told).len()), (cluster.as_str(), 3), "{told:?}");
    assert_eq!(servers[at].datanodes().await.len(), 3);
    stop(servers).await;

    // It is not the only one any more, and says so when it is started as before.
    let error = Server::try_start(&places.path(1), alone(1)).await.err().expect("it must not start");
    assert!(format!("{error:#}").contains("SCM has other members"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_of_another_cluster_is_refused() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let cluster = roles(&mut servers).await.1.cluster;
    servers.pop().expect("three").stop().await;
    places.empty(2);
    let alone = ScmOptions { members: Vec::new(), ..places.options(2) };
    Server::start_with(&places.path(2), alone).await.stop().await;
    let stranger = places.start(2).await;
    let said = joined(&stranger).await.unwrap_err();
    assert!(said.contains("holds the only SCM of cluster") && said.contains(&cluster), "{said}");
    stranger.stop().await;
    let (_, told) = roles(&mut servers).await;
    assert_eq!(told.members.len(), 3, "nothing was changed: {told:?}");
    stop(servers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_removed_stays_out_until_its_disk_is_emptied() {
    let places = Places::new();
    let mut servers = places.start_all().await;
    let (at, _) = roles(&mut servers).await;
    let out = (at + 1) % 3;
    let request = RemoveScmMemberRequest { address: places.addresses[out].clone() };
    servers[at].client.remove_scm_member(request.clone()).await.unwrap();
    let (_, told) = roles(&mut servers).await;
    assert_eq!(voters(&told).len(), 2, "{told:?}");
    let again = Failure::from(servers[at].client.remove_scm_member(request).await.unwrap_err());
    assert_eq!(again.code, Code::NotFound, "{again}");

    servers.remove(out).stop().await;
    let restarted = places.start(out).await;
    waits(&restarted, "it was removed").await;
    restarted.stop().await;
    places.empty(out);
    servers.insert(out, places.start(out).await);
    joined(&servers[out]).await.unwrap();
    assert_eq!(voters(&roles(&mut servers).await.1).len(), 3);
    stop(servers).await;
}
