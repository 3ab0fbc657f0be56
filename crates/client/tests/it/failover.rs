use crate::cluster::{BUCKET, Cluster, DEADLINE, bytes_of, frames};
use bytes::Bytes;
use datanode::DatanodeOptions;
use flotilla_client::{Ack, Client, ClientError, ClientOptions, Put, S3_VOLUME, View};
use futures::StreamExt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use types::{ContainerId, NodeId, PipelineId};

const MIB: usize = 1 << 20;

/// The node that leads the pipeline whose open container this is. It may be between two leaders when this is
/// asked.
async fn leader_of(cluster: &Cluster, container: ContainerId) -> NodeId {
    let leader_in = |view: &View| {
        let pipeline = view.pipelines.iter().find(|pipeline| pipeline.container == container);
        pipeline.and_then(|pipeline| pipeline.leader)
    };
    let mut view = cluster.client.watch_view();
    let led = view.wait_for(|view: &Arc<View>| leader_in(view).is_some());
    let led = tokio::time::timeout(DEADLINE, led).await.expect("the container is open, and led").unwrap();
    leader_in(&led).unwrap()
}

/// A client with these options that knows the cluster.
async fn client(options: ClientOptions) -> Client {
    let client = Client::connect(options);
    client.ready(DEADLINE).await.unwrap();
    client
}

/// A put whose body waits in the middle.
struct HalfPut {
    go_on: oneshot::Sender<()>,
    put: JoinHandle<Result<Put, ClientError>>,
}

impl HalfPut {
    /// Returns when the first half is on its way.
    async fn begin(client: Client, key: &'static str, body: &Bytes) -> HalfPut {
        let (go_on, wait) = oneshot::channel::<()>();
        let (half_sent, wait_half) = oneshot::channel::<()>();
        let half = body.len() / 2;
        let pause = futures::stream::once(async move {
            let _ = half_sent.send(());
            let _ = wait.await;
            Ok(Bytes::new())
        });
        let whole = frames(body.slice(..half)).chain(pause).chain(frames(body.slice(half..)));
        let put = tokio::spawn(async move {
            let whole = std::pin::pin!(whole);
            client.put(S3_VOLUME, BUCKET, key.as_bytes(), Default::default(), None, whole).await
        });
        wait_half.await.unwrap();
        HalfPut { go_on, put }
    }

    async fn finish(self) {
        self.go_on.send(()).unwrap();
        self.put.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_goes_on_elsewhere_when_its_pipeline_ends() {
    let cluster = Cluster::start().await;
    cluster.all_pipelines_led().await;
    let body = bytes_of(40 * MIB, 42);
    // It moves because the pipeline ends, and not because a busy machine acknowledges nothing for a while.
    let options = ClientOptions { stall: DEADLINE / 2, write_deadline: DEADLINE, ..cluster.client_options() };
    let put = HalfPut::begin(client(options).await, "beyond-the-end", &body).await;
    let busiest = client_busiest(&cluster).await;
    cluster.end_pipeline(PipelineId(busiest.pipeline)).await;
    put.finish().await;

    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"beyond-the-end").await.unwrap();
    assert!(key.pieces.len() >= 2, "{:?}", key.pieces);
    let is_there =
        key.pieces.iter().any(|piece| piece.block.as_ref().unwrap().container == busiest.container);
    assert!(is_there, "the block that was begun ends where its pipeline did: {:?}, {busiest:?}", key.pieces);
    assert!(cluster.read(&key, 0..key.size).await.unwrap() == body);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_survives_the_loss_of_its_pipelines_leader() {
    let mut cluster = Cluster::start().await;
    cluster.all_pipelines_led().await;
    let body = bytes_of(40 * MIB, 40);
    // Whichever pipeline the block is on.
    let put = HalfPut::begin(cluster.client.clone(), "survivor", &body).await;
    let busiest = client_busiest(&cluster).await;
    cluster.stop_node(NodeId(busiest.leader_node)).await;
    put.finish().await;

    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"survivor").await.unwrap();
    // Whether the rest is in the same block, under a new leader, or in another one: that is up to how fast
    // the election was.
    assert!(cluster.read(&key, 0..key.size).await.unwrap() == body);
    cluster.stop().await;
}

/// The pipeline that has taken the most bytes, by what the datanodes report; it has a leader.
async fn client_busiest(cluster: &Cluster) -> proto::scm::Pipeline {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let pipelines = cluster.client.list_pipelines().await.unwrap();
        let busiest = pipelines.iter().max_by_key(|pipeline| pipeline.container_bytes).unwrap();
        if busiest.container_bytes > 10 * MIB as u64 && busiest.leader_node != 0 {
            return busiest.clone();
        }
        assert!(tokio::time::Instant::now() < deadline, "no pipeline reports the bytes: {pipelines:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_put_goes_on_in_another_block_when_its_container_is_full() {
    let cluster =
        Cluster::start_with(DatanodeOptions { container_bytes_max: 8 << 20, ..DatanodeOptions::default() })
            .await;
    let body = bytes_of(40 * MIB, 41);
    cluster.put("over-the-edge", body.clone()).await.unwrap();
    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"over-the-edge").await.unwrap();
    assert!(key.pieces.len() >= 2, "{:?}", key.pieces);
    assert_eq!(key.pieces.iter().map(|piece| piece.length).sum::<u64>(), key.size);
    assert!(cluster.read(&key, 0..key.size).await.unwrap() == body);
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_and_writes_go_on_with_one_node_down() {
    let mut cluster = Cluster::start().await;
    cluster.all_pipelines_led().await;
    let body = bytes_of(5 * MIB + 1, 6);
    cluster.put("before", body.clone()).await.unwrap();
    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"before").await.unwrap();
    let block = key.pieces[0].block.clone().unwrap();
    let leader = leader_of(&cluster, ContainerId(block.container)).await;
    cluster.stop_node(leader).await;

    for _ in 0..6 {
        assert!(cluster.get("before").await.unwrap() == body);
    }
    for n in 0..6 {
        let small = bytes_of(1000, n);
        cluster.put(&format!("after-{n}"), small.clone()).await.unwrap();
        assert!(cluster.get(&format!("after-{n}")).await.unwrap() == small);
    }
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_under_way_goes_on_when_its_replica_is_lost() {
    let mut cluster = Cluster::start().await;
    cluster.all_pipelines_led().await;
    let body = bytes_of(40 * MIB, 7);
    cluster.put("long", body.clone()).await.unwrap();
    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"long").await.unwrap();
    // The one that is left must have all of it: it has nobody to hear the rest from.
    cluster.all_caught_up().await;

    let options = ClientOptions { read_deadline: Duration::from_millis(500), ..cluster.client_options() };
    let client = Client::connect(options);
    client.ready(DEADLINE).await.unwrap();
    // Whichever replica serves it: one after the other is taken away, never more than one at a time is
    // needed.
    let mut stream = Box::pin(cluster.client.read(&key.pieces, 0..key.size));
    let mut got = Vec::new();
    while got.len() < MIB {
        got.extend_from_slice(&stream.next().await.unwrap().unwrap());
    }
    let one = cluster.nodes.remove(0);
    one.stop().await;
    let two = cluster.nodes.remove(0);
    two.stop().await;
    while let Some(chunk) = stream.next().await {
        got.extend_from_slice(&chunk.unwrap());
    }
    assert!(body == got);
    drop(stream);

    // Who has the bytes and does not answer may answer later; who says that they are damaged will not.
    cluster.nodes.remove(0).stop().await;
    let mut unread = Box::pin(client.read(&key.pieces, 0..key.size));
    let error = unread.next().await.unwrap().unwrap_err();
    assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
    drop(unread);
    cluster.stop().await;
}

/// A writer who asks for all replicas has them, or is told that a majority was all there was in time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_asks_for_all_replicas_says_whether_all_have_it() {
    let mut cluster = Cluster::start().await;
    cluster.all_pipelines_led().await;
    // Longer than a busy machine takes, and short of what a writer takes for a stall.
    let options =
        ClientOptions { ack_all_within: DEADLINE / 4, stall: DEADLINE / 2, ..cluster.client_options() };
    let patient = client(options).await.with_ack(Ack::All);
    let written = patient.write_blocks(frames(bytes_of(3 * MIB, 9))).await.unwrap();
    assert_eq!(written.reached, Ack::All);
    let written = patient.with_ack(Ack::Majority).write_blocks(frames(bytes_of(MIB, 9))).await.unwrap();
    assert_eq!(written.reached, Ack::Majority, "more was not asked for");

    let options = ClientOptions { ack_all_within: Duration::from_millis(200), ..cluster.client_options() };
    let hasty = client(options).await.with_ack(Ack::All);
    let away = hasty.view().pipelines[0].members[2].node;
    cluster.stop_node(away).await;
    let written = hasty.write_blocks(frames(bytes_of(MIB, 10))).await.unwrap();
    assert_eq!((written.reached, written.size), (Ack::Majority, MIB as u64));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_quorum_a_write_fails_within_its_deadline() {
    let mut cluster = Cluster::start().await;
    cluster.all_pipelines_led().await;
    let view = cluster.client.view();
    let options = ClientOptions { write_deadline: Duration::from_secs(5), ..cluster.client_options() };
    let impatient = client(options).await;
    for member in &view.pipelines[0].members[..2] {
        cluster.stop_node(member.node).await;
    }
    let begun = tokio::time::Instant::now();
    let body = frames(bytes_of(100_000, 8));
    let error = impatient.write_blocks(body).await.unwrap_err();
    assert!(matches!(error, ClientError::Unavailable(_)), "{error:?}");
    // Late perhaps, on a busy machine, but by no other deadline than its own.
    assert!(begun.elapsed() < ClientOptions::default().write_deadline, "{:?}", begun.elapsed());
    cluster.stop().await;
}
