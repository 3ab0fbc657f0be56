//! A client's way to OMs that loses answers, of which their caller hears at once or a while later, and brings
//! requests late, when whoever sent them has been told that they were lost, and has asked again.

use super::record::Record;
use crate::scenario::below_one_of;
use crate::world::SimConnector;
use disk::sim::Random;
use futures::future::BoxFuture;
use http_body::Body as _;
use rpc::{Channel, Connector};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::sleep;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::util::BoxCloneSyncService;
use tower::{Service, ServiceExt};

/// One call in so many loses its answer,
const LOST_ONE_IN: u64 = 12;
/// which its caller notices before one of these, chosen by chance: at once, or so late that a bucket has
/// moved.
const NOTICED_MS_MAX: [u64; 3] = [1, 400, 4_000];
/// One call in so many comes late,
const LATE_ONE_IN: u64 = 15;
/// by less than this.
const LATE_MS_MAX: u64 = 6_000;
/// The calls that lose answers and come late.
const OF_OMS: &str = "/flotilla.om";

pub(super) struct LossyConnector {
    pub(super) inner: Arc<SimConnector>,
    pub(super) record: Record,
    pub(super) random: Arc<Mutex<Random>>,
}

impl Connector for LossyConnector {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let (inner, record) = (self.inner.connect(address)?, self.record.clone());
        Ok(BoxCloneSyncService::new(Lossy { inner, record, random: self.random.clone() }))
    }
}

#[derive(Clone)]
struct Lossy {
    inner: Channel,
    record: Record,
    random: Arc<Mutex<Random>>,
}

/// The fate of a call.
enum Fate {
    Arrives,
    /// The answer is lost, and its caller learns after that time that there will be none.
    AnswerLost(Duration),
    Late(Duration),
}

impl Lossy {
    fn draw(&self, path: &str) -> Fate {
        let random = &mut *self.random.lock().expect("no holder panics");
        if self.record.is_quiet() || !path.starts_with(OF_OMS) {
            return Fate::Arrives;
        }
        if random.one_in(LOST_ONE_IN) {
            self.record.count(|counts| counts.answers_lost += 1);
            return Fate::AnswerLost(Duration::from_millis(below_one_of(random, NOTICED_MS_MAX)));
        }
        if random.one_in(LATE_ONE_IN) {
            self.record.count(|counts| counts.requests_late += 1);
            return Fate::Late(Duration::from_millis(random.below(LATE_MS_MAX)));
        }
        Fate::Arrives
    }
}

impl Service<Request<Body>> for Lossy {
    type Response = Response<Body>;
    type Error = Status;
    type Future = BoxFuture<'static, Result<Response<Body>, Status>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (fate, inner) = (self.draw(request.uri().path()), self.inner.clone());
        Box::pin(async move {
            match fate {
                Fate::Arrives => inner.oneshot(request).await,
                Fate::AnswerLost(noticed) => {
                    ask(inner, request).await;
                    sleep(noticed).await;
                    Err(Status::unavailable("the answer was lost"))
                }
                Fate::Late(late) => {
                    tokio::spawn(async move {
                        sleep(late).await;
                        ask(inner, request).await;
                    });
                    Err(Status::unavailable("nobody knows what became of the request"))
                }
            }
        })
    }
}

/// A call whose answer nobody hears, to its end.
async fn ask(channel: Channel, request: Request<Body>) {
    let Ok(response) = channel.oneshot(request).await else { return };
    let mut body = response.into_body();
    let next = |body: &mut Body, context: &mut Context<'_>| Pin::new(body).poll_frame(context);
    while let Some(Ok(_)) = std::future::poll_fn(|context| next(&mut body, context)).await {}
}
