//! The registry over HTTP/JSON (docs/registry.md has the table of requests). Long polls in the manner of
//! Consul: `?index=N&wait=30s` blocks until what is asked for has changed after revision N;
//! `X-Flotilla-Index` of an answer is the N for the next request.

mod answer;
mod caller;
mod keys;
mod question;
mod services;

pub use caller::Hosts;

use crate::client::RegistryClient;
use answer::Refused;
use axum::Router;
use axum::body::HttpBody;
use axum::extract::{DefaultBodyLimit, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use proto::{Code, Failure};
use std::sync::{Arc, OnceLock};
use tokio::sync::Semaphore;

/// Above the largest value, so that one that is a little too large is refused in our words.
const BODY_BYTES_MAX: usize = 256 << 10;

/// Bodies that come at a time, from all callers: 32 MiB at most.
const BODIES_MAX: usize = 128;

/// The client to ask, once the process knows whom.
pub type Slot = Arc<OnceLock<RegistryClient>>;

/// Everything below `/v1`, for whoever asks under one of `hosts`.
pub fn router(slot: Slot, hosts: Hosts) -> Router {
    Router::new()
        .route("/v1/registry/services", get(services::list))
        .route("/v1/registry/services/{service}", get(services::instances))
        .route(
            "/v1/registry/services/{service}/{id}",
            get(services::instance).put(services::register).delete(services::deregister),
        )
        .route("/v1/registry/services/{service}/{id}/renew", post(services::renew))
        .route("/v1/kv", get(keys::get_all).delete(keys::delete_all))
        .route("/v1/kv/", get(keys::get_all).delete(keys::delete_all))
        .route("/v1/kv/{*key}", get(keys::get).put(keys::put).post(keys::renew).delete(keys::delete))
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .layer(from_fn_with_state(Arc::new(Semaphore::new(BODIES_MAX)), one_of_a_few))
        .layer(from_fn_with_state(hosts, caller::of_ours))
        .layer(map_response(closes_when_unread))
        .with_state(slot)
}

/// A body that is refused unread ends its connection: without a word of it the client would send its next
/// request there.
async fn closes_when_unread(response: Response) -> Response {
    match response.status() {
        StatusCode::PAYLOAD_TOO_LARGE | StatusCode::FORBIDDEN => closing(response),
        _ => response,
    }
}

fn closing(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    response
}

/// Lets a request with a body in as one of those that may be in memory.
async fn one_of_a_few(State(bodies): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    if request.body().is_end_stream() {
        return next.run(request).await;
    }
    let Ok(_one) = bodies.try_acquire() else {
        let busy = Failure::new(Code::Busy, format!("{BODIES_MAX} bodies are on their way already"));
        return closing(Refused::from(busy).into_response());
    };
    next.run(request).await
}

/// An error while there is none.
fn client(slot: &Slot) -> Result<RegistryClient, Failure> {
    let starting = || Failure::new(Code::Unavailable, "starting, or no address of SCM is known here");
    slot.get().cloned().ok_or_else(starting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::{Body, to_bytes};
    use axum::extract::Request;
    use futures::stream;
    use tower::ServiceExt;

    /// A thousand connections with sixteen requests each were four GiB of an address that nobody knows.
    #[tokio::test]
    async fn a_body_too_many_is_refused_before_it_is_read() {
        let router = router(Slot::default(), Hosts::default());
        let put = |body: Body| {
            let request = Request::put("/v1/kv/a").header("host", "localhost").body(body).unwrap();
            router.clone().oneshot(request)
        };
        let endless = || Body::from_stream(stream::pending::<std::io::Result<&'static str>>());
        let mut others: Vec<_> = (0..BODIES_MAX).map(|_| Box::pin(put(endless()))).collect();
        for other in &mut others {
            assert!(futures::poll!(other).is_pending());
        }
        let refused = put(endless()).await.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[header::CONNECTION], "close");
        let why = to_bytes(refused.into_body(), 1000).await.unwrap();
        assert!(std::str::from_utf8(&why).unwrap().contains("on their way already"), "{why:?}");
        others.pop();
        let let_in = to_bytes(put(Body::from("x")).await.unwrap().into_body(), 1000).await.unwrap();
        assert!(std::str::from_utf8(&let_in).unwrap().contains("starting"), "{let_in:?}");
    }
}
