use futures::FutureExt;
use futures::future::BoxFuture;
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;

/// An answer under way, or a call that nobody took.
pub type Answering = Result<BoxFuture<'static, Response<Body>>, Request<Body>>;

/// A service through some of whose methods data goes: it answers these itself ([`crate::messages`]).
pub trait CarriesData {
    /// Answers a call of one of these methods; a call of another method is given back.
    fn answer(&self, call: Request<Body>) -> Answering;
}

/// The server of a service that carries data. tonic's own, `others`, answers the other methods.
#[derive(Clone)]
pub struct DataServer<S, O> {
    service: S,
    others: O,
}

impl<S, O> DataServer<S, O> {
    pub fn new(service: S, others: O) -> DataServer<S, O> {
        DataServer { service, others }
    }
}

impl<S, O: NamedService> NamedService for DataServer<S, O> {
    const NAME: &'static str = O::NAME;
}

impl<S, O> Service<Request<Body>> for DataServer<S, O>
where
    S: CarriesData,
    O: Service<
            Request<Body>,
            Response = Response<Body>,
            Error = Infallible,
            Future = BoxFuture<'static, Result<Response<Body>, Infallible>>,
        >,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.others.poll_ready(context)
    }

    fn call(&mut self, call: Request<Body>) -> Self::Future {
        match self.service.answer(call) {
            Ok(answer) => answer.map(Ok).boxed(),
            Err(call) => self.others.call(call),
        }
    }
}
