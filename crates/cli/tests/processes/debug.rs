//! `flotilla debug`: exit statuses and what is said, on files that the log engine wrote.

use crate::commands::flotilla;
use raftlog::{Entry, LogSpace, LogSpaceOptions, LogSpec};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use types::{GroupId, LogId, LogIndex, OwnerId, Payload, PipelineId, Term};

/// A data directory with the log pipeline-3 of a few entries, closed.
fn data_directory() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("disk");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let disk = Arc::new(disk::RealDisk::open(&root, 1).unwrap());
        let options = LogSpaceOptions { reserve_bytes: 0, ..LogSpaceOptions::default() };
        let spec = LogSpec {
            log: GroupId::pipeline(PipelineId(3)).to_u64(),
            dir: "groups/pipeline-3".into(),
            owners_dir: "containers".into(),
            first_owner: OwnerId(7),
        };
        let log = LogSpace::new(disk, options).open(spec).await.unwrap();
        let entry = |index| Entry {
            id: LogId { term: Term(1), index: LogIndex(index) },
            kind: 2,
            meta: "meta".into(),
            body: Payload::checksummed(vec![0x5a; 1000].into()),
            roll_to: None,
        };
        log.append((0..5).map(entry).collect()).unwrap().durable().await.unwrap();
        log.close().await;
    });
    (dir, root)
}

/// Runs `flotilla debug`, checks the exit status, and that all words are in what it says.
fn check(args: &[&str], status: i32, says: &[&str]) -> String {
    let output = flotilla(&[&["debug"], args].concat(), None);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    for word in says {
        assert!(said.contains(word), "{args:?}: `{word}` is missing in: {said}");
    }
    said
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

#[test]
fn whole_files_are_told_and_status_0() {
    let (_dir, root) = data_directory();
    let segment = root.join("containers/0000000000000007/00000000.seg");
    let dump = check(&["segment", "dump", text(&segment)], 0, &["owner 0000000000000007", "index 4 term 1"]);
    assert_eq!(dump.lines().count(), 6, "{dump}");
    let range = check(
        &["segment", "dump", text(&segment), "--from-index", "1", "--to-index", "3", "--hex"],
        0,
        &["6d657461"],
    );
    assert_eq!(range.lines().count(), 3, "{range}");
    let lines = check(&["--json", "segment", "dump", text(&segment)], 0, &[]);
    let first: serde_json::Value = serde_json::from_str(lines.lines().next().unwrap()).unwrap();
    assert_eq!((first["index"].as_u64(), first["body_bytes"].as_u64()), (Some(0), Some(1000)));
    check(&["segment", "verify", text(&segment)], 0, &["5 records", "index 0..=4", "whole"]);
    let hard_state = root.join("groups/pipeline-3/hard-state");
    check(&["hard-state", text(&hard_state)], 0, &["durable 1/4", "(counts)"]);
    check(
        &["log", "verify", text(&root)],
        0,
        &["log pipeline-3: whole", "opens with entries 0..=4", "1 logs, 0 damaged"],
    );
    check(&["log", "verify", text(&root), "--group", "pipeline-3", "--json"], 0, &["\"damaged\":false"]);
    let dump = check(&["log", "dump", text(&root)], 0, &["containers/0000000000000007/00000000.seg"]);
    assert_eq!(dump.lines().count(), 6, "{dump}");
}

#[test]
fn damage_is_explained_and_status_1() {
    let (_dir, root) = data_directory();
    let segment = root.join("containers/0000000000000007/00000000.seg");
    let mut bytes = fs::read(&segment).unwrap();
    let at = bytes.len() / 5 * 2 + 500; // in the body of entry 2
    bytes[at] ^= 0x10;
    fs::write(&segment, &bytes).unwrap();
    check(&["segment", "verify", text(&segment)], 1, &["DAMAGED in 1 place(s)", "entry 2"]);
    let clue = format!("bit 4 of byte {at}, in body");
    check(
        &["segment", "explain", text(&segment)],
        1,
        &[&clue, "reading entry 2 fails", "log pipeline-3: a start opens"],
    );
    check(&["log", "verify", text(&root)], 1, &["log pipeline-3: DAMAGED", &clue, "1 damaged"]);
    // A copy under another name, cut: only its own words, and those of a hard state that is given.
    let copy = root.parent().unwrap().join("copy");
    fs::write(&copy, &bytes[..bytes.len() - 600]).unwrap();
    check(
        &["segment", "explain", text(&copy)],
        1,
        &["no hard state is known", "What is known here does not say", "the file ends after"],
    );
    let hard_state = root.join("groups/pipeline-3/hard-state");
    check(&["segment", "explain", text(&copy), "--hard-state", text(&hard_state)], 1, &["durable 1/4"]);
    let renamed = root.join("containers/0000000000000007/00000009.seg");
    fs::rename(&segment, &renamed).unwrap();
    check(
        &["segment", "verify", text(&renamed)],
        1,
        &["RENAMED: the file's name says owner 0000000000000007 segment 00000009"],
    );
    check(&["log", "verify", text(&root)], 1, &["does not open", "1 logs, 1 damaged"]);
}

#[test]
fn a_log_whose_hard_state_is_gone_is_not_whole() {
    let (_dir, root) = data_directory();
    // What a metadata group leaves when somebody removes its directory in groups/.
    let lost = root.join("meta/scm/0000000000000000");
    fs::create_dir_all(&lost).unwrap();
    fs::copy(root.join("containers/0000000000000007/00000000.seg"), lost.join("00000000.seg")).unwrap();
    let says = [
        "log scm: DAMAGED",
        "groups/scm/hard-state is missing",
        "log pipeline-3: whole",
        "2 logs, 1 damaged",
    ];
    check(&["log", "verify", text(&root)], 1, &says);
    fs::remove_dir_all(root.join("meta")).unwrap();
    fs::create_dir(root.join("groups/pipeline-4")).unwrap();
    check(
        &["log", "verify", text(&root)],
        1,
        &["log pipeline-4: DAMAGED", "groups/pipeline-4/hard-state is missing"],
    );
    check(&["log", "verify", text(&root), "--group", "pipeline-4"], 1, &["log pipeline-4: DAMAGED"]);
    check(&["log", "dump", text(&root)], 2, &["there is no log `pipeline-4`", "index 4 term 1"]);
    fs::remove_dir_all(root.join("groups/pipeline-4")).unwrap();
    fs::remove_dir_all(root.join("groups/pipeline-3")).unwrap();
    check(&["log", "verify", text(&root)], 0, &["owner 0000000000000007 of a log without a hard state here"]);
}

#[test]
fn what_cannot_be_looked_at_is_said_and_status_2() {
    let (_dir, root) = data_directory();
    let file = root.join("garbage");
    fs::write(&file, [7; 5000]).unwrap();
    check(&["segment", "verify", text(&file)], 1, &["no record of a segment is in it"]);
    fs::write(&file, b"").unwrap();
    check(&["segment", "explain", text(&file)], 0, &["empty"]);
    check(&["hard-state", text(&file)], 1, &["the log does not open"]);
    check(
        &["segment", "verify", text(&root.join("none")), text(&file)],
        2,
        &["open", "No such file", "0 records"],
    );
    check(&["segment", "dump", text(&root)], 2, &["is a directory", "debug log verify"]);
    check(&["log", "verify", text(&file)], 2, &["is a file", "debug segment verify"]);
    check(&["log", "verify", text(&root.join("containers"))], 2, &["is no data directory with logs"]);
    check(
        &["log", "verify", text(&root), "--group", "om-1"],
        2,
        &["there is no log `om-1`", "logs here: pipeline-3"],
    );
    check(&["segment", "verify"], 2, &["<FILES>..."]);
    check(&["segment", "sail"], 2, &["unrecognized subcommand 'sail'"]);
    check(&["segment", "dump", "--from-index", "x", text(&file)], 2, &["invalid value 'x'"]);
}
