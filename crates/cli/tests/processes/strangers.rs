//! Strangers try each door ([`doors`]), and lean on every port, in crowds, one crowd after the other, while
//! one honest client works all through it, and judges. All doors and small crowds are tests; `./dev drill
//! doors` has crowds as large as the issue of a busy night.

mod crowd;
mod doors;
mod garbage;
mod honest;
mod http2;

use crate::binary;
use crate::s3::S3;
use crowd::Crowd;
use doors::Tried;
use honest::Honest;
use serde_json::{Map, Value, json};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::Process;
use testkit::prometheus::Scrape;

/// The numbers of each crowd, how often it comes, for how long its coming is felt, and for how long it stays
/// then, and stays away.
#[derive(Clone, Copy)]
struct Crowds {
    half_sent: usize,
    slow_readers: usize,
    idle: usize,
    rounds: usize,
    come: Duration,
    stay: Duration,
    /// The p99 that an honest client may have beside them, as a multiple of that without them.
    p99_to_quiet_max: f64,
    /// The p99 that honest requests may have, whatever else this machine does: it says that nobody waits for
    /// a stranger until his time is over.
    p99_max: Duration,
}

/// The p99 that an honest client is to have beside any crowd, as a multiple of that without it: what misses it
/// is told (docs/s3.md has what was seen).
const P99_TO_QUIET_GOAL: f64 = 1.1;
/// Who throws garbage without a pause is work, and takes his share of the processors.
const GARBAGE: &str = "garbage";

/// Other work of this machine may slow down either of two windows of a few seconds: all rounds' requests
/// count together, and a crowd of nobody says what such a ratio is worth. What is asserted is what a machine
/// can tell on which others compile.
const IN_A_CAMPAIGN: Crowds = Crowds {
    half_sent: 1500,
    slow_readers: 1000,
    idle: 10_000,
    rounds: 21,
    come: Duration::from_secs(2),
    stay: Duration::from_secs(4),
    p99_to_quiet_max: 1.5,
    p99_max: Duration::from_secs(2),
};
/// Too few requests for a ratio to mean anything, and for the slowest of them not to be the p99.
const AMONG_TESTS: Crowds = Crowds {
    half_sent: 60,
    slow_readers: 40,
    idle: 200,
    rounds: 1,
    come: Duration::from_millis(100),
    stay: Duration::from_millis(700),
    p99_to_quiet_max: f64::INFINITY,
    p99_max: Duration::from_secs(8),
};

/// A cluster that just started is ready by then, on a machine that stands still now and again.
const STARTED_MAX: Duration = Duration::from_secs(120);
/// The groups of names of a `flotilla dev`.
const GROUPS: usize = 4;
/// Connections that a gateway has room for besides a crowd's: the honest client's, who looks whether it is
/// ready, and those that came before and are not gone yet.
const CONNECTIONS_BESIDE: usize = 64;
/// Files that come and go with other connections of a server: to its peers, to the honest client.
const FILES_MORE_MAX: usize = 24;
/// A connection costs some KiB while it is there; what is left afterwards is the allocator's.
const MEMORY_MORE_MAX: u64 = 256 << 20;
const DEADLINE: Duration = Duration::from_secs(60);
const LARGE_BYTES: usize = 8 << 20;

/// A cluster of one process, a gateway of its own in front of it, and what is reached where.
struct Store {
    dev: Process,
    gateway: Process,
    s3: S3,
    /// S3, and every other port of both: HTTP and gRPC; then DNS, by UDP too.
    s3_address: String,
    other_addresses: Vec<String>,
    dns: String,
    /// HTTP of the gateway, and of the cluster.
    http_urls: [String; 2],
}

impl Store {
    async fn start(dir: &Path) -> Store {
        let data = dir.join("data").display().to_string();
        let line = format!("dev --data {data} --s3-port 0 --rpc-port 0 --http-port 0 --dns-port 0");
        let (dev, of_dev) = Process::start(binary(), dir, "dev", words(&line));
        let (rpc, key) = (&of_dev["RPC"], dir.join("key"));
        fs::write(&key, &of_dev["SECRET_KEY"]).unwrap();
        let line = format!(
            "server --roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --http 127.0.0.1:0 --scm {rpc} \
             --access-key {} --secret-key-file {}",
            of_dev["ACCESS_KEY"],
            key.display()
        );
        let (gateway, of_gateway) = Process::start(binary(), dir, "gateway", words(&line));
        let endpoint = &of_gateway["S3_ENDPOINT"];
        let s3 = S3::new(endpoint, &of_dev["ACCESS_KEY"], &of_dev["SECRET_KEY"], "first");
        s3.create_bucket().await.unwrap();
        s3.put("large", vec![7; LARGE_BYTES]).await.unwrap();
        let bare = |address: &str| address.trim_start_matches("http://").to_owned();
        let store = Store {
            dev,
            gateway,
            s3,
            s3_address: bare(endpoint),
            other_addresses: vec![
                bare(&of_gateway["HTTP"]),
                bare(&of_gateway["RPC"]),
                bare(&of_dev["HTTP"]),
                bare(rpc),
                bare(&of_dev["DNS"]),
                bare(&of_dev["S3_ENDPOINT"]),
            ],
            dns: of_dev["DNS"].clone(),
            http_urls: [of_gateway["HTTP"].clone(), of_dev["HTTP"].clone()],
        };
        // Groups of names are founded one after the other, and between two of them it is ready as well.
        let give_up = Instant::now() + STARTED_MAX;
        while store.groups().await < GROUPS || store.readiness().await.is_err() {
            assert!(Instant::now() < give_up, "it does not get ready: {:?}", store.readiness().await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        store
    }

    /// The number of groups of names that the store has replicas of.
    async fn groups(&self) -> usize {
        let page =
            reqwest::get(format!("{}/metrics", self.http_urls[1])).await.unwrap().text().await.unwrap();
        page.lines().filter(|line| line.starts_with("flotilla_om_buckets{")).count()
    }

    async fn assert_ready(&self, when: &str) {
        self.readiness().await.unwrap_or_else(|why| panic!("{why}, {when}"));
    }

    async fn readiness(&self) -> Result<(), String> {
        let [gateway, dev] = &self.http_urls;
        let s3 = format!("http://{}/-/health", self.s3_address);
        for url in [format!("{gateway}/readyz"), format!("{dev}/readyz"), format!("{s3}/ready")] {
            let answer = reqwest::get(&url).await.map_err(|error| format!("{url}: {error}"))?;
            let (status, said) = (answer.status(), answer.text().await.unwrap_or_default());
            if !status.is_success() {
                return Err(format!("{url} says {status} {said}"));
            }
        }
        Ok(())
    }

    /// Waits until the gateway works for the honest client alone. A thousand who ask for megabytes at once
    /// are work until they have the first of them; whether they are slow shows afterwards.
    async fn at_rest(&self) {
        let url = format!("{}/metrics", self.http_urls[0]);
        let give_up = Instant::now() + DEADLINE;
        loop {
            let page = reqwest::get(&url).await.unwrap().text().await.unwrap();
            let working =
                Scrape::parse(&page).unwrap().value("flotilla_http_requests_working", &[("port", "s3")]);
            if working.expect("a metric of that name") <= 1.0 {
                return;
            }
            assert!(Instant::now() < give_up, "{working:?} requests are worked for\n{}", self.gateway.log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    fn files(&self) -> [usize; 2] {
        [&self.gateway, &self.dev]
            .map(|process| fs::read_dir(format!("/proc/{}/fd", process.pid())).expect("it runs").count())
    }
}

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

/// A figure of `/proc/PID/status`, in bytes.
fn memory(process: &Process, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).expect("it runs");
    let line = status.lines().find(|line| line.starts_with(name)).expect("a figure of that name");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}

/// The number of idle connections that the gateway takes, which is a quarter of its open files, or `wanted`
/// if that is less.
fn affordable(gateway: &Process, wanted: usize) -> usize {
    let limits = fs::read_to_string(format!("/proc/{}/limits", gateway.pid())).expect("it runs");
    let line = limits.lines().find(|line| line.starts_with("Max open files")).expect("a limit");
    let files: usize =
        line.split_whitespace().nth(3).and_then(|soft| soft.parse().ok()).unwrap_or(usize::MAX);
    let room = (files / 4).saturating_sub(CONNECTIONS_BESIDE);
    if room < wanted {
        println!(
            "{room} idle connections, not {wanted}: {files} open files are allowed, of which a gateway gives a quarter to clients"
        );
    }
    room.min(wanted)
}

/// The times that honest requests took, shortest first.
#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn add(&mut self, more: Times) {
        self.0.extend(more.0);
        self.0.sort_unstable();
    }

    fn percentile(&self, percent: usize) -> Duration {
        self.0[self.0.len() * percent / 100]
    }
}

/// The measurements of one crowd: of all times that it was there, of all just before it came, and of all in
/// which it had just come: a thousand who ask at once are work.
struct Phase {
    name: &'static str,
    /// The fewest who were still there at the end of a round.
    strangers: usize,
    rounds: usize,
    quiet: Times,
    beside: Times,
    just_come: Times,
    /// The longest time until the crowd was there and asked for nothing more.
    arrival: Duration,
    memory: u64,
}

impl Phase {
    fn new(name: &'static str) -> Phase {
        let (quiet, beside, just_come) = Default::default();
        let (strangers, rounds, arrival, memory) = (usize::MAX, 0, Duration::ZERO, 0);
        Phase { name, strangers, rounds, quiet, beside, just_come, arrival, memory }
    }

    /// A percentile of some requests, as a multiple of that without the crowd.
    fn to_quiet(&self, times: &Times, percent: usize) -> f64 {
        let [quiet, times] = [&self.quiet, times].map(|times| times.percentile(percent));
        times.as_secs_f64() / quiet.as_secs_f64()
    }
}

struct Drill {
    store: Store,
    honest: Honest,
    come: Duration,
    stay: Duration,
    phases: Vec<Phase>,
}

/// Has a crowd go on with what it does until some moment.
async fn lean(crowd: &mut Crowd, until: Instant) {
    while Instant::now() < until {
        crowd.go_on();
        let left = until.saturating_duration_since(Instant::now());
        tokio::time::sleep(Duration::from_secs(1).min(left)).await;
    }
}

impl Drill {
    /// A crowd that comes and goes, so that what else this machine does slows down the time with it and the
    /// time without it alike.
    async fn crowd<F: Future<Output = Crowd>>(
        &mut self,
        name: &'static str,
        rounds: usize,
        files_before: [usize; 2],
        come: impl Fn() -> F,
    ) {
        let mut phase = Phase::new(name);
        for _ in 0..rounds {
            phase.quiet.add(self.quiet().await);
            let from = Instant::now();
            let mut crowd = come().await;
            self.store.at_rest().await;
            let there = Instant::now();
            self.store.assert_ready(name).await;
            lean(&mut crowd, there + self.come).await;
            phase.just_come.add(self.window(name, there).await);
            let begun = Instant::now();
            lean(&mut crowd, begun + self.stay).await;
            phase.beside.add(self.window(name, begun).await);
            self.store.assert_ready(name).await;
            phase.rounds += 1;
            phase.strangers = phase.strangers.min(crowd.staying());
            phase.arrival = phase.arrival.max(there - from);
            phase.memory = phase.memory.max(memory(&self.store.gateway, "VmRSS:"));
            drop(crowd);
            self.settle(files_before).await;
        }
        println!(
            "{name}: p99 is {:.2} times what it is without them, in {rounds} rounds",
            phase.to_quiet(&phase.beside, 99)
        );
        self.phases.push(phase);
    }

    /// A window in which there is nobody but the honest client.
    async fn quiet(&self) -> Times {
        let begun = Instant::now();
        tokio::time::sleep(self.stay).await;
        self.window("quiet", begun).await
    }

    /// A window from `begun` until now, and on until some request has ended: one may wait for a disk that
    /// stands still.
    async fn window(&self, name: &str, begun: Instant) -> Times {
        let give_up = Instant::now() + DEADLINE;
        let took = loop {
            let took = self.honest.took(begun..Instant::now());
            if !took.is_empty() {
                break Times(took);
            }
            let log = || self.store.gateway.log();
            assert!(Instant::now() < give_up, "{name}: no honest request comes to an end\n{}", log());
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        let (count, p50, p99) = (took.0.len(), took.percentile(50), took.percentile(99));
        println!("{name}: {count} honest requests, p50 {p50:?}, p99 {p99:?}");
        took
    }

    /// Waits until nothing is held any more for those who left.
    async fn settle(&self, before: [usize; 2]) -> [usize; 2] {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let now = self.store.files();
            if now.iter().zip(before).all(|(now, before)| *now <= before + FILES_MORE_MAX) {
                return now;
            }
            assert!(
                Instant::now() < give_up,
                "{now:?} files are open, {before:?} were before the strangers came"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

impl Drill {
    /// Waits until the gateway has given back what strangers cost it, which it does once it is idle.
    async fn forget(&self, bytes_max: u64) -> u64 {
        let give_up = Instant::now() + 2 * DEADLINE;
        loop {
            let now = memory(&self.store.gateway, "VmRSS:");
            if now <= bytes_max {
                return now;
            }
            assert!(
                Instant::now() < give_up,
                "{} MiB are resident, at most {} were to be",
                now >> 20,
                bytes_max >> 20
            );
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
    }
}

async fn run(crowds: Crowds) -> Map<String, Value> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::start(dir.path()).await;
    let idle = affordable(&store.gateway, crowds.idle);
    let honest = Honest::start(store.s3.clone());
    let mut drill = Drill { store, honest, come: crowds.come, stay: crowds.stay, phases: Vec::new() };
    let (address, s3) = (drill.store.s3_address.clone(), drill.store.s3.clone());

    drill.store.assert_ready("before anybody comes").await;
    drill.quiet().await;
    let (files_before, memory_before) = (drill.store.files(), memory(&drill.store.gateway, "VmRSS:"));
    drill.crowd("nobody", crowds.rounds, files_before, || Crowd::idle(&address, 0)).await;
    let half_sent = || Crowd::half_sent(&address, &s3, crowds.half_sent);
    drill.crowd("half-sent", crowds.rounds, files_before, half_sent).await;
    let slow_readers = || Crowd::slow_readers(&address, &s3, crowds.slow_readers);
    drill.crowd("slow-readers", crowds.rounds, files_before, slow_readers).await;
    drill.crowd("idle", crowds.rounds, files_before, || Crowd::idle(&address, idle)).await;
    let idlers = drill.phases.iter().find(|phase| phase.name == "idle").expect("they came");
    assert_eq!(idlers.strangers, idle, "those who only lie there are let be");

    let mut phase = Phase { rounds: 1, quiet: drill.quiet().await, ..Phase::new("garbage") };
    let begun = Instant::now();
    phase.strangers = garbage::throw(&drill.store, 4 * crowds.stay).await;
    drill.store.assert_ready("after garbage").await;
    phase.beside = drill.window("garbage", begun).await;
    phase.memory = memory(&drill.store.gateway, "VmRSS:");
    drill.phases.push(phase);

    let files_after = drill.settle(files_before).await;
    let memory_peak = memory(&drill.store.gateway, "VmHWM:");
    drill.quiet().await;
    let errors = drill.honest.stop();
    let memory_after = drill.forget(memory_before + MEMORY_MORE_MAX).await;
    assert_eq!(errors, Vec::<String>::new(), "honest requests failed");
    assert_eq!(drill.store.s3.get("lie").await.unwrap(), None, "a body that lies became an object");
    let shown =
        figures(&drill.phases, [memory_before, memory_after, memory_peak], [files_before, files_after]);
    for phase in &drill.phases {
        let (name, slowest) = (phase.name, phase.beside.percentile(99));
        assert!(slowest <= crowds.p99_max, "{name}: the 99th percentile is {slowest:?}");
        let ratio = phase.to_quiet(&phase.beside, 99);
        assert!(
            ratio <= crowds.p99_to_quiet_max || name == GARBAGE,
            "{name}: p99 is {ratio:.2} times what it is without them, {} are allowed: {}",
            crowds.p99_to_quiet_max,
            Value::Object(shown.clone())
        );
    }
    shown
}

fn figures(phases: &[Phase], memory: [u64; 3], files: [[usize; 2]; 2]) -> Map<String, Value> {
    let rounded = |value: f64| (value * 100.0).round() / 100.0;
    let mut figures = Map::new();
    for phase in phases {
        let ms = |percent| {
            let both = [&phase.beside, &phase.quiet].map(|times| times.percentile(percent));
            both.map(|time| rounded(time.as_secs_f64() * 1e3))
        };
        let ([p50, quiet_p50], [p99, quiet_p99]) = (ms(50), ms(99));
        let (requests, rounds) = (phase.beside.0.len(), phase.rounds);
        let shown = json!({
            "strangers": phase.strangers, "rounds": rounds, "honest_requests": requests,
            "p50_ms": p50, "quiet_p50_ms": quiet_p50, "p50_to_quiet": rounded(phase.to_quiet(&phase.beside, 50)),
            "p99_ms": p99, "quiet_p99_ms": quiet_p99, "p99_to_quiet": rounded(phase.to_quiet(&phase.beside, 99)),
            "just_come_p99_to_quiet": (!phase.just_come.0.is_empty()).then(|| rounded(phase.to_quiet(&phase.just_come, 99))),
            "arrival_s": (phase.arrival.as_secs_f64() * 10.0).round() / 10.0, "gateway_rss_mib": phase.memory >> 20,
        });
        figures.insert(phase.name.to_owned(), shown);
    }
    let misses =
        |phase: &&Phase| phase.name != GARBAGE && phase.to_quiet(&phase.beside, 99) > P99_TO_QUIET_GOAL;
    let missed: Vec<&str> = phases.iter().filter(misses).map(|phase| phase.name).collect();
    figures.insert("goal_missed".to_owned(), json!(missed));
    let [before, after, peak] = memory.map(|bytes| bytes >> 20);
    figures.insert("gateway_rss_mib".to_owned(), json!({"before": before, "after": after, "peak": peak}));
    let [before, after] = files.map(|[gateway, dev]| json!({"gateway": gateway, "cluster": dev}));
    figures.insert("open_files".to_owned(), json!({"before": before, "after": after}));
    figures
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn crowds_of_strangers_cost_an_honest_client_nothing() {
    run(AMONG_TESTS).await;
}

/// `./dev drill doors`: as often as `FLOTILLA_DRILL_REPEAT` says; `FLOTILLA_DRILL_ONLY` names one door, which
/// is tried without crowds.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes: ./dev drill doors"]
async fn drill() {
    let repeat: usize = std::env::var("FLOTILLA_DRILL_REPEAT").map_or(1, |text| text.parse().unwrap());
    let only = std::env::var("FLOTILLA_DRILL_ONLY").ok().filter(|only| !only.is_empty());
    for _ in 0..repeat {
        let tried = Tried::all(only.as_deref()).await;
        let mut line = Map::from_iter([("doors".to_owned(), Value::Object(tried.figures()))]);
        if only.is_none() && tried.open().is_empty() {
            line.extend(run(IN_A_CAMPAIGN).await);
            line.insert("failed_honest_requests".to_owned(), json!(0));
        }
        line.insert("strangers_drill".to_owned(), json!("doors"));
        println!("{}", Value::Object(line));
        assert_eq!(tried.open(), Vec::<String>::new());
    }
}
