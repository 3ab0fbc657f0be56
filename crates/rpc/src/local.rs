//! Calls between the roles of a process: what is said to an address of this very process goes to its
//! services, as a call of theirs by the task that asks, and over no connection.
//!
//! The services and who asks them notice no difference: names of clusters are compared, messages are encoded
//! and decoded. What a port has limits for (connections, calls, bytes of a message) is for strangers.

use crate::connector::{Channel, Connector};
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard};
use tonic::body::Body;
use tonic::codegen::http::Request;
use tonic::service::Routes;
use tower::ServiceExt;
use tower::util::BoxCloneSyncService;

/// The services of this process, by their addresses. A cheap handle.
#[derive(Clone, Default)]
pub struct Local {
    by_address: Arc<Mutex<HashMap<String, Routes>>>,
}

impl Local {
    /// Answers what is said to "host:port", until [`Local::close`].
    pub fn open(&self, address: &str, routes: Routes) {
        self.lock().insert(address.to_owned(), routes);
    }

    /// Lets go of the services of an address. Calls that are under way go on.
    pub fn close(&self, address: &str) {
        self.lock().remove(address);
    }

    /// Whether somebody answers there.
    pub fn has(&self, address: &str) -> bool {
        self.lock().contains_key(address)
    }

    fn at(&self, address: &str) -> Option<Routes> {
        self.lock().get(address).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Routes>> {
        self.by_address.lock().expect("no holder panics")
    }
}

impl fmt::Debug for Local {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.lock().keys()).finish()
    }
}

/// Reaches this process by calls, and others by another connector.
pub struct LocalConnector<C> {
    pub local: Local,
    pub others: C,
}

impl<C: Connector> Connector for LocalConnector<C> {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let others = self.others.connect(address)?;
        let (local, address) = (self.local.clone(), Arc::<str>::from(address));
        // Looked for with each call: services come and go while somebody has the channel.
        Ok(BoxCloneSyncService::new(tower::service_fn(move |request: Request<Body>| {
            let (here, others) = (local.at(&address), others.clone());
            async move {
                match here {
                    Some(routes) => Ok(routes.oneshot(request).await.unwrap_or_else(|never| match never {})),
                    None => others.oneshot(request).await,
                }
            }
        })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tonic::Status;
    use tonic::codegen::http::Response;

    /// Others, who answer nothing and count who asks.
    #[derive(Clone, Default)]
    struct Others(Arc<AtomicUsize>);

    impl Connector for Others {
        fn connect(&self, _: &str) -> Result<Channel, String> {
            let asked = self.0.clone();
            Ok(BoxCloneSyncService::new(tower::service_fn(move |_: Request<Body>| {
                asked.fetch_add(1, Ordering::Relaxed);
                async { Err::<Response<Body>, _>(Status::unavailable("nobody is there")) }
            })))
        }
    }

    #[tokio::test]
    async fn what_is_here_is_asked_here_as_long_as_it_is() {
        let (local, others) = (Local::default(), Others::default());
        let connector = LocalConnector { local: local.clone(), others: others.clone() };
        let channel = connector.connect("here:1").unwrap();
        let ask = async |channel: &Channel| {
            let request = Request::post("/no.Service/Call").body(Body::empty()).unwrap();
            channel.clone().oneshot(request).await
        };
        assert!(ask(&channel).await.is_err());
        local.open("here:1", Routes::default());
        assert!(local.has("here:1") && !local.has("there:1"));
        // gRPC's answer of services that do not have the method.
        let answer = ask(&channel).await.unwrap();
        assert_eq!(Status::from_header_map(answer.headers()).unwrap().code(), tonic::Code::Unimplemented);
        assert!(ask(&connector.connect("there:1").unwrap()).await.is_err());
        assert_eq!(others.0.load(Ordering::Relaxed), 2);
        local.close("here:1");
        assert!(ask(&channel).await.is_err());
        assert_eq!(others.0.load(Ordering::Relaxed), 3);
    }
}
