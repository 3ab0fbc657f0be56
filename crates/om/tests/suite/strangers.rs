//! Calls that are meant for an OM of another cluster, where buckets and keys may have the same names.

use crate::server::{NameCluster, Server, commit, lookup};
use planted::Bug;
use proto::om::om_client::OmClient;
use proto::om::{Change, ChangeRequest, HeadBucketRequest, LookupKeysRequest};
use proto::{Code, Failure, RequestId};
use std::time::Duration;
use tokio::runtime::Builder;
use tonic::transport::Endpoint;

fn name_another(call: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
    Ok(proto::in_cluster(call, "another"))
}

/// The calls that were answered. All runs on this thread, which alone has the bug.
fn answered(bug: Option<Bug>) -> Vec<&'static str> {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    planted::plant(bug);
    let answered = runtime.block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let server = Server::start(dir.path()).await;
        server.commit(commit("a", 1)).await.unwrap();
        let channel = Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect().await;
        let mut stranger = OmClient::with_interceptor(channel.unwrap(), name_another as NameCluster);
        let (volume, bucket) = (|| "s3v".to_owned(), || "photos".to_owned());
        let head = HeadBucketRequest { volume: volume(), bucket: bucket() };
        let lookup = LookupKeysRequest { lookups: vec![lookup("a")], any_member: false };
        let put = Change::of(commit("b", 2), RequestId(7), Duration::ZERO, None);
        let calls = [
            ("head", stranger.head_bucket(head).await.map(drop)),
            ("lookup", stranger.lookup_keys(lookup).await.map(drop)),
            ("commit", stranger.change(ChangeRequest { changes: vec![put] }).await.map(drop)),
        ];
        let is_there = server.lookup("b").await.is_ok();
        assert_eq!(is_there, calls[2].1.is_ok(), "what is refused takes no effect");
        let refused = calls.iter().filter_map(|(_, call)| call.clone().err()).map(Failure::from);
        refused.for_each(|failure| assert_eq!(failure.code, Code::WrongCluster, "{failure}"));
        drop(stranger);
        server.stop().await;
        calls.into_iter().filter_map(|(name, call)| call.is_ok().then_some(name)).collect()
    });
    planted::plant(None);
    answered
}

#[test]
fn what_is_meant_for_another_cluster_is_refused() {
    assert_eq!(answered(None), [""; 0]);
}

#[test]
fn an_om_that_belongs_to_no_cluster() {
    assert_eq!(answered(Some(Bug::OmOfNoCluster)), ["head", "lookup", "commit"]);
}
