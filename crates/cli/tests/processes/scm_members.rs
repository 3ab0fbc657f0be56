//! SCM with three members, as processes: lost, emptied, started wrongly, with clients and datanodes that
//! should not notice.

use crate::binary;
use crate::commands::{admin_json, admin_once, flotilla};
use crate::drills::{Writers, assert_all_there};
use crate::s3::S3;
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::{ACCESS_KEY, Process, Ready, SECRET_KEY};

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    pub(crate) scms: Vec<Process>,
    /// The addresses of the SCMs, as in `--scm`.
    pub(crate) addresses: Vec<String>,
    pub(crate) others: Vec<Process>,
    pub(crate) datanodes: Vec<Process>,
    pub(crate) endpoint: String,
    // Last, so that the processes end before their directories go.
    pub(crate) dir: TempDir,
}

impl Cluster {
    /// Three SCMs that have founded a cluster.
    pub(crate) fn of_scms() -> Cluster {
        let addresses = testkit::free_addresses(3);
        let dir = tempfile::tempdir().unwrap();
        let (scms, others, datanodes, endpoint) = Default::default();
        let mut cluster = Cluster { scms, addresses, others, datanodes, endpoint, dir };
        for at in 0..3 {
            let scm = cluster.spawn_scm(at);
            cluster.scms.push(scm);
        }
        cluster.scms.iter_mut().for_each(|scm| drop(scm.wait_ready()));
        cluster
    }

    /// Starts three SCMs, and with them OM, three datanodes and a gateway.
    pub(crate) fn start() -> Cluster {
        let mut cluster = Cluster::of_scms();
        let (list, root) = (cluster.list(), cluster.dir.path().display().to_string());
        let (om, _) =
            cluster.process("om", &format!("--roles om --rpc 127.0.0.1:0 --meta {root}/om --scm {list}"));
        for at in 1..=3 {
            let line = format!(
                "--roles datanode --rpc 127.0.0.1:0 --disk {root}/dn{at} --scm {list} --container-bytes-max {}",
                16 << 20
            );
            let datanode = cluster.process(&format!("dn{at}"), &line).0;
            cluster.datanodes.push(datanode);
        }
        let line = format!(
            "--roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --scm {list} --access-key {ACCESS_KEY} --secret-key {SECRET_KEY}"
        );
        let (gateway, ready) = cluster.process("gateway", &line);
        cluster.endpoint = ready["S3_ENDPOINT"].clone();
        cluster.others = vec![om, gateway];
        cluster
    }

    pub(crate) fn process(&self, name: &str, line: &str) -> (Process, Ready) {
        Process::start(binary(), self.dir.path(), name, words(line))
    }

    fn spawn_scm(&self, at: usize) -> Process {
        let line = format!(
            "--roles scm --rpc {} --meta {} --scm {}",
            self.addresses[at],
            self.meta(at).display(),
            self.list()
        );
        Process::spawn(binary(), self.dir.path(), &format!("scm{at}"), words(&line))
    }

    pub(crate) fn meta(&self, at: usize) -> PathBuf {
        self.dir.path().join(format!("scm{at}"))
    }

    pub(crate) fn list(&self) -> String {
        self.addresses.join(",")
    }

    /// The answer of a command that changes nothing.
    pub(crate) fn admin(&self, line: &str) -> Value {
        let words: Vec<&str> = line.split(' ').collect();
        admin_json(&self.list(), &words)
    }

    /// The place of the leader in the list.
    pub(crate) fn leader(&self) -> usize {
        let roles = self.admin("scm roles");
        let members = roles["members"].as_array().unwrap();
        let leader = members.iter().find(|member| member["role"] == "leader").expect("the one that answered");
        self.addresses.iter().position(|address| leader["address"] == **address).unwrap()
    }

    /// Has another SCM lead by an operator's word, and answers where it is. A transfer may be refused, and
    /// leaders change by themselves.
    fn transfer(&self, from: usize) -> usize {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let refusal = admin_once(&self.list(), &["scm", "transfer"]).err();
            let leader = self.leader();
            if leader != from {
                return leader;
            }
            assert!(Instant::now() < give_up, "{from} leads still; refused: {refusal:?}");
        }
    }

    pub(crate) fn until(&self, what: &str, line: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let told = self.admin(line);
            if holds(&told) {
                return told;
            }
            assert!(Instant::now() < give_up, "no {what}: {told:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// A new leader has heard of everything, and goes on with its work.
    fn works_again(&self) {
        let healthy = |told: &Value| {
            let nodes = told.as_array().unwrap();
            nodes.len() == 3 && nodes.iter().all(|node| node["state"] == "healthy")
        };
        self.until("healthy datanodes", "datanode list", healthy);
        self.until("end of safe mode", "safemode status", |told| told["safe_mode"] == false);
    }

    /// The advice of `admin raft reset-membership` once it knows a survivor.
    pub(crate) fn advised(&self) -> Value {
        let list = self.list();
        let give_up = Instant::now() + DEADLINE;
        loop {
            let output = flotilla(&["admin", "--scm", &list, "--json", "raft", "reset-membership"], None);
            if output.status.success() {
                return serde_json::from_slice(&output.stdout).unwrap();
            }
            assert!(Instant::now() < give_up, "{}", String::from_utf8_lossy(&output.stderr));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Makes this one the only member, as advised, and has the others join again with empty directories.
    pub(crate) fn reset_to(&mut self, survivor: usize, advised: &Value) {
        self.scms[survivor].terminate();
        let command = advised["command"].as_str().unwrap().replace("\"WHY\"", "test");
        let words: Vec<&str> = command.split(' ').skip(1).chain(["--yes"]).collect();
        let reset = flotilla(&words, None);
        assert!(reset.status.success(), "{}", String::from_utf8_lossy(&reset.stderr));
        self.scms[survivor].start_again();
        assert_eq!(self.admin("scm roles")["members"].as_array().unwrap().len(), 1);
        for at in (0..3).filter(|at| *at != survivor) {
            std::fs::remove_dir_all(self.meta(at)).unwrap();
            self.scms[at].start_again();
        }
    }

    pub(crate) fn all_follow(&self) {
        let three = |told: &Value| {
            let members = told["members"].as_array().unwrap();
            let is_voter = |member: &Value| member["role"] != "joining";
            members.len() == 3 && members.iter().all(is_voter)
        };
        self.until("three voters", "scm roles", three);
    }
}

pub(crate) fn words(line: &str) -> Vec<String> {
    format!("server {line} --http 127.0.0.1:0").split_whitespace().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_and_datanodes_follow_scms_leader() {
    let mut cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "drill");
    s3.create_bucket().await.unwrap();
    let writers = Writers::start(&s3, 0);
    writers.progress(20).await;

    for round in 0..2 {
        let at = cluster.leader();
        cluster.scms[at].kill9();
        writers.progress(30).await;
        let next = cluster.leader();
        assert_ne!(next, at, "round {round}");
        cluster.works_again();
        // The first one is back as it was, the second one with nothing.
        if round == 1 {
            std::fs::remove_dir_all(cluster.meta(at)).unwrap();
        }
        cluster.scms[at].start_again();
        cluster.all_follow();
    }
    let told = cluster.admin("scm roles");
    let replicas: Vec<u64> =
        told["members"].as_array().unwrap().iter().map(|it| it["replica"].as_u64().unwrap()).collect();
    assert!(replicas.iter().any(|replica| *replica > 3), "an emptied disk is a new replica: {told:#}");

    // By an operator's word, and by a stop.
    let next = cluster.transfer(cluster.leader());
    cluster.scms[next].terminate();
    writers.progress(30).await;
    assert_ne!(cluster.leader(), next);
    cluster.scms[next].start_again();
    cluster.works_again();

    // All at once. Without any SCM writers go on until their containers are full, and wait then: it must not
    // take long.
    cluster.scms.iter_mut().for_each(Process::kill9);
    cluster.scms.iter_mut().for_each(Process::spawn_again);
    cluster.scms.iter_mut().for_each(|scm| drop(scm.wait_ready()));
    cluster.works_again();
    writers.progress(30).await;

    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new(), "writers notice nothing");
    assert_all_there(&s3, &written.acknowledged).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datanode_that_is_stopped_lets_others_lead_first() {
    const ROUNDS_MAX: usize = 9;
    /// Groups that nobody leads elect after two seconds at the earliest.
    const BEFORE_ELECTIONS: Duration = Duration::from_secs(1);
    let mut cluster = tokio::task::spawn_blocking(Cluster::start).await.unwrap();
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "drill");
    s3.create_bucket().await.unwrap();
    let writers = Writers::start(&s3, 0);
    writers.progress(20).await;
    let leads = |told: &Value, node: u64| told.as_array().unwrap().iter().any(|it| it["leader_node"] == node);
    let mut handed_over = 0;
    for round in 0..ROUNDS_MAX {
        // A machine that stands still for long enough has the others elect; hardly each time.
        if round >= 3 && handed_over > 0 {
            break;
        }
        let (at, node) = (round % 3, round as u64 % 3 + 1);
        let led = leads(&cluster.admin("pipeline list"), node);
        assert!(cluster.datanodes[at].terminate().success());
        let stopped = Instant::now();
        let told = cluster.admin("pipeline list");
        let is_before_elections = stopped.elapsed() < BEFORE_ELECTIONS;
        println!("round {round}: it led: {led}, leads: {}, {:?}", leads(&told, node), stopped.elapsed());
        handed_over += usize::from(led && is_before_elections && !leads(&told, node));
        cluster.until("other leaders", "pipeline list", |told| !leads(told, node));
        writers.progress(20).await;
        cluster.datanodes[at].start_again();
        cluster.works_again();
    }
    assert!(handed_over > 0, "whatever a datanode led, it led it to the end");
    let written = writers.stop().await;
    assert_eq!(written.errors, Vec::<String>::new(), "writers notice nothing");
    assert_all_there(&s3, &written.acknowledged).await;
}

/// A process that stops by itself says these words.
fn refused(line: &str, says: &str) {
    let words = words(line);
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let output = flotilla(&words, None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{line}: {said}");
    assert!(said.contains(says), "{line} does not say `{says}`: {said}");
}

#[test]
fn what_is_started_wrongly_says_so_and_changes_nothing() {
    let mut cluster = Cluster::of_scms();
    let (list, root) = (cluster.list(), cluster.dir.path().display().to_string());
    let [a, b, c] = [0, 1, 2].map(|at| cluster.addresses[at].clone());
    let meta = cluster.meta(0).display().to_string();
    let before = cluster.admin("scm roles");

    refused(&format!("--roles scm --rpc {a} --meta {meta} --scm {list}"), "listen on");
    let elsewhere = format!("--roles scm --rpc 127.0.0.1:0 --advertise {a} --meta {meta} --scm {list}");
    refused(&elsewhere, "in use");
    refused(&format!("--roles scm --rpc 127.0.0.1:0 --meta {root}/x --scm {list}"), "is not in it");
    refused(&format!("--roles scm --rpc 127.0.0.1:0 --meta {root}/x --scm {a},nonsense"), "is not host:port");
    refused(&format!("--roles scm --rpc {a} --meta {root}/x --scm {a},{b}"), "listen on");

    cluster.scms[2].terminate();
    let its = cluster.meta(2).display().to_string();
    refused(&format!("--roles scm --rpc {c} --meta {its}"), "SCM has other members");
    refused(&format!("--roles scm --rpc {c} --meta {root}/x --scm {b},{c}"), "give one or three");
    // An SCM of its own, and a list that would add it.
    let (mut alone, _) = cluster.process("alone", &format!("--roles scm --rpc {c} --meta {root}/alone"));
    alone.terminate();
    refused(
        &format!("--roles scm --rpc {c} --meta {root}/alone --scm {list}"),
        "holds the only SCM of cluster",
    );
    cluster.scms[2].start_again();
    let after =
        cluster.until("three members", "scm roles", |told| told["members"].as_array().unwrap().len() == 3);
    assert_eq!(after["cluster"], before["cluster"]);
}

/// Two of three are lost for good; what `admin raft reset-membership` says is what helps.
#[test]
fn a_lost_majority_is_mended_as_the_command_says() {
    let mut cluster = Cluster::of_scms();
    let list = cluster.list();
    let cluster_id = cluster.admin("scm roles")["cluster"].clone();
    let advice = || flotilla(&["admin", "--scm", &list, "--json", "raft", "reset-membership"], None);
    let give_up = Instant::now() + DEADLINE;
    loop {
        let said = String::from_utf8_lossy(&advice().stderr).into_owned();
        if said.contains("there is nothing to reset") {
            break;
        }
        assert!(Instant::now() < give_up, "{said}");
        std::thread::sleep(Duration::from_millis(100));
    }
    cluster.scms[1].kill9();
    cluster.scms[2].kill9();
    let advised = cluster.advised();
    assert_eq!(advised["survivor"], *cluster.addresses[0]);
    let roles = flotilla(&["admin", "--scm", &list, "scm", "roles"], None);
    let said = String::from_utf8_lossy(&roles.stderr).into_owned();
    assert!(
        !roles.status.success() && said.contains("SCM has no leader") && said.contains("silent"),
        "{said}"
    );

    cluster.reset_to(0, &advised);
    cluster.all_follow();
    assert_eq!(cluster.admin("scm roles")["cluster"], cluster_id);
}
