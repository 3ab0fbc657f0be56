use crate::counters::Counters;
use axum::body::{Body, Bytes};
use http_body::{Body as HttpBody, Frame, SizeHint};
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, ready};
use tokio::sync::{AcquireError, OwnedSemaphorePermit, Semaphore};

/// Bounds how many requests the process works for at once. Work is what costs it something: checking a
/// signature, asking OM, fetching or writing data. Waiting for a client is none: meanwhile the permit is
/// somebody else's, and is taken again when the client has sent more, or wants more. So slow clients hold
/// connections, whose number is bounded too, and nothing else.
#[derive(Clone, Debug)]
pub struct Work {
    permits: Arc<Semaphore>,
    counters: Arc<Counters>,
}

/// A request's leave to be worked for.
#[derive(Clone, Debug)]
pub struct Permit {
    work: Work,
    /// `None` while its client is waited for.
    held: Arc<Mutex<Option<Held>>>,
}

#[derive(Debug)]
struct Held {
    _permit: OwnedSemaphorePermit,
    counters: Arc<Counters>,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.counters.working.down();
    }
}

type Acquiring = Pin<Box<dyn Future<Output = Result<OwnedSemaphorePermit, AcquireError>> + Send>>;

impl Work {
    pub fn new(requests_max: usize, counters: Arc<Counters>) -> Work {
        counters.working_max.set(requests_max);
        Work { permits: Arc::new(Semaphore::new(requests_max)), counters }
    }

    /// A new request's leave to be worked for. `None`, and counted, when as many as may be are worked for.
    /// Requests that wait to go on come before new ones.
    pub fn begin(&self) -> Option<Permit> {
        let Ok(permit) = self.permits.clone().try_acquire_owned() else {
            self.counters.work_refused.count();
            return None;
        };
        Some(Permit { work: self.clone(), held: Arc::new(Mutex::new(Some(self.held(permit)))) })
    }

    fn held(&self, permit: OwnedSemaphorePermit) -> Held {
        self.counters.working.up();
        Held { _permit: permit, counters: self.counters.clone() }
    }

    fn acquire(&self) -> Acquiring {
        Box::pin(self.permits.clone().acquire_owned())
    }
}

impl Permit {
    /// A request's body: while nothing comes, the permit is given up.
    pub fn request_body(&self, body: Body) -> Body {
        let ended = body.is_end_stream();
        let paused = Paused { body, permit: self.clone(), frame: None, acquiring: None };
        // A body that has nothing to wait for needs no care.
        if ended { paused.body } else { Body::new(Incoming(paused)) }
    }

    /// An answer's body: the permit is held while a piece of it is made, and not while it is sent.
    pub fn response_body(self, body: Body) -> Body {
        self.give_up();
        if body.is_end_stream() {
            return body;
        }
        Body::new(Outgoing(Paused { body, permit: self, frame: None, acquiring: None }))
    }

    fn give_up(&self) {
        *self.held.lock().expect("no holder panics") = None;
    }

    fn is_held(&self) -> bool {
        self.held.lock().expect("no holder panics").is_some()
    }

    fn poll_take(&self, acquiring: &mut Option<Acquiring>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_held() {
            return Poll::Ready(());
        }
        let acquired = ready!(acquiring.get_or_insert_with(|| self.work.acquire()).as_mut().poll(cx));
        *acquiring = None;
        let permit = acquired.expect("nobody closes the semaphore");
        *self.held.lock().expect("no holder panics") = Some(self.work.held(permit));
        Poll::Ready(())
    }
}

type Polled = Option<Result<Frame<Bytes>, axum::Error>>;

struct Paused {
    body: Body,
    permit: Permit,
    /// A frame that came while the permit was given up.
    frame: Option<Polled>,
    acquiring: Option<Acquiring>,
}

impl Paused {
    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A request's body.
struct Incoming(Paused);

impl HttpBody for Incoming {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        let this = &mut self.0;
        if this.frame.is_none() {
            match Pin::new(&mut this.body).poll_frame(cx) {
                Poll::Ready(frame) => this.frame = Some(frame),
                Poll::Pending => {
                    this.permit.give_up();
                    return Poll::Pending;
                }
            }
        }
        ready!(this.permit.poll_take(&mut this.acquiring, cx));
        Poll::Ready(this.frame.take().expect("taken once"))
    }

    fn is_end_stream(&self) -> bool {
        self.0.frame.is_none() && self.0.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}

/// An answer's body.
struct Outgoing(Paused);

impl HttpBody for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Polled> {
        let this = &mut self.0;
        ready!(this.permit.poll_take(&mut this.acquiring, cx));
        let frame = ready!(Pin::new(&mut this.body).poll_frame(cx));
        this.permit.give_up();
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.0.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.0.size_hint()
    }
}
