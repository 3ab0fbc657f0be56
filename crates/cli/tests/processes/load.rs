//! `flotilla load` on a cluster: what it writes it finds again, and what is not so it notices.

use crate::binary;
use crate::commands::flotilla;
use serde_json::Value;
use std::process::Output;
use testkit::{Cluster, ClusterOptions};

fn load(cluster: &Cluster, words: &str) -> Output {
    let line = format!("load {words} --scm {} --json", cluster.scm_address);
    flotilla(&line.split_whitespace().collect::<Vec<_>>(), None)
}

/// The last line.
fn total(done: &Output) -> Value {
    let text = String::from_utf8_lossy(&done.stdout);
    serde_json::from_str(text.lines().last().unwrap_or_else(|| panic!("{done:?}"))).unwrap()
}

#[test]
fn load_checks_what_it_reads() {
    let options = ClusterOptions { disks_per_datanode: 1, ..ClusterOptions::default() };
    let cluster = Cluster::start(binary(), &options);
    for (words, operations) in [
        ("names --count 200 --name-bytes 100 --metadata-bytes 300 --clients 50 --connections 4", 200),
        ("lookups --count 100 --written 200 --name-bytes 100 --metadata-bytes 300", 100),
        ("objects --count 40 --object-bytes 100000 --seed 2", 40),
        ("objects --count 10 --first 40 --object-bytes 100000 --seed 2", 10),
        ("read --count 60 --written 50 --object-bytes 100000 --seed 2", 60),
        ("objects --count 20 --object-bytes 100000 --seed 7", 20),
        ("check --count 20 --stays 1 --object-bytes 100000 --seed 7", 20),
        ("deletes --count 20 --stays 5 --object-bytes 100000 --seed 7", 20),
        ("check --count 20 --stays 5 --object-bytes 100000 --seed 7", 20),
        ("mixed --count 400 --clients 4 --object-bytes 5000", 400),
        // The names of a run before it are others.
        ("mixed --count 400 --clients 4 --object-bytes 5000", 400),
    ] {
        let done = load(&cluster, words);
        let total = total(&done);
        assert!(done.status.success(), "{words}: {done:?}");
        assert_eq!(
            (&total["operations"], &total["failed"], &total["wrong"]),
            (&operations.into(), &0.into(), &0.into())
        );
        assert_eq!(total["total"], true);
    }
    // Objects of another seed are not there.
    let done = load(&cluster, "read --count 2 --written 50 --object-bytes 100000 --seed 3");
    assert_eq!((done.status.code(), &total(&done)["failed"]), (Some(1), &2.into()), "{done:?}");
    assert!(load(&cluster, "objects --count 3 --object-bytes 100000 --seed 6").status.success());
    // The loads expect others than were written: longer ones, ones with metadata, and ones that were deleted.
    for (words, why) in [
        ("read --count 3 --written 50 --object-bytes 100001 --seed 2", "differs from byte 100000 on"),
        ("lookups --count 3 --written 200 --name-bytes 100 --metadata-bytes 301", "not with"),
        ("check --count 3 --object-bytes 100000 --seed 6", "was deleted, and is"),
    ] {
        let done = load(&cluster, words);
        assert_eq!((done.status.code(), &total(&done)["wrong"]), (Some(3), &3.into()), "{words}: {done:?}");
        let told = String::from_utf8_lossy(&done.stderr);
        assert!(told.contains(why), "{words}: {told}");
    }
    // It ends in time, and says what it did by then.
    let done = load(&cluster, "names --during 2s --every 1s --seed 4");
    assert!(done.status.success() && total(&done)["operations"].as_u64().unwrap() > 0, "{done:?}");
    assert!(String::from_utf8_lossy(&done.stdout).lines().count() >= 2, "{done:?}");
}
