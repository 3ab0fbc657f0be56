//! The artifacts that cargo built, and the tests in it.

use anyhow::{Context, ensure};
use serde::Deserialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

/// A test binary.
#[derive(Debug)]
pub(crate) struct Binary {
    pub(crate) executable: PathBuf,
    /// The crate's directory, in which cargo runs its tests.
    pub(crate) directory: PathBuf,
    /// "raft" for the tests in the crate `flotilla-raft`, "raft/groups" for those in its `tests/groups`.
    pub(crate) name: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Test {
    pub(crate) binary: Arc<Binary>,
    pub(crate) name: String,
    /// Runs only when asked for: campaigns.
    pub(crate) is_ignored: bool,
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.binary.name, self.name)
    }
}

/// One line of cargo's messages, as far as it matters here.
#[derive(Deserialize)]
struct Message {
    reason: String,
    executable: Option<PathBuf>,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// All tests of all test binaries that cargo's messages in `path` name.
pub(crate) fn find_tests(path: &Path) -> anyhow::Result<Vec<Test>> {
    let messages = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut tests = Vec::new();
    for line in messages.lines() {
        let message: Message =
            serde_json::from_str(line).with_context(|| format!("understand cargo's {line}"))?;
        if let Some(binary) = message.into_binary() {
            tests.extend(list(&Arc::new(binary))?);
        }
    }
    Ok(tests)
}

impl Message {
    fn into_binary(self) -> Option<Binary> {
        let (executable, manifest, target) = (self.executable?, self.manifest_path?, self.target?);
        if self.reason != "compiler-artifact" || !self.profile?.test {
            return None;
        }
        let directory = manifest.parent()?.to_owned();
        let of_crate = directory.file_name()?.to_string_lossy().into_owned();
        let name = match target.kind.iter().any(|kind| kind == "test" || kind == "bench") {
            true => format!("{of_crate}/{}", target.name),
            false => of_crate,
        };
        Some(Binary { executable, directory, name })
    }
}

fn list(binary: &Arc<Binary>) -> anyhow::Result<Vec<Test>> {
    let all = list_names(binary, &[])?;
    let ignored = list_names(binary, &["--ignored"])?;
    let test = |name: String| Test { binary: binary.clone(), is_ignored: ignored.contains(&name), name };
    Ok(all.into_iter().map(test).collect())
}

fn list_names(binary: &Binary, arguments: &[&str]) -> anyhow::Result<Vec<String>> {
    let output = Command::new(&binary.executable)
        .args(["--list", "--format", "terse"])
        .args(arguments)
        .current_dir(&binary.directory)
        .output()
        .with_context(|| format!("run {}", binary.executable.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{} does not list its tests: {}: {said}", binary.name, output.status);
    let lines = String::from_utf8(output.stdout).context("names of tests are UTF-8")?;
    Ok(lines.lines().filter_map(|line| line.strip_suffix(": test")).map(str::to_owned).collect())
}
