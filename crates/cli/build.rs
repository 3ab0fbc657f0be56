//! Tells the binary what it was built from. A debug build names no commit, and outside of a git checkout it
//! is unknown; nothing else depends on it.

use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    // A debug build that knew its commit would compile the binary and its tests again after each commit.
    let commit = match profile.as_str() {
        "debug" => "development".to_owned(),
        _ => commit_now(),
    };
    println!("cargo:rustc-env=FLOTILLA_COMMIT={commit}");
    println!("cargo:rustc-env=FLOTILLA_PROFILE={profile}");
    println!("cargo:rustc-env=FLOTILLA_TARGET={}", std::env::var("TARGET").unwrap_or_default());
    let compiler = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let compiler = output(&compiler, &["--version"]).unwrap_or_else(|| "unknown".to_owned());
    println!("cargo:rustc-env=FLOTILLA_COMPILER={compiler}");
}

/// The commit of the checkout; asks cargo to come again when that changes.
fn commit_now() -> String {
    if let Some(log) = output("git", &["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
    commit().unwrap_or_else(|| "unknown".to_owned())
}

fn commit() -> Option<String> {
    let commit = output("git", &["rev-parse", "--short=12", "HEAD"])?;
    let is_clean = output("git", &["status", "--porcelain", "--untracked-files=no"])?.is_empty();
    Some(if is_clean { commit } else { format!("{commit}-dirty") })
}

fn output(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program).args(args).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}
