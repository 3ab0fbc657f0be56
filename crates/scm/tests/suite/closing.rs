use crate::datanodes::{Datanode, register};
use crate::server::Server;
use proto::scm::*;
use proto::{Code, Failure};

async fn close(server: &mut Server, pipeline: u64) -> Result<(), Failure> {
    server.client.close_pipeline(ClosePipelineRequest { pipeline }).await?;
    Ok(())
}

fn told(answer: &HeartbeatResponse, pipeline: u64) -> Option<&Pipeline> {
    answer.pipelines.iter().find(|told| told.pipeline == pipeline)
}

/// A node's report on a container of a pipeline that has ended there.
fn closed(container: u64, pipeline: u64, blocks: u64) -> ContainerReplica {
    ContainerReplica {
        container,
        pipeline,
        state: ReplicaState::ReplicaClosed as i32,
        last_term: 1,
        last_index: 40,
        blocks,
        ..ContainerReplica::default()
    }
}

async fn locate(server: &mut Server, container: u64) -> Vec<u64> {
    let request = LocateContainersRequest { containers: vec![container] };
    let found = server.client.locate_containers(request).await.unwrap().into_inner().locations;
    found.iter().flat_map(|location| &location.replicas).map(|replica| replica.node).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_pipeline_ends_at_its_members_and_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let datanodes = register(&mut server, 3).await;
    let pipelines = server.pipelines_become("pipelines", |pipelines| pipelines.len() == 4).await;
    assert_eq!(close(&mut server, 99).await.unwrap_err().code, Code::NotFound);
    for _ in 0..2 {
        close(&mut server, 1).await.unwrap();
    }
    let replaced = server.pipelines_become("replacement", |pipelines| pipelines.len() == 5).await;
    let closing = &replaced[0];
    assert_eq!((closing.pipeline, closing.state()), (1, PipelineState::PipelineClosing));
    assert_eq!(closing.close_reason, "an operator closed it");

    // Members hear with which container it ends, and say that it has ended.
    let mut reports: Vec<Vec<PipelineReport>> = Vec::new();
    for datanode in &datanodes {
        let answer = datanode.report(&mut server, datanode.reports(&replaced)).await.unwrap();
        let told = told(&answer, 1).expect("members of a closing pipeline hear of it");
        assert_eq!(told.state(), PipelineState::PipelineClosing);
        assert!(told.end_container > 4, "{told:?}");
        let mut ended = datanode.reports(&replaced);
        ended[0].set_state(MemberState::Ended);
        reports.push(ended);
    }
    for (datanode, reports) in datanodes.iter().zip(&reports) {
        let containers = vec![closed(pipelines[0].first_container, 1, 7)];
        datanode.report_all(&mut server, reports.clone(), containers).await.unwrap();
    }
    server.pipelines_become("end", |pipelines| pipelines[0].state() == PipelineState::PipelineClosed).await;

    // It is told only to those that still have it.
    let answer = datanodes[0].report(&mut server, reports[0].clone()).await.unwrap();
    assert_eq!(told(&answer, 1).map(Pipeline::state), Some(PipelineState::PipelineClosed));
    let answer = datanodes[0].report(&mut server, reports[0][1..].to_vec()).await.unwrap();
    assert_eq!(told(&answer, 1), None);
    assert_eq!(answer.pipelines.len(), 4);
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_containers_are_found_where_good_replicas_are() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let datanodes = register(&mut server, 4).await;
    let pipelines = server.pipelines_become("pipelines", |pipelines| pipelines.len() >= 4).await;
    let (pipeline, container) = (&pipelines[0], pipelines[0].first_container);
    let members: Vec<u64> = pipeline.members.iter().map(|member| member.node).collect();
    let of_node =
        |node: u64| -> &Datanode { datanodes.iter().find(|datanode| datanode.node == node).unwrap() };
    assert_eq!(locate(&mut server, container).await, members);

    // A member of it, and a node that got a copy, have it; another member's ends too early.
    let other = (1..=4).find(|node| !members.contains(node)).unwrap();
    let stale = ContainerReplica { last_index: 39, ..closed(container, 1, 7) };
    for (node, replica) in
        [(members[0], closed(container, 1, 7)), (other, closed(container, 1, 7)), (members[1], stale)]
    {
        let datanode = of_node(node);
        let answer = datanode.report(&mut server, datanode.reports(&pipelines)).await.unwrap();
        assert!(answer.report_all);
        let answer =
            datanode.report_all(&mut server, datanode.reports(&pipelines), vec![replica]).await.unwrap();
        assert!(!answer.report_all);
    }
    let mut expected = vec![members[0], other];
    expected.sort_unstable();
    server.becomes("the replicas", async |server| locate(server, container).await == expected).await;
    server.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_without_sense_are_refused_whole() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path()).await;
    let datanodes = register(&mut server, 1).await;
    let failure = datanodes[0].report_all(&mut server, vec![], vec![closed(0, 1, 1)]).await.unwrap_err();
    assert_eq!(failure.code, Code::Invalid);
    let many = (1..=10_001).map(|container| closed(container, 1, 1)).collect();
    let failure = datanodes[0].report_all(&mut server, vec![], many).await.unwrap_err();
    assert_eq!(failure.code, Code::Invalid);
    assert!(datanodes[0].heartbeat(&mut server).await.report_all);
    server.stop().await;
}
