//! One test as a process: started, waited for with a deadline, and what it printed.

use crate::artifacts::Test;
use anyhow::Context;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::ops::Range;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The outcome of a test.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Passed,
    /// The test failed: why, in a few words.
    Failed(String),
}

/// The limits of the pause between two looks whether a test has ended, which is a part of its age: a look
/// costs some 80 µs, and five tests are looked at beside each other for as long as all take.
const PAUSE_MIN: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(100);
const PAUSE_PART: u32 = 50;

/// The fields of `/proc/PID/stat` behind the name with the times of the process and of its children, in user
/// mode and in the kernel.
const USER_TO_CHILDREN: std::ops::Range<usize> = 11..15;
/// The unit of these times, which Linux has for all programs.
const TICK_MS: u64 = 10;

/// The variable in which `testkit` looks for the ports that this test may use: others run at the same time.
const PORTS_VARIABLE: &str = "FLOTILLA_TEST_PORTS";

/// The line that libtest prints when its one test has passed.
const PASSED: &str = "test result: ok. 1 passed";

/// A process that has ended.
pub(crate) struct Ended {
    pub(crate) verdict: Verdict,
    /// The output of a failed test.
    pub(crate) printed: String,
    /// The processor time of the test and of all that it started and waited for.
    pub(crate) computed: Duration,
}

/// Runs `test` alone in a process and returns when that has ended.
pub(crate) fn run(test: &Test, ports: &Range<usize>, within: Duration) -> Ended {
    let ended = match run_to_its_end(test, ports, within) {
        Ok(ended) => ended,
        Err(error) => {
            let verdict = Verdict::Failed(format!("{error:#}"));
            return Ended { verdict, printed: String::new(), computed: Duration::ZERO };
        }
    };
    match ended.verdict {
        // Whoever exits early, or has no test of this name any more, has passed nothing.
        Verdict::Passed if !ended.printed.contains(PASSED) => {
            let verdict = Verdict::Failed("ended well and ran no test".to_owned());
            Ended { verdict, printed: cut(&ended.printed), ..ended }
        }
        Verdict::Passed => Ended { printed: String::new(), ..ended },
        Verdict::Failed(_) => Ended { printed: cut(&ended.printed), ..ended },
    }
}

fn run_to_its_end(test: &Test, ports: &Range<usize>, within: Duration) -> anyhow::Result<Ended> {
    let mut printed = tempfile::tempfile().context("make a file for what a test prints")?;
    let mut child = Command::new(&test.binary.executable)
        .args(["--exact", &test.name, "--include-ignored", "--nocapture", "--test-threads", "1"])
        .current_dir(&test.binary.directory)
        .env("CARGO_MANIFEST_DIR", &test.binary.directory)
        .env(PORTS_VARIABLE, format!("{}..{}", ports.start, ports.end))
        .stdin(Stdio::null())
        .stdout(printed.try_clone()?)
        .stderr(printed.try_clone()?)
        .spawn()
        .with_context(|| format!("start {test}"))?;
    let (verdict, computed) = wait(&mut child, within)?;
    Ok(Ended { verdict, printed: text(&mut printed)?, computed })
}

/// Waits for a process without a thread or a signal of its own; a fiftieth late is nothing for a test.
/// Returns its processor time as well, which can be read until it is waited for.
fn wait(child: &mut Child, within: Duration) -> anyhow::Result<(Verdict, Duration)> {
    let began = Instant::now();
    loop {
        // Where the times cannot be read, the test is asked for its end all the same.
        let (computed, has_ended) = computed(child.id()).unwrap_or((Duration::ZERO, true));
        let status = if has_ended { child.try_wait().context("wait for a test")? } else { None };
        match status {
            Some(status) if status.success() => return Ok((Verdict::Passed, computed)),
            Some(status) => return Ok((Verdict::Failed(status.to_string()), computed)),
            None if began.elapsed() > within => {
                end_with_descendants(child.id());
                // The shell may be what was missing.
                child.kill().context("end a test that hangs")?;
                child.wait().context("wait for a test that was ended")?;
                let why = format!("did not end within {} s", within.as_secs());
                return Ok((Verdict::Failed(why), computed));
            }
            None => std::thread::sleep((began.elapsed() / PAUSE_PART).clamp(PAUSE_MIN, PAUSE_MAX)),
        }
    }
}

/// The processor time of a child and of its descendants that were waited for, and whether the child has
/// ended.
fn computed(pid: u32) -> Option<(Duration, bool)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // "pid (name) state parent …", and a name may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: Option<u64> =
        fields.get(USER_TO_CHILDREN)?.iter().map(|field| field.parse::<u64>().ok()).sum();
    Some((Duration::from_millis(ticks? * TICK_MS), matches!(fields[0], "Z" | "X")))
}

/// Ends a test that hangs and the processes it started, which its destructors cannot end any more.
fn end_with_descendants(pid: u32) {
    let parents = parents();
    let mut doomed = vec![pid];
    let mut next = 0;
    while next < doomed.len() {
        let parent = doomed[next];
        doomed.extend(parents.iter().filter(|(_, of)| **of == parent).map(|(child, _)| *child));
        next += 1;
    }
    let pids = doomed.iter().map(u32::to_string);
    // The shell has a `kill` of its own: not every machine has the program. A process that has ended
    // meanwhile is no error.
    let kill = ["-c", "kill -KILL \"$@\"", "sh"];
    drop(Command::new("sh").args(kill).args(pids).stderr(Stdio::null()).status());
}

/// The parent of each process of this machine.
fn parents() -> BTreeMap<u32, u32> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    processes
        .filter_map(|entry| {
            let pid: u32 = entry.file_name().to_str()?.parse().ok()?;
            let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
            // "pid (name) state parent …", and a name may contain anything.
            let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
            Some((pid, parent))
        })
        .collect()
}

/// The beginning and the end of what a test printed, if that is much.
fn cut(printed: &str) -> String {
    const EACH_BYTES_MAX: usize = 256 << 10;
    if printed.len() <= 2 * EACH_BYTES_MAX {
        return printed.to_owned();
    }
    let (head, tail) = (printed.floor_char_boundary(EACH_BYTES_MAX), printed.len() - EACH_BYTES_MAX);
    let tail = printed.ceil_char_boundary(tail);
    format!("{}\n[… {} bytes …]\n{}", &printed[..head], tail - head, &printed[tail..])
}

fn text(file: &mut File) -> anyhow::Result<String> {
    use std::io::Seek as _;
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).context("read what a test printed")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}
