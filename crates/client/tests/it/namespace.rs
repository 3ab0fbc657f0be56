use crate::cluster::{BUCKET, Cluster, bytes_of, frames};
use flotilla_client::S3_VOLUME;
use proto::Code;
use proto::om::{ListKeysRequest, Precondition};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn conditions_decide_between_writers() {
    let cluster = Cluster::start().await;
    let absent = Some(Precondition { absent: true, ..Default::default() });
    let put = |n: u64| {
        let (client, absent) = (cluster.client.clone(), absent.clone());
        let body = frames(bytes_of(100, n));
        async move { client.put(S3_VOLUME, BUCKET, b"once", Default::default(), absent, body).await }
    };
    let results = futures::future::join_all((0..8).map(put)).await;
    assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
    let refused = results.iter().filter_map(|result| result.as_ref().err());
    assert!(
        refused.clone().count() == 7 && refused.clone().all(|e| e.code() == Some(Code::PreconditionFailed))
    );
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_deleted_is_gone_and_what_is_listed_is_there() {
    let cluster = Cluster::start().await;
    for key in ["a/1", "a/2", "b"] {
        cluster.put(key, bytes_of(10, 1)).await.unwrap();
    }
    let keys = vec!["a/1".into(), "never".into()];
    assert_eq!(cluster.client.delete_keys(S3_VOLUME, BUCKET, keys, None).await.unwrap(), [true, false]);
    let listed = cluster
        .client
        .list_keys(ListKeysRequest {
            volume: S3_VOLUME.to_owned(),
            bucket: BUCKET.to_owned(),
            delimiter: "/".into(),
            limit: 10,
            ..Default::default()
        })
        .await
        .unwrap();
    assert_eq!(listed.entries.len(), 2);
    assert_eq!(cluster.get("a/1").await.unwrap_err().code(), Some(Code::NoSuchKey));
    let error = cluster.client.lookup(S3_VOLUME, "no-such-bucket", b"x").await.unwrap_err();
    assert_eq!(error.code(), Some(Code::NoSuchBucket));
    cluster.stop().await;
}
