use disk::RealDisk;
use flotilla_scm::{Scm, ScmOptions};
use metrics::Exposition;
use proto::registry::registry_client::RegistryClient;
use proto::scm::scm_client::ScmClient;
use proto::scm::*;
use raft::{AddressBook, HostOptions, RaftHost};
use raftlog::{LogSpace, LogSpaceOptions};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;
use testkit::prometheus::Scrape;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tonic::service::interceptor::InterceptedService;
use tonic::service::{Interceptor, RoutesBuilder};
use tonic::transport::{Channel, Endpoint};
use types::SystemClock;

/// Longer than anything takes on a busy machine.
pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

pub(crate) type Client = ScmClient<InterceptedService<Channel, NameCluster>>;
pub(crate) type Registry = RegistryClient<InterceptedService<Channel, NameCluster>>;

/// Names the server's cluster in each call, once it belongs to one.
#[derive(Clone)]
pub(crate) struct NameCluster(Weak<Scm>);

impl Interceptor for NameCluster {
    fn call(&mut self, call: tonic::Request<()>) -> Result<tonic::Request<()>, tonic::Status> {
        // Weak: a client must not keep the directory of a server that has stopped.
        let cluster = self.0.upgrade().map(|scm| scm.cluster()).unwrap_or_default();
        Ok(if cluster.is_empty() { call } else { proto::in_cluster(call, &cluster) })
    }
}

/// An SCM on a free port, or where its options say.
pub(crate) struct Server {
    pub(crate) scm: Arc<Scm>,
    pub(crate) address: String,
    pub(crate) client: Client,
    pub(crate) registry: Registry,
    host: RaftHost,
    stop: oneshot::Sender<()>,
    served: JoinHandle<()>,
}

impl Server {
    pub(crate) async fn start(dir: &Path) -> Server {
        Server::start_with(dir, ScmOptions::default()).await
    }

    pub(crate) async fn start_with(dir: &Path, options: ScmOptions) -> Server {
        Server::try_start(dir, options).await.unwrap()
    }

    pub(crate) async fn try_start(dir: &Path, options: ScmOptions) -> anyhow::Result<Server> {
        let disk = Arc::new(RealDisk::open_once_free(dir, 1, DEADLINE).await?);
        let log =
            LogSpaceOptions { reserve_bytes: 0, segment_bytes_max: 1 << 20, ..LogSpaceOptions::default() };
        let space = LogSpace::new(disk.clone(), log);
        let addresses = AddressBook::default();
        let host = RaftHost::new(HostOptions::default(), addresses.clone());
        let at = if options.address.is_empty() { "127.0.0.1:0" } else { &options.address };
        let listener = TcpListener::bind(at).await?;
        let address = listener.local_addr()?.to_string();
        let options = ScmOptions { address: address.clone(), ..options };
        let scm = Scm::start(options, disk, space, host.clone(), addresses, Arc::new(SystemClock)).await?;

        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        scm.add_to(&mut routes);
        let (stop, stopped) = oneshot::channel::<()>();
        let served = tokio::spawn(rpc::serve(listener, routes.routes(), async { drop(stopped.await) }));
        let scm = Arc::new(scm);
        let channel = Endpoint::from_shared(format!("http://{address}"))?.connect().await?;
        let client = ScmClient::with_interceptor(channel.clone(), NameCluster(Arc::downgrade(&scm)));
        let registry = RegistryClient::with_interceptor(channel, NameCluster(Arc::downgrade(&scm)));
        Ok(Server { scm, address, client, registry, host, stop, served })
    }

    /// Stops in the order of the server: services first, so that streams end and the port closes.
    pub(crate) async fn stop(self) {
        self.scm.shutdown().await;
        self.host.shutdown().await;
        drop((self.client, self.registry));
        let _ = self.stop.send(());
        tokio::time::timeout(DEADLINE, self.served).await.expect("the server ends with its streams").unwrap();
    }

    /// A metric without labels, as Prometheus would see it now.
    pub(crate) fn metric(&self, name: &str) -> f64 {
        let mut exposition = Exposition::default();
        self.scm.expose(&mut exposition);
        let scrape = Scrape::parse(&exposition.finish()).unwrap();
        scrape.value(name, &[]).expect("a metric of that name")
    }

    pub(crate) async fn datanodes(&mut self) -> Vec<DatanodeInfo> {
        self.client.list_datanodes(ListDatanodesRequest {}).await.unwrap().into_inner().datanodes
    }

    pub(crate) async fn pipelines(&mut self) -> Vec<Pipeline> {
        self.client.list_pipelines(ListPipelinesRequest {}).await.unwrap().into_inner().pipelines
    }

    /// Waits for a condition.
    pub(crate) async fn becomes(&mut self, what: &str, wanted: impl AsyncFn(&mut Server) -> bool) {
        let deadline = Instant::now() + DEADLINE;
        while !wanted(self).await {
            assert!(Instant::now() < deadline, "no {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn pipelines_become(
        &mut self,
        what: &str,
        wanted: impl Fn(&[Pipeline]) -> bool,
    ) -> Vec<Pipeline> {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let pipelines = self.pipelines().await;
            if wanted(&pipelines) {
                return pipelines;
            }
            assert!(Instant::now() < deadline, "no {what}: {pipelines:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}
