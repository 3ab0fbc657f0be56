//! Calls between the roles of a process: what is said to an address of this very process goes to its
//! services, as a call of theirs by the task that asks, and over no connection.
//!
//! The services and who asks them notice no difference: names of clusters are compared, messages are encoded
//! and decoded, and a service that panics ends its call and not who asks. What a port has limits for
//! (connections, calls, an address's share of either and of memory, bytes of a message, and of messages that
//! came in part) is for strangers: what is sent here, this process has already.

use crate::connector::{Channel, Connector};
use bytes::Bytes;
use futures::FutureExt;
use http_body::{Body as HttpBody, Frame};
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
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

    /// Whether a service of this process answers at an address.
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
        // The services are looked for with each call: they come and go while somebody has the channel.
        Ok(BoxCloneSyncService::new(tower::service_fn(move |request: Request<Body>| {
            let (here, others) = (local.at(&address), others.clone());
            async move {
                match here {
                    Some(routes) => answer(routes, request).await,
                    None => others.oneshot(request).await,
                }
            }
        })))
    }
}

async fn answer(routes: Routes, request: Request<Body>) -> Result<Response<Body>, Status> {
    let asked = request.map(|body| Body::new(Caught(Some(body))));
    // What a panic leaves behind is the service's alone, as where it has a task of its own.
    match AssertUnwindSafe(routes.oneshot(asked)).catch_unwind().await {
        Ok(Ok(answer)) => Ok(answer.map(|body| Body::new(Caught(Some(body))))),
        Ok(Err(never)) => match never {},
        Err(panic) => Err(panicked(&*panic)),
    }
}

/// The end of a call like that of a connection: whether it took effect is unknown.
fn panicked(panic: &(dyn Any + Send)) -> Status {
    let said = panic.downcast_ref::<&str>().copied();
    let said =
        said.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no reason given");
    tracing::error!(panic = said, "a call within the process panicked");
    Status::unavailable(format!("the other side of the call panicked: {said}"))
}

/// A body that the other side of a call makes, until it ended: where that panics, it ends with a status.
struct Caught(Option<Body>);

impl HttpBody for Caught {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Some(body) = self.0.as_mut() else { return Poll::Ready(None) };
        let polled = catch_unwind(AssertUnwindSafe(|| Pin::new(body).poll_frame(context)));
        let frame = match polled {
            Ok(polled) => ready!(polled),
            Err(panic) => Some(Err(panicked(&*panic))),
        };
        if !matches!(frame, Some(Ok(_))) {
            self.0 = None;
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.0.as_ref().map(Body::size_hint).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures::{StreamExt, stream};
    use http_body_util::{BodyExt, StreamBody};
    use std::convert::Infallible;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tonic::codegen::Service;
    use tonic::server::NamedService;

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

    /// Panics at once, or in the middle of its answer.
    #[derive(Clone)]
    struct Panics;

    impl NamedService for Panics {
        const NAME: &'static str = "panics.Panics";
    }

    impl Service<Request<Body>> for Panics {
        type Response = Response<Body>;
        type Error = Infallible;
        type Future = futures::future::BoxFuture<'static, Result<Response<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            async move {
                if request.uri().path().ends_with("/AtOnce") {
                    panic!("at once");
                }
                let frames = stream::iter(0..2).map(|n| match n {
                    0 => Ok::<_, Status>(Frame::data(Bytes::from_static(b"some"))),
                    _ => panic!("later"),
                });
                Ok(Response::new(Body::new(StreamBody::new(frames))))
            }
            .boxed()
        }
    }

    /// The call ends as a connection's would: the rest of the process goes on.
    #[tokio::test]
    async fn a_service_that_panics_ends_its_call_with_a_status_and_not_who_asks() {
        let local = Local::default();
        local.open("here:1", Routes::new(Panics));
        let channel = LocalConnector { local, others: Others::default() }.connect("here:1").unwrap();
        let ask = async |method: &str, body: Body| {
            let request = Request::post(format!("/panics.Panics/{method}")).body(body).unwrap();
            channel.clone().oneshot(request).await
        };
        let at_once = ask("AtOnce", Body::empty()).await.unwrap_err();
        assert_eq!(at_once.code(), tonic::Code::Unavailable);
        assert!(at_once.message().ends_with("panicked: at once"), "{at_once}");
        assert_eq!(proto::Failure::from(at_once).retry, proto::Retry::Unknown);
        let mut later = ask("Later", Body::empty()).await.unwrap().into_body();
        assert_eq!(later.frame().await.unwrap().unwrap().into_data().unwrap(), "some");
        let later_status = later.frame().await.unwrap().unwrap_err();
        assert!(later_status.message().ends_with("panicked: later"), "{later_status}");
        assert!(later.frame().await.is_none());
    }

    #[tokio::test]
    async fn messages_that_panic_end_for_who_reads_them_with_a_status() {
        let frames = stream::iter([()]).map(|()| -> Result<Frame<Bytes>, Status> { panic!("asking") });
        let asked = Caught(Some(Body::new(StreamBody::new(frames))));
        let heard = asked.collect().await.unwrap_err();
        assert!(heard.message().ends_with("panicked: asking"), "{heard}");
    }
}
