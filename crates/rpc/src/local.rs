//! Calls between roles of one process.

use crate::connector::{Channel, Connector};
use crate::{Gate, Gated};
use futures::FutureExt;
use futures::future::BoxFuture;
use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, RwLock};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::service::Routes;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt};

/// The ports that this process answers, by the addresses under which others know them. Who is in the process too needs
/// no connection: it calls what is behind the port.
#[derive(Clone, Default)]
pub struct LocalPorts(Arc<RwLock<HashMap<String, Gated<Routes>>>>);

/// A port that is answered here, until it is dropped.
pub struct LocalPort {
    ports: LocalPorts,
    address: String,
}

impl LocalPorts {
    pub fn open(&self, address: &str, gate: &Gate, routes: Routes) -> LocalPort {
        let calls = gate.layer(routes);
        self.0.write().expect("no holder panics").insert(address.to_owned(), calls);
        LocalPort { ports: self.clone(), address: address.to_owned() }
    }

    /// The ways of `others`, and calls to the ports of this process.
    pub fn and(&self, others: impl Connector) -> LocalConnector {
        LocalConnector { ports: self.clone(), others: Arc::new(others) }
    }

    fn at(&self, address: &str) -> Option<Gated<Routes>> {
        self.0.read().expect("no holder panics").get(address).cloned()
    }
}

impl Drop for LocalPort {
    fn drop(&mut self) {
        self.ports.0.write().expect("no holder panics").remove(&self.address);
    }
}

/// A way to all processes, this one included.
pub struct LocalConnector {
    ports: LocalPorts,
    others: Arc<dyn Connector>,
}

impl Connector for LocalConnector {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let (ports, others) = (self.ports.clone(), self.others.connect(address)?);
        Ok(BoxCloneSyncService::new(Way { ports, address: address.into(), others }))
    }
}

/// A way to one address, which may come to be of this process, or cease to be.
#[derive(Clone)]
struct Way {
    ports: LocalPorts,
    address: Arc<str>,
    others: Channel,
}

impl Service<Request<Body>> for Way {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match self.ports.at(&self.address) {
            Some(calls) => answer(calls, request).boxed(),
            None => self.others.clone().oneshot(request).boxed(),
        }
    }
}

/// A panic ends the call, as it does where the call comes over a connection, and not its caller.
async fn answer(calls: Gated<Routes>, request: Request<Body>) -> Result<Response<Body>, Status> {
    match AssertUnwindSafe(calls.oneshot(request)).catch_unwind().await {
        Ok(Ok(answer)) => Ok(answer),
        Err(_) => Err(Status::internal("the call ended in a panic")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{GateOptions, TcpConnector};

    async fn ask(channel: &Channel) -> Result<Option<String>, Status> {
        let request = Request::builder().uri("/a.B/C").body(Body::empty()).unwrap();
        let answer = channel.clone().oneshot(request).await?;
        Ok(answer.headers().get("grpc-status").map(|status| status.to_str().unwrap().to_owned()))
    }

    #[tokio::test]
    async fn a_port_of_this_process_is_called_while_it_is_open() {
        let (ports, gate) = (LocalPorts::default(), Gate::new(GateOptions::default()));
        // Nobody listens there.
        let channel = ports.and(TcpConnector::default()).connect("127.0.0.1:1").unwrap();
        assert_eq!(ask(&channel).await.unwrap_err().code(), tonic::Code::Unavailable);
        let port = ports.open("127.0.0.1:1", &gate, Routes::default());
        assert_eq!(
            ask(&channel).await.unwrap(),
            Some("12".to_owned()),
            "an answer of the routes, which have none such"
        );
        assert_eq!(gate.counts().calls.get(), 1);
        drop(port);
        assert_eq!(ask(&channel).await.unwrap_err().code(), tonic::Code::Unavailable);
    }
}
