use crate::datanodes::register;
use crate::server::{DEADLINE, Server};
use flotilla_scm::ScmOptions;
use futures::StreamExt;
use proto::scm::*;
use proto::{Code, Failure};
use tokio::time::timeout;
use tonic::Streaming;

async fn watch(server: &mut Server) -> Result<Streaming<ClusterView>, Failure> {
    Ok(server.client.watch(WatchRequest {}).await?.into_inner())
}

async fn view(views: &mut Streaming<ClusterView>, wanted: impl Fn(&ClusterView) -> bool) -> ClusterView {
    let found = async {
        loop {
            let view = views.next().await.expect("the watch goes on").unwrap();
            if wanted(&view) {
                return view;
            }
        }
    };
    timeout(DEADLINE, found).await.expect("the view comes")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watchers_see_the_cluster_at_once_and_then_each_change() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let mut views = watch(&mut server).await.unwrap();
    let first = view(&mut views, |_| true).await;
    assert_eq!((first.cluster, first.pipelines.len()), (server.scm.cluster(), 0));

    let mut datanodes = register(&mut server, 3).await;
    let created = view(&mut views, |view| view.pipelines.len() == 4).await;
    assert!(created.pipelines.iter().all(|pipeline| pipeline.leader_node == 0));
    for datanode in &datanodes[1..] {
        datanode.report(&mut server, datanode.reports(&created.pipelines)).await.unwrap();
    }
    let open = view(&mut views, |view| {
        view.pipelines
            .iter()
            .all(|p| p.state() == PipelineState::PipelineOpen && p.leader_node == p.members[0].node)
    });
    open.await;
    datanodes[1].move_to("moved:1", &mut server).await;
    view(&mut views, |view| view.pipelines[0].members.iter().any(|member| member.address == "moved:1")).await;

    let mut late = watch(&mut server).await.unwrap();
    assert_eq!(view(&mut late, |_| true).await.pipelines.len(), 4);
    // Stopping ends the watches, or the server would wait for them.
    server.stop().await;
    assert!(timeout(DEADLINE, async { while let Some(Ok(_)) = views.next().await {} }).await.is_ok());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn watches_are_limited() {
    let dir = tempfile::tempdir().unwrap();
    let mut server =
        Server::start_with(dir.path(), ScmOptions { watchers_max: 1, ..ScmOptions::default() }).await;
    let mut held = watch(&mut server).await.unwrap();
    view(&mut held, |_| true).await;
    assert_eq!(watch(&mut server).await.unwrap_err().code, Code::Busy);
    drop(held);
    let again = async {
        while watch(&mut server).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, again).await.expect("a watch that ended makes room");
    server.stop().await;
}
