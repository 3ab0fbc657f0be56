//! The HTTP port of real processes, asked as Prometheus and an operator ask.

use crate::binary;
use crate::s3::S3;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::prometheus::Scrape;
use testkit::{Process, Ready};

const DEADLINE: Duration = Duration::from_secs(60);
const OBJECT_BYTES: usize = 2_500_000;

fn start(dir: &Path, line: &str) -> (Process, Ready) {
    let args = line.split_whitespace().map(str::to_owned).collect();
    Process::start(binary(), dir, "server", args)
}

fn sum(page: &Scrape, name: &str, labels: &[(&str, &str)]) -> f64 {
    page.with(name, labels).map(|sample| sample.value).sum()
}

async fn get(url: &str) -> (u16, String) {
    let answer = reqwest::get(url).await.unwrap();
    (answer.status().as_u16(), answer.text().await.unwrap())
}

async fn scrape(base: &str) -> Scrape {
    let answer = reqwest::get(format!("{base}/metrics")).await.unwrap();
    assert_eq!(answer.status().as_u16(), 200);
    assert_eq!(answer.headers()["content-type"], "text/plain; version=0.0.4; charset=utf-8");
    let text = answer.text().await.unwrap();
    Scrape::parse(&text).unwrap_or_else(|why| panic!("{why}\n{text}"))
}

/// Four pipelines, SCM and OM have a leader each, and all members of a pipeline have the object; otherwise
/// what they show.
fn has_settled(page: &Scrape) -> Result<(), String> {
    let leaders = sum(page, "flotilla_raft_groups", &[("role", "leader")]);
    let followers = sum(page, "flotilla_raft_group_role", &[("role", "follower")]);
    let bytes = sum(page, "flotilla_raft_group_append_bytes_total", &[]);
    let syncs = page.with("flotilla_disk_log_write_seconds_count", &[]);
    // SCM, four groups of names, four pipelines of three members each. Six data directories, one for
    // metadata.
    let synced = syncs.filter(|sample| sample.value > 0.0).count();
    // The sweep tells of names once it has looked for the first time.
    let has_looked = page.with("flotilla_om_lost_names", &[]).next().is_some();
    if (leaders, followers, synced) == (9.0, 8.0, 7) && bytes >= 3.0 * OBJECT_BYTES as f64 && has_looked {
        return Ok(());
    }
    Err(format!("{leaders} lead, {followers} follow, {synced} directories were synced, {bytes} B appended"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dev_cluster_shows_its_groups_and_disks() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data").display().to_string();
    let line = format!("dev --data {data} --s3-port 0 --rpc-port 0 --http-port 0");
    let (process, ready) = start(dir.path(), &line);
    let base = &ready["HTTP"];
    let s3 = S3::new(&ready["S3_ENDPOINT"], &ready["ACCESS_KEY"], &ready["SECRET_KEY"], "first");
    s3.create_bucket().await.unwrap();
    s3.put("a/b", vec![7u8; OBJECT_BYTES]).await.unwrap();

    assert_eq!(get(&format!("{base}/healthz")).await, (200, "ok\n".to_owned()));
    // A heartbeat may take longer than it should where tests share the processors.
    let give_up = Instant::now() + DEADLINE;
    let text = loop {
        let (status, text) = get(&format!("{base}/readyz")).await;
        if status == 200 {
            break text;
        }
        assert!(Instant::now() < give_up, "{text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    };
    for role in ["scm: ready", "om: ready", "datanode: ready", "s3: ready"] {
        assert!(text.lines().any(|line| line == role), "{role} in {text}");
    }
    assert_eq!(get(&format!("{base}/nothing")).await.0, 404);

    // Some groups may still be electing, and what is acknowledged is on two of three members.
    let give_up = Instant::now() + DEADLINE;
    let mut page = scrape(base).await;
    while let Err(missing) = has_settled(&page) {
        assert!(Instant::now() < give_up, "{missing}");
        tokio::time::sleep(Duration::from_millis(50)).await;
        page = scrape(base).await;
    }
    assert_eq!(page.with("flotilla_raft_groups", &[("role", "leader")]).count(), 3, "one for each server");
    for node in ["1", "2", "3"] {
        assert_eq!(
            page.with("flotilla_disk_failed", &[("node", node)]).count(),
            if node == "1" { 3 } else { 2 }
        );
    }
    let cluster = &page.with("flotilla_info", &[("node", "1")]).next().unwrap().labels["cluster"];
    assert!(page.with("flotilla_raft_group_term", &[]).all(|sample| &sample.labels["cluster"] == cluster));
    for name in ["dozing_groups", "dozes_ended_total", "waits", "waits_expired_total"] {
        assert_eq!(page.with(&format!("flotilla_raft_{name}"), &[]).count(), 3, "{name} of each server");
    }
    for name in ["scrub_passes_total", "scrub_findings_total", "scrubbed_bytes_total", "report_age_seconds"] {
        assert_eq!(
            page.with(&format!("flotilla_disk_{name}"), &[]).count(),
            6,
            "{name} of each data directory"
        );
    }
    // Six disks need more than the 256 MiB that a process takes else.
    let mib = |name: &str, labels: &[(&str, &str)]| sum(&page, name, labels) / f64::from(1 << 20);
    assert_eq!(mib("flotilla_datanode_memory_max_bytes", &[]), 384.0);
    assert!(mib("flotilla_datanode_memory_bytes", &[]) < 384.0);
    for owner in ["bodies", "reads", "writing", "logs"] {
        let name = "flotilla_datanode_memory_bytes";
        assert_eq!(page.with(name, &[("owner", owner)]).count(), 3, "{owner} of each server");
    }
    for node in ["1", "2", "3"] {
        let of_node = [("node", node)];
        let disks = page.with("flotilla_disk_unflushed_bytes_max", &of_node);
        let mut shares: Vec<f64> = disks.map(|sample| sample.value / f64::from(1 << 20)).collect();
        shares.sort_by(f64::total_cmp);
        assert_eq!(shares[..2], [16.0; 2], "a quarter of each server's, shared by its disks");
        assert!(shares[2..].iter().all(|of_metadata| *of_metadata == 128.0), "{shares:?}");
    }
    assert!(page.value("process_resident_memory_bytes", &[]).unwrap() > 1e6);
    assert!(page.value("process_open_fds", &[]).unwrap() > 10.0);
    let before = page.value("process_cpu_seconds_total", &[]).unwrap();
    assert!(scrape(base).await.value("process_cpu_seconds_total", &[]).unwrap() >= before);
    names_exist_or_are_written_of(&get(&format!("{base}/metrics")).await.1);
    drop(process);
}

/// Alerts and the dashboard name what docs/metrics.md explains, and a running store shows; and it explains
/// all that is shown, and nothing else.
fn names_exist_or_are_written_of(page: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).unwrap();
    let docs = read("docs/metrics.md");
    let explained = explained_names(&docs);
    let families: BTreeSet<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let unexplained: Vec<_> = families.iter().filter(|family| !explained.contains(**family)).collect();
    assert!(unexplained.is_empty(), "docs/metrics.md does not have {unexplained:?}");
    let mut unseen = metric_names(&docs);
    unseen.retain(|name| !families.contains(name.as_str()));
    unseen.retain(|name| !SHOWN_SOMETIMES.iter().any(|beginning| name.starts_with(beginning)));
    assert!(unseen.is_empty(), "docs/metrics.md has {unseen:?}, which no process shows");
    for file in ["deploy/monitoring/alerts.yml", "deploy/monitoring/dashboard.json"] {
        let names = metric_names(&read(file));
        assert!(names.len() > 10, "{file} names {names:?}");
        for name in names {
            let family = ["_bucket", "_count", "_sum"].iter().find_map(|suffix| name.strip_suffix(suffix));
            let family = family.unwrap_or(&name);
            // A histogram is shown by its parts.
            let is_shown =
                ["{", " ", "_bucket{", "_count"].iter().any(|end| page.contains(&format!("\n{name}{end}")));
            assert!(is_shown, "{file}: no process shows {name}");
            assert!(explained.contains(family), "{file}: docs/metrics.md does not have {family}");
        }
    }
}

/// Names that a whole cluster need not show: with `--dns-listen`, with `--s3-request-log`, once a message was
/// refused, while a snapshot is sent.
const SHOWN_SOMETIMES: [&str; 9] = [
    "flotilla_dns_",
    "flotilla_s3_request_log_",
    "flotilla_raft_messages_refused_total",
    "flotilla_raft_group_snapshot_sending_",
    // These are shown of a group that has been led here for a moment.
    "flotilla_om_unused_containers",
    "flotilla_om_unused_oldest",
    "flotilla_om_lost_names",
    "flotilla_om_sweep_stopped",
    "flotilla_om_sweep_waiting_containers",
];

/// The names that the page has, whole ones and those of which a row has only the end: of several that begin
/// alike it writes out the first. Where that one is cut it does not say.
fn explained_names(docs: &str) -> BTreeSet<String> {
    let mut names = metric_names(docs);
    for row in docs.lines().filter_map(|line| line.strip_prefix("| `")) {
        let cell = row.split(" | ").next().unwrap_or_default();
        let first = words(cell).next().unwrap_or_default();
        let cuts = || first.match_indices('_').map(|(at, _)| at).chain([first.len()]);
        for end in cell.split('…').skip(1).filter_map(|rest| words(rest).next()) {
            names.extend(cuts().map(|at| format!("{}{end}", &first[..at])));
        }
    }
    names
}

/// Words that begin as names of our metrics do, and do not only say how some begin.
fn metric_names(text: &str) -> BTreeSet<String> {
    let is_ours = |word: &&str| word.starts_with("flotilla_") || word.starts_with("process_");
    words(text).filter(is_ours).filter(|word| !word.ends_with('_')).map(str::to_owned).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
}

#[test]
fn names_are_explained_as_a_whole_or_by_their_end_beside_one_that_begins_alike() {
    let docs =
        "`flotilla_up` is 1\n| `flotilla_a_bytes{x}` (`…_max`), `…_b` | as `flotilla_c_…`, `…_d` | |\n";
    let names: Vec<String> = explained_names(docs).into_iter().collect();
    let by_end = ["flotilla_a_b", "flotilla_a_bytes", "flotilla_a_bytes_b", "flotilla_a_bytes_max"];
    let cut_earlier = ["flotilla_a_max", "flotilla_b", "flotilla_max", "flotilla_up"];
    assert_eq!(names, [by_end, cut_earlier].concat());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_datanode_without_scm_is_healthy_and_not_ready() {
    let dir = tempfile::tempdir().unwrap();
    let disk = dir.path().join("disk").display().to_string();
    // Nobody listens on port 1.
    let line = format!(
        "server --roles datanode --rpc 127.0.0.1:0 --http 127.0.0.1:0 --disk {disk} --scm 127.0.0.1:1"
    );
    let (process, ready) = start(dir.path(), &line);
    let base = &ready["HTTP"];
    assert_eq!(get(&format!("{base}/healthz")).await.0, 200);
    let (status, text) = get(&format!("{base}/readyz")).await;
    assert_eq!(status, 503);
    assert!(text.starts_with("datanode: not ready: SCM at 127.0.0.1:1"), "{text}");
    let page = scrape(base).await;
    assert_eq!(page.value("flotilla_disk_failed", &[("disk", &disk)]), Some(0.0));
    drop(process);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_answered_while_a_gateway_waits_for_its_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let http = testkit::free_addresses(1).remove(0);
    let line = format!(
        "server --roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --http {http} --scm 127.0.0.1:1 \
         --access-key KEY --secret-key long-enough-secret"
    );
    let args = line.split_whitespace().map(str::to_owned).collect();
    let process = Process::spawn(binary(), dir.path(), "gateway", args);
    let base = format!("http://{http}");
    let give_up = Instant::now() + DEADLINE;
    while reqwest::get(format!("{base}/healthz")).await.is_err() {
        assert!(Instant::now() < give_up, "{}", process.log());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    loop {
        let (status, text) = get(&format!("{base}/readyz")).await;
        assert_eq!(status, 503, "{text}");
        if text.contains("s3: not ready: SCM does not answer") {
            break;
        }
        assert!(Instant::now() < give_up, "{text}");
    }
    drop(process);
}

/// Nothing is bound, and so no port is found taken, before the flags are known to be whole.
#[test]
fn missing_flags_are_said_before_taken_ports() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let http = taken.local_addr().unwrap().to_string();
    let output = crate::commands::flotilla(&["server", "--roles", "datanode", "--http", &http], None);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && said.contains("needs at least one --disk"), "{said}");
    assert!(said.contains("give --scm HOST:PORT") && !said.contains("--http"), "{said}");
}
