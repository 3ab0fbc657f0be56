//! The runner as `./dev test` calls it, on test binaries that are shell scripts.

#![allow(clippy::disallowed_methods, clippy::unwrap_used)] // files of its own, and helpers that may panic

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};
use tempfile::TempDir;

#[test]
fn what_passes_and_what_fails_is_counted_and_told() {
    let workshop = Workshop::new();
    workshop.binary(
        "quick",
        &[("passes", "true"), ("fails", "echo the reason >&2; exit 101")],
        &["campaign"],
    );
    let (ran, printed) = workshop.run(&[]);
    assert!(!ran.status.success());
    assert!(printed.contains("tests: 1 passed, 1 failed, 1 ignored"), "{printed}");
    assert!(printed.contains("---- some/quick fails: exit status: 101 ----\nthe reason\n"), "{printed}");
    assert!(printed.contains("again: ./dev test 'some/quick fails'"), "{printed}");
}

/// A machine that stood still for a while is not what is tested; what happened is told all the same.
#[test]
fn what_failed_beside_others_is_tried_alone() {
    let workshop = Workshop::new();
    let once = format!("mkdir {}/tried", workshop.directory.path().display());
    let shaky = format!("! {once} 2>/dev/null || (echo the reason >&2; exit 101)");
    workshop.binary("shaky", &[("passes", "true"), ("shakes", &shaky)], &[]);
    let (ran, printed) = workshop.run(&[]);
    assert!(ran.status.success(), "{printed}");
    assert!(printed.contains("---- some/shaky shakes: exit status: 101 ----\nthe reason\n"), "{printed}");
    assert!(
        printed.contains("unsteady: some/shaky shakes failed beside others, and passed alone"),
        "{printed}"
    );
    assert!(printed.contains("tests: 2 passed, 0 failed, 0 ignored"), "{printed}");

    let broken = [("a", "exit 1"), ("b", "exit 1"), ("c", "exit 1"), ("shakes", &*shaky)];
    let workshop = Workshop::new();
    workshop.binary("broken", &broken, &[]);
    let (ran, printed) = workshop.run(&[]);
    assert!(!ran.status.success() && !printed.contains("unsteady"), "{printed}");
}

#[test]
fn who_runs_no_test_has_not_passed() {
    let workshop = Workshop::new();
    workshop.script("empty", "case \"$*\" in --list*--ignored) ;; --list*) echo 'gone: test' ;; *) echo 'test result: ok. 0 passed' ;; esac");
    let (ran, printed) = workshop.run(&[]);
    assert!(!ran.status.success());
    assert!(printed.contains("some/empty gone: ended well and ran no test"), "{printed}");
}

#[test]
fn one_that_cannot_be_started_has_failed_and_the_others_are_counted() {
    let workshop = Workshop::new();
    workshop.binary("gone", &[("removes", "rm \"$0\""), ("is_missing", "true")], &[]);
    workshop.binary("there", &[("passes", "true")], &[]);
    let (ran, printed) = workshop.run(&["--slots", "1"]);
    assert!(!ran.status.success());
    assert!(printed.contains("tests: 2 passed, 1 failed, 0 ignored"), "{printed}");
    assert!(printed.contains("start some/gone is_missing"), "{printed}");
}

#[test]
fn a_filter_takes_what_contains_it() {
    let workshop = Workshop::new();
    workshop.binary("one", &[("alpha", "true"), ("beta", "exit 1")], &[]);
    workshop.binary("two", &[("alpha", "true")], &[]);
    let (ran, printed) = workshop.run(&["alpha"]);
    assert!(ran.status.success(), "{printed}");
    assert!(printed.contains("tests: 2 passed, 0 failed, 0 ignored"), "{printed}");
    let (ran, printed) = workshop.run(&["some/one alpha"]);
    assert!(ran.status.success() && printed.contains("tests: 1 passed"), "{printed}");
}

#[test]
fn a_test_that_hangs_is_ended_with_what_it_started() {
    let workshop = Workshop::new();
    let pid = workshop.directory.path().join("pid");
    let hang = format!("sleep 1000 & echo $! >{}; wait", pid.display());
    workshop.binary("hung", &[("hangs", &hang)], &[]);
    let (ran, printed) = workshop.run(&["--test-seconds-max", "1"]);
    assert!(!ran.status.success());
    assert!(printed.contains("did not end within 1 s"), "{printed}");
    let started = std::fs::read_to_string(pid).unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while is_running(started.trim()) {
        assert!(Instant::now() < deadline, "what the test started runs on");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Each test waits for the other one: alone, neither would end.
#[test]
fn tests_run_side_by_side() {
    let workshop = Workshop::new();
    let met = |mine: &str, other: &str| {
        let at = workshop.directory.path().display();
        format!("touch {at}/{mine}; until test -e {at}/{other}; do sleep 0.01; done")
    };
    workshop.binary("pair", &[("left", &met("a", "b")), ("right", &met("b", "a"))], &[]);
    let (ran, printed) = workshop.run(&["--slots", "2", "--test-seconds-max", "60"]);
    assert!(ran.status.success(), "{printed}");
}

#[test]
fn a_binary_that_cannot_list_its_tests_is_an_error() {
    let workshop = Workshop::new();
    workshop.script("broken", "exit 3");
    let (ran, _) = workshop.run(&[]);
    assert!(!ran.status.success());
    assert!(String::from_utf8_lossy(&ran.stderr).contains("does not list its tests"), "{ran:?}");
}

/// The words of libtest for one test that passed.
const PASSED: &str = "test result: ok. 1 passed; 0 failed";

/// A directory with scripts in place of test binaries, and cargo's messages about them.
struct Workshop {
    directory: TempDir,
}

impl Workshop {
    fn new() -> Workshop {
        let workshop = Workshop { directory: tempfile::tempdir().unwrap() };
        std::fs::create_dir(workshop.directory.path().join("some")).unwrap();
        workshop
    }

    /// A test binary with these tests, each a name and what it does, and those that run only when asked for.
    fn binary(&self, name: &str, tests: &[(&str, &str)], ignored: &[&str]) {
        let list = |names: &mut dyn Iterator<Item = &&str>| {
            names.map(|name| format!("echo '{name}: test'\n")).collect::<String>()
        };
        let names: Vec<&str> = tests.iter().map(|(name, _)| *name).collect();
        let (all, only_ignored) = (list(&mut names.iter().chain(ignored)), list(&mut ignored.iter()));
        let cases: String =
            tests.iter().map(|(name, does)| format!("{name}) ({does}) && echo '{PASSED}' ;;\n")).collect();
        self.script(
            name,
            &format!(
                "case \"$*\" in *--ignored) {only_ignored} exit 0 ;; --list*) {all} exit 0 ;; esac\ncase $2 in\n{cases}esac\n"
            ),
        );
    }

    fn script(&self, name: &str, body: &str) {
        let path = self.directory.path().join("some").join(name);
        std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        let message = format!(
            r#"{{"reason":"compiler-artifact","executable":"{}","manifest_path":"{}","target":{{"name":"{name}","kind":["test"]}},"profile":{{"test":true}}}}"#,
            path.display(),
            self.manifest().display(),
        );
        let before = std::fs::read_to_string(self.artifacts()).unwrap_or_default();
        std::fs::write(self.artifacts(), format!("{before}{message}\n")).unwrap();
    }

    fn manifest(&self) -> PathBuf {
        self.directory.path().join("some").join("Cargo.toml")
    }

    fn artifacts(&self) -> PathBuf {
        self.directory.path().join("artifacts.json")
    }

    /// Runs the runner, and returns what it did, and what it wrote to its standard output.
    fn run(&self, arguments: &[&str]) -> (Output, String) {
        let times = self.directory.path().join("times.json");
        let ran = Command::new(env!("CARGO_BIN_EXE_flotilla-runner"))
            .arg("--artifacts")
            .arg(self.artifacts())
            .arg("--times")
            .arg(times)
            .args(arguments)
            .output()
            .unwrap();
        let printed = String::from_utf8(ran.stdout.clone()).unwrap();
        (ran, printed)
    }
}

/// A process that has ended and is waited for by nobody yet counts as ended.
fn is_running(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}
