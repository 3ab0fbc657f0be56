//! Who may depend on whom. The layers are the architecture; this test reads the manifests and refuses what
//! breaks them.
//!
//! ```text
//! types → disk → raftlog → raft → statedb → datanode, scm, om → cli
//! types → proto → rpc → raft, registry, client → s3gw → cli
//! metrics → client, httpd → s3gw → cli
//! ```
//!
//! Services know each other only through `proto`. Dev-dependencies may do as they like, except name openraft:
//! even a test that speaks openraft's types would break with its next release.

use cargo_metadata::{DependencyKind, MetadataCommand};
use std::process::Command;

#[path = "layering/circles.rs"]
mod circles;
#[path = "layering/comments.rs"]
mod comments;
#[path = "layering/formats.rs"]
mod formats;
#[path = "layering/paths.rs"]
mod paths;

/// The crates of ours that each crate may name. A crate that is not here is a violation: give it a layer.
const ALLOWED: &[(&str, Allowed)] = &[
    ("base2histogram", Allowed::Only(&[])),
    ("flotilla-types", Allowed::Only(&[])),
    ("flotilla-planted", Allowed::Only(&[])),
    ("flotilla-metrics", Allowed::Only(&[])),
    ("flotilla-disk", Allowed::Only(&["flotilla-types"])),
    ("flotilla-md5many", Allowed::Only(&[])),
    ("flotilla-parking", Allowed::Only(&[])),
    ("flotilla-proto", Allowed::Only(&["flotilla-types"])),
    ("flotilla-rpc", Allowed::Only(&["flotilla-metrics", "flotilla-proto", "flotilla-types"])),
    (
        "flotilla-raftlog",
        Allowed::Only(&["flotilla-disk", "flotilla-metrics", "flotilla-planted", "flotilla-types"]),
    ),
    (
        "flotilla-raft",
        Allowed::Only(&[
            "flotilla-disk",
            "flotilla-metrics",
            "flotilla-parking",
            "flotilla-planted",
            "flotilla-proto",
            "flotilla-raftlog",
            "flotilla-rpc",
            "flotilla-types",
        ]),
    ),
    ("flotilla-statedb", Allowed::Only(&["flotilla-disk", "flotilla-raft", "flotilla-types"])),
    ("flotilla-kv", Allowed::Only(&["flotilla-raft", "flotilla-statedb"])),
    // A server of `kv`, for drills and benches.
    (
        "flotilla-kvnode",
        Allowed::Only(&[
            "flotilla-disk",
            "flotilla-diskhooks",
            "flotilla-kv",
            "flotilla-raft",
            "flotilla-raftlog",
            "flotilla-rpc",
            "flotilla-statedb",
            "flotilla-types",
        ]),
    ),
    ("flotilla-datanode", Allowed::Only(SERVICE)),
    ("flotilla-scm", Allowed::Only(SERVICE)),
    ("flotilla-om", Allowed::Only(SERVICE)),
    (
        "flotilla-client",
        Allowed::Only(&[
            "flotilla-md5many",
            "flotilla-metrics",
            "flotilla-proto",
            "flotilla-rpc",
            "flotilla-types",
        ]),
    ),
    (
        "flotilla-registry",
        Allowed::Only(&[
            "flotilla-httpd",
            "flotilla-metrics",
            "flotilla-proto",
            "flotilla-rpc",
            "flotilla-types",
        ]),
    ),
    ("flotilla-httpd", Allowed::Only(&["flotilla-metrics"])),
    (
        "flotilla-s3gw",
        Allowed::Only(&[
            "flotilla-client",
            "flotilla-httpd",
            "flotilla-metrics",
            "flotilla-proto",
            "flotilla-types",
        ]),
    ),
    ("flotilla-cli", Allowed::Product),
    ("flotilla-rocksdb", Allowed::Only(&[])),
    ("flotilla-runner", Allowed::Only(&[])),
    // Starts the finished binary from outside; knows none of our code.
    ("flotilla-testkit", Allowed::Only(&[])),
    ("flotilla-diskhooks", Allowed::Only(&["flotilla-disk"])),
    ("flotilla-history", Allowed::Only(&["flotilla-proto"])),
    (
        "flotilla-sim",
        Allowed::Only(&[
            "flotilla-client",
            "flotilla-datanode",
            "flotilla-disk",
            "flotilla-diskhooks",
            "flotilla-history",
            "flotilla-kv",
            "flotilla-om",
            "flotilla-planted",
            "flotilla-proto",
            "flotilla-raft",
            "flotilla-raftlog",
            "flotilla-rpc",
            "flotilla-scm",
            "flotilla-statedb",
            "flotilla-types",
        ]),
    ),
    ("flotilla-benches", Allowed::Anything),
];

const SERVICE: &[&str] = &[
    "flotilla-disk",
    "flotilla-metrics",
    "flotilla-parking",
    "flotilla-planted",
    "flotilla-proto",
    "flotilla-raft",
    "flotilla-raftlog",
    "flotilla-rpc",
    "flotilla-statedb",
    "flotilla-types",
];

/// Crates that exist for tests and measurements. What is shipped must not contain them.
const TEST_ONLY: &[&str] = &[
    "flotilla-benches",
    "flotilla-diskhooks",
    "flotilla-history",
    "flotilla-kv",
    "flotilla-kvnode",
    "flotilla-rocksdb",
    "flotilla-runner",
    "flotilla-sim",
    "flotilla-testkit",
];

/// Crates of others that only some of ours may name: (their names start with, ours that may, dev-dependencies
/// count too).
const GUARDED: &[(&str, &[&str], bool)] = &[
    ("openraft", &["flotilla-raft"], true),
    ("s3s", &["flotilla-s3gw"], false),
    ("hickory", &["flotilla-registry"], false),
    // Connections of HTTP have one accept loop.
    ("hyper", &["flotilla-httpd", "flotilla-rpc"], false),
    (
        "rocksdb",
        &["flotilla-benches", "flotilla-datanode", "flotilla-om", "flotilla-scm", "flotilla-statedb"],
        false,
    ),
    ("librocksdb", &["flotilla-rocksdb"], false),
];

#[derive(Clone, Copy)]
enum Allowed {
    /// These crates of ours and no others.
    Only(&'static [&'static str]),
    /// All crates of ours but those for tests: the layer that puts the product together.
    Product,
    /// All crates of ours.
    Anything,
}

/// One line of a manifest: `from` names `to`.
#[derive(Clone, Debug)]
struct Edge {
    from: String,
    to: String,
    dev: bool,
}

#[test]
fn every_crate_depends_only_on_its_layers() {
    let (crates, edges) = workspace_edges();
    let violations = layering_violations(&crates, &edges);
    assert!(violations.is_empty(), "\n{}", violations.join("\n"));
}

#[test]
fn every_layer_in_the_table_is_a_crate() {
    let (crates, _) = workspace_edges();
    for (name, _) in ALLOWED {
        assert!(crates.iter().any(|c| c == name), "{name} is in the table and not in the workspace");
    }
}

/// A build by `cargo build --release -p flotilla-cli` links nothing that is for tests, and no bug can be
/// planted in it.
#[test]
fn a_release_has_nothing_of_the_tests() {
    let crates = linked_crates("flotilla-cli");
    assert!(crates.contains(&"flotilla-planted ".to_owned()), "{crates:?}");
    assert_eq!(violations_of_a_release(&crates), [""; 0]);

    let of_a_simulation = violations_of_a_release(&linked_crates("flotilla-sim"));
    assert_eq!(
        of_a_simulation,
        [
            "flotilla-diskhooks",
            "flotilla-history",
            "flotilla-kv",
            "flotilla-planted with planted",
            "flotilla-sim"
        ]
    );
}

/// A person, and `./dev release --check`, can tell by what this binary says of itself.
#[test]
fn a_binary_in_which_bugs_can_be_planted_says_so() {
    let version = Command::new(env!("CARGO_BIN_EXE_flotilla")).arg("--version").output().unwrap();
    let version = String::from_utf8(version.stdout).unwrap();
    assert_eq!(version.contains("planted: "), planted::POSSIBLE, "{version}");
}

#[test]
fn planted_violations_are_found() {
    // Each alone, on top of the workspace as it is: the one message names both ends, and nothing else is
    // reported.
    check_planted("flotilla-types", "flotilla-disk", false, true);
    check_planted("flotilla-scm", "flotilla-om", false, true);
    check_planted("flotilla-datanode", "flotilla-client", false, true);
    check_planted("flotilla-client", "flotilla-raft", false, true);
    check_planted("flotilla-s3gw", "flotilla-disk", false, true);
    check_planted("flotilla-cli", "flotilla-testkit", false, true);
    check_planted("flotilla-cli", "flotilla-testkit", true, false);
    check_planted("flotilla-scm", "flotilla-datanode", true, false);

    check_planted("flotilla-raftlog", "openraft", false, true);
    check_planted("flotilla-raftlog", "openraft", true, true);
    check_planted("flotilla-benches", "openraft-rt-tokio", false, true);
    check_planted("flotilla-cli", "s3s", false, true);
    check_planted("flotilla-s3gw", "hyper-util", false, true);
    check_planted("flotilla-httpd", "flotilla-s3gw", false, true);
    check_planted("flotilla-cli", "s3s-fs", true, false);
    check_planted("flotilla-disk", "rocksdb", false, true);
    check_planted("flotilla-raft", "librocksdb-sys", false, true);
    check_planted("flotilla-scm", "rocksdb", false, false);
}

#[test]
fn every_dependency_has_its_reason_written_down() {
    let reasons = include_str!("../../../docs/dependencies.md");
    let (crates, edges) = workspace_edges();
    let missing = unexplained(&crates, &edges, reasons);
    assert!(missing.is_empty(), "add a line to docs/dependencies.md for {missing:?}");

    let planted = Edge { from: "flotilla-om".to_owned(), to: "left-pad".to_owned(), dev: true };
    assert_eq!(unexplained(&crates, &[planted], reasons), ["left-pad"]);
}

#[test]
fn crate_without_a_layer_is_found() {
    let violations = layering_violations(&["flotilla-utils".to_owned()], &[]);
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(violations[0].contains("flotilla-utils"), "{violations:?}");
}

/// Another loop over the segments of a container would soon differ from the first in what counts as its
/// records.
#[test]
fn one_file_of_the_datanode_walks_containers() {
    let src = concat!(env!("CARGO_MANIFEST_DIR"), "/../datanode/src");
    let sources = circles::sources(src.as_ref());
    let walks = sources.iter().filter(|(_, text)| text.contains("OwnerWalk")).map(|(path, _)| path.as_str());
    assert_eq!(walks.collect::<Vec<_>>(), ["container_reader.rs"]);
}

/// Services that a call reaches without its cluster's name, or whose guard is elsewhere.
const WITHOUT_A_GUARD_HERE: [(&str, &str); 3] = [
    ("flotilla-cli", "logging/service.rs"), // a process is asked for its log whatever it belongs to
    ("flotilla-datanode", "node.rs"),       // `service/mod.rs` `into_server` has it
    ("flotilla-raft", "host.rs"), // each message names the cluster, and its group compares: `open_groups.rs`
];

#[test]
fn every_service_stands_behind_the_guard_of_its_cluster() {
    let mut without = Vec::new();
    for (name, src) in circles::crates() {
        for (path, text) in circles::sources(src.as_ref()) {
            let added = text.lines().filter(|line| line.contains(".add_service("));
            if added.filter(|line| !line.contains(".in_front_of(")).count() > 0 {
                without.push((name.clone(), path));
            }
        }
    }
    without.sort();
    let known = WITHOUT_A_GUARD_HERE.map(|(name, path)| (name.to_owned(), path.to_owned()));
    assert_eq!(without, known);
}

fn check_planted(from: &str, to: &str, dev: bool, refused: bool) {
    let (crates, mut edges) = workspace_edges();
    edges.retain(|e| !(e.from == from && e.to == to));
    let before = layering_violations(&crates, &edges);
    edges.push(Edge { from: from.to_owned(), to: to.to_owned(), dev });
    let after = layering_violations(&crates, &edges);

    let new: Vec<_> = after.iter().filter(|v| !before.contains(v)).collect();
    assert_eq!(new.len(), usize::from(refused), "{from} → {to} (dev: {dev}): {new:?}");
    assert!(new.iter().all(|v| v.contains(from) && v.contains(to)), "{new:?}");
}

/// All violations, one sentence each.
fn layering_violations(crates: &[String], edges: &[Edge]) -> Vec<String> {
    let mut violations: Vec<String> = crates
        .iter()
        .filter(|name| allowed(name).is_none())
        .map(|name| format!("{name} has no layer: add it to ALLOWED in {}", file!()))
        .collect();
    for edge in edges {
        if !edge.dev && crates.contains(&edge.to) && !layer_permits(edge) {
            violations.push(format!("{} must not depend on {}: not a layer below it", edge.from, edge.to));
        }
        for (prefix, owners, dev_counts) in GUARDED {
            let counts = *dev_counts || !edge.dev;
            if counts && edge.to.starts_with(prefix) && !owners.contains(&edge.from.as_str()) {
                violations.push(format!(
                    "{} must not depend on {}: that is for {owners:?} only",
                    edge.from, edge.to
                ));
            }
        }
    }
    violations
}

fn violations_of_a_release(crates: &[String]) -> Vec<String> {
    let mut violations = Vec::new();
    for line in crates {
        let (name, features) = line.split_once(' ').expect("a name and features");
        if TEST_ONLY.contains(&name) {
            violations.push(name.to_owned());
        }
        if name == "flotilla-planted" && !features.is_empty() {
            violations.push(format!("{name} with {features}"));
        }
    }
    violations
}

/// The crates that a build of `package` alone links: a name and its features, separated by a space, sorted.
fn linked_crates(package: &str) -> Vec<String> {
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--locked", "--offline", "--prefix", "none", "--no-dedupe"])
        .args(["--package", package, "--edges", "normal", "--format", "{p} [{f}]"])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .expect("run cargo tree");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    let lines = String::from_utf8(tree.stdout).expect("cargo writes UTF-8");
    let mut crates: Vec<String> = lines
        .lines()
        .filter_map(|line| {
            let name = line.split_whitespace().next()?;
            let features = line.rsplit_once('[')?.1.trim_end_matches(']');
            Some(format!("{name} {features}"))
        })
        .collect();
    crates.sort();
    crates.dedup();
    crates
}

/// Crates of others that `reasons` does not name in backquotes.
fn unexplained(crates: &[String], edges: &[Edge], reasons: &str) -> Vec<String> {
    let mut missing: Vec<String> = edges
        .iter()
        .map(|edge| &edge.to)
        .filter(|name| !crates.contains(name) && !reasons.contains(&format!("`{name}`")))
        .cloned()
        .collect();
    missing.sort();
    missing.dedup();
    missing
}

fn layer_permits(edge: &Edge) -> bool {
    match allowed(&edge.from) {
        // Reported already, once, as a crate without a layer.
        None => true,
        Some(Allowed::Only(names)) => names.contains(&edge.to.as_str()),
        Some(Allowed::Product) => !TEST_ONLY.contains(&edge.to.as_str()),
        Some(Allowed::Anything) => true,
    }
}

fn allowed(name: &str) -> Option<Allowed> {
    ALLOWED.iter().find(|(n, _)| *n == name).map(|(_, allowed)| *allowed)
}

/// The crates of the workspace and everything their manifests name, renames resolved, without asking any
/// registry.
fn workspace_edges() -> (Vec<String>, Vec<Edge>) {
    let metadata = MetadataCommand::new()
        .manifest_path(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata reads this very workspace");
    let crates: Vec<String> = metadata.packages.iter().map(|p| p.name.to_string()).collect();
    let edges: Vec<Edge> = metadata
        .packages
        .iter()
        .flat_map(|package| {
            package.dependencies.iter().map(|dependency| Edge {
                from: package.name.to_string(),
                to: dependency.name.clone(),
                dev: dependency.kind == DependencyKind::Development,
            })
        })
        .collect();
    // A reader that sees nothing would find nothing wrong.
    assert!(crates.len() >= 11, "{crates:?}");
    assert!(edges.iter().any(|e| e.from == "flotilla-raft" && e.to == "openraft"), "raft without openraft");
    (crates, edges)
}
