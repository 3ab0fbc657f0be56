use crate::binary;
use crate::commands::{admin_json, flotilla};
use crate::s3::S3;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::Process;

pub(crate) fn start(dir: &Path) -> (Process, S3, String) {
    let data = dir.join("data").display().to_string();
    let args = ["dev", "--data", &data, "--s3-port", "0", "--rpc-port", "0", "--http-port", "0"]
        .map(str::to_owned)
        .to_vec();
    let (process, ready) = Process::start(binary(), dir, "dev", args);
    let s3 = S3::new(&ready["S3_ENDPOINT"], &ready["ACCESS_KEY"], &ready["SECRET_KEY"], "first");
    (process, s3, ready["RPC"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_cluster_finds_its_data_after_a_clean_stop_and_after_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let body = vec![7u8; 2_500_000];
    let (mut process, s3, _) = start(dir.path());
    s3.create_bucket().await.unwrap();
    s3.put("a/b", body.clone()).await.unwrap();
    assert!(process.terminate().success(), "{}", process.log());
    drop(process);

    let (mut process, s3, _) = start(dir.path());
    assert!(s3.get("a/b").await.unwrap() == Some(body.clone()));
    s3.put("c", b"short".to_vec()).await.unwrap();
    process.kill9();
    drop(process);

    let (mut process, s3, scm) = start(dir.path());
    assert!(s3.get("a/b").await.unwrap() == Some(body));
    assert_eq!(s3.get("c").await.unwrap().as_deref(), Some(&b"short"[..]));
    assert_eq!(admin_json(&scm, &["datanode", "list"]).as_array().unwrap().len(), 3);
    assert_eq!(admin_json(&scm, &["pipeline", "list"]).as_array().unwrap().len(), 4);
    assert!(process.terminate().success());
}

#[test]
fn dev_cluster_refuses_a_directory_in_use_and_a_taken_port() {
    let dir = tempfile::tempdir().unwrap();
    let (_process, _, _) = start(dir.path());
    let data = dir.path().join("data").display().to_string();
    let second =
        flotilla(&["dev", "--data", &data, "--s3-port", "0", "--rpc-port", "0", "--http-port", "0"], None);
    let stderr = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr.contains("in use"), "{stderr}");

    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let other = dir.path().join("other").display().to_string();
    let third =
        flotilla(&["dev", "--data", &other, "--s3-port", &port, "--rpc-port", "0", "--http-port", "0"], None);
    let stderr = String::from_utf8_lossy(&third.stderr);
    assert_eq!(third.status.code(), Some(1));
    assert!(stderr.contains(&port), "{stderr}");
}

#[test]
fn files_go_in_and_out_through_fs() {
    let dir = tempfile::tempdir().unwrap();
    let (_process, _, scm) = start(dir.path());
    let fs = |args: &[&str], stdin: Option<&[u8]>| {
        let output = flotilla(&[&["fs", "--scm", &scm], args].concat(), stdin);
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        (output.status.code().unwrap(), text(output.stdout), text(output.stderr))
    };
    let ok = |args: &[&str], stdin: Option<&[u8]>| {
        let (code, stdout, stderr) = fs(args, stdin);
        assert_eq!(code, 0, "{args:?}: {stderr}");
        stdout
    };

    ok(&["-mkdir", "/s3v/logs"], None);
    ok(&["-mkdir", "-p", "/s3v/logs/2026/11"], None);
    let local = dir.path().join("big");
    let bytes: Vec<u8> = (0..3_000_000u32).flat_map(|n| n.to_le_bytes()).collect();
    std::fs::write(&local, &bytes).unwrap();
    let local = local.display().to_string();
    ok(&["-put", &local, "/s3v/logs/2026/11"], None);
    ok(&["-put", "-", "/s3v/logs/note"], Some(b"hello\n"));
    assert_eq!(ok(&["-cat", "/s3v/logs/note"], None), "hello\n");

    let back = dir.path().join("back").display().to_string();
    ok(&["-get", "/s3v/logs/2026/11/big", &back], None);
    assert!(std::fs::read(&back).unwrap() == bytes);

    let listed = ok(&["-ls", "/s3v/logs"], None);
    assert!(listed.starts_with("Found 2 items\n"), "{listed}");
    assert!(listed.contains(" /s3v/logs/2026\n") && listed.contains(" /s3v/logs/note\n"), "{listed}");
    assert!(ok(&["-ls", "-R", "/s3v/logs"], None).contains(" 12000000 "), "{listed}");

    let (code, _, stderr) = fs(&["-put", &local, "/s3v/logs/2026/11"], None);
    assert_eq!((code, stderr.trim()), (1, "put: `/s3v/logs/2026/11/big': File exists"));
    let (code, _, stderr) = fs(&["-rm", "/s3v/logs/2026"], None);
    assert_eq!((code, stderr.trim()), (1, "rm: `/s3v/logs/2026': Is a directory"));
    let (code, _, stderr) = fs(&["-cat", "/s3v/logs/none"], None);
    assert_eq!((code, stderr.trim()), (1, "cat: `/s3v/logs/none': No such file or directory"));

    let listed = ok(&["-ls", "-d", "/s3v/logs/2026"], None);
    assert!(listed.starts_with("drwx") && listed.ends_with(" /s3v/logs/2026\n"), "{listed}");

    // Through S3, a file and a directory can have the same name; fs makes them with a key put below a file.
    ok(&["-put", "-", "/s3v/logs/both"], Some(b"file"));
    ok(&["-put", "-", "/s3v/logs/both/below"], Some(b"below"));
    ok(&["-rm", "-r", "/s3v/logs/both"], None);
    let (code, _, stderr) = fs(&["-ls", "/s3v/logs/both"], None);
    assert_eq!(code, 1, "{stderr}");

    ok(&["-rm", "-r", "/s3v/logs/2026"], None);
    assert!(ok(&["-ls", "/s3v/logs"], None).starts_with("Found 1 items\n"));
    ok(&["-rm", "-r", "/s3v/logs"], None);
    assert_eq!(fs(&["-ls", "/s3v/logs"], None).0, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_upload_under_way_is_finished_before_the_cluster_stops() {
    use std::io::{Read, Write};
    let dir = tempfile::tempdir().unwrap();
    let (mut process, s3, _) = start(dir.path());
    s3.create_bucket().await.unwrap();
    let (url, body) = (s3.put_url("late"), vec![5u8; 3 << 20]);
    let host = format!("{}:{}", url.host_str().unwrap(), url.port().unwrap());
    let mut connection = std::net::TcpStream::connect(&host).unwrap();
    let (path, query) = (url.path(), url.query().unwrap());
    write!(
        connection,
        "PUT {path}?{query} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {}\r\n\r\n",
        body.len()
    )
    .unwrap();
    let (first, rest) = body.split_at(body.len() / 2);
    connection.write_all(first).unwrap();

    let pid = process.pid().to_string();
    assert!(std::process::Command::new("kill").args(["-TERM", &pid]).status().unwrap().success());
    let give_up = Instant::now() + Duration::from_secs(60);
    while !process.log().contains("stopping") {
        assert!(Instant::now() < give_up, "SIGTERM is not heard:\n{}", process.log());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    connection.write_all(rest).unwrap();
    let mut answer = String::new();
    connection.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    // A second signal would not wait.
    assert!(process.wait_end().success(), "{}", process.log());
    drop(process);

    let (_process, s3, _) = start(dir.path());
    assert!(s3.get("late").await.unwrap() == Some(body));
}

/// The reader is gone before anything is written, the worst that `| head -1` can do.
#[test]
fn readers_may_leave_early_and_secrets_are_private() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let (_process, _, scm) = start(dir.path());
    for secret in ["data/credentials", "dev.ready"] {
        let mode = std::fs::metadata(dir.path().join(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let words = |words: &str| words.split(' ').map(str::to_owned).collect::<Vec<_>>();
    for (tool, rest) in [("fs", "-ls /"), ("admin", "pipeline list"), ("admin", "--json datanode list")] {
        let mut command = std::process::Command::new(binary());
        command.arg(tool).args(["--scm", &scm]).args(words(rest));
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = command.stdout(writer).stderr(std::process::Stdio::piped()).spawn().unwrap();
        let output = output.wait_with_output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*stderr), (Some(0), ""), "{tool} {rest}");
    }
    // Without a destination: into the current directory.
    assert!(flotilla(&["fs", "--scm", &scm, "-mkdir", "/s3v/here"], None).status.success());
    assert!(flotilla(&["fs", "--scm", &scm, "-put", "-", "/s3v/here/note"], Some(b"hello")).status.success());
    let mut get = std::process::Command::new(binary());
    get.args(["fs", "--scm", &scm, "-get", "/s3v/here/note"]).current_dir(dir.path());
    assert!(get.status().unwrap().success());
    assert_eq!(std::fs::read(dir.path().join("note")).unwrap(), b"hello");
}

/// The promise in the README, with room for a machine that runs the rest of the suite at the same time.
#[test]
fn dev_cluster_is_ready_quickly() {
    const QUICKLY: Duration = Duration::from_secs(10);
    /// A machine may stand still for seconds, and hardly each time: a cluster that is slow by itself always
    /// is.
    const TRIES: usize = 3;
    let is_quick = || {
        let dir = tempfile::tempdir().unwrap();
        let started = Instant::now();
        let (mut process, _, _) = start(dir.path());
        let first = started.elapsed();
        assert!(process.terminate().success());
        drop(process);
        let started = Instant::now();
        let (_process, _, _) = start(dir.path());
        let again = started.elapsed();
        println!("ready after {first:?}, and {again:?} after a restart");
        first < QUICKLY && again < QUICKLY
    };
    assert!((0..TRIES).any(|_| is_quick()), "never ready within {QUICKLY:?}");
}
