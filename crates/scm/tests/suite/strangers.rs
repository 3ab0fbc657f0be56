//! Calls of who does not know the cluster, or means another one.

use crate::server::Server;
use proto::registry::PutKeyRequest;
use proto::registry::registry_client::RegistryClient;
use proto::scm::scm_client::ScmClient;
use proto::scm::*;
use proto::{Code, Failure, Naming};
use tonic::service::Interceptor;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status};

async fn channel(server: &Server) -> Channel {
    Endpoint::from_shared(format!("http://{}", server.address)).unwrap().connect().await.unwrap()
}

fn name_another(call: Request<()>) -> Result<Request<()>, Status> {
    Ok(proto::in_cluster(call, "another"))
}

fn name_none(call: Request<()>) -> Result<Request<()>, Status> {
    Ok(call)
}

/// The calls that were answered, or refused for another reason than the cluster.
async fn reached(server: &Server, naming: impl Interceptor + Clone) -> Vec<&'static str> {
    let channel = channel(server).await;
    let mut scm = ScmClient::with_interceptor(channel.clone(), naming.clone());
    let mut registry = RegistryClient::with_interceptor(channel, naming);
    let key = PutKeyRequest { key: "a".to_owned(), value: "b".into(), ..PutKeyRequest::default() };
    let calls = [
        ("status", scm.get_cluster_status(GetClusterStatusRequest {}).await.map(drop)),
        ("introduce", scm.introduce(IntroduceRequest {}).await.map(drop)),
        ("watch", scm.watch(WatchRequest {}).await.map(drop)),
        ("register", scm.register(RegisterRequest::default()).await.map(drop)),
        ("heartbeat", scm.heartbeat(HeartbeatRequest::default()).await.map(drop)),
        ("pipelines", scm.list_pipelines(ListPipelinesRequest {}).await.map(drop)),
        ("switches", scm.set_switches(SetSwitchesRequest::default()).await.map(drop)),
        ("close", scm.close_container(CloseContainerRequest { container: 1 }).await.map(drop)),
        ("put", registry.put_key(key).await.map(drop)),
    ];
    let is_refused = |status: Status| Failure::from(status).code == Code::WrongCluster;
    calls.into_iter().filter_map(|(name, call)| (!call.is_err_and(is_refused)).then_some(name)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_hear_which_cluster_it_is_and_join_it_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path()).await;
    assert_eq!(reached(&server, name_none).await, ["status", "introduce", "watch", "register"]);
    assert_eq!(reached(&server, name_another).await, [""; 0]);
    server.stop().await;
}

/// As `admin` and the registry's clients do: a list of addresses may hold some of another cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_was_told_the_name_of_one_cluster_is_refused_by_another() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (first, second) = (Server::start(first.path()).await, Server::start(second.path()).await);
    let naming = Naming::default();
    let mut scm = ScmClient::with_interceptor(channel(&first).await, naming.clone());
    let refusal = scm.list_pipelines(ListPipelinesRequest {}).await.unwrap_err();
    assert!(naming.learn(&refusal));
    scm.list_pipelines(ListPipelinesRequest {}).await.unwrap();
    let mut other = ScmClient::with_interceptor(channel(&second).await, naming.clone());
    let refusal = other.list_pipelines(ListPipelinesRequest {}).await.unwrap_err();
    assert!(!naming.learn(&refusal), "it belongs to the first");
    assert_eq!(Failure::from(refusal).code, Code::WrongCluster);
    drop((scm, other));
    first.stop().await;
    second.stop().await;
}
