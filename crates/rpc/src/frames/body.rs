use super::head::Kind;
use super::headers;
use super::wire::{Unsent, Wire};
use bytes::Bytes;
use http_body::{Body, Frame};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::mpsc::UnboundedReceiver;
use tonic::Status;
use tonic::codegen::http::{HeaderMap, Response};

/// An event of a call, as it comes over the connection.
pub(super) enum Event {
    Answer(Box<Response<()>>),
    /// Bytes, and what they took of the windows.
    Data(Bytes, u32),
    Trailers(Box<HeaderMap>),
    End,
    Broken(Status),
}

/// A call under way, given up when this is dropped before it is over. `C` is what must stay as long.
pub(super) struct Call<C = ()> {
    pub(super) wire: Arc<Wire>,
    pub(super) id: u32,
    pub(super) _keeps: C,
}

impl<C> Drop for Call<C> {
    fn drop(&mut self) {
        self.wire.reset(self.id);
    }
}

/// The events of a call, and the room that they take.
pub(super) struct Events {
    pub(super) wire: Arc<Wire>,
    pub(super) id: u32,
    pub(super) events: UnboundedReceiver<Event>,
}

impl Drop for Events {
    fn drop(&mut self) {
        self.events.close();
        while let Ok(event) = self.events.try_recv() {
            if let Event::Data(_, cost) = event {
                self.wire.consumed(self.id, cost);
            }
        }
    }
}

/// A body that comes over a connection. `C` is what must stay until the body ends.
pub(super) struct Incoming<C> {
    pub(super) events: Events,
    pub(super) call: Option<C>,
}

impl<C: Unpin> Body for Incoming<C> {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        if self.call.is_none() {
            return Poll::Ready(None);
        }
        let event = ready!(self.events.events.poll_recv(context));
        let frame = match event {
            Some(Event::Data(bytes, cost)) => {
                self.events.wire.consumed(self.events.id, cost);
                return Poll::Ready(Some(Ok(Frame::data(bytes))));
            }
            Some(Event::Trailers(trailers)) => Some(Ok(Frame::trailers(*trailers))),
            Some(Event::End) => None,
            Some(Event::Broken(status)) => Some(Err(status)),
            Some(Event::Answer(_)) | None => Some(Err(Status::unavailable("the connection is gone"))),
        };
        self.call = None;
        Poll::Ready(frame)
    }
}

/// Sends a body to its end, as the peer takes it; each piece must be taken within `patience`. The next
/// message is asked for only once there is room for a small one: where it is made it takes memory from then
/// on, and a thousand peers who take nothing are not to hold that. (What a body has ready already, as its
/// size says, is asked for at once.)
pub(super) async fn send<B>(wire: &Wire, id: u32, body: B, patience: Duration) -> Result<(), Unsent>
where
    B: Body<Data = Bytes>,
{
    let mut body = pin!(body);
    loop {
        if body.size_hint().lower() == 0 {
            wire.has_room_for_more(id, patience).await?;
        }
        let frame = std::future::poll_fn(|context| body.as_mut().poll_frame(context)).await;
        let frame = match frame {
            None => return wire.send_last(id),
            Some(Ok(frame)) => frame,
            Some(Err(_)) => return Err(Unsent::Over),
        };
        match frame.into_data() {
            Ok(data) => {
                wire.send_data(id, data, patience).await?;
                wire.sent(id, patience).await?;
            }
            Err(frame) => {
                let Ok(trailers) = frame.into_trailers() else { continue };
                return wire.send_headers(id, Kind::Trailers, headers::of_trailers(&trailers));
            }
        }
    }
}
