//! All names are lost, and come back as a backup has them.

use crate::binary;
use crate::commands::{admin_json, admin_once, flotilla};
use crate::om_members::{Names, REST};
use crate::s3::S3;
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, SECRET_KEY};

const SOON: Duration = Duration::from_secs(120);
const SURE: &str = "--yes-i-lose-what-was-written-since";
/// The number of groups of names of a new cluster.
const GROUPS: usize = 4;
const WRITTEN_MIN: usize = 20;

/// `flotilla admin om`: whether it succeeded, and what it said.
fn om(names: &Names, args: &[&str]) -> (bool, String) {
    let done = flotilla(&[&["admin", "--scm", &names.scm, "om"], args].concat(), None);
    let said = [&done.stdout[..], &done.stderr].concat();
    (done.status.success(), String::from_utf8_lossy(&said).into_owned())
}

fn bytes_of(bucket: &str, key: usize) -> Vec<u8> {
    format!("{bucket}/{key};").repeat(1 + key % 300).into_bytes()
}

/// Puts one key after the other; how many were acknowledged.
struct Writer {
    s3: S3,
    bucket: String,
    written: AtomicUsize,
}

impl Writer {
    async fn run(self: Arc<Writer>, stop: Arc<AtomicBool>) -> Result<(), String> {
        while !stop.load(Ordering::Relaxed) {
            self.put().await?;
            tokio::time::sleep(REST).await;
        }
        Ok(())
    }

    async fn put(&self) -> Result<(), String> {
        let key = self.written.load(Ordering::Relaxed);
        let put = self.s3.put(&key.to_string(), bytes_of(&self.bucket, key)).await;
        put.map_err(|why| format!("put {}/{key}: {why}", self.bucket))?;
        self.written.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// The keys that are there are the first ones, and have their bytes; how many.
    async fn read_all(&self, written: usize) -> usize {
        let mut there = None;
        for key in 0..written {
            let read = self.s3.get(&key.to_string()).await.unwrap();
            match (&read, there) {
                (Some(bytes), None) => {
                    assert!(*bytes == bytes_of(&self.bucket, key), "{}/{key}", self.bucket)
                }
                (None, _) => there = there.or(Some(key)),
                (Some(_), Some(gone)) => {
                    panic!("{}: {key} is there, and {gone} before it is not", self.bucket)
                }
            }
        }
        there.unwrap_or(written)
    }
}

fn written(writers: &[Arc<Writer>]) -> Vec<usize> {
    writers.iter().map(|writer| writer.written.load(Ordering::Relaxed)).collect()
}

fn until_written(writers: &[Arc<Writer>], count: usize, names: &Names) {
    let before = written(writers);
    let give_up = Instant::now() + SOON;
    while written(writers).iter().zip(&before).any(|(now, before)| now - before < count) {
        assert!(Instant::now() < give_up, "{before:?}, {:?}\n{}", written(writers), names.logs());
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Makes and deletes buckets, and moves one, until told to stop.
fn stir(scm: &str, stop: &AtomicBool) {
    let admin = |args: &[&str]| flotilla(&[&["admin", "--scm", scm, "bucket"], args].concat(), None);
    let mut round = 0;
    while !stop.load(Ordering::Relaxed) {
        let (name, group) = (format!("passing-{round}"), (round % GROUPS).to_string());
        admin(&["create", &name, "--group", &group]);
        admin(&["move", "bucket-1", "--to", &group]);
        flotilla(&["fs", "--scm", scm, "-rm", "-r", &format!("/s3v/{name}")], None);
        round += 1;
    }
}

/// Begins a restore, and breaks it off when the first rows are about to come.
fn restore_half(names: &Names, dir: &str) {
    let mut command = Command::new(binary());
    command.args(["admin", "--scm", &names.scm, "om", "restore", dir, SURE]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let give_up = Instant::now() + SOON;
    let is_begun = |group: &Value| group["problem"].as_str().unwrap().contains("being restored");
    while !names.groups().iter().any(is_begun) {
        assert!(Instant::now() < give_up, "{:#?}\n{}", names.groups(), names.logs());
    }
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_names_are_lost_and_come_back_as_a_backup_has_them() {
    let (names, endpoint) = tokio::task::spawn_blocking(|| {
        let mut names = Names::start(3);
        let endpoint = names.add_data();
        names.until_whole(3);
        for group in 0..GROUPS {
            let (bucket, group) = (format!("bucket-{group}"), group.to_string());
            let made = admin_once(&names.scm, &["bucket", "create", &bucket, "--group", &group]);
            made.unwrap_or_else(|why| panic!("{why}\n{}", names.logs()));
        }
        (names, endpoint)
    })
    .await
    .unwrap();
    let writer = |number: usize| {
        let bucket = format!("bucket-{number}");
        let s3 = S3::new(&endpoint, ACCESS_KEY, SECRET_KEY, &bucket);
        Arc::new(Writer { s3, bucket, written: AtomicUsize::new(0) })
    };
    let writers: Vec<_> = (0..GROUPS).map(writer).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let tasks: Vec<_> = writers.iter().map(|writer| tokio::spawn(writer.clone().run(stop.clone()))).collect();

    // A backup while everything goes on.
    let of = writers.clone();
    let (names, dir, before) = tokio::task::spawn_blocking(move || {
        until_written(&of, WRITTEN_MIN, &names);
        let (scm, stirred) = (names.scm.clone(), Arc::new(AtomicBool::new(false)));
        let stirring = std::thread::spawn({
            let stirred = stirred.clone();
            move || stir(&scm, &stirred)
        });
        std::thread::sleep(Duration::from_secs(1));
        let dir = names.dir().join("backup").display().to_string();
        let before = written(&of);
        let (is_done, said) = om(&names, &["backup", &dir]);
        assert!(is_done, "{said}\n{}", names.logs());
        let (is_done, said) = om(&names, &["backup", "verify", &dir]);
        assert!(is_done && said.contains("whole"), "{said}");
        stirred.store(true, Ordering::Relaxed);
        stirring.join().unwrap();
        // Everything that is written after the backup is lost: keys, a bucket, a group, and where a bucket
        // has gone.
        until_written(&of, 5, &names);
        let after = [&["om", "group", "create"][..], &["bucket", "create", "later", "--group", "2"]];
        let moved = ["bucket", "move", "bucket-3", "--to", "1"];
        for words in after.into_iter().chain([&moved[..]]) {
            admin_once(&names.scm, words).unwrap_or_else(|why| panic!("{words:?}: {why}"));
        }
        // While there are names nothing is restored over them.
        let (is_done, said) = om(&names, &["restore", &dir, SURE]);
        assert!(!is_done && said.contains("its names are not lost"), "{said}");
        until_written(&of, 5, &names);
        (names, dir, before)
    })
    .await
    .unwrap();
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await.unwrap().unwrap_or_else(|why| panic!("{why}\n{}", names.logs()));
    }
    let lost = written(&writers);

    let names = tokio::task::spawn_blocking(move || {
        let mut names = names;
        names.lose_all();
        let (is_done, said) = om(&names, &["restore", &dir]);
        assert!(!is_done && said.contains("GONE") && said.contains(SURE), "{said}");
        restore_half(&names, &dir);
        let is_down = |group: &Value| group["is_down"] == true;
        assert!(
            names.groups().iter().all(is_down),
            "half a restore is served to nobody: {:#?}",
            names.groups()
        );
        let (is_done, said) = om(&names, &["restore", &dir, SURE]);
        assert!(is_done, "{said}\n{}", names.logs());
        names.until_groups(GROUPS + 1, 3);
        names
    })
    .await
    .unwrap();
    for ((writer, before), lost) in writers.iter().zip(before).zip(lost) {
        let there = writer.read_all(lost).await;
        assert!((before..=lost).contains(&there), "{}: {there} of {before} to {lost}", writer.bucket);
        writer.written.store(there, Ordering::Relaxed);
    }
    let listed = admin_json(&names.scm, &["bucket", "list"]);
    let listed = listed.as_array().unwrap();
    let named: BTreeSet<&str> = listed.iter().map(|bucket| bucket["bucket"].as_str().unwrap()).collect();
    assert!((0..GROUPS).all(|number| named.contains(&format!("bucket-{number}")[..])), "{listed:#?}");
    assert!(!named.contains("later"), "{listed:#?}");
    for bucket in listed {
        assert!(bucket["problem"].is_null(), "{bucket:#}");
    }

    // It goes on, and bears the loss of one more.
    let names = tokio::task::spawn_blocking(move || {
        let mut names = names;
        let made = admin_once(&names.scm, &["bucket", "create", "later", "--group", "4"]);
        made.unwrap_or_else(|why| panic!("{why}\n{}", names.logs()));
        names.lose(1);
        names
    })
    .await
    .unwrap();
    for writer in &writers {
        for _ in 0..5 {
            writer.put().await.unwrap_or_else(|why| panic!("{why}\n{}", names.logs()));
        }
    }
    let names = tokio::task::spawn_blocking(move || {
        let mut names = names;
        names.oms[1].start_again();
        names.until_groups(GROUPS + 1, 3);
        names
    })
    .await
    .unwrap();
    for writer in &writers {
        let written = writer.written.load(Ordering::Relaxed);
        assert_eq!(writer.read_all(written).await, written, "{}\n{}", writer.bucket, names.logs());
    }
}

#[test]
fn backups_of_another_cluster_half_ones_and_damaged_ones_are_refused_and_nothing_changes() {
    let (mut here, there) = (Names::start(1), Names::start(1));
    [&here, &there].into_iter().for_each(|names| drop(names.until_whole(1)));
    here.fs(&["-mkdir", "/s3v/first"]);
    let dir = |names: &Names| names.dir().join("backup").display().to_string();
    for names in [&here, &there] {
        let (is_done, said) = om(names, &["backup", &dir(names)]);
        assert!(is_done, "{said}\n{}", names.logs());
    }
    let again = om(&here, &["backup", &dir(&here)]);
    assert!(!again.0 && again.1.contains("has a whole backup already"), "{}", again.1);
    let refused = |names: &Names, dir: &str, words: &str| {
        let (is_done, said) = om(names, &["restore", dir, SURE]);
        assert!(!is_done && said.contains(words), "{words}: {said}");
    };
    here.lose_all();
    refused(&here, &dir(&there), "and this is cluster");
    let half = here.dir().join("half");
    copy(Path::new(&dir(&here)), &half);
    std::fs::remove_file(half.join("manifest")).unwrap();
    refused(&here, &half.display().to_string(), "has no backup");
    let damaged = here.dir().join("damaged");
    copy(Path::new(&dir(&here)), &damaged);
    let file = damaged.join("om-0.rows");
    let mut bytes = std::fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&file, bytes).unwrap();
    refused(&here, &damaged.display().to_string(), "is damaged");
    std::fs::remove_file(&file).unwrap();
    refused(&here, &damaged.display().to_string(), "om-0.rows");
    let group = &here.groups()[0];
    assert_eq!(group["is_founded"], true, "nothing was changed: {group:#}");
    let (is_done, said) = om(&here, &["restore", &dir(&here), SURE]);
    assert!(is_done, "{said}\n{}", here.logs());
    assert!(here.fs(&["-ls", "/s3v"]).contains("first"));
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}
