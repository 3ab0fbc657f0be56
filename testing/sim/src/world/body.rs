use super::network::{CallId, Direction, Event, Network};
use bytes::Bytes;
use http_body::{Body, Frame};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::UnboundedReceiver;
use tonic::Status;

/// The receiving end of a body that comes over the simulated network.
pub(super) struct PipedBody {
    pub(super) events: UnboundedReceiver<Event>,
    /// The guard of a response's body: dropping it before the end cancels the call.
    pub(super) guard: Option<CallGuard>,
    pub(super) is_over: bool,
}

impl Body for PipedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.poll_recv(context));
        Poll::Ready(match event {
            Some(Event::Data(bytes)) => Some(Ok(Frame::data(bytes))),
            Some(Event::Trailers(trailers)) => Some(Ok(Frame::trailers(trailers))),
            Some(Event::End) => {
                self.is_over = true;
                if let Some(guard) = &mut self.guard {
                    guard.is_done = true;
                }
                None
            }
            Some(Event::Broken(status)) => {
                self.is_over = true;
                Some(Err(status))
            }
            Some(Event::Request(_) | Event::Response(_)) | None => {
                self.is_over = true;
                Some(Err(Status::unavailable("the connection is gone")))
            }
        })
    }
}

/// A guard that the client of a call holds; dropped early, it tells the server.
pub(super) struct CallGuard {
    pub(super) network: Network,
    pub(super) call: CallId,
    pub(super) is_done: bool,
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        if self.is_done {
            self.network.finish(self.call);
        } else {
            self.network.reset(self.call, Direction::Request);
        }
    }
}

/// Sends a body frame by frame.
pub(super) async fn pump<B>(network: &Network, call: CallId, direction: Direction, mut body: B)
where
    B: Body<Data = Bytes> + Unpin,
{
    loop {
        let frame = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context)).await;
        let event = match frame {
            None => {
                network.send(call, direction, Event::End);
                return;
            }
            Some(Err(_)) => {
                network.reset(call, direction);
                return;
            }
            Some(Ok(frame)) => match frame.into_data() {
                Ok(bytes) => Event::Data(bytes),
                Err(frame) => match frame.into_trailers() {
                    Ok(trailers) => Event::Trailers(trailers),
                    Err(_) => continue,
                },
            },
        };
        network.send(call, direction, event);
    }
}
