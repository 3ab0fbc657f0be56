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
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use proto::{Code, Failure};
use std::sync::{Arc, OnceLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// The most bytes of one request's body: above the largest value, so that a value that is a little too large
/// is refused in our words.
const BODY_BYTES_MAX: usize = 256 << 10;

/// The most bytes of request bodies that come or are worked on, of all callers together.
const BODIES_BYTES_MAX: usize = 32 << 20;

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
        .layer(from_fn_with_state(Arc::new(Semaphore::new(BODIES_BYTES_MAX)), gathered))
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

/// Gathers a request's body, in room that is taken as it comes and kept until the request is answered.
async fn gathered(State(room): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let (mut all, mut taken) = (Vec::new(), None::<OwnedSemaphorePermit>);
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let Ok(piece) = piece else { return closing(StatusCode::BAD_REQUEST.into_response()) };
        if all.len() + piece.len() > BODY_BYTES_MAX {
            let why = format!("a body may have {BODY_BYTES_MAX} bytes");
            return Refused::from(Failure::new(Code::TooLarge, why)).into_response();
        }
        let Ok(room) = room.clone().try_acquire_many_owned(piece.len() as u32) else {
            let why = format!("bodies on their way have taken all {BODIES_BYTES_MAX} bytes that there are");
            return closing(Refused::from(Failure::new(Code::Busy, why)).into_response());
        };
        all.extend_from_slice(&piece);
        match &mut taken {
            Some(taken) => taken.merge(room),
            None => taken = Some(room),
        }
    }
    next.run(Request::from_parts(parts, Body::from(all))).await
}

/// The client of a process; an error while it has none.
fn client(slot: &Slot) -> Result<RegistryClient, Failure> {
    let starting = || Failure::new(Code::Unavailable, "starting, or no address of SCM is known here");
    slot.get().cloned().ok_or_else(starting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::to_bytes;
    use futures::stream;
    use tower::ServiceExt;

    /// Without this limit a thousand connections with sixteen requests each held four GiB, for an address
    /// that nobody knows.
    #[tokio::test]
    async fn a_body_for_which_there_is_no_room_is_refused_and_one_of_which_nothing_comes_takes_none() {
        let router = router(Slot::default(), Hosts::default());
        let put = |pieces: Vec<Vec<u8>>| {
            let pieces = stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
            let body = Body::from_stream(pieces.chain(stream::pending()));
            let request = Request::put("/v1/kv/a").header("host", "localhost").body(body).unwrap();
            Box::pin(router.clone().oneshot(request))
        };
        let mut others: Vec<_> = (0..BODIES_BYTES_MAX / BODY_BYTES_MAX)
            .flat_map(|_| [put(vec![]), put(vec![vec![b'x'; BODY_BYTES_MAX]])])
            .collect();
        for other in &mut others {
            assert!(futures::poll!(other).is_pending());
        }
        let refused = put(vec![vec![b'x']]).await.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[header::CONNECTION], "close");
        let why = to_bytes(refused.into_body(), 1000).await.unwrap();
        assert!(std::str::from_utf8(&why).unwrap().contains("on their way"), "{why:?}");
        others.pop();
        let request = Request::put("/v1/kv/a").header("host", "localhost").body(Body::from("x")).unwrap();
        let let_in = router.clone().oneshot(request).await.unwrap();
        let let_in = to_bytes(let_in.into_body(), 1000).await.unwrap();
        assert!(std::str::from_utf8(&let_in).unwrap().contains("starting"), "{let_in:?}");
        let too_large = put(vec![vec![b'x'; BODY_BYTES_MAX + 1]]).await.unwrap();
        assert_eq!(too_large.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
