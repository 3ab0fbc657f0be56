use crate::server::{Server, commit};
use std::io;
use std::path::Path;

const KEYS: u64 = 2_500;

fn name(number: u64) -> String {
    format!("dir-{}/key-{number:05}", number % 7)
}

async fn fill(server: &Server) {
    let commits = (1..=KEYS).map(|number| server.commit_as(number.into(), commit(&name(number), number)));
    for result in futures::future::join_all(commits).await {
        result.unwrap();
    }
}

async fn check_filled(server: &Server) {
    let mut expected: Vec<_> = (1..=KEYS).map(|number| (name(number), format!("etag-{number}"))).collect();
    expected.sort();
    let listed = server.list(1000).await;
    let listed: Vec<_> =
        listed.into_iter().map(|key| (String::from_utf8(key.key.to_vec()).unwrap(), key.etag)).collect();
    assert_eq!(listed, expected);
    assert_eq!(server.photos(), (KEYS, 10 * KEYS));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_om_has_every_key() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    fill(&server).await;
    check_filled(&server).await;
    server.stop().await;
    let server = Server::start(dir.path()).await;
    check_filled(&server).await;
    // A commit whose answer was lost, repeated after the restart: it must not undo what came later.
    server.commit(commit(&name(1), 9_999)).await.unwrap();
    server.commit_as(1, commit(&name(1), 1)).await.unwrap();
    assert_eq!(server.lookup(&name(1)).await.unwrap().etag, "etag-9999");
    server.stop().await;
}

/// The files hold, while the OM runs, what `kill -9` leaves: nothing was flushed or closed for it. What a loss
/// of power leaves, `flotilla-sim om` sees.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acknowledged_commits_survive_a_kill() {
    let dir = tempfile::tempdir().unwrap();
    let (running, killed) = (dir.path().join("running"), dir.path().join("killed"));
    let server = Server::start(&running).await;
    fill(&server).await;
    copy_dir(&running, &killed);
    server.stop().await;
    let server = Server::start(&killed).await;
    check_filled(&server).await;
    server.stop().await;
}

/// Copies a directory that may be in use: where a file goes meanwhile, all of it once more.
#[allow(clippy::disallowed_methods)] // the test plays the kill
pub(crate) fn copy_dir(from: &Path, to: &Path) {
    while let Err(error) = try_copy_dir(from, to) {
        assert_eq!(error.kind(), io::ErrorKind::NotFound, "{error}");
        std::fs::remove_dir_all(to).unwrap();
    }
}

fn try_copy_dir(from: &Path, to: &Path) -> io::Result<()> {
    std::fs::create_dir(to)?;
    for entry in std::fs::read_dir(from)? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => try_copy_dir(&entry.path(), &to)?,
            false => drop(std::fs::copy(entry.path(), to)?),
        }
    }
    Ok(())
}
