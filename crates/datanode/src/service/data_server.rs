use super::Service;
use futures::FutureExt;
use futures::future::BoxFuture;
use proto::datanode::datanode_server::DatanodeServer;
use proto::messages::{self, Messages};
use std::convert::Infallible;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service as HttpService;
use tonic::codegen::http::{Request, Response};
use tonic::server::NamedService;

/// The service, whose blocks go in and out without being copied into messages.
#[derive(Clone)]
pub(crate) struct DataServer {
    service: Service,
    others: DatanodeServer<Service>,
}

impl DataServer {
    pub(super) fn new(service: Service) -> DataServer {
        let others = DatanodeServer::new(service.clone())
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        DataServer { service, others }
    }
}

impl NamedService for DataServer {
    const NAME: &'static str = <DatanodeServer<Service> as NamedService>::NAME;
}

impl HttpService<Request<Body>> for DataServer {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        match request.uri().path() {
            messages::READ => read(self.service.clone(), request.into_body()).map(Ok).boxed(),
            messages::WRITE => {
                let chunks = Messages::of_request(request.into_body());
                let acks = self.service.take_chunks(chunks);
                std::future::ready(Ok(messages::answer(Ok(acks)))).boxed()
            }
            _ => self.others.call(request),
        }
    }
}

async fn read(service: Service, body: Body) -> Response<Body> {
    let asked = match Messages::of_request(body).message().await {
        Ok(Some(request)) => service.send_block(request).await,
        Ok(None) => Err(Status::invalid_argument("nothing is asked for")),
        Err(status) => Err(status),
    };
    messages::answer(asked)
}
