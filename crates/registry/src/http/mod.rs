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
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderValue, StatusCode, header};
use axum::middleware::{from_fn_with_state, map_response};
use axum::response::Response;
use axum::routing::{get, post};
use proto::{Code, Failure};
use std::sync::{Arc, OnceLock};

/// Above the largest value, so that one that is a little too large is refused in our words.
const BODY_BYTES_MAX: usize = 256 << 10;

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
        .layer(from_fn_with_state(hosts, caller::of_ours))
        .layer(map_response(closes_when_unread))
        .with_state(slot)
}

/// A body that is refused unread ends its connection: without a word of it the client would send its next
/// request there.
async fn closes_when_unread(mut response: Response) -> Response {
    if [StatusCode::PAYLOAD_TOO_LARGE, StatusCode::FORBIDDEN].contains(&response.status()) {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    response
}

/// An error while there is none.
fn client(slot: &Slot) -> Result<RegistryClient, Failure> {
    let starting = || Failure::new(Code::Unavailable, "starting, or no address of SCM is known here");
    slot.get().cloned().ok_or_else(starting)
}
