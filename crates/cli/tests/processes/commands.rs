use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);

/// Runs the binary to its end.
pub(crate) fn flotilla(args: &[&str], stdin: Option<&[u8]>) -> Output {
    let mut command = Command::new(crate::binary());
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.stdin(if stdin.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.spawn().expect("start the flotilla binary");
    if let Some(bytes) = stdin {
        std::io::Write::write_all(&mut child.stdin.take().expect("piped"), bytes).expect("feed it");
    }
    child.wait_with_output().expect("wait for it")
}

/// The answer of SCM. Only for commands that change nothing: while it refuses, as between two leaders, it is
/// asked again.
pub(crate) fn admin_json(scm: &str, words: &[&str]) -> serde_json::Value {
    let give_up = Instant::now() + DEADLINE;
    loop {
        match admin_once(scm, words) {
            Ok(told) => return told,
            Err(why) => assert!(Instant::now() < give_up, "{words:?}: {why}"),
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The answer of SCM, or why it refuses.
pub(crate) fn admin_once(scm: &str, words: &[&str]) -> Result<serde_json::Value, String> {
    let output = flotilla(&[&["admin", "--scm", scm, "--json"], words].concat(), None);
    match output.status.success() {
        true => Ok(serde_json::from_slice(&output.stdout).expect("JSON on stdout")),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

#[test]
fn settings_come_from_a_file_too_and_the_command_line_wins() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("flotilla.toml");
    let serve = |text: &str, more: &[&str]| {
        std::fs::write(&file, text).unwrap();
        let args = [
            &["server", "--config", file.to_str().unwrap(), "--rpc", "127.0.0.1:0", "--http", "127.0.0.1:0"],
            more,
        ];
        let output = flotilla(&args.concat(), None);
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    // A role without what it needs says so, which shows where its settings came from.
    let (code, stderr) = serve("roles = [\"datanode\"]\n", &[]);
    assert!(code == Some(1) && stderr.contains("the role datanode needs at least one --disk"), "{stderr}");
    let (code, stderr) = serve("roles = [\"datanode\"]\n", &["--roles", "om"]);
    assert!(code == Some(1) && stderr.contains("need --meta") && !stderr.contains("--disk"), "{stderr}");
    let (code, stderr) = serve("rolls = 1\n", &[]);
    assert!(code == Some(2) && stderr.contains("there is no setting `rolls`; known are"), "{stderr}");
    let (code, stderr) = serve("pipelines_per_disk = 0\nroles = \"scm\"\n", &[]);
    assert!(code == Some(2) && stderr.contains("1..=64"), "{stderr}");
    std::fs::remove_file(&file).unwrap();
    let output = flotilla(&["server", "--config", file.to_str().unwrap()], None);
    assert!(String::from_utf8_lossy(&output.stderr).contains("No such file"), "{output:?}");
}

#[test]
fn the_version_says_what_it_was_built_from_and_completions_are_printed() {
    let version = flotilla(&["--version"], None);
    let version = String::from_utf8_lossy(&version.stdout).into_owned();
    for fact in ["commit: ", "profile: ", "target: ", "compiler: rustc"] {
        assert!(version.contains(fact), "{version}");
    }
    let script = flotilla(&["completion", "bash"], None);
    assert!(script.status.success() && String::from_utf8_lossy(&script.stdout).contains("safemode"));
}

#[test]
fn wrong_usage_says_what_is_wrong() {
    let check = |args: &[&str], code: i32, says: &str| {
        let output = flotilla(args, None);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{args:?}: {stderr}");
        assert!(stderr.contains(says), "{args:?} says: {stderr}");
    };
    check(&["sail"], 2, "unrecognized subcommand 'sail'");
    check(&["fs", "-sail"], 255, "unrecognized subcommand 'sail'");
    check(&["fs", "-put", "file"], 255, "a destination is needed");
    check(&["dev", "--rpc-port", "65534"], 2, "65533");
    check(&["dev", "--ready-file", "none/there"], 1, "there is no directory none");
    check(&["server", "--roles", "scm", "--pipelines-per-disk", "0"], 2, "1..=64");
    check(&["server", "--roles", "datanode"], 1, "--disk");
    let server = ["server", "--roles", "scm,datanode", "--meta", "none/there", "--disk", "none/there"];
    let check_server = |said: &[&str], code, says| check(&[&server[..], said].concat(), code, says);
    let disks = ["--disk", "none/too", "--data-memory", "134217727"];
    check_server(&disks, 1, "--data-memory 134217727 is too little for 2 disks: 134217728 are needed");
    check_server(&["--log-memory-bytes", "16777215"], 1, "is too little: 16777216 are needed");
    let little = "--memory 104857600 is too little for these roles and disks: ";
    check_server(&["--memory", "104857600"], 1, little);
    check_server(&["--s3-domain", "https://s3.example.com"], 2, "a host name is wanted");
    check_server(&["--access-key", "AK/IA"], 2, "without spaces, '/'");
    check_server(&["--read-memory-bytes", "1"], 2, "one number for its memory, --data-memory");
    check_server(&["--om", "127.0.0.1:1"], 2, "SCM knows where the names are: leave --om");
    check(&["fs", "--om", "127.0.0.1:1", "-ls", "/"], 255, "SCM knows where the names are: leave --om");
    check(&["sh", "--watch", "1", "volume", "delete", "x"], 1, "this one changes something");
    check(&["server", "--roles", "s3", "--rpc", "127.0.0.1:0"], 1, "--access-key");
    check(&["admin", "pipeline", "accept-loss", "7", "--keep", "0"], 2, "0 is not in 1..");
    check(&["admin", "--scm", "127.0.0.1:1", "pipeline", "list"], 1, "no SCM answers at 127.0.0.1:1");
    check(
        &["admin", "--scm", "127.0.0.1:1,127.0.0.1:2", "safemode", "status"],
        1,
        "no SCM answers at 127.0.0.1:2",
    );
    check(&["admin", "--scm", "127.0.0.1:1", "status"], 2, "");
    check(&["admin", "--scm", ",", "datanode", "list"], 2, "no address is given");
    check(&["admin", "pipeline", "close", "1", "--watch"], 1, "this one changes something");
    check(&["admin", "pipeline", "create", "--nodes", "1,2"], 1, "a pipeline has 3 nodes, 2 are given");
    check(&["admin", "datanode", "maintenance", "1", "--for", "2w"], 2, "write 90s, 30m, 2h or 1d");
    check(&["admin", "container", "list", "--limit", "0"], 2, "1..=10000");
    check(&["fs", "--scm", "127.0.0.1:1", "-ls", "/s3v"], 1, "127.0.0.1:1");
}
