use crate::cluster::{in_cluster, told_in};
use std::sync::{Arc, OnceLock};
use tonic::service::Interceptor;
use tonic::{Request, Status};

/// The name that calls of one process carry: that of the cluster whose service was the first to answer it. A
/// list of addresses may hold some of another cluster; those refuse from then on.
#[derive(Clone, Debug, Default)]
pub struct Naming {
    cluster: Arc<OnceLock<String>>,
}

impl Naming {
    /// Names `cluster` from now on, unless a name is known already.
    pub fn know(&self, cluster: &str) {
        self.cluster.get_or_init(|| cluster.to_owned());
    }

    pub fn is_known(&self) -> bool {
        self.cluster.get().is_some()
    }

    /// Whether a call was refused for naming no cluster; then it may be sent again, and names this one.
    pub fn learn(&self, refusal: &Status) -> bool {
        let Some(told) = told_in(refusal.metadata()) else { return false };
        self.know(told);
        true
    }
}

impl Interceptor for Naming {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        Ok(match self.cluster.get() {
            Some(cluster) => in_cluster(request, cluster),
            None => request,
        })
    }
}
