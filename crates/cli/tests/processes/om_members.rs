//! Three OMs, of which any may die: the names stay, and so do the clients.

use crate::commands::{admin_json, flotilla};
use crate::s3::S3;
use crate::{binary, scm_members::words};
use proto::om::HeadBucketRequest;
use proto::om::om_client::OmClient;
use proto::{Code, Failure};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use testkit::{ACCESS_KEY, Process, Ready, SECRET_KEY, free_addresses};

const SOON: Duration = Duration::from_secs(60);
/// Shorter than operators would have it, so that a test need not wait for ten minutes.
const DEAD_AFTER: &str = "15s";
/// The rest of a client after each of its calls: other tests run beside it, and what befalls OMs takes seconds.
pub(crate) const REST: Duration = Duration::from_millis(50);
/// The number of groups of names of a new cluster.
pub(crate) const GROUPS: usize = 4;

pub(crate) struct Names {
    pub(crate) scm: String,
    pub(crate) oms: Vec<Process>,
    /// The addresses of `oms`, in their order.
    addresses: Vec<String>,
    /// SCM itself, and what a test has beside OMs.
    others: Vec<Process>,
    /// Further words of each OM's command line.
    om_args: String,
    /// The directories of the first OMs, where they are not beside the others.
    metas: Vec<PathBuf>,
    // Last, so that the processes end before their directories go.
    dir: TempDir,
}

impl Names {
    pub(crate) fn start(oms: usize) -> Names {
        Names::start_with(oms, "")
    }

    pub(crate) fn start_with(oms: usize, om_args: &str) -> Names {
        Names::start_on(Vec::new(), oms, om_args)
    }

    pub(crate) fn start_on(metas: Vec<PathBuf>, oms: usize, om_args: &str) -> Names {
        let dir = tempfile::tempdir().unwrap();
        let scm = free_addresses(1).remove(0);
        let (oms_now, addresses, others) = Default::default();
        let om_args = om_args.to_owned();
        let mut names = Names { scm, oms: oms_now, addresses, others, om_args, metas, dir };
        let line = format!(
            "--roles scm --rpc {} --meta {} --dead-after {DEAD_AFTER}",
            names.scm,
            names.dir.path().join("scm").display()
        );
        let (scm, _) = names.process("scm", &line);
        names.others.push(scm);
        (0..oms).for_each(|_| names.add_om());
        names
    }

    fn process(&self, name: &str, line: &str) -> (Process, Ready) {
        Process::start(binary(), self.dir.path(), name, words(line))
    }

    fn meta(&self, om: usize) -> PathBuf {
        let beside_others = || self.dir.path().join(format!("om{om}"));
        self.metas.get(om).cloned().unwrap_or_else(beside_others)
    }

    fn add_om(&mut self) {
        let (number, address) = (self.oms.len(), free_addresses(1).remove(0));
        let (meta, scm, more) = (self.meta(number), &self.scm, &self.om_args);
        let line = format!("--roles om --rpc {address} --meta {} --scm {scm} {more}", meta.display());
        let (om, _) = self.process(&format!("om{number}"), &line);
        self.oms.push(om);
        self.addresses.push(address);
    }

    pub(crate) fn add_data(&mut self) -> String {
        let (scm, root) = (self.scm.clone(), self.dir.path().display().to_string());
        for at in 1..=3 {
            let line = format!(
                "--roles datanode --rpc 127.0.0.1:0 --disk {root}/dn{at} --scm {scm} --container-bytes-max {}",
                16 << 20
            );
            let datanode = self.process(&format!("dn{at}"), &line).0;
            self.others.push(datanode);
        }
        let line = format!(
            "--roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --scm {scm} --access-key {ACCESS_KEY} --secret-key {SECRET_KEY}"
        );
        let (gateway, ready) = self.process("gateway", &line);
        self.others.push(gateway);
        ready["S3_ENDPOINT"].clone()
    }

    pub(crate) fn groups(&self) -> Vec<Value> {
        groups(&self.scm)
    }

    /// The root.
    fn group(&self) -> Value {
        self.groups()[0].clone()
    }

    /// Waits until there are all groups, each is as it is wanted, and has so many members. The root.
    pub(crate) fn until_whole(&self, members: usize) -> Value {
        self.until_groups(GROUPS, members).remove(0)
    }

    pub(crate) fn until_groups(&self, count: usize, members: usize) -> Vec<Value> {
        let give_up = Instant::now() + SOON;
        loop {
            match whole_groups(&self.scm, count, members) {
                Ok(groups) => return groups,
                Err(groups) => assert!(
                    Instant::now() < give_up,
                    "not {count} groups of {members} members: {groups:#?}\n{}",
                    self.logs()
                ),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    pub(crate) fn logs(&self) -> String {
        self.others.iter().take(1).chain(&self.oms).map(Process::log).collect::<Vec<_>>().join("\n----\n")
    }

    /// The place in `oms` of the one that leads, by its address.
    pub(crate) fn leader(&self) -> usize {
        let group = self.until_some_leader();
        let replicas = group["replicas"].as_array().unwrap();
        let led = replicas.iter().find(|it| it["role"] == "leader").unwrap();
        self.at(led["address"].as_str().unwrap())
    }

    pub(crate) fn at(&self, address: &str) -> usize {
        self.addresses.iter().position(|of| of == address).expect("one of ours")
    }

    fn until_some_leader(&self) -> Value {
        let give_up = Instant::now() + SOON;
        loop {
            let group = self.group();
            if group["replicas"].as_array().is_some_and(|all| all.iter().any(|it| it["role"] == "leader")) {
                return group;
            }
            assert!(Instant::now() < give_up, "nobody leads: {group:#}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// All OMs die and lose their disks; what comes in their place is empty.
    pub(crate) fn lose_all(&mut self) {
        self.oms.iter_mut().for_each(Process::kill9);
        (0..self.oms.len()).for_each(|om| fs::remove_dir_all(self.meta(om)).unwrap());
        // None is ready while nobody has the names.
        self.oms.iter_mut().for_each(Process::spawn_again);
    }

    /// Two of three die, and the third one's groups are reset to it, by what the command says.
    pub(crate) fn reset_to_third(&mut self) {
        self.oms[0].kill9();
        self.oms[1].kill9();
        let all_advice = admin_json(&self.scm, &["raft", "reset-membership", "--group", "om"]);
        self.oms[2].kill9();
        let meta = self.meta(2).display().to_string();
        for advice in all_advice.as_array().unwrap() {
            assert_eq!(advice["survivor"], self.number_of(2), "{advice:#}");
            let command = advice["command"].as_str().unwrap().replace("META", &meta);
            let line: Vec<String> = command.split_whitespace().skip(1).map(str::to_owned).collect();
            let line: Vec<&str> = line.iter().map(String::as_str).collect();
            let looked = flotilla(&line, None);
            let said = String::from_utf8_lossy(&looked.stdout).into_owned();
            assert!(said.contains(&format!("OM {}", self.number_of(2))), "{looked:?}");
            let done = flotilla(&[&line[..], &["--yes"]].concat(), None);
            assert!(done.status.success(), "{done:?}");
        }
        self.oms[2].start_again();
    }

    /// Resets a group by force to what one OM has of it, while all are stopped.
    pub(crate) fn reset(&self, number: usize, group: &Value, survivor: usize) {
        let (meta, group_name) = (self.meta(survivor).display().to_string(), format!("om-{number}"));
        let replicas = group["replicas"].as_array().unwrap();
        let is_lost = |it: &&Value| it["address"] != self.addresses[survivor].as_str();
        let lost =
            replicas.iter().filter(is_lost).flat_map(|it| ["--lost".to_owned(), it["replica"].to_string()]);
        let lost: Vec<String> = lost.collect();
        let line = [
            "debug",
            "unsafe-reset-membership",
            &meta,
            "--group",
            &group_name,
            "--reason",
            "a test",
            "--yes",
        ];
        let line: Vec<&str> = line.into_iter().chain(lost.iter().map(String::as_str)).collect();
        let done = flotilla(&line, None);
        assert!(done.status.success(), "{line:?}: {done:?}");
    }

    /// One OM dies and loses its disk.
    pub(crate) fn lose(&mut self, om: usize) {
        self.oms[om].kill9();
        fs::remove_dir_all(self.meta(om)).unwrap();
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// `flotilla fs`, which must succeed.
    pub(crate) fn fs(&self, args: &[&str]) -> String {
        let done = flotilla(&[&["fs", "--scm", &self.scm], args].concat(), None);
        assert!(done.status.success(), "{args:?}: {done:?}\n{}", self.logs());
        String::from_utf8_lossy(&done.stdout).into_owned()
    }

    /// Runs `flotilla fs` until it succeeds.
    pub(crate) fn until_fs(&self, args: &[&str]) {
        let give_up = Instant::now() + SOON;
        loop {
            let done = flotilla(&[&["fs", "--scm", &self.scm], args].concat(), None);
            if done.status.success() {
                return;
            }
            assert!(Instant::now() < give_up, "{args:?}: {done:?}\n{}", self.logs());
        }
    }

    fn transfer(&self, args: &[&str]) {
        let done = flotilla(&[&["admin", "--scm", &self.scm, "om", "transfer", "0"], args].concat(), None);
        assert!(done.status.success(), "{args:?}: {done:?}\n{}", self.logs());
    }

    /// Transfers until the leader is as meant: where the machine stands still meanwhile another one is
    /// elected after that.
    pub(crate) fn transfer_until(&self, args: &[&str], is_meant: impl Fn(usize) -> bool) {
        let give_up = Instant::now() + SOON;
        loop {
            self.transfer(args);
            if is_meant(self.leader()) {
                return;
            }
            assert!(Instant::now() < give_up, "{args:?}: {:#}", self.group());
        }
    }

    pub(crate) fn number_of(&self, om: usize) -> u64 {
        let listed = admin_json(&self.scm, &["om", "roles"]);
        let is_it = |it: &&Value| it["address"] == self.addresses[om].as_str();
        listed.as_array().unwrap().iter().find(is_it).unwrap()["om"].as_u64().unwrap()
    }
}

fn groups(scm: &str) -> Vec<Value> {
    admin_json(scm, &["om", "groups"]).as_array().cloned().unwrap_or_default()
}

/// The groups of names where there are so many, each as it is wanted, led, and of so many members; else what
/// there is.
pub(crate) fn whole_groups(scm: &str, count: usize, members: usize) -> Result<Vec<Value>, Vec<Value>> {
    let is_whole = |group: &Value| {
        let replicas = group["replicas"].as_array().cloned().unwrap_or_default();
        let all_vote = replicas.iter().all(|it| it["role"] == "leader" || it["role"] == "follower");
        let is_led = replicas.iter().any(|it| it["role"] == "leader");
        replicas.len() == members && all_vote && is_led && group["problem"] == ""
    };
    let groups = groups(scm);
    if groups.len() == count && groups.iter().all(is_whole) { Ok(groups) } else { Err(groups) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_of_three_oms_may_die_under_load_and_come_back_empty() {
    let (names, endpoint) = tokio::task::spawn_blocking(|| {
        let mut names = Names::start(3);
        let endpoint = names.add_data();
        names.until_whole(3);
        (names, endpoint)
    })
    .await
    .unwrap();
    let s3 = Arc::new(S3::new(&endpoint, ACCESS_KEY, SECRET_KEY, "names"));
    s3.create_bucket().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let (s3, stop) = (s3.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut written, mut longest) = (0, Duration::ZERO);
                while !stop.load(Ordering::Relaxed) {
                    let key = format!("{writer}/{written}");
                    let begun = Instant::now();
                    s3.put(&key, key.clone().into_bytes())
                        .await
                        .map_err(|why| format!("put {key}: {why}"))?;
                    let read = s3.get(&key).await.map_err(|why| format!("get {key}: {why}"))?;
                    if read.as_deref() != Some(key.as_bytes()) {
                        return Err(format!("get {key}: {read:?}"));
                    }
                    written += 1;
                    longest = longest.max(begun.elapsed());
                    tokio::time::sleep(REST).await;
                }
                println!("writer {writer}: {written} objects, the longest put and get took {longest:.1?}");
                Ok(written)
            })
        })
        .collect();

    let names = tokio::task::spawn_blocking(move || {
        let mut names = names;
        for _ in 0..2 {
            std::thread::sleep(Duration::from_secs(1));
            let leader = names.leader();
            names.transfer_until(&[], |now| now != leader);
            let to = names.number_of(leader).to_string();
            names.transfer_until(&["--to", &to], |now| now == leader);
            names.oms[leader].kill9();
            let was = leader;
            // Until another one leads, nothing is written: the writers wait, and hear of no error.
            let give_up = Instant::now() + SOON;
            while names.leader() == was {
                assert!(Instant::now() < give_up, "nobody else leads: {:#}", names.group());
                std::thread::sleep(Duration::from_millis(100));
            }
            names.oms[was].start_again();
            names.until_whole(3);
        }
        // Its disk is lost as well.
        let leader = names.leader();
        names.oms[leader].kill9();
        fs::remove_dir_all(names.meta(leader)).unwrap();
        let before: Vec<u64> = numbers(&names.group());
        names.oms[leader].start_again();
        let give_up = Instant::now() + SOON;
        loop {
            let group = names.until_whole(3);
            if numbers(&group) != before {
                break;
            }
            assert!(Instant::now() < give_up, "the same members: {group:#}");
        }
        names
    })
    .await
    .unwrap();
    stop.store(true, Ordering::Relaxed);
    let mut written = Vec::new();
    for writer in writers {
        written.push(writer.await.unwrap().unwrap_or_else(|why| panic!("{why}\n{}", names.logs())));
    }
    assert!(written.iter().all(|count| *count > 0), "{written:?}");
    for (writer, count) in written.into_iter().enumerate() {
        for number in 0..count {
            let key = format!("{writer}/{number}");
            assert_eq!(s3.get(&key).await.unwrap().as_deref(), Some(key.as_bytes()), "{key}");
        }
    }
}

/// Replica ids of a group's members.
fn numbers(group: &Value) -> Vec<u64> {
    let mut numbers: Vec<_> =
        group["replicas"].as_array().unwrap().iter().map(|it| it["replica"].as_u64().unwrap()).collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn one_om_becomes_three_and_a_fourth_takes_the_place_of_one_that_leaves() {
    let mut names = Names::start(1);
    names.until_whole(1);
    names.fs(&["-mkdir", "/s3v/first"]);
    names.add_om();
    names.add_om();
    names.until_whole(3);
    names.fs(&["-mkdir", "/s3v/second"]);

    names.add_om();
    let leader = names.leader();
    let number = names.number_of(leader);
    let decommission = ["admin", "--scm", &names.scm, "om", "decommission", &number.to_string(), "--wait"];
    let done = flotilla(&decommission, None);
    assert!(done.status.success(), "{done:?}\n{}", names.logs());
    let group = names.until_whole(3);
    assert!(group["replicas"].as_array().unwrap().iter().all(|it| it["om"] != number), "{group:#}");
    let listed = names.fs(&["-ls", "/s3v"]);
    assert!(listed.contains("first") && listed.contains("second"), "{listed}");
    // Nothing needs it any more; and of the three that are left one may go.
    names.oms[leader].kill9();
    let leader = names.leader();
    names.oms[leader].kill9();
    names.until_fs(&["-mkdir", "-p", "/s3v/third"]);
    assert!(names.fs(&["-ls", "/s3v"]).contains("third"));
}

#[test]
fn a_leader_that_was_paused_answers_nothing_old() {
    let names = Names::start(3);
    names.until_whole(3);
    names.fs(&["-mkdir", "/s3v/first"]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for round in 0..3 {
        let old = names.leader();
        let cluster = admin_json(&names.scm, &["scm", "roles"])["cluster"].as_str().unwrap().to_owned();
        names.oms[old].pause();
        // Acknowledged by the others, while it believes to lead.
        names.until_fs(&["-mkdir", "-p", &format!("/s3v/later{round}")]);
        names.oms[old].go_on();
        let (address, bucket) = (names.addresses[old].clone(), format!("later{round}"));
        runtime.block_on(async {
            let until = Instant::now() + Duration::from_secs(1);
            let mut answers = 0;
            while Instant::now() < until {
                let asked = HeadBucketRequest { volume: "s3v".to_owned(), bucket: bucket.clone() };
                let asked = proto::in_cluster(tonic::Request::new(asked), &cluster);
                let mut om = OmClient::connect(format!("http://{address}")).await.unwrap();
                let answer = om.head_bucket(asked).await.map_err(Failure::from);
                let is_old = answer.as_ref().is_err_and(|failure| failure.code == Code::NoSuchBucket);
                assert!(!is_old, "round {round}: after {answers} answers\n{}", names.logs());
                answers += 1;
            }
            assert!(answers > 0);
        });
        names.until_whole(3);
    }
}

#[test]
fn an_om_that_is_dead_for_long_is_replaced_where_another_one_stands_by() {
    let mut names = Names::start(3);
    names.until_whole(3);
    names.fs(&["-mkdir", "/s3v/first"]);
    let lost = names.leader();
    let number = names.number_of(lost);
    names.oms[lost].kill9();
    names.add_om();
    let give_up = Instant::now() + SOON;
    loop {
        let group = names.group();
        let replicas = group["replicas"].as_array().unwrap();
        if replicas.iter().all(|it| it["om"] != number) {
            break;
        }
        assert!(Instant::now() < give_up, "it stays: {group:#}\n{}", names.logs());
        std::thread::sleep(Duration::from_millis(200));
    }
    names.until_whole(3);
    // It comes back after all, and lets go of what it has.
    names.oms[lost].start_again();
    names.until_whole(3);
    assert!(names.fs(&["-ls", "/s3v"]).contains("first"));
}

/// The names are mended by what the command says, to the letter.
#[test]
fn two_of_three_are_lost_for_good_and_come_back_after_all() {
    let mut names = Names::start(3);
    names.until_whole(3);
    names.fs(&["-mkdir", "/s3v/first"]);
    let lost: Vec<usize> = (0..2).collect();
    names.reset_to_third();
    names.until_whole(1);
    names.until_fs(&["-mkdir", "-p", "/s3v/second"]);
    names.add_om();
    names.add_om();
    names.until_whole(3);

    // Whoever is in the record now is away while the old ones come back, and elect.
    let now: Vec<usize> = vec![2, 3, 4];
    for om in &now {
        names.oms[*om].kill9();
    }
    for om in &lost {
        names.oms[*om].start_again();
    }
    std::thread::sleep(Duration::from_secs(8));
    for om in &now {
        names.oms[*om].start_again();
    }
    names.until_whole(3);
    let give_up = Instant::now() + SOON;
    // One that another one has replaced meanwhile may be a member again, with nothing of before.
    let is_member = |om: &usize| {
        let replicas = names.group()["replicas"].as_array().cloned().unwrap_or_default();
        replicas.iter().any(|it| it["address"] == names.addresses[*om].as_str() && it["role"] != "leaving")
    };
    while lost.iter().any(|om| names.meta(*om).join("db-om-0").exists() && !is_member(om)) {
        assert!(Instant::now() < give_up, "they keep what they have\n{}", names.logs());
        std::thread::sleep(Duration::from_millis(200));
    }
    let listed = names.fs(&["-ls", "/s3v"]);
    assert!(listed.contains("first") && listed.contains("second"), "{listed}");
}
