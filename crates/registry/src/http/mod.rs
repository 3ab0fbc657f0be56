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
use answer::{Answered, Refused};
use axum::Router;
use axum::body::{Body, HttpBody, to_bytes};
use axum::extract::{Query, Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state, map_response};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use futures::StreamExt;
use httpd::{BodyMemory, Counters};
use proto::{Code, Failure};
use question::Question;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::timeout;

/// The most bytes of one request's body: above the largest value, so that a value that is a little too large
/// is refused in our words.
const BODY_BYTES_MAX: usize = 256 << 10;

/// The most bytes of request bodies that come or are worked on, of all callers together.
const BODIES_BYTES_MAX: usize = 32 << 20;

/// The most bytes of answers that callers have not taken yet. The largest has 5.5 MiB, a page of 4 MiB of
/// values in base64: one address has room for two of them.
const ANSWERS_BYTES_MAX: usize = 32 << 20;

/// The longest answer that needs no room: those about one instance or one small key.
const SHORT_BYTES: usize = 16 << 10;

/// The memory for long polls that wait, and what each counts for: its task here, and its call of SCM's
/// leader. Those of all callers are a half of what one connection to SCM carries, so that other questions
/// find a way.
const WAITS_BYTES_MAX: usize = 2048 * WAIT_BYTES;
const WAIT_BYTES: usize = 16 << 10;

/// The lists that are asked for and made into JSON at a time, in this process: some megabytes each, which
/// count nowhere until they are an answer. Those that any member of SCM may answer have turns of their own:
/// they are wanted when nobody leads.
static LISTS: Semaphore = Semaphore::const_new(4);
static STALE_LISTS: Semaphore = Semaphore::const_new(2);
/// The time for which a list waits for others, and then for its answer. One takes some milliseconds.
const LIST_TURN_MAX: Duration = Duration::from_secs(5);

/// The client to ask, once the process knows whom.
pub type Slot = Arc<OnceLock<RegistryClient>>;

/// Everything below `/v1`, for whoever asks under one of `hosts`, at the port with these counters.
pub fn router(slot: Slot, hosts: Hosts, counters: &Arc<Counters>) -> Router {
    let bodies = BodyMemory::new(BODIES_BYTES_MAX, counters.clone());
    let answers = BodyMemory::new(ANSWERS_BYTES_MAX, counters.clone());
    let waits = BodyMemory::new(WAITS_BYTES_MAX, counters.clone());
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
        .layer(from_fn_with_state(bodies, gathered))
        .layer(from_fn_with_state(answers, kept))
        .layer(from_fn_with_state(waits, waited_for))
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

/// Gathers a request's body, in room that is taken as it comes and kept until the request is answered. Where
/// it means nothing it is left unread: a long poll would keep its room for as long as it waits.
async fn gathered(State(memory): State<BodyMemory>, request: Request, next: Next) -> Response {
    let mut room = memory.room(request.extensions().get());
    let (parts, body) = request.into_parts();
    if !matches!(parts.method, Method::PUT | Method::POST) {
        let is_unread = !body.is_end_stream();
        drop(body);
        let response = next.run(Request::from_parts(parts, Body::empty())).await;
        return if is_unread { closing(response) } else { response };
    }
    let mut all = Vec::new();
    let mut pieces = body.into_data_stream();
    while let Some(piece) = pieces.next().await {
        let Ok(piece) = piece else { return closing(StatusCode::BAD_REQUEST.into_response()) };
        if all.len() + piece.len() > BODY_BYTES_MAX {
            let why = format!("a body may have {BODY_BYTES_MAX} bytes");
            return Refused::from(Failure::new(Code::TooLarge, why)).into_response();
        }
        if let Err(why) = room.hold(all.len() + piece.len()) {
            return closing(Refused::from(Failure::new(Code::Busy, why.to_string())).into_response());
        }
        all.extend_from_slice(&piece);
    }
    next.run(Request::from_parts(parts, Body::from(all))).await
}

/// Keeps room for a long poll for as long as it waits.
async fn waited_for(State(memory): State<BodyMemory>, request: Request, next: Next) -> Response {
    let mut room = memory.room(request.extensions().get());
    let question = Query::<Question>::try_from_uri(request.uri());
    if question.is_ok_and(|question| question.waits()) && room.hold(WAIT_BYTES).is_err() {
        let why = "too many long polls wait here, or of this address: ask again, later";
        return Refused::from(Failure::new(Code::Busy, why)).into_response();
    }
    next.run(request).await
}

/// Keeps room for a long answer until its caller has taken it, whoever takes it slowly.
async fn kept(State(memory): State<BodyMemory>, request: Request, next: Next) -> Response {
    let mut room = memory.room(request.extensions().get());
    let response = next.run(request).await;
    // Answers are made as a whole, so that their length is known.
    let bytes = response.body().size_hint().lower() as usize;
    if bytes <= SHORT_BYTES {
        return response;
    }
    if let Err(why) = room.hold(bytes) {
        return Refused::from(Failure::new(Code::Busy, why.to_string())).into_response();
    }
    let (parts, body) = response.into_parts();
    match to_bytes(body, bytes).await {
        Ok(answer) => Response::from_parts(parts, Body::from(room.of(answer))),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Makes the answer to a list when it is its turn. What may have to wait for news must have waited.
async fn in_turn(is_stale: bool, answer: impl Future<Output = Answered>) -> Answered {
    let turns = if is_stale { &STALE_LISTS } else { &LISTS };
    let Ok(_turn) = timeout(LIST_TURN_MAX, turns.acquire()).await else {
        return Err(Failure::new(Code::Busy, "too many lists are asked for here: ask again, later").into());
    };
    timeout(LIST_TURN_MAX, answer).await.unwrap_or_else(|_| {
        Err(Failure::new(
            Code::Unavailable,
            "SCM has not answered: ask again, with ?stale for what may be old",
        )
        .into())
    })
}

/// The client of a process; an error while it has none.
fn client(slot: &Slot) -> Result<RegistryClient, Failure> {
    let starting = || Failure::new(Code::Unavailable, "starting, or no address of SCM is known here");
    slot.get().cloned().ok_or_else(starting)
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::any;
    use futures::{FutureExt, stream};
    use std::net::SocketAddr;
    use tower::ServiceExt;

    /// A request from an address, under a name that is ours.
    fn request(method: Method, path: &str, from: &str, body: Body) -> Request {
        let peer = SocketAddr::new(from.parse().unwrap(), 5);
        let request = Request::builder().method(method).uri(path).header("host", "localhost").extension(peer);
        request.body(body).unwrap()
    }

    async fn text(response: Response) -> String {
        let body = to_bytes(response.into_body(), 1000).await.unwrap();
        String::from_utf8(body.to_vec()).unwrap()
    }

    /// Without this limit a thousand connections with sixteen requests each held four GiB, for an address
    /// that nobody knows.
    #[tokio::test]
    async fn a_body_for_which_there_is_no_room_is_refused_and_one_of_which_nothing_comes_takes_none() {
        let router = router(Slot::default(), Hosts::default(), &Arc::default());
        let put = |from: &str, pieces: Vec<Vec<u8>>| {
            let pieces = stream::iter(pieces.into_iter().map(Ok::<_, std::io::Error>));
            let body = Body::from_stream(pieces.chain(stream::pending()));
            Box::pin(router.clone().oneshot(request(Method::PUT, "/v1/kv/a", from, body)))
        };
        let mut others: Vec<_> = (0..BODIES_BYTES_MAX / 2 / BODY_BYTES_MAX)
            .flat_map(|_| [put("10.0.0.1", vec![]), put("10.0.0.1", vec![vec![b'x'; BODY_BYTES_MAX]])])
            .collect();
        for other in &mut others {
            assert!(futures::poll!(other).is_pending());
        }
        let refused = put("10.0.0.1", vec![vec![b'x']]).await.unwrap();
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[header::CONNECTION], "close");
        let why = text(refused).await;
        assert!(why.contains("on their way"), "{why}");
        let put_x = |from: &str| request(Method::PUT, "/v1/kv/a", from, Body::from("x"));
        let of_another = router.clone().oneshot(put_x("10.0.0.2")).await.unwrap();
        assert!(text(of_another).await.contains("starting"));
        others.pop();
        let let_in = router.clone().oneshot(put_x("10.0.0.1")).await.unwrap();
        assert!(text(let_in).await.contains("starting"));
        let too_large = put("10.0.0.1", vec![vec![b'x'; BODY_BYTES_MAX + 1]]).await.unwrap();
        assert_eq!(too_large.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    /// A hundred and twenty-eight long polls had all the room that there is for bodies, ten minutes long.
    #[tokio::test]
    async fn a_body_of_a_read_or_a_deletion_is_left_unread() {
        let router = router(Slot::default(), Hosts::default(), &Arc::default());
        for method in [Method::GET, Method::DELETE] {
            let endless = || Body::from_stream(stream::pending::<Result<Vec<u8>, std::io::Error>>());
            let with_body = request(method.clone(), "/v1/kv/a?index=7&wait=600s", "10.0.0.1", endless());
            let answered = router.clone().oneshot(with_body).now_or_never();
            let answered = answered.expect("the body is not waited for").unwrap();
            assert_eq!(answered.headers()[header::CONNECTION], "close");
            assert!(text(answered).await.contains("starting"));
            let without = request(method, "/v1/kv/a", "10.0.0.1", Body::empty());
            let answered = router.clone().oneshot(without).await.unwrap();
            assert!(!answered.headers().contains_key(header::CONNECTION));
        }
    }

    /// Four thousand were all that one connection to SCM carries, and the leases of the process itself ran
    /// out.
    #[tokio::test]
    async fn of_one_address_half_of_all_long_polls_may_wait() {
        let memory = BodyMemory::new(4 * WAIT_BYTES, Arc::default());
        let router = Router::new()
            .route("/{*all}", any(std::future::pending::<String>))
            .layer(from_fn_with_state(memory.clone(), waited_for));
        let ask = |path: &str, from: &str| {
            let mut waiting =
                Box::pin(router.clone().oneshot(request(Method::GET, path, from, Body::empty())));
            match (&mut waiting).now_or_never() {
                None => Ok(waiting),
                Some(answered) => Err(answered.unwrap().status()),
            }
        };
        let busy = StatusCode::SERVICE_UNAVAILABLE;
        let mut polls: Vec<_> = ["/v1/kv/a?index=7", "/v1/kv/a?%69ndex=7&wait=600s"]
            .into_iter()
            .map(|path| ask(path, "10.0.0.1").unwrap_or_else(|status| panic!("{path}: {status}")))
            .collect();
        assert_eq!(ask("/v1/kv/a?index=7", "10.0.0.1").err(), Some(busy));
        assert!(ask("/v1/kv/a", "10.0.0.1").is_ok(), "what does not wait is asked all the same");
        assert!(ask("/v1/kv/a?index=7", "10.0.0.2").is_ok(), "another address has the other half");
        polls.pop();
        assert!(ask("/v1/kv/a?index=7", "10.0.0.1").is_ok(), "who leaves gives its place back");
        drop(polls);
        assert_eq!(memory.bytes_in_use(), 0);
    }

    /// A thousand callers who took nothing of what they had asked for held 5.5 GiB.
    #[tokio::test]
    async fn answers_that_nobody_takes_have_one_room_and_an_address_half_of_it() {
        let memory = BodyMemory::new(8 * SHORT_BYTES, Arc::default());
        let router = Router::new()
            .route("/long", any(async || "x".repeat(2 * SHORT_BYTES)))
            .route("/short", any(async || "x".repeat(SHORT_BYTES)))
            .layer(from_fn_with_state(memory.clone(), kept));
        let get = async |path: &str, from: &str| {
            let asked = request(Method::GET, path, from, Body::empty());
            router.clone().oneshot(asked).await.unwrap()
        };
        let taken = [get("/long", "10.0.0.1").await, get("/long", "10.0.0.1").await];
        assert!(taken.iter().all(|answer| answer.status() == StatusCode::OK));
        let refused = get("/long", "10.0.0.1").await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()[header::RETRY_AFTER], "1");
        assert!(text(refused).await.contains("BUSY"));
        assert_eq!(get("/short", "10.0.0.1").await.status(), StatusCode::OK);
        assert_eq!(get("/long", "10.0.0.2").await.status(), StatusCode::OK);
        // A slice of an answer that is on its way has the room of the whole.
        let [first, second] = taken;
        drop(second);
        let mut pieces = first.into_body().into_data_stream();
        let slice = pieces.next().await.unwrap().unwrap().slice(..1);
        drop(pieces);
        assert_eq!(memory.bytes_in_use(), 2 * SHORT_BYTES);
        drop(slice);
        assert_eq!(memory.bytes_in_use(), 0);
    }
}
