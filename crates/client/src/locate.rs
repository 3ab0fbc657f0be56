use crate::view::View;
use proto::scm::scm_client::ScmClient;
use proto::scm::{LocateContainersRequest, NodeAddress};
use proto::{Code, Failure};
use rpc::Link;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;
use types::ContainerId;

/// The places of containers' replicas, as SCM said. A stale entry heals at the first error: its reader goes
/// on with the entry's other replicas, and the next reader has SCM asked again.
pub(crate) struct Locations {
    scm: Link,
    view: watch::Receiver<Arc<View>>,
    locations_max: usize,
    known: Mutex<HashMap<ContainerId, Arc<Replicas>>>,
}

/// Addresses of a container's replicas.
pub(crate) struct Replicas {
    /// Those that are asked first, in no order that means anything.
    pub(crate) first: Vec<String>,
    /// Those that may have what the first cannot give, in their order.
    pub(crate) last: Vec<String>,
    /// Whether a node that has yet to say what it has may have the container.
    pub(crate) is_incomplete: bool,
}

impl Locations {
    pub(crate) fn new(scm: Link, view: watch::Receiver<Arc<View>>, locations_max: usize) -> Locations {
        Locations { scm, view, locations_max, known: Mutex::default() }
    }

    pub(crate) async fn of(&self, container: ContainerId) -> Result<Arc<Replicas>, Failure> {
        if let Some(known) = self.known.lock().expect("no holder panics").get(&container) {
            return Ok(known.clone());
        }
        let found = self.ask(container).await?;
        let mut known = self.known.lock().expect("no holder panics");
        if known.len() >= self.locations_max {
            // This is rare, and the places are cheap to learn again; an order of use would cost every read.
            known.clear();
        }
        known.insert(container, found.clone());
        Ok(found)
    }

    pub(crate) fn forget(&self, container: ContainerId) {
        self.known.lock().expect("no holder panics").remove(&container);
    }

    async fn ask(&self, container: ContainerId) -> Result<Arc<Replicas>, Failure> {
        let answer = self.scm.ask(|channel| async move {
            let request = tonic::Request::new(LocateContainersRequest { containers: vec![container.0] });
            let request = proto::in_cluster(request, &self.view.borrow().cluster);
            ScmClient::new(channel).locate_containers(request).await
        });
        let answer = answer.await?;
        let mut replicas = Replicas { first: Vec::new(), last: Vec::new(), is_incomplete: false };
        for location in answer.locations.into_iter().filter(|location| location.container == container.0) {
            replicas.first.extend(addresses(location.replicas));
            replicas.last.extend(addresses(location.last));
            replicas.is_incomplete |= location.incomplete;
        }
        if replicas.first.is_empty() && replicas.last.is_empty() {
            let (code, yet) =
                if replicas.is_incomplete { (Code::Unavailable, " yet") } else { (Code::NotFound, "") };
            return Err(Failure::new(code, format!("SCM knows no replica of container {container}{yet}")));
        }
        Ok(Arc::new(replicas))
    }
}

fn addresses(nodes: Vec<NodeAddress>) -> impl Iterator<Item = String> {
    nodes.into_iter().map(|node| node.address).filter(|address| !address.is_empty())
}
