use crate::accept::Port;
use crate::refusal::Refusal;
use crate::request_body::RequestBody;
use crate::request_id::RequestId;
use crate::response_body::ResponseBody;
use crate::traffic::{Traffic, UnderWay};
use axum::body::Body;
use axum::http::header::CONNECTION;
use axum::http::{HeaderValue, Request, Response, Version};
use hyper::body::Incoming;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::Notify;
use tower::Service;
use tracing::Instrument;

/// State that the requests of one connection share.
pub(crate) struct Exchange {
    pub(crate) port: Arc<Port>,
    pub(crate) peer: SocketAddr,
    pub(crate) traffic: Arc<Traffic>,
    /// Notified when the connection has had all its requests.
    pub(crate) spent: Notify,
}

impl Exchange {
    /// Serves one request. It is under way from this call on, not from the first poll: hyper reads on in
    /// between, and what it reads is no head.
    pub(crate) fn serve(
        self: Arc<Self>,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send {
        let under_way = Arc::new(UnderWay::begin(&self.traffic));
        self.answer(request, under_way)
    }

    /// Has the router answer a request, which is given its [`RequestId`] and where it comes from as
    /// extensions.
    async fn answer(
        self: Arc<Self>,
        mut request: Request<Incoming>,
        under_way: Arc<UnderWay>,
    ) -> Result<Response<Body>, Infallible> {
        if self.traffic.is_displaced() {
            // The request came too late. Nothing of it is begun, and its connection is closed without a word.
            return std::future::pending().await;
        }
        let id = RequestId::random();
        // At the level of errors, so that no filter takes the id from a line that it lets pass.
        let span = tracing::error_span!("request", %id, peer = %self.peer);
        let http2 = request.version() == Version::HTTP_2;
        let mut response = if request.headers().len() > self.port.limits.headers_max {
            Refusal::HeadTooLarge.answer(self.port.document, id, &self.port.request_id_header)
        } else {
            request.extensions_mut().insert(id);
            request.extensions_mut().insert(self.peer);
            let request = request.map(|body| Body::new(RequestBody::new(body, under_way.clone())));
            let Ok(response) = self.port.router.clone().call(request).instrument(span.clone()).await;
            response
        };
        response.headers_mut().insert(self.port.request_id_header.clone(), id.header_value());
        if under_way.number >= self.port.limits.requests_per_connection_max {
            self.spent.notify_one();
            if !http2 {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
        }
        if http2 {
            // The header has no meaning on HTTP/2, and clients refuse answers that have it.
            response.headers_mut().remove(CONNECTION);
        }
        Ok(response.map(|body| Body::new(ResponseBody::new(body, http2, under_way, span))))
    }
}
