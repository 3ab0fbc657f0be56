//! What nobody names any more is said to SCM until it is gone, whoever leads; and nothing else is.

use crate::scripted_scm::ScriptedScm;
use crate::server::{CLUSTER, DEADLINE, Server, commit, request};
use bytes::Bytes;
use proto::om::*;
use proto::scm::DiscardState;
use proto::{Code, Failure};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep};

async fn open(dir: &Path, scm: &ScriptedScm) -> Server {
    let server = Server::open_with(dir, "127.0.0.1:0", &scm.address, Duration::ZERO).await;
    server.until_ready().await;
    let bucket = CreateBucketRequest { volume: "s3v".into(), bucket: "photos".into(), group: None };
    server.client.clone().create_bucket(request(0, bucket)).await.unwrap();
    server
}

async fn unused(server: &Server) -> GetUnusedResponse {
    server.client.clone().get_unused(GetUnusedRequest { group: 0 }).await.unwrap().into_inner()
}

/// Waits until so many blocks wait, in so many containers.
async fn until_waiting(server: &Server, blocks: u64, containers: usize) -> GetUnusedResponse {
    let give_up = Instant::now() + DEADLINE;
    loop {
        let unused = unused(server).await;
        let totals = unused.totals.unwrap();
        let filed = (totals.deleted_pieces, totals.unused_blocks);
        if filed == (0, blocks) && unused.containers.len() == containers {
            return unused;
        }
        assert!(Instant::now() < give_up, "not {blocks} wait in {containers}: {unused:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn delete(server: &Server, keys: &[&str]) {
    let keys = keys.iter().map(|key| Bytes::copy_from_slice(key.as_bytes())).collect();
    let (volume, bucket) = ("s3v".into(), "photos".into());
    server.change(DeleteKeysRequest { volume, bucket, keys, precondition: None }).await.unwrap();
}

fn discarded(scm: &ScriptedScm) -> BTreeSet<u64> {
    scm.record().discarded.iter().map(|(container, _)| *container).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_unused_is_asked_for_until_it_is_gone_and_nothing_else_is() {
    let dir = tempfile::tempdir().unwrap();
    let scm = ScriptedScm::start(CLUSTER).await;
    scm.record().discards.insert(1, DiscardState::DiscardHeld);
    let server = open(dir.path(), &scm).await;
    for (key, container) in [("a", 1), ("b", 2), ("c", 3), ("d", 4), ("a", 5)] {
        server.commit(commit(key, container)).await.unwrap();
    }
    delete(&server, &["b", "d"]).await;
    // A race that is lost.
    let lost = Precondition { absent: true, ..Precondition::default() };
    let refused = CommitKeyRequest { precondition: Some(lost.clone()), ..commit("c", 6) };
    assert_eq!(server.commit(refused).await.unwrap_err().code, Code::PreconditionFailed);
    // Its writer says again, as another request, what it has said already.
    let again = CommitKeyRequest { precondition: Some(lost), ..commit("c", 3) };
    assert_eq!(server.commit(again).await.unwrap_err().code, Code::PreconditionFailed);

    // All but what is held goes; of that container it is asked again.
    let waiting = until_waiting(&server, 1, 1).await;
    assert_eq!(discarded(&scm), BTreeSet::from([1, 2, 4, 6]));
    let [held] = &waiting.containers[..] else { panic!("{waiting:?}") };
    assert_eq!((held.container, held.blocks, held.state.as_str()), (1, 1, "held"));
    assert_ne!(waiting.oldest_ms, 0);

    // The next leader goes on with it.
    server.stop().await;
    scm.record().discarded.clear();
    scm.record().discards.insert(1, DiscardState::DiscardUnderWay);
    let server = open(dir.path(), &scm).await;
    scm.until("asked again", |record| record.discarded.contains(&(1, 1))).await;
    // What waits to go nobody takes.
    assert_eq!(server.commit(commit("e", 1)).await.unwrap_err().code, Code::Invalid);
    scm.record().discards.clear();
    let gone = until_waiting(&server, 0, 0).await;
    assert_eq!((gone.totals.unwrap().still_named, gone.containers_waiting, gone.oldest_ms), (0, 0, 0));
    assert_eq!(discarded(&scm), BTreeSet::from([1]));
    for key in ["a", "c"] {
        server.lookup(key).await.unwrap();
    }
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_go_in_portions_and_uploads_end_with_their_bucket() {
    const KEYS: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let scm = ScriptedScm::start(CLUSTER).await;
    let server = open(dir.path(), &scm).await;
    let key = |number: u64| format!("key-{number}");
    for some in (0..KEYS).collect::<Vec<_>>().chunks(100) {
        let commits = some.iter().map(|number| server.commit(commit(&key(*number), number % 300)));
        for done in futures::future::join_all(commits).await {
            done.unwrap();
        }
    }
    let place = || ("s3v".to_owned(), "photos".to_owned(), Bytes::from("up"));
    let (volume, bucket, name) = place();
    let create = CreateUploadRequest { volume, bucket, key: name, attributes: None };
    let upload = server.change(create).await.unwrap().upload;
    for number in 1..=3 {
        let pieces = commit("", 1000 + u64::from(number)).key.unwrap().pieces;
        let part = Some(Part { number, size: 10, etag: "0".repeat(32), pieces, ..Part::default() });
        let ((volume, bucket, key), upload) = (place(), upload.clone());
        server.change(CommitPartRequest { volume, bucket, key, upload, part }).await.unwrap();
    }
    for some in (0..KEYS).map(key).collect::<Vec<_>>().chunks(1000) {
        delete(&server, &some.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let bucket = DeleteBucketRequest { volume: "s3v".into(), bucket: "photos".into() };
    server.client.clone().delete_bucket(request(1, bucket)).await.map_err(Failure::from).unwrap();
    let all: BTreeSet<u64> = (0..300).chain(1001..=1003).collect();
    scm.until("asked for all", |record| record.discarded.len() == all.len()).await;
    until_waiting(&server, 0, 0).await;
    assert_eq!(discarded(&scm), all);
    server.stop().await;
}
