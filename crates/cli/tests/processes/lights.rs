//! The readiness of a gateway as it tells it, and whether that is so.

use crate::binary;
use crate::commands::flotilla;
use crate::s3::S3;
use bytes::Bytes;
use client::{Client, ClientError, ClientOptions};
use proto::Code;
use proto::om::KeyAttributes;
use registry::RegistryClient;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, Process, SECRET_KEY};

/// Silence after which SCM takes a node for away.
const STALE_AFTER: Duration = Duration::from_secs(2);
/// The time within which a change shows: `STALE_AFTER` and some seconds. Two elections of a pipeline are six,
/// and this machine does other things too.
const SOON: Duration = Duration::from_secs(20);
/// The time for whatever else is waited for.
const DEADLINE: Duration = Duration::from_secs(60);
/// The number of keys that two clusters both have.
const OBJECTS: usize = 5;

/// The lights of a gateway: at its S3 port, and at its HTTP port.
struct Lights([String; 2]);

impl Lights {
    fn of(cluster: &Cluster) -> Lights {
        Lights([format!("{}/-/health/ready", cluster.endpoint), format!("{}/readyz", cluster.gateway_http)])
    }

    async fn all_are(&self, expected: bool) -> Result<(), String> {
        for url in &self.0 {
            let answer = reqwest::get(url).await.unwrap();
            let is_ready = answer.status().is_success();
            if is_ready != expected {
                return Err(format!("{url} is {is_ready}: {}", answer.text().await.unwrap()));
            }
        }
        Ok(())
    }

    /// Waits until all lights are so; to be called when that has just become true.
    async fn soon_are(&self, expected: bool, when: &str) {
        let give_up = Instant::now() + SOON;
        while let Err(wrong) = self.all_are(expected).await {
            assert!(Instant::now() < give_up, "{when}, and after {SOON:?} {wrong}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}

/// Returns when a byte could be written again.
async fn until_written(s3: &S3, key: &str, body: Vec<u8>) {
    let give_up = Instant::now() + DEADLINE;
    while let Err(failure) = s3.put(key, body.clone()).await {
        assert!(Instant::now() < give_up, "{key}: {failure}");
    }
}

/// The findings of `admin status` with the exit code that each alone comes to; not how full the disk is that
/// the tests run on.
fn status(scm: &str) -> Vec<(String, i32)> {
    let output = flotilla(&["admin", "--scm", scm, "--json", "status"], None);
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON on stdout");
    let findings = told["findings"].as_array().unwrap().iter().map(|finding| {
        let exit = if finding["severity"] == "critical" { 2 } else { 1 };
        (finding["code"].as_str().unwrap().to_owned(), exit)
    });
    let findings: Vec<_> = findings.collect();
    let worst = findings.iter().map(|(_, exit)| *exit).max().unwrap_or(0);
    assert_eq!(output.status.code().unwrap(), worst, "{findings:?}");
    findings.into_iter().filter(|(code, _)| !code.starts_with("disk-f")).collect()
}

fn until_status_says(expected: &str, scm: &str) -> i32 {
    let give_up = Instant::now() + SOON;
    loop {
        let findings = status(scm);
        if let Some((_, exit)) = findings.iter().find(|(code, _)| code == expected) {
            return *exit;
        }
        assert!(Instant::now() < give_up, "it says {findings:?} for good, never {expected}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

async fn pipelines_led(cluster: &Cluster) -> f64 {
    let answer = reqwest::get(format!("{}/metrics", cluster.scm_ready["HTTP"])).await.unwrap();
    let page = Scrape::parse(&answer.text().await.unwrap()).unwrap();
    page.with("flotilla_scm_pipelines_led", &[]).map(|sample| sample.value).sum()
}

/// The first two lines of `admin status --watch`, which goes on until somebody ends it.
fn status_watched(scm: &str) -> Vec<String> {
    let words = ["admin", "--scm", scm, "--json", "--watch=1", "status"];
    let watch = Command::new(binary()).args(words).stdout(Stdio::piped()).spawn();
    let mut watch = watch.expect("start the flotilla binary");
    let lines = BufReader::new(watch.stdout.take().expect("piped")).lines();
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| tell.send(line)));
    let looks: Vec<String> = (0..2).map_while(|_| told.recv_timeout(SOON).ok()).collect();
    let ended = watch.try_wait().expect("ask for its state");
    let _ = watch.kill();
    watch.wait().expect("reap it");
    assert_eq!(ended, None, "it ended by itself: {looks:?}");
    looks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_ready_while_a_byte_could_be_written_and_no_longer() {
    ready_or_not().await;
}

/// Two of three datanodes go, then all three, and come back. How many objects were acknowledged, and are
/// there.
pub(crate) async fn ready_or_not() -> usize {
    let scm_args = format!("--stale-after {}s", STALE_AFTER.as_secs());
    let mut cluster = Cluster::start(binary(), &ClusterOptions { scm_args, ..ClusterOptions::default() });
    let lights = Lights::of(&cluster);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "lights");
    s3.create_bucket().await.unwrap();
    s3.put("a", vec![1; 1000]).await.unwrap();
    lights.soon_are(true, "all are there").await;
    let give_up = Instant::now() + DEADLINE;
    while !status(&cluster.scm_address).is_empty() {
        assert!(Instant::now() < give_up, "all is well, and not {:?}", status(&cluster.scm_address));
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    let looks = status_watched(&cluster.scm_address);
    assert_eq!(looks.len(), 2, "{looks:?}");
    for look in looks {
        let told: serde_json::Value = serde_json::from_str(&look).expect("a line of JSON");
        assert!(told["cluster"].is_string() && told["findings"].is_array(), "{look}");
    }
    assert!(pipelines_led(&cluster).await > 0.0);
    cluster.datanodes[0].kill9();
    assert_eq!(until_status_says("node-stale", &cluster.scm_address), 1);
    until_written(&s3, "b", vec![2; 1000]).await;
    lights.soon_are(true, "two of three are there").await;
    cluster.datanodes[1].kill9();
    lights.soon_are(false, "one of three is there").await;
    cluster.datanodes[2].kill9();
    lights.soon_are(false, "none is there").await;
    tokio::time::sleep(2 * STALE_AFTER).await;
    assert_eq!(lights.all_are(false).await, Ok(()), "nobody has come back");
    assert_eq!(until_status_says("pipeline-none", &cluster.scm_address), 2);
    assert_eq!(pipelines_led(&cluster).await, 0.0, "what alerts compare");
    let pipelines = crate::commands::admin_json(&cluster.scm_address, &["pipeline", "list"]);
    for pipeline in pipelines.as_array().unwrap() {
        assert!(pipeline["leader_node"].is_null(), "a dead node leads: {pipeline}");
    }
    cluster.datanodes.iter_mut().for_each(|datanode| drop(datanode.start_again()));
    until_written(&s3, "c", vec![3; 1000]).await;
    lights.soon_are(true, "all are there again").await;
    let written = [("a", 1), ("b", 2), ("c", 3)];
    for (key, byte) in written {
        assert_eq!(s3.get(key).await.unwrap().unwrap(), vec![byte; 1000]);
    }
    written.len()
}

/// Nobody tells the gateway of anything, and writers need SCM only when their containers are full.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_without_scm_is_ready_for_as_long_as_a_byte_could_be_written() {
    const OBJECT_BYTES: usize = 1 << 20;
    /// Four pipelines, whose containers are refused chunks at twice their size.
    const FULL_AFTER: usize = 4 * 2 * 4;
    let options = ClusterOptions { container_bytes_max: 4 << 20, ..ClusterOptions::default() };
    let mut cluster = Cluster::start(binary(), &options);
    let lights = Lights::of(&cluster);
    let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, "lights");
    s3.create_bucket().await.unwrap();
    s3.put("a", vec![1; 1000]).await.unwrap();
    lights.soon_are(true, "all are there").await;

    cluster.scms[0].kill9();
    s3.put("b", vec![2; 1000]).await.unwrap();
    lights.soon_are(true, "only SCM is away").await;
    cluster.datanodes[0].kill9();
    cluster.datanodes[1].kill9();
    lights.soon_are(false, "SCM is away, and two of three").await;
    cluster.datanodes[0].spawn_again();
    cluster.datanodes[1].spawn_again();
    until_written(&s3, "c", vec![3; 1000]).await;
    lights.soon_are(true, "only SCM is away again").await;

    let mut written = 0;
    while lights.all_are(false).await.is_err() {
        let put = s3.put("full", vec![4; OBJECT_BYTES]);
        // The one that finds all of them full waits for half a minute.
        let _ = tokio::time::timeout(Duration::from_secs(5), put).await;
        written += 1;
        assert!(written <= 4 * FULL_AFTER, "ready after {written} objects");
    }
    lights.soon_are(false, "all containers are full").await;
    cluster.scms[0].start_again();
    until_written(&s3, "d", vec![4; 1000]).await;
    lights.soon_are(true, "there are containers again").await;
    for (key, byte) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        assert_eq!(s3.get(key).await.unwrap().unwrap(), vec![byte; 1000]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_between_two_clusters_is_never_ready_and_touches_neither() {
    between_two_clusters().await;
}

/// Names of one cluster, bytes of another: a list of OMs that somebody wrote down is enough for that. How many
/// objects were read, and are ours.
pub(crate) async fn between_two_clusters() -> usize {
    let ours =
        tokio::task::spawn_blocking(|| Cluster::start(binary(), &ClusterOptions::default())).await.unwrap();
    let root = ours.path().display();
    let theirs = format!("server --roles scm,om --rpc 127.0.0.1:0 --meta {root}/theirs --http 127.0.0.1:0");
    let args = theirs.split_whitespace().map(str::to_owned).collect();
    let (_theirs, ready) = Process::start(binary(), ours.path(), "theirs", args);
    let their_address = ready["RPC"].clone();
    // The same names as here, and nothing in them: what needs no datanode could be answered and changed at
    // once.
    let empty = ours.path().join("empty");
    std::fs::write(&empty, b"").unwrap();
    let in_theirs = |args: &[&str]| {
        let done = flotilla(&[&["fs", "--scm", &their_address], args].concat(), None);
        assert!(done.status.success(), "{args:?}: {done:?}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    in_theirs(&["-mkdir", "/s3v/ours"]);
    in_theirs(&["-put", empty.to_str().unwrap(), "/s3v/ours/a"]);
    let s3 = S3::new(&ours.endpoint, ACCESS_KEY, SECRET_KEY, "ours");
    s3.create_bucket().await.unwrap();
    s3.put("a", b"ours".to_vec()).await.unwrap();
    for number in 0..OBJECTS {
        in_theirs(&["-put", empty.to_str().unwrap(), &format!("/s3v/ours/{number}")]);
        s3.put(&number.to_string(), number.to_string().into_bytes()).await.unwrap();
    }

    let between = Client::connect(ClientOptions {
        scm: ours.scm_address.clone(),
        om: Some(their_address.clone()),
        write_deadline: Duration::from_secs(3),
        read_deadline: Duration::from_secs(3),
        ..ClientOptions::default()
    });
    let give_up = Instant::now() + DEADLINE;
    loop {
        let says = between.ready(Duration::from_secs(3)).await.unwrap_err();
        if format!("{says:#}").contains("another cluster") {
            break;
        }
        assert!(Instant::now() < give_up, "{says:#}");
    }
    for (key, body) in [("b", &b"lost"[..]), ("b", b"")] {
        let body = futures::stream::iter([Ok::<_, std::convert::Infallible>(Bytes::from_static(body))]);
        let put = between.put("s3v", "ours", key.as_bytes(), KeyAttributes::default(), None, body).await;
        assert!(put.as_ref().is_err_and(is_of_another_cluster), "{put:?}");
    }
    let numbers: Vec<String> = (0..OBJECTS).map(|number| number.to_string()).collect();
    for key in numbers.iter().map(String::as_str).chain(["a", "b"]) {
        let found = between.lookup("s3v", "ours", key.as_bytes()).await;
        assert!(found.as_ref().is_err_and(is_of_another_cluster), "{found:?}");
    }
    let listed = in_theirs(&["-ls", "/s3v/ours"]);
    assert!(!listed.contains("/b"), "{listed}");
    for key in numbers.iter().map(String::as_str).chain(["a"]) {
        assert!(listed.lines().any(|line| line.ends_with(&format!("/{key}"))), "{key}: {listed}");
    }
    assert_eq!(s3.get("a").await.unwrap().unwrap(), b"ours");
    assert_eq!(s3.get("b").await.unwrap(), None);
    for number in numbers {
        assert_eq!(s3.get(&number).await.unwrap().unwrap(), number.as_bytes());
    }
    OBJECTS
}

fn is_of_another_cluster(error: &ClientError) -> bool {
    matches!(error, ClientError::Unavailable(_)) || error.code() == Some(Code::WrongCluster)
}

/// An address whose connections go to whom it is set to; those that there were break with each setting.
async fn forwarder(to: tokio::sync::watch::Receiver<String>) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((mut near, _)) = listener.accept().await {
            let mut to = to.clone();
            tokio::spawn(async move {
                let target = to.borrow_and_update().clone();
                let Ok(mut far) = tokio::net::TcpStream::connect(target).await else { return };
                tokio::select! {
                    _ = tokio::io::copy_bidirectional(&mut near, &mut far) => {}
                    _ = to.changed() => {}
                }
            });
        }
    });
    address
}

/// A name that leads to another cluster for a while, or one of several that does for good.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_om_is_ready_while_the_scm_that_it_is_told_of_is_that_of_its_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().display();
    let args = |line: String| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let scm = |name: &str| {
        let line = format!("server --roles scm --rpc 127.0.0.1:0 --meta {root}/{name} --http 127.0.0.1:0");
        let (process, ready) = Process::start(binary(), dir.path(), name, args(line));
        (process, ready["RPC"].clone())
    };
    let (_ours, ours) = scm("ours");
    let (_theirs, theirs) = scm("theirs");
    let (leads_to, to) = tokio::sync::watch::channel(ours.clone());
    let named = forwarder(to).await;
    let http = testkit::free_addresses(1).remove(0);
    let start = |name: &str, scm: &str| {
        let line = format!("server --roles om --rpc 127.0.0.1:0 --meta {root}/om --scm {scm} --http {http}");
        Process::spawn(binary(), dir.path(), name, args(line))
    };
    let until = async |is_so: fn(bool, &str) -> bool, when: &str| {
        let give_up = Instant::now() + DEADLINE;
        loop {
            let says = match reqwest::get(format!("http://{http}/readyz")).await {
                Ok(answer) => Ok((answer.status().is_success(), answer.text().await.unwrap())),
                Err(failure) => Err(failure),
            };
            if says.as_ref().is_ok_and(|(is_ready, says)| is_so(*is_ready, says)) {
                return;
            }
            assert!(Instant::now() < give_up, "{when}, it says {says:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let mut om = start("om", &named);
    until(|is_ready, _| is_ready, "the name leads to its SCM").await;
    om.kill9();

    leads_to.send_replace(theirs.clone());
    let mut om = start("om-led-astray", &named);
    until(|is_ready, says| !is_ready && says.contains("to another"), "the name leads elsewhere").await;
    // A third of a lease, and some: it registers again by then.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let in_theirs = RegistryClient::new(&theirs).unwrap().instances("om").await.unwrap().instances;
    assert_eq!(in_theirs, [], "an OM of another cluster is none of theirs");
    leads_to.send_replace(ours.clone());
    until(|is_ready, _| is_ready, "the name leads to its SCM again").await;
    om.kill9();

    let mut om = start("om-with-a-stale-name", &format!("{ours},{theirs}"));
    until(|is_ready, _| is_ready, "one of two names leads elsewhere").await;
    om.kill9();
}
