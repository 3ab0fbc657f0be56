use crate::datanodes::register;
use crate::server::Server;
use flotilla_scm::ScmOptions;
use proto::scm::*;
use proto::{Code, Failure};
use std::path::Path;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_scm_knows_what_it_knew() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let cluster = server.scm.cluster();
    assert!(!cluster.is_empty());
    let mut datanodes = register(&mut server, 3).await;
    let before = server.pipelines_become("pipelines", |pipelines| pipelines.len() == 4).await;
    for datanode in &datanodes[..2] {
        datanode.report(&mut server, datanode.reports(&before)).await.unwrap();
    }
    let open = |pipelines: &[Pipeline]| pipelines.iter().all(|p| p.state() == PipelineState::PipelineOpen);
    let before = server.pipelines_become("open pipelines", open).await;
    let next = allocate(&mut server, 1, 1).await.unwrap();
    server.stop().await;

    let mut server = Server::start(dir.path()).await;
    assert_eq!(server.scm.cluster(), cluster);
    assert!(server.datanodes().await.iter().all(|datanode| datanode.state() == NodeState::NodeStale));
    for datanode in &mut datanodes {
        let node = datanode.node;
        datanode.register(&mut server).await.unwrap();
        assert_eq!(datanode.node, node);
        let answer = datanode.heartbeat(&mut server).await;
        assert_eq!(answer.pipelines.len(), 4);
    }
    let after = server.pipelines().await;
    let decided = |pipeline: &Pipeline| {
        (pipeline.pipeline, pipeline.state, pipeline.members.clone(), pipeline.first_container)
    };
    assert!(after.iter().map(decided).eq(before.iter().map(decided)), "{after:#?} {before:#?}");
    assert_eq!(allocate(&mut server, 1, 1).await.unwrap(), next);
    assert_ne!(allocate(&mut server, 1, next).await.unwrap(), next);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_whose_scm_was_lost_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    Server::start(dir.path()).await.stop().await;
    for lost in ["db-scm", "groups", "meta"] {
        remove_dir(&dir.path().join(lost));
    }
    let error = Server::try_start(dir.path(), ScmOptions::default()).await.err().expect("it must not start");
    assert!(format!("{error:#}").contains("restore them"), "{error:#}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn containers_are_found_where_their_pipeline_is() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    register(&mut server, 3).await;
    server.pipelines_become("pipelines", |pipelines| pipelines.len() == 4).await;
    let next = allocate(&mut server, 2, 2).await.unwrap();
    let request = LocateContainersRequest { containers: vec![next, 2, 999] };
    let found = server.client.locate_containers(request).await.unwrap().into_inner().locations;
    let brief: Vec<_> = found.iter().map(|location| (location.container, location.pipeline)).collect();
    assert_eq!(brief, [(next, 2), (2, 2)]);
    assert_eq!(found[0].replicas.len(), 3);
    assert_eq!(allocate(&mut server, 1, next).await.unwrap_err().code, Code::NotFound);
    assert_eq!(allocate(&mut server, 77, 1).await.unwrap_err().code, Code::NotFound);
    let request = LocateContainersRequest { containers: vec![1; 10_001] };
    let failure = Failure::from(server.client.locate_containers(request).await.unwrap_err());
    assert_eq!(failure.code, Code::TooLarge);
    server.stop().await;
}

async fn allocate(server: &mut Server, pipeline: u64, after: u64) -> Result<u64, Failure> {
    let request = AllocateContainerRequest { pipeline, after };
    Ok(server.client.allocate_container(request).await?.into_inner().container)
}

#[allow(clippy::disallowed_methods)] // the test damages a stopped server's files
fn remove_dir(path: &Path) {
    std::fs::remove_dir_all(path).unwrap();
}
