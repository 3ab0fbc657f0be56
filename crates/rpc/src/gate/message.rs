use super::share::{Place, Shares, holder};
use super::{Gate, GateCounts};
use bytes::{Buf, Bytes};
use futures::FutureExt;
use futures::future::BoxFuture;
use proto::{Code, Failure, MessageLimit};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tonic::codegen::{Body as HttpBody, Service};
use tonic::transport::server::TcpConnectInfo;
use tower::Layer;

/// The head of each message: one byte of flags, four of length.
const FRAME_HEAD_BYTES: usize = 5;

impl<S> Layer<S> for Gate {
    type Service = Gated<S>;

    fn layer(&self, inner: S) -> Gated<S> {
        Gated { inner, calls: self.calls.clone(), counts: self.counts.clone() }
    }
}

/// Services behind the door.
#[derive(Clone)]
pub struct Gated<S> {
    inner: S,
    calls: Arc<Shares>,
    counts: Arc<GateCounts>,
}

impl<S> Service<Request<Body>> for Gated<S>
where
    S: Service<Request<Body>, Response = Response<Body>>,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<Response<Body>, S::Error>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let Some(place) = self.calls.take(caller(&request)) else {
            self.counts.calls_refused.count();
            let refused = Status::from(Failure::new(Code::Busy, "too many calls are under way")).into_http();
            return std::future::ready(Ok(refused)).boxed();
        };
        self.counts.calls.count();
        // An unknown method has no message that anybody reads.
        let limit = MessageLimit::of_method(request.uri().path()).unwrap_or(proto::SMALL);
        let counts = self.counts.clone();
        let request = request.map(|body| {
            Body::new(GatedBody {
                body,
                what: What::Messages { frame: Frame::Head(0, [0; 4]), limit, counts },
            })
        });
        let answered = self.inner.call(request);
        async move { Ok(answered.await?.map(|body| Body::new(GatedBody { body, what: What::Answer(place) }))) }.boxed()
    }
}

/// The address that a call comes from, as it has shares; none within the process.
pub fn caller<B>(request: &Request<B>) -> Option<IpAddr> {
    let from = request.extensions().get::<TcpConnectInfo>()?.remote_addr()?;
    Some(holder(from.ip()))
}

/// The messages of a call, stopped at the first that is announced as too large; or its answers, which keep
/// its place.
pub struct GatedBody {
    body: Body,
    what: What,
}

enum What {
    Messages {
        frame: Frame,
        limit: MessageLimit,
        counts: Arc<GateCounts>,
    },
    #[allow(dead_code)] // held until the answers are sent
    Answer(Place),
}

/// The position of a body in a sequence of messages.
enum Frame {
    /// Within the head of a message: how many of its bytes came, and those of the length.
    Head(usize, [u8; 4]),
    /// Within a message: bytes that are still to come.
    Message(usize),
}

impl Frame {
    /// Returns how many messages begin in `data`. `Err`: the length of one that is too large.
    fn pass(&mut self, mut data: &[u8], bytes_max: usize) -> Result<u64, usize> {
        let mut begun = 0;
        while data.has_remaining() {
            match self {
                Frame::Message(left) => {
                    let passed = data.len().min(*left);
                    data.advance(passed);
                    *left -= passed;
                    if *left == 0 {
                        *self = Frame::Head(0, [0; 4]);
                    }
                }
                Frame::Head(came, length) => {
                    let byte = data.get_u8();
                    if *came > 0 {
                        length[*came - 1] = byte;
                    }
                    *came += 1;
                    if *came < FRAME_HEAD_BYTES {
                        continue;
                    }
                    begun += 1;
                    match u32::from_be_bytes(*length) as usize {
                        0 => *self = Frame::Head(0, [0; 4]),
                        bytes if bytes > bytes_max => return Err(bytes),
                        bytes => *self = Frame::Message(bytes),
                    }
                }
            }
        }
        Ok(begun)
    }
}

impl HttpBody for GatedBody {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(cx));
        let (Some(Ok(passed)), What::Messages { frame, limit, counts }) = (&polled, &mut self.what) else {
            return Poll::Ready(polled);
        };
        if let Some(data) = passed.data_ref() {
            match frame.pass(data, limit.bytes_max) {
                Ok(begun) => counts.messages.add(begun),
                Err(bytes) => {
                    counts.messages_too_large.count();
                    let max = limit.bytes_max;
                    let why = format!("a message of {bytes} bytes, the limit of its method is {max}");
                    return Poll::Ready(Some(Err(Status::out_of_range(why))));
                }
            }
        }
        Poll::Ready(polled)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> http_body::SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bodies come cut anywhere.
    #[test]
    fn lengths_are_found_wherever_a_body_is_cut() {
        let message = |bytes: u32| [&[0][..], &bytes.to_be_bytes(), &vec![7; bytes as usize]].concat();
        let body = [message(3), message(0), message(100), message(99), message(101)].concat();
        for cut in 1..body.len() {
            let mut frame = Frame::Head(0, [0; 4]);
            let passed: Result<u64, usize> = body.chunks(cut).map(|data| frame.pass(data, 100)).sum();
            assert_eq!(passed, Err(101), "in pieces of {cut}");
            let mut frame = Frame::Head(0, [0; 4]);
            let passed: Result<u64, usize> = body.chunks(cut).map(|data| frame.pass(data, 101)).sum();
            assert_eq!(passed, Ok(5), "messages in pieces of {cut}");
        }
    }
}
