use super::body::{CallGuard, PipedBody, pump};
use super::network::{Call, Dialed, Direction, Event, Incoming, Network, ProcessId};
use futures::future::BoxFuture;
use rpc::{Channel, Connector};
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::service::Routes;
use tower::Service;
use tower::util::BoxCloneSyncService;

/// A process's way to others in a simulated network.
pub struct SimConnector {
    pub(super) network: Network,
    pub(super) from: ProcessId,
}

impl Connector for SimConnector {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let to = self.network.find(address).ok_or_else(|| format!("`{address}` is no process"))?;
        Ok(BoxCloneSyncService::new(Caller { network: self.network.clone(), from: self.from, to }))
    }
}

#[derive(Clone)]
struct Caller {
    network: Network,
    from: ProcessId,
    to: ProcessId,
}

impl Service<Request<Body>> for Caller {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Caller { network, from, to } = self.clone();
        Box::pin(call(network, from, to, request))
    }
}

async fn call(
    network: Network,
    from: ProcessId,
    to: ProcessId,
    request: Request<Body>,
) -> Result<Response<Body>, Status> {
    let (parts, body) = request.into_parts();
    let Call { id, mut events, closed } = match network.dial(from, to, parts.uri.path()) {
        Dialed::Call(call) => call,
        Dialed::Refused { after, why } => {
            tokio::time::sleep(after).await;
            return Err(Status::unavailable(why));
        }
    };
    let mut guard = CallGuard { network: network.clone(), call: id, is_done: false };
    network.send(id, Direction::Request, Event::Request(Box::new(parts)));
    // The task ends with the call; what it waits for is the sender's own.
    tokio::spawn(async move {
        tokio::select! {
            biased;
            () = closed.cancelled() => {}
            () = pump(&network, id, Direction::Request, body) => {}
        }
    });
    match events.recv().await {
        Some(Event::Response(parts)) => {
            let body = PipedBody { events, guard: Some(guard), is_over: false };
            Ok(Response::from_parts(*parts, Body::new(body)))
        }
        Some(Event::Broken(status)) => {
            guard.is_done = true;
            Err(status)
        }
        _ => Err(Status::unavailable("the connection is gone")),
    }
}

/// Answers calls until the process ends.
pub(super) async fn serve(
    network: Network,
    routes: Routes,
    mut incoming: tokio::sync::mpsc::UnboundedReceiver<Incoming>,
) {
    while let Some(incoming) = incoming.recv().await {
        tokio::spawn(answer(network.clone(), routes.clone(), incoming));
    }
}

async fn answer(network: Network, mut routes: Routes, incoming: Incoming) {
    let Incoming { call: Call { id, events, closed }, parts } = incoming;
    let body = PipedBody { events, guard: None, is_over: false };
    let answered = async {
        let Ok(response) = routes.call(Request::from_parts(*parts, Body::new(body))).await;
        let (parts, body) = response.into_parts();
        network.send(id, Direction::Response, Event::Response(Box::new(parts)));
        pump(&network, id, Direction::Response, body).await;
    };
    // A call that its client gave up is dropped where it stands, as hyper does it.
    tokio::select! {
        biased;
        () = closed.cancelled() => {}
        () = answered => {}
    }
}
