use std::process::{Command, Output, Stdio};

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

pub(crate) fn admin_json(scm: &str, words: &[&str]) -> serde_json::Value {
    let args = [&["admin", "--scm", scm, "--json"], words].concat();
    let output = flotilla(&args, None);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON on stdout")
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
    check(&["server", "--roles", "s3", "--rpc", "127.0.0.1:0"], 1, "--access-key");
    check(&["admin", "--scm", "127.0.0.1:1", "pipeline", "list"], 1, "no SCM answers at 127.0.0.1:1");
    check(&["fs", "--scm", "127.0.0.1:1", "-ls", "/s3v"], 1, "127.0.0.1:1");
}
