//! Groups of names that begin, grow, lose members and get others, as SCM wants it.

use crate::scripted_scm::ScriptedScm;
use crate::server::{CLUSTER, DEADLINE, Server, anew, commit, log_options, open_disk, request};
use client::{Client, ClientError, ClientOptions, OmReads};
use disk::RealDisk;
use proto::om::*;
use proto::scm::OmMember;
use proto::{Code, Failure};
use raft::{
    AddressBook, Applied, Committed, GroupSpec, GroupStart, HostOptions, Member, RaftHost, Role,
    StateMachine, Timing,
};
use raftlog::{LogSpace, LogSpec};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tempfile::TempDir;
use tokio::time::{Instant, sleep};
use types::{GroupId, NodeId, OwnerId, ReplicaId};

const GROUP: GroupId = GroupId { kind: types::GroupKind::Om, number: 0 };

/// OMs by their places, each with an address of its own and a directory, and their SCM.
struct Cluster {
    dir: TempDir,
    scm: ScriptedScm,
    addresses: BTreeMap<usize, String>,
    servers: BTreeMap<usize, Server>,
}

impl Cluster {
    async fn new() -> Cluster {
        let (dir, scm) = (tempfile::tempdir().unwrap(), ScriptedScm::start(CLUSTER).await);
        Cluster { dir, scm, addresses: BTreeMap::new(), servers: BTreeMap::new() }
    }

    /// A cluster that begins with one OM with a bucket, and then has as many as there are to be.
    async fn of(count: usize) -> Cluster {
        let mut cluster = Cluster::new().await;
        cluster.open(0).await;
        let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
        cluster.servers[&0].until_ready().await;
        cluster.servers[&0].client.clone().create_bucket(request(0, bucket)).await.unwrap();
        for place in 1..count {
            cluster.open(place).await;
        }
        cluster.scm.record().members_wanted = count.min(3);
        cluster.settled().await;
        cluster
    }

    fn path(&self, place: usize) -> PathBuf {
        self.dir.path().join(format!("om{place}"))
    }

    async fn open(&mut self, place: usize) {
        let at = self.addresses.get(&place).map_or("127.0.0.1:0", String::as_str);
        let server = Server::open_at(&self.path(place), at, &self.scm.address).await;
        self.addresses.insert(place, server.address.clone());
        self.servers.insert(place, server);
    }

    async fn stop(&mut self, place: usize) {
        self.servers.remove(&place).unwrap().stop().await;
    }

    async fn stop_all(mut self) {
        for place in self.servers.keys().copied().collect::<Vec<_>>() {
            self.stop(place).await;
        }
    }

    fn om(&self, place: usize) -> u64 {
        self.scm.record().om_at(&self.addresses[&place]).unwrap()
    }

    /// Waits until the members are those that SCM wants, and all of them have said so.
    async fn settled(&self) {
        let is_settled = |record: &crate::scripted_scm::Record| {
            let Some(group) = &record.group else { return false };
            let knows = |om: &u64| record.reports.get(om).is_some_and(|it| it.iter().any(|it| it.is_founded));
            let is_whole = group.is_founded && group.members.len() >= record.members_wanted;
            is_whole && record.is_as_wanted() && group.members.iter().all(|it| knows(&it.om))
        };
        self.scm.until("as SCM wants it", is_settled).await;
    }

    /// The place of the OM that answers for the group.
    async fn leader(&self) -> usize {
        let give_up = Instant::now() + DEADLINE;
        loop {
            for (place, server) in &self.servers {
                if server.lookup("nothing").await.is_err_and(|failure| failure.code == Code::NoSuchKey) {
                    return *place;
                }
            }
            assert!(Instant::now() < give_up, "nobody answers");
            sleep(Duration::from_millis(10)).await;
        }
    }

    async fn fill(&self, keys: std::ops::Range<u64>) {
        // Few at a time: three OMs share this process's two threads, and a leader that is late is none any
        // more.
        const AT_A_TIME: usize = 100;
        let leader = &self.servers[&self.leader().await];
        let keys: Vec<u64> = keys.collect();
        for some in keys.chunks(AT_A_TIME) {
            let commits =
                some.iter().map(|number| leader.commit(commit(&format!("key-{number:05}"), *number)));
            for done in futures::future::join_all(commits).await {
                done.unwrap();
            }
        }
    }

    /// The leader has these keys and no others.
    async fn check(&self, keys: u64) {
        let listed = self.servers[&self.leader().await].list(1000).await;
        let etags: Vec<String> = listed.into_iter().map(|key| key.etag).collect();
        assert_eq!(etags, (0..keys).map(|number| format!("etag-{number}")).collect::<Vec<_>>());
    }
}

#[allow(clippy::disallowed_methods)] // the disk of a stopped OM is lost
fn empty(path: &Path) {
    std::fs::remove_dir_all(path).unwrap();
}

/// The names of what a directory has of groups.
#[allow(clippy::disallowed_methods)]
fn left_of_groups(path: &Path) -> Vec<String> {
    let names = |dir: PathBuf| {
        let entries = std::fs::read_dir(dir).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap())
    };
    let mut left: Vec<String> = names(path.to_owned()).filter(|name| name.starts_with("db")).collect();
    for dir in ["groups", "meta/om-0", "snapshots"] {
        left.extend(names(path.join(dir)).map(|name| format!("{dir}/{name}")));
    }
    left
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_grew_to_three_goes_on_when_its_leader_stops() {
    let mut cluster = Cluster::of(3).await;
    cluster.fill(0..200).await;
    let first = cluster.leader().await;
    for (place, server) in &cluster.servers {
        server.until_ready().await;
        if *place != first {
            let refused = server.commit(commit("late", 1)).await.unwrap_err();
            assert_eq!(refused.code, Code::NotLeader, "{refused}");
            assert_eq!(refused.leader_address.as_ref(), Some(&cluster.addresses[&first]));
        }
    }
    cluster.stop(first).await;
    let second = cluster.leader().await;
    assert_ne!(second, first);
    cluster.check(200).await;
    cluster.fill(200..300).await;
    // It comes back, and the next may go.
    cluster.open(first).await;
    cluster.stop(second).await;
    cluster.check(300).await;
    cluster.stop_all().await;
}

/// Whether a member says that it cannot know what is so at present.
fn knows_nothing(failure: &Failure) -> bool {
    matches!(failure.code, Code::NotLeader | Code::Unavailable | Code::NotYet)
}

/// Asks a member until it knows: on a busy machine others are elected meanwhile.
async fn until_known<T>(ask: impl AsyncFn() -> Result<T, Failure>) -> T {
    let give_up = Instant::now() + DEADLINE;
    loop {
        match ask().await {
            Ok(answer) => return answer,
            Err(failure) => assert!(knows_nothing(&failure) && Instant::now() < give_up, "{failure}"),
        }
        sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_that_does_not_lead_answers_where_any_may_and_with_nothing_old() {
    const WRITES: u64 = 30;
    let mut cluster = Cluster::of(3).await;
    let scm = cluster.scm.address.clone();
    let client = Client::connect(ClientOptions { scm, ..ClientOptions::default() });
    for number in 0..WRITES {
        let CommitKeyRequest { volume, bucket, key, .. } = commit("key", number);
        client.commit_key(&volume, &bucket, key.unwrap(), None).await.unwrap();
        for server in cluster.servers.values() {
            let found = until_known(async || server.lookup_at_any("key").await).await;
            let listed = until_known(async || server.list_at_any().await).await;
            let expected = format!("etag-{number}");
            assert_eq!((&found.etag, &listed[0].etag, listed.len()), (&expected, &expected, 1));
        }
    }
    let by_followers: u64 = cluster.servers.values().map(Server::reads_as_follower).sum();
    assert!(by_followers > WRITES, "{by_followers}");

    // Who does not say so wants the leader; and alone no member knows whether what it has is old.
    let give_up = Instant::now() + DEADLINE;
    let [leader, first, second] = loop {
        let leader = cluster.leader().await;
        let [first, second] = [1, 2].map(|after| (leader + after) % 3);
        match cluster.servers[&first].lookup("key").await {
            Err(refused) => {
                assert!(knows_nothing(&refused), "{refused}");
                break [leader, first, second];
            }
            // It was elected since: the machine stood still.
            Ok(_) => assert!(Instant::now() < give_up, "whoever is asked leads"),
        }
    };
    drop(client);
    cluster.stop(second).await;
    cluster.servers.remove(&leader).unwrap().vanish().await;
    let refused = cluster.servers[&first].lookup_at_any("key").await.unwrap_err();
    assert!(knows_nothing(&refused), "{refused}");
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_directory_comes_back_as_another_replica_by_a_snapshot() {
    let mut cluster = Cluster::of(3).await;
    // Far more than the log keeps, once the next snapshot is written.
    cluster.fill(0..2_000).await;
    let leader = cluster.leader().await;
    let give_up = Instant::now() + DEADLINE;
    while !cluster.servers[&leader].has_purged() {
        assert!(Instant::now() < give_up, "the log is not purged");
        sleep(Duration::from_millis(10)).await;
    }
    let place = (0..3).find(|place| *place != leader).unwrap();
    let old = cluster.om(place);
    cluster.stop(place).await;
    empty(&cluster.path(place));
    cluster.open(place).await;
    cluster.scm.until("registered", |record| record.om_at(&cluster.addresses[&place]) != Some(old)).await;
    let new = cluster.om(place);
    cluster.scm.record().replace(old, new);
    cluster.settled().await;
    assert!(cluster.path(place).join("db-om-0.generation").exists(), "it came by a snapshot");

    // A majority needs it now, and it may lead.
    let third = (0..3).find(|it| *it != leader && *it != place).unwrap();
    cluster.stop(third).await;
    cluster.fill(2_000..2_010).await;
    let give_up = Instant::now() + DEADLINE;
    while cluster.servers[&place].photos() != (2_010, 20_100) {
        assert!(Instant::now() < give_up, "{:?}", cluster.servers[&place].photos());
        sleep(Duration::from_millis(10)).await;
    }
    cluster.check(2_010).await;
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_was_replaced_is_deleted_from_the_disk_also_that_of_a_leader() {
    let mut cluster = Cluster::of(3).await;
    cluster.fill(0..100).await;
    cluster.open(3).await;
    let leader = cluster.leader().await;
    cluster.scm.until("registered", |record| record.om_at(&cluster.addresses[&3]).is_some()).await;
    let (old, new) = (cluster.om(leader), cluster.om(3));
    let replica = cluster.scm.record().reports[&old][0].replica;
    cluster.scm.record().replace(old, new);
    cluster.settled().await;
    cluster.scm.until("gone", |record| record.reports[&old].is_empty()).await;
    assert!(cluster.scm.record().gone.contains(&replica));
    assert_eq!(left_of_groups(&cluster.path(leader)), [""; 0]);
    cluster.servers[&leader].until_ready().await;
    let refused = cluster.servers[&leader].lookup("key-00001").await.unwrap_err();
    assert_eq!(refused.code, Code::NotLeader, "{refused}");
    cluster.check(100).await;

    // The same process may take the group again: nobody there holds what was deleted.
    for (from, to) in [(new, old), (old, new)] {
        cluster.scm.record().replace(from, to);
        cluster.settled().await;
        cluster.scm.until("gone again", |record| record.reports[&from].is_empty()).await;
    }

    // An old order does not bring the last one back, and another replica may come.
    let replica = cluster.scm.record().gone.iter().copied().max().unwrap();
    cluster.stop(leader).await;
    cluster.open(leader).await;
    let stale = cluster.scm.record().group.clone().unwrap();
    let at_old = |record: &mut crate::scripted_scm::Record, replica: u64| {
        let members = &mut record.group.as_mut().unwrap().members;
        (members[0].om, members[0].replica) = (old, replica);
    };
    at_old(&mut cluster.scm.record(), replica);
    let refuses = |record: &crate::scripted_scm::Record| {
        let reports = record.reports.get(&old).into_iter().flatten();
        reports.map(|report| &report.why).any(|why| why.contains("never used again"))
    };
    cluster.scm.until("refused", refuses).await;
    assert_eq!(left_of_groups(&cluster.path(leader)), [""; 0]);
    cluster.scm.record().group = Some(stale);
    cluster.settled().await;
    cluster.scm.record().replace(new, old);
    cluster.settled().await;
    cluster.check(100).await;
    cluster.stop_all().await;
}

/// The log is gone and the replica's id spent, and then the process was killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removal_that_a_crash_interrupted_is_finished_at_the_next_start() {
    let mut cluster = Cluster::of(3).await;
    cluster.fill(0..100).await;
    let leader = cluster.leader().await;
    let place = (0..3).find(|place| *place != leader).unwrap();
    cluster.stop(place).await;
    let path = cluster.path(place);
    {
        let disk = Arc::new(open_disk(&path).await);
        let space = LogSpace::new(disk, log_options());
        let host = RaftHost::new(HostOptions::default(), AddressBook::default());
        host.remove(GROUP, &space, &log_spec()).await.unwrap();
    }
    assert!(left_of_groups(&path).iter().any(|name| name.starts_with("db-om-0")));
    let om = cluster.om(place);
    cluster.scm.record().reports.remove(&om);
    let wanted = cluster.scm.record().members_wanted;
    cluster.open(place).await;
    cluster.scm.until("heard of", |record| record.reports.contains_key(&om)).await;
    assert_eq!(left_of_groups(&path), [""; 0], "nothing of it is used any more");
    cluster.scm.record().replace(om, om);
    cluster.settled().await;
    assert_eq!(cluster.scm.record().group.as_ref().unwrap().members.len(), wanted);
    cluster.stop(leader).await;
    cluster.check(100).await;
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_is_not_founded_serves_nobody() {
    let mut cluster = Cluster::new().await;
    cluster.scm.record().notes = false;
    cluster.open(0).await;
    cluster.scm.until("led", |record| record.leader().is_some()).await;
    let server = &cluster.servers[&0];
    server.until_unready("not founded").await;
    let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
    let refused = Failure::from(server.client.clone().create_bucket(anew(bucket.clone())).await.unwrap_err());
    assert_eq!(refused.code, Code::Unavailable, "{refused}");
    assert_eq!(server.lookup("a").await.unwrap_err().code, Code::Unavailable);
    // Nor after a restart, and nobody is told to begin another one.
    cluster.stop(0).await;
    cluster.open(0).await;
    cluster.servers[&0].until_unready("not founded").await;
    cluster.scm.record().notes = true;
    let server = &cluster.servers[&0];
    server.until_ready().await;
    server.client.clone().create_bucket(anew(bucket)).await.unwrap();
    cluster.settled().await;
    cluster.stop_all().await;
}

/// Writers and readers that find their OM by what SCM says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_hear_of_no_error_when_the_leader_vanishes_and_each_of_their_changes_is_made_once() {
    let mut cluster = Cluster::of(3).await;
    let scm = cluster.scm.address.clone();
    let reads = |om_reads| ClientOptions { scm: scm.clone(), om_reads, ..ClientOptions::default() };
    let clients = [OmReads::Leader, OmReads::Any].map(reads).map(Client::connect);
    let (is_over, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let writers: Vec<_> = (0..4u64)
        .map(|writer| {
            let client = clients[writer as usize % clients.len()].clone();
            let (is_over, done) = (is_over.clone(), done.clone());
            tokio::spawn(async move {
                let mut written = 0;
                while !is_over.load(Ordering::Relaxed) {
                    let name = format!("writer-{writer}/{written:06}");
                    let CommitKeyRequest { volume, bucket, key, .. } = commit(&name, writer);
                    // Made twice, it would be refused: it is there already.
                    let absent = Some(Precondition { absent: true, ..Precondition::default() });
                    client.commit_key(&volume, &bucket, key.unwrap(), absent).await.unwrap();
                    let found = client.lookup(&volume, &bucket, name.as_bytes()).await.unwrap();
                    assert_eq!(found.etag, format!("etag-{writer}"));
                    written += 1;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                written
            })
        })
        .collect();
    let progress = async || {
        let from = done.load(Ordering::Relaxed);
        let give_up = Instant::now() + DEADLINE;
        while done.load(Ordering::Relaxed) < from + 40 {
            assert!(Instant::now() < give_up, "writers stand still");
            sleep(Duration::from_millis(10)).await;
        }
    };
    for _ in 0..2 {
        progress().await;
        let leader = cluster.leader().await;
        cluster.servers.remove(&leader).unwrap().vanish().await;
        progress().await;
        cluster.open(leader).await;
        cluster.settled().await;
    }
    is_over.store(true, Ordering::Relaxed);
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    assert_eq!(cluster.servers[&cluster.leader().await].list(1000).await.len(), written);
    drop(clients);
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_says_that_nobody_is_known_to_have_the_names() {
    let scm = ScriptedScm::start(CLUSTER).await;
    let write_deadline = Duration::from_millis(300);
    let options = ClientOptions { scm: scm.address.clone(), write_deadline, ..ClientOptions::default() };
    let error = Client::connect(options).head_bucket("s3v", "photos").await.unwrap_err();
    let ClientError::Unavailable(why) = &error else { panic!("{error:?}") };
    assert!(why.contains("nobody is known to have group 0 of names"), "{why}");
}

/// SCM did not hear of the one that began first, and had another one begin.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_that_was_begun_and_founded_elsewhere_is_deleted_and_one_with_names_never_is() {
    let mut cluster = Cluster::new().await;
    cluster.scm.record().notes = false;
    cluster.open(0).await;
    cluster.scm.until("led", |record| record.leader().is_some()).await;
    let om = cluster.om(0);
    let abandoned = cluster.scm.record().group.clone().unwrap().members[0].replica;
    cluster.open(1).await;
    cluster.scm.until("registered", |record| record.om_at(&cluster.addresses[&1]).is_some()).await;
    let other = cluster.om(1);
    cluster.scm.record().replace(om, other);
    cluster.scm.record().orders_gone.insert(abandoned);
    cluster.scm.until("deleted", |record| record.reports[&om].is_empty()).await;
    assert_eq!(left_of_groups(&cluster.path(0)), [""; 0]);
    cluster.scm.record().notes = true;
    cluster.settled().await;

    // An SCM that is wrong about names does not get them deleted.
    let names = cluster.scm.record().group.clone().unwrap().members[0].replica;
    cluster.scm.record().orders_gone.insert(names);
    let beats = cluster.scm.record().beats;
    cluster.scm.until("told so", |record| record.beats > beats + 20).await;
    let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
    cluster.servers[&1].client.clone().create_bucket(anew(bucket)).await.unwrap();
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_without_scm_serves_what_was_founded_though_nothing_was_asked_for_yet() {
    let mut cluster = Cluster::new().await;
    cluster.open(0).await;
    cluster.settled().await;
    cluster.stop(0).await;
    let silent = ScriptedScm::start(CLUSTER).await.address.clone();
    let server = Server::open_at(&cluster.path(0), &cluster.addresses[&0], &silent).await;
    server.until_ready().await;
    let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
    server.client.clone().create_bucket(anew(bucket)).await.unwrap();
    server.commit(commit("a", 1)).await.unwrap();
    assert_eq!(server.lookup("a").await.unwrap().etag, "etag-1");
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whom_nobody_answers_is_not_ready() {
    let mut cluster = Cluster::of(3).await;
    let leader = cluster.leader().await;
    for place in (0..3).filter(|place| *place != leader) {
        cluster.servers.remove(&place).unwrap().vanish().await;
    }
    let left = &cluster.servers[&leader];
    left.until_unready("a majority of its members does not answer").await;
    cluster.open((leader + 1) % 3).await;
    cluster.servers[&leader].until_ready().await;
    cluster.stop_all().await;
}

/// One small file of the directory is lost, and nothing says whose the log is.
#[allow(clippy::disallowed_methods)] // the file of a stopped OM is lost
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_whose_replica_is_not_known_is_told_of_and_nothing_is_begun_beside_it() {
    let mut cluster = Cluster::of(1).await;
    cluster.stop(0).await;
    let record = cluster.path(0).join("replicas/om-0");
    let aside = cluster.path(0).join("aside");
    std::fs::rename(&record, &aside).unwrap();
    cluster.open(0).await;
    cluster.servers[&0].until_unready("replicas/om-0 is lost").await;
    let om = cluster.om(0);
    let is_told = |record: &crate::scripted_scm::Record| {
        let mut reports = record.reports.get(&om).into_iter().flatten();
        reports.any(|report| report.replica == 0 && report.why.contains("is lost"))
    };
    cluster.scm.until("told", is_told).await;
    cluster.stop(0).await;
    std::fs::rename(&aside, &record).unwrap();
    cluster.open(0).await;
    cluster.servers[&0].until_ready().await;
    cluster.check(0).await;
    cluster.stop_all().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_om_without_a_group_is_ready_once_scm_has_said_so() {
    let mut cluster = Cluster::new().await;
    cluster.open(0).await;
    cluster.settled().await;
    cluster.open(1).await;
    let spare = &cluster.servers[&1];
    spare.until_ready().await;
    assert_eq!(spare.lookup("a").await.unwrap_err().code, Code::NotLeader);
    cluster.stop_all().await;
    let dir = tempfile::tempdir().unwrap();
    let lonely = Server::open_at(dir.path(), "127.0.0.1:0", "127.0.0.1:1").await;
    lonely.until_unready("waits for SCM").await;
    lonely.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_om_of_another_cluster_is_not_ready_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    server.stop().await;
    let other = ScriptedScm::start("another").await;
    let server = Server::open_at(dir.path(), "127.0.0.1:0", &other.address).await;
    server.until_unready("belongs to cluster of-the-suite").await;
    assert!(other.record().group.is_none());
    server.stop().await;
}

/// A state machine that an OM of before had, as far as its log tells: nothing was asked of it.
struct Nothing;

impl StateMachine for Nothing {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        Ok(None)
    }

    fn apply(&mut self, batch: Vec<Committed>, _: Applied) -> anyhow::Result<Vec<bytes::Bytes>> {
        Ok(batch.iter().map(|_| bytes::Bytes::new()).collect())
    }
}

fn log_spec() -> LogSpec {
    let (dir, owners_dir) = ("groups/om-0".to_owned(), "meta/om-0".to_owned());
    LogSpec { log: GROUP.to_u64(), dir, owners_dir, first_owner: OwnerId(0) }
}

/// Makes what an OM of before had: replica 1, on a node without a number.
async fn write_replica_of_before(path: &Path, address: &str) {
    let disk = Arc::new(RealDisk::open(path, 1).unwrap());
    disk.join_cluster(CLUSTER, 0).unwrap();
    let space = LogSpace::new(disk, log_options());
    let host = RaftHost::new(HostOptions::default(), AddressBook::default());
    let replica = ReplicaId(1);
    let spec = GroupSpec {
        cluster: CLUSTER.to_owned(),
        group: GROUP,
        replica,
        timing: Timing::METADATA,
        start: GroupStart::First(vec![Member { replica, node: NodeId(0), address: address.to_owned() }]),
        campaign: true,
        snapshots: None,
        lease_reads: false,
    };
    let group = host.open(spec, &space, log_spec(), Nothing).await.unwrap();
    group.watch().wait_for(|status| status.role == Role::Leader).await.unwrap();
    group.read_index().await.unwrap();
    host.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_replica_of_before_is_taken_over_and_gets_two_more_members() {
    let mut cluster = Cluster::new().await;
    let address = testkit::free_addresses(1).remove(0);
    write_replica_of_before(&cluster.path(0), &address).await;
    cluster.addresses.insert(0, address);
    cluster.open(0).await;
    cluster.settled().await;
    let (om, member) = {
        let record = cluster.scm.record();
        (record.om_at(&cluster.addresses[&0]).unwrap(), record.group.as_ref().unwrap().members[0].clone())
    };
    assert_eq!((member.replica, member.om), (1, om), "it goes by its OM's number");
    let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
    cluster.servers[&0].client.clone().create_bucket(request(0, bucket)).await.unwrap();
    cluster.fill(0..50).await;
    for place in 1..3 {
        cluster.open(place).await;
    }
    cluster.scm.record().members_wanted = 3;
    cluster.settled().await;
    cluster.stop(0).await;
    cluster.check(50).await;
    // A leader whose log knows it by no number calls it by its OM's all the same, also after a restart.
    let other = cluster.leader().await;
    for _ in 0..2 {
        let is_known = |record: &crate::scripted_scm::Record| {
            record.leader().is_some_and(|(at, leader)| {
                at != om && leader.members.contains(&OmMember { is_voter: true, ..member.clone() })
            })
        };
        cluster.scm.until("led by one that knows it", is_known).await;
        cluster.stop(other).await;
        cluster.open(other).await;
        cluster.leader().await;
    }
    // And its place can be taken.
    cluster.open(0).await;
    cluster.open(3).await;
    cluster.scm.until("registered", |record| record.om_at(&cluster.addresses[&3]).is_some()).await;
    let other = cluster.om(3);
    cluster.scm.record().replace(om, other);
    cluster.settled().await;
    cluster.check(50).await;
    cluster.stop_all().await;
}
