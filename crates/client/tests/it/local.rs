//! A client in the process of those it speaks to.

use crate::cluster::{BUCKET, Cluster, DEADLINE, bytes_of, frames};
use flotilla_client::{Client, ClientOptions, S3_VOLUME};
use futures::TryStreamExt;
use rpc::{Channel, Connector, LocalConnector};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::util::BoxCloneSyncService;

/// A network that is not there.
#[derive(Clone, Default)]
struct Nowhere(Arc<AtomicUsize>);

impl Connector for Nowhere {
    fn connect(&self, _: &str) -> Result<Channel, String> {
        let asked = self.0.clone();
        Ok(BoxCloneSyncService::new(tower::service_fn(move |_: Request<Body>| {
            asked.fetch_add(1, Ordering::Relaxed);
            async { Err::<Response<Body>, _>(Status::unavailable("there is no network")) }
        })))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_in_the_same_process_is_written_and_read_over_no_connection() {
    let cluster = Cluster::start().await;
    let (local, network) = (cluster.local(), Nowhere::default());
    let connector = LocalConnector { local: local.clone(), others: network.clone() };
    let options = ClientOptions { local, ..cluster.client_options() };
    let client = Client::over(options, Arc::new(connector));
    client.ready(DEADLINE).await.unwrap();
    for (name, length) in [("small", 4096), ("large", (3 << 20) + 77)] {
        let body = bytes_of(length, length as u64);
        let put =
            client.put(S3_VOLUME, BUCKET, name.as_bytes(), Default::default(), None, frames(body.clone()));
        put.await.unwrap();
        let key = client.lookup(S3_VOLUME, BUCKET, name.as_bytes()).await.unwrap();
        let read: Vec<_> = client.read(&key.pieces, 0..key.size).try_collect().await.unwrap();
        assert!(read.concat() == body, "{name}");
    }
    assert_eq!(network.0.load(Ordering::Relaxed), 0, "calls that went over the network");
    drop(client);
    cluster.stop().await;
}
