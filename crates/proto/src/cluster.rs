use crate::{Code, Failure, Retry};
use std::sync::Arc;
use tonic::metadata::{AsciiMetadataKey, MetadataMap};
use tonic::service::Interceptor;
use tonic::{Request, Status};

const CLUSTER: &str = "flotilla-cluster";

/// Marks a call as meant for a node of `cluster`.
pub fn in_cluster<T>(mut request: Request<T>, cluster: &str) -> Request<T> {
    if let Ok(cluster) = cluster.parse() {
        request.metadata_mut().insert(AsciiMetadataKey::from_static(CLUSTER), cluster);
    }
    request
}

/// The cluster a call is meant for.
fn cluster_of(metadata: &MetadataMap) -> Option<&str> {
    metadata.get(CLUSTER)?.to_str().ok().filter(|cluster| !cluster.is_empty())
}

/// Stands in front of each service: pipelines, containers and buckets have the same numbers and names in
/// every cluster, so a caller whose address of a node is old must not read or write those of the cluster that
/// has the address now.
#[derive(Clone)]
pub struct ClusterGuard {
    here: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    takes_strangers: bool,
}

impl ClusterGuard {
    /// A guard in front of what only members and clients of a cluster have to do with. Each call names the
    /// cluster. `here` is `None` until this process has joined one.
    pub fn new(here: impl Fn() -> Option<String> + Send + Sync + 'static) -> ClusterGuard {
        ClusterGuard { here: Arc::new(here), takes_strangers: false }
    }

    /// A guard in front of what tells strangers which cluster it is: who names none is answered, who names
    /// another is not.
    pub fn taking_strangers(here: impl Fn() -> Option<String> + Send + Sync + 'static) -> ClusterGuard {
        ClusterGuard { takes_strangers: true, ..ClusterGuard::new(here) }
    }

    pub fn check(&self, metadata: &MetadataMap) -> Result<(), Failure> {
        let meant = cluster_of(metadata);
        if meant.is_none() && self.takes_strangers {
            return Ok(());
        }
        let Some(here) = (self.here)() else { return Ok(()) };
        if meant == Some(here.as_str()) {
            return Ok(());
        }
        let why = match meant {
            Some(meant) => format!("this node belongs to cluster `{here}`, the request to `{meant}`"),
            None => format!("this node belongs to cluster `{here}`, the request names none"),
        };
        Err(Failure { retry: Retry::Elsewhere, ..Failure::new(Code::WrongCluster, why) })
    }
}

impl Interceptor for ClusterGuard {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        self.check(request.metadata())?;
        Ok(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gets_no_further_than_its_cluster() {
        let code = |guard: &ClusterGuard, cluster: &str| {
            let call = in_cluster(Request::new(()), cluster);
            guard.check(call.metadata()).err().map(|failure| failure.code)
        };
        let blue = || Some("blue".to_owned());
        let (strict, open) = (ClusterGuard::new(blue), ClusterGuard::taking_strangers(blue));
        let unborn = ClusterGuard::new(|| None);
        assert_eq!((code(&strict, "blue"), code(&open, "blue")), (None, None));
        assert_eq!(code(&strict, "red"), Some(Code::WrongCluster));
        assert_eq!(code(&open, "red"), Some(Code::WrongCluster));
        assert_eq!((code(&strict, ""), code(&open, "")), (Some(Code::WrongCluster), None));
        assert_eq!((code(&unborn, ""), code(&unborn, "red")), (None, None));
    }
}
