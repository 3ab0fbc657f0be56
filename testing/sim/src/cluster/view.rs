use super::ledger::Ledger;
use crate::services::ScmCalls;
use proto::Failure;
use proto::scm::{
    ClusterStatus, ContainerInfo, DatanodeInfo, GetClusterStatusRequest, ListContainersRequest,
    ListDatanodesRequest, ListOmsRequest, ListOmsResponse, ListPipelinesRequest, Pipeline,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

const INTERVAL: Duration = Duration::from_millis(250);

/// The cluster as SCM shows it to operators.
#[derive(Clone, Debug)]
pub(super) struct View {
    /// The world's time before SCM was asked.
    pub(super) asked_at: Duration,
    pub(super) status: ClusterStatus,
    pub(super) datanodes: Vec<DatanodeInfo>,
    pub(super) pipelines: Vec<Pipeline>,
    pub(super) containers: Vec<ContainerInfo>,
    pub(super) oms: ListOmsResponse,
}

/// The newest view of the cluster; a cheap handle.
#[derive(Clone, Default)]
pub(super) struct Views {
    newest: Arc<Mutex<Option<Arc<View>>>>,
}

impl Views {
    pub(super) fn newest(&self) -> Option<Arc<View>> {
        self.newest.lock().expect("no holder panics").clone()
    }

    /// Asks SCM for a view again and again.
    pub(super) async fn follow(self, scm: ScmCalls, ledger: Ledger, now: impl Fn() -> Duration) {
        loop {
            match ask(&scm, now()).await {
                Ok(view) => *self.newest.lock().expect("no holder panics") = Some(Arc::new(view)),
                Err(failure) => ledger.event(format_args!("SCM shows nothing: {}", failure.message)),
            }
            sleep(INTERVAL).await;
        }
    }
}

async fn ask(scm: &ScmCalls, asked_at: Duration) -> Result<View, Failure> {
    let status = scm.call(|mut scm| async move { scm.get_cluster_status(GetClusterStatusRequest {}).await });
    let status = status.await?;
    let datanodes = scm.call(|mut scm| async move { scm.list_datanodes(ListDatanodesRequest {}).await });
    let datanodes = datanodes.await?.datanodes;
    let pipelines = scm.call(|mut scm| async move { scm.list_pipelines(ListPipelinesRequest {}).await });
    let pipelines = pipelines.await?.pipelines;
    let containers =
        scm.call(|mut scm| async move { scm.list_containers(ListContainersRequest::default()).await });
    let containers = containers.await?.containers;
    let oms = scm.call(|mut scm| async move { scm.list_oms(ListOmsRequest {}).await }).await?;
    Ok(View { asked_at, status, datanodes, pipelines, containers, oms })
}
