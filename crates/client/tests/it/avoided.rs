//! Reads beside a replica that its node does not give, whatever SCM says of that node.

use crate::cluster::{BUCKET, Cluster, DEADLINE, bytes_of};
use flotilla_client::{Client, ClientOptions, S3_VOLUME};
use futures::TryStreamExt;
use futures::future::BoxFuture;
use rpc::{Channel, Connector, TcpConnector};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};

/// Each begins at one of three replicas, by chance: that none of so many would begin at the broken one
/// happens once in 10^17 runs.
const READS: usize = 100;
/// Many times what a busy machine takes for a read, and less than [`ClientOptions::read_stall`] is here.
const SOON: Duration = Duration::from_secs(20);
/// A replica that has not answered for less is not late.
const NOT_LATE: Duration = Duration::from_millis(300);

/// A broken address is avoided for ten seconds: one read of three would have asked it some thirty times.
const ASKED_MAX: usize = 10;

/// What becomes of a call to the broken address.
#[derive(Clone, Copy)]
enum Ends {
    Never,
    AtOnce,
}

/// The way to a cluster of which one node cannot be reached.
struct Ways {
    broken: String,
    ends: Ends,
    asked: Arc<AtomicUsize>,
}

impl Connector for Ways {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        match address == self.broken {
            true => Ok(Channel::new(Broken { ends: self.ends, asked: self.asked.clone() })),
            false => TcpConnector::default().connect(address),
        }
    }
}

#[derive(Clone)]
struct Broken {
    ends: Ends,
    asked: Arc<AtomicUsize>,
}

impl Service<Request<Body>> for Broken {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.ends {
            Ends::Never => Box::pin(std::future::pending()),
            Ends::AtOnce => Box::pin(std::future::ready(Err(Status::unavailable("nobody listens")))),
        }
    }
}

/// The number of times that the broken address was asked for one of [`READS`], and the time that the longest
/// of those reads took.
async fn read_past(ends: Ends) -> (usize, Duration) {
    let cluster = Cluster::start().await;
    let body = bytes_of(1000, 1);
    cluster.put("key", body.clone()).await.unwrap();
    let key = cluster.client.lookup(S3_VOLUME, BUCKET, b"key").await.unwrap();
    // Whoever is asked has it.
    cluster.all_caught_up().await;

    let asked = Arc::new(AtomicUsize::new(0));
    let ways = Ways { broken: cluster.nodes[0].address.clone(), ends, asked: asked.clone() };
    let options =
        ClientOptions { read_stall: DEADLINE / 2, read_deadline: DEADLINE, ..cluster.client_options() };
    let client = Client::over(options, Arc::new(ways));
    let mut view = client.watch_view();
    let knows = view.wait_for(|view| !view.cluster.is_empty());
    tokio::time::timeout(DEADLINE, knows).await.expect("SCM answers").unwrap();
    let mut longest = Duration::ZERO;
    for _ in 0..READS {
        let (before, begun) = (asked.load(Ordering::Relaxed), Instant::now());
        let read: Vec<_> = client.read(&key.pieces, 0..key.size).try_collect().await.unwrap();
        assert!(read.concat() == body);
        if asked.load(Ordering::Relaxed) > before {
            longest = longest.max(begun.elapsed());
        }
    }
    cluster.stop().await;
    (asked.load(Ordering::Relaxed), longest)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_does_not_answer_is_passed_over_soon_and_asked_last_by_those_that_follow() {
    let (asked, longest) = read_past(Ends::Never).await;
    assert!((NOT_LATE..SOON).contains(&longest), "{longest:?}");
    assert!((1..=ASKED_MAX).contains(&asked), "asked {asked} times");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_fails_is_asked_last_by_those_that_follow() {
    let (asked, _) = read_past(Ends::AtOnce).await;
    assert!((1..=ASKED_MAX).contains(&asked), "asked {asked} times");
}
