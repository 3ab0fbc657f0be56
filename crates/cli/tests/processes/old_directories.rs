//! Data directories that earlier binaries wrote: `crates/cli/tests/fixtures`, each made by `write.sh` beside
//! it. What this test cannot open, no operator can after an upgrade (docs/format/data-directory.md).

use crate::commands::{admin_json, flotilla};
use crate::{binary, s3::S3};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use testkit::Process;

fn fixtures() -> Vec<PathBuf> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    let paths = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    paths.filter(|path| path.extension().is_some_and(|it| it == "base64")).collect()
}

/// A fixture's directories, unpacked.
struct Old {
    dir: tempfile::TempDir,
    name: String,
}

impl Old {
    fn unpack(fixture: &Path) -> Old {
        let dir = tempfile::tempdir().unwrap();
        let unpack = "base64 --decode \"$0\" | tar --extract --gzip --directory \"$1\"";
        let status = Command::new("sh").args(["-c", unpack]).arg(fixture).arg(dir.path()).status().unwrap();
        assert!(status.success(), "{}", fixture.display());
        Old { dir, name: fixture.file_name().unwrap().to_string_lossy().into_owned() }
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("data")
    }

    fn disks(&self) -> Vec<String> {
        [1, 2, 3].map(|number| self.data().join(format!("dn{number}/disk1")).display().to_string()).to_vec()
    }

    /// Runs `flotilla debug container` for a disk; its exit status tells that all is whole.
    fn debug(&self, words: &str, disk: &str) {
        let output = flotilla(&["debug", "container", words, disk], None);
        let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        assert_eq!(output.status.code(), Some(0), "{}: {words} {disk}: {said}", self.name);
    }

    /// Starts the cluster, as the one that wrote the fixture was, without limits that write snapshots all the
    /// time.
    fn start(&self) -> (Process, S3, String) {
        let data = self.data().display().to_string();
        let ports = ["--s3-port", "0", "--rpc-port", "0", "--http-port", "0"];
        let args = [&["dev", "--data", &data, "--disks", "1"], &ports[..]].concat();
        let args = args.into_iter().map(str::to_owned).collect();
        let (process, ready) = Process::start(binary(), self.dir.path(), "dev", args);
        // The keys that are in the fixture.
        let s3 = S3::new(&ready["S3_ENDPOINT"], testkit::ACCESS_KEY, testkit::SECRET_KEY, "old");
        (process, s3, ready["RPC"].clone())
    }

    /// An answer of `flotilla admin` that is as it must become.
    fn until(&self, scm: &str, words: &[&str], holds: impl Fn(&Value) -> bool) {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let answer = admin_json(scm, words);
            if holds(&answer) {
                return;
            }
            assert!(Instant::now() < give_up, "{}: {words:?}: {answer}", self.name);
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Checks that all that `write.sh` put in is there, what it took out is not, and that its cluster is one
    /// that works: both pipelines that were open lead, and nothing is found wrong with a container.
    async fn check(&self, s3: &S3, scm: &str) {
        let get = async |key: &str| s3.get(key).await.unwrap();
        assert_eq!(get("closed").await.as_deref(), Some(&b"in a closed container\n"[..]), "{}", self.name);
        assert_eq!(get("open").await.as_deref(), Some(&b"in an open container\n"[..]), "{}", self.name);
        assert!(get("long").await == Some(b"a long line\n".repeat(10_000)), "{}", self.name);
        assert_eq!(get("deleted").await, None, "{}", self.name);

        // A cluster that has just started elects and reports for a while.
        self.until(scm, &["pipeline", "list"], |pipelines| {
            let leads = |it: &&Value| it["leader_node"].as_u64().is_some();
            pipelines.as_array().unwrap().iter().filter(leads).count() == 2
        });
        for number in ["1", "2"] {
            self.until(scm, &["container", "info", number], |container| {
                let replicas = container["replicas"].as_array().unwrap();
                let is_good = |it: &Value| it["state"] == "closed" && it["unhealthy"].is_null();
                replicas.len() == 3 && replicas.iter().all(is_good)
            });
        }
        let output = flotilla(&["admin", "--scm", scm, "registry", "kv", "get", "old/key"], None);
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim_end(), "value", "{}: {output:?}", self.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn directories_of_earlier_binaries_are_opened_and_worked_with() {
    let fixtures = fixtures();
    assert!(!fixtures.is_empty());
    for fixture in fixtures {
        let old = Old::unpack(&fixture);
        for disk in old.disks() {
            old.debug("verify", &disk);
        }
        let (mut process, s3, scm) = old.start();
        old.check(&s3, &scm).await;
        s3.put("new", b"of today".to_vec()).await.unwrap();
        assert!(process.terminate().success(), "{}: {}", old.name, process.log());
        drop(process);

        // Logs and segments alone tell the same, also those of before.
        for disk in old.disks() {
            std::fs::remove_dir_all(Path::new(&disk).join("db")).unwrap();
            old.debug("rebuild", &disk);
            old.debug("verify", &disk);
        }
        let (mut process, s3, scm) = old.start();
        old.check(&s3, &scm).await;
        assert_eq!(s3.get("new").await.unwrap().as_deref(), Some(&b"of today"[..]), "{}", old.name);
        assert!(process.terminate().success(), "{}: {}", old.name, process.log());
    }
}

#[test]
fn a_directory_of_a_later_binary_is_refused_in_words() {
    let old = Old::unpack(&fixtures()[0]);
    let version = old.data().join("dn2/disk1/VERSION");
    let stamp = std::fs::read_to_string(&version).unwrap();
    let later = stamp.replace("format 1\n", "format 2\n");
    assert_ne!(later, stamp);
    std::fs::write(&version, &later).unwrap();
    let data = old.data().display().to_string();
    let args =
        ["dev", "--data", &data, "--disks", "1", "--s3-port", "0", "--rpc-port", "0", "--http-port", "0"];
    let output = flotilla(&args, None);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("dn2/disk1") && said.contains("newer"), "{said}");
    assert_eq!(std::fs::read_to_string(&version).unwrap(), later, "a refusal changes nothing");
}
