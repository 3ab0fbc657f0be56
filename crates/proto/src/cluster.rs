use crate::{Code, Failure, Retry};
use futures::future::{Either, Ready, ready};
use std::sync::Arc;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::{Service, http};
use tonic::metadata::{AsciiMetadataKey, MetadataMap};
use tonic::server::NamedService;
use tonic::{Request, Status};

const CLUSTER: &str = "flotilla-cluster";

/// Marks a call with these headers as meant for a node of `cluster`.
pub(crate) fn name(headers: &mut http::HeaderMap, cluster: &str) {
    if let Ok(cluster) = cluster.parse() {
        headers.insert(CLUSTER, cluster);
    }
}

/// Marks a call as meant for a node of `cluster`.
pub fn in_cluster<T>(mut request: Request<T>, cluster: &str) -> Request<T> {
    if let Ok(cluster) = cluster.parse() {
        request.metadata_mut().insert(AsciiMetadataKey::from_static(CLUSTER), cluster);
    }
    request
}

/// The cluster that the refusal of a nameless call tells of.
pub(crate) fn told_in(refusal: &MetadataMap) -> Option<&str> {
    refusal.get(CLUSTER)?.to_str().ok().filter(|cluster| !cluster.is_empty())
}

/// Stands in front of each service: pipelines, containers and buckets have the same numbers and names in
/// every cluster, so a caller whose address of a node is old must not read or write those of the cluster that
/// has the address now.
#[derive(Clone)]
pub struct ClusterGuard {
    here: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    for_strangers: &'static [&'static str],
}

impl ClusterGuard {
    /// A guard in front of what only members and clients of a cluster have to do with. Each call names the
    /// cluster. `here` is `None` until this process has joined one.
    pub fn new(here: impl Fn() -> Option<String> + Send + Sync + 'static) -> ClusterGuard {
        ClusterGuard { here: Arc::new(here), for_strangers: &[] }
    }

    /// The methods by which strangers hear which cluster this is, or join it: a call of these that names none
    /// is answered, one that names another is not.
    pub fn with_strangers_at(self, methods: &'static [&'static str]) -> ClusterGuard {
        ClusterGuard { for_strangers: methods, ..self }
    }

    pub fn in_front_of<S>(self, service: S) -> Guarded<S> {
        Guarded { service, guard: self }
    }

    /// Refuses a call that names another cluster than this process is in, or none where strangers may not
    /// call. `path` is that of the call: `/package.Service/Method`.
    fn check(&self, path: &str, headers: &http::HeaderMap) -> Result<(), Status> {
        let meant =
            headers.get(CLUSTER).and_then(|meant| meant.to_str().ok()).filter(|meant| !meant.is_empty());
        let method = path.rsplit('/').next().unwrap_or_default();
        if meant.is_none() && self.for_strangers.contains(&method) {
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
        let failure = Failure { retry: Retry::Elsewhere, ..Failure::new(Code::WrongCluster, why) };
        let mut refusal = Status::from(failure);
        // A caller that named another cluster has the wrong address, and is not to take this one for its own.
        if let (None, Ok(here)) = (meant, here.parse()) {
            refusal.metadata_mut().insert(AsciiMetadataKey::from_static(CLUSTER), here);
        }
        Err(refusal)
    }
}

/// A service that only calls of its own cluster reach.
#[derive(Clone)]
pub struct Guarded<S> {
    service: S,
    guard: ClusterGuard,
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, B> Service<http::Request<B>> for Guarded<S>
where
    S: Service<http::Request<B>, Response = http::Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<S::Response, S::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        match self.guard.check(request.uri().path(), request.headers()) {
            Ok(()) => Either::Left(self.service.call(request)),
            Err(refusal) => Either::Right(ready(Ok(refusal.into_http()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_gets_no_further_than_its_cluster() {
        let refusal = |guard: &ClusterGuard, method: &str, cluster: &str| {
            let call = in_cluster(Request::new(()), cluster);
            let headers = call.metadata().clone().into_headers();
            guard.check(&format!("/flotilla.scm.v1.Scm/{method}"), &headers).err()
        };
        let code = |guard: &ClusterGuard, method: &str, cluster: &str| {
            refusal(guard, method, cluster).map(|refusal| Failure::from(refusal).code)
        };
        let wrong = Some(Code::WrongCluster);
        let blue = ClusterGuard::new(|| Some("blue".to_owned())).with_strangers_at(&["Register"]);
        let unborn = ClusterGuard::new(|| None);
        for method in ["Register", "Heartbeat"] {
            assert_eq!((code(&blue, method, "blue"), code(&blue, method, "red")), (None, wrong));
            assert_eq!((code(&unborn, method, ""), code(&unborn, method, "red")), (None, None));
        }
        assert_eq!((code(&blue, "Register", ""), code(&blue, "Heartbeat", "")), (None, wrong));
        let told =
            |cluster| told_in(refusal(&blue, "Heartbeat", cluster).unwrap().metadata()).map(str::to_owned);
        assert_eq!((told(""), told("red")), (Some("blue".to_owned()), None));
    }
}
