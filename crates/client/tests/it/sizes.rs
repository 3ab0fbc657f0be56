use crate::cluster::{BUCKET, Cluster, bytes_of};
use flotilla_client::S3_VOLUME;
use proto::Code;

const MIB: usize = 1 << 20;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn objects_of_all_sizes_come_back() {
    let cluster = Cluster::start().await;
    for size in [0, 1, 4096, 65_537, MIB, 5 * MIB + 1, 40 * MIB + 7] {
        let body = bytes_of(size, size as u64);
        let put = cluster.put(&format!("size-{size}"), body.clone()).await.unwrap();
        assert_eq!(put.size, size as u64);
        assert!(cluster.get(&format!("size-{size}")).await.unwrap() == body, "{size} bytes differ");
    }
    let empty = cluster.client.lookup(S3_VOLUME, BUCKET, b"size-0").await.unwrap();
    assert_eq!(empty.pieces, []);
    assert_eq!(empty.etag, "d41d8cd98f00b204e9800998ecf8427e");
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_range_is_read() {
    let cluster = Cluster::start().await;
    let size = 5 * MIB + 12_345;
    let body = bytes_of(size, 5);
    cluster.put("ranges", body.clone()).await.unwrap();
    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"ranges").await.unwrap();
    for range in
        [0..0, 0..1, 65_535..65_537, MIB - 1..MIB + 1, 100..size - 100, size - 1..size, 70_000..80_000]
    {
        let got = cluster.read(&key, range.start as u64..range.end as u64).await.unwrap();
        assert!(got == body[range.clone()], "{range:?}");
    }
    assert!(cluster.read(&key, 0..size as u64 + 1).await.is_err());
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_writers_share_the_streams() {
    let cluster = Cluster::start().await;
    let writers = (0..64u64).map(|n| {
        let body = bytes_of(1000 * n as usize + 1, n);
        let cluster = &cluster;
        async move {
            cluster.put(&format!("shared-{n}"), body.clone()).await.unwrap();
            assert!(cluster.get(&format!("shared-{n}")).await.unwrap() == body, "object {n}");
        }
    });
    futures::future::join_all(writers).await;
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_fails_leaves_no_object() {
    let cluster = Cluster::start().await;
    let frames = vec![Ok(bytes_of(3 * MIB, 1)), Err(std::io::Error::other("the peer went away"))];
    let error = cluster.put_stream("torn", futures::stream::iter(frames)).await.unwrap_err();
    assert!(matches!(error, flotilla_client::ClientError::Body(_)), "{error:?}");
    assert_eq!(cluster.get("torn").await.unwrap_err().code(), Some(Code::NoSuchKey));
    cluster.stop().await;
}
