//! gRPC's messages without a copy of what they carry: for the few methods through which data goes. What
//! travels is what tonic makes and reads, so either side may be tonic's own.

use crate::limits::{Carried, check};
use crate::rope::{Rope, RopeMut, SHARED_BYTES_MIN};
use crate::{Failure, MESSAGE_BYTES_MAX, cluster};
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt, ready, stream};
use prost::Message;
use std::collections::VecDeque;
use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::http::{HeaderMap, Method, Request, Response, Uri, header};
use tonic::codegen::{Body as HttpBody, Service};

/// Chunks of blocks, and their acknowledgements.
pub const WRITE: &str = "/flotilla.datanode.v1.Datanode/Write";
/// Bytes of a block.
pub const READ: &str = "/flotilla.datanode.v1.Datanode/Read";
/// The files of a container that another node is to have.
pub const FETCH_CONTAINER: &str = "/flotilla.datanode.v1.Datanode/FetchContainer";
/// Pieces of a group's state, and which are wanted next.
pub const SNAPSHOT: &str = "/flotilla.raft.v1.RaftTransport/Snapshot";
/// Entries of a group, and where a member has them.
pub const APPEND: &str = "/flotilla.raft.v1.RaftTransport/Append";

/// The bytes before each message: one says whether it is compressed, which none is, four its length.
const HEAD_BYTES: usize = 5;
const CONTENT_TYPE: header::HeaderValue = header::HeaderValue::from_static("application/grpc");

/// Calls a method with a stream of messages; the answer is there when its head is.
pub async fn call<S, M, R>(
    mut service: S,
    path: &'static str,
    cluster: &str,
    messages: impl Stream<Item = M> + Send + 'static,
) -> Result<Messages<R>, Status>
where
    S: Service<Request<Body>, Response = Response<Body>, Error = Status>,
    M: Message + 'static,
{
    std::future::poll_fn(|context| service.poll_ready(context)).await?;
    let mut request = Request::new(Body::new(Outgoing {
        messages: messages.map(Ok).boxed(),
        ends: Ends::WithData,
        frames: VecDeque::new(),
    }));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = Uri::from_static(path);
    let headers = request.headers_mut();
    headers.insert(header::TE, header::HeaderValue::from_static("trailers"));
    headers.insert(header::CONTENT_TYPE, CONTENT_TYPE);
    if !cluster.is_empty() {
        cluster::name(headers, cluster);
    }
    let (parts, body) = service.call(request).await?.into_parts();
    // An answer without messages has its status in its head.
    match Status::from_header_map(&parts.headers) {
        Some(status) if status.code() != tonic::Code::Ok => Err(status),
        _ => Ok(Messages::of_answer(body)),
    }
}

/// Answers a call with a stream of messages, or refuses it.
pub fn answer<R: Message + 'static>(
    answers: Result<impl Stream<Item = Result<R, Status>> + Send + 'static, Status>,
) -> Response<Body> {
    let answers = match answers {
        Ok(answers) => answers,
        Err(status) => return status.into_http(),
    };
    let messages = answers.boxed();
    let body = Outgoing { messages, ends: Ends::WithStatus(Status::ok("")), frames: VecDeque::new() };
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(header::CONTENT_TYPE, CONTENT_TYPE);
    response
}

/// Answers a call that asks with one message.
#[allow(private_bounds)] // made for our messages alone
pub async fn answer_one<M, A, S, R>(asked: Body, answers: impl FnOnce(M) -> A) -> Response<Body>
where
    M: Message + Default + Carried,
    A: Future<Output = Result<S, Status>>,
    S: Stream<Item = Result<R, Status>> + Send + 'static,
    R: Message + 'static,
{
    let answers = match Messages::of_request(asked).message().await {
        Ok(Some(asked)) => answers(asked).await,
        Ok(None) => Err(Status::invalid_argument("nothing is asked for")),
        Err(status) => Err(status),
    };
    answer(answers)
}

/// The messages of a call, or of its answer, as they come.
pub struct Messages<M> {
    body: Body,
    received: Rope,
    /// The small pieces behind `received`, joined: a message in frames of a byte must not take a piece for
    /// each.
    small: BytesMut,
    /// The length of the message that comes, once its head is here.
    length: Option<usize>,
    /// Whether the body is an answer's, which says at its end how it went.
    has_status: bool,
    is_over: bool,
    of: PhantomData<fn() -> M>,
}

impl<M> Messages<M> {
    /// The messages of a request.
    pub fn of_request(body: Body) -> Messages<M> {
        Messages {
            body,
            received: Rope::default(),
            small: BytesMut::new(),
            length: None,
            has_status: false,
            is_over: false,
            of: PhantomData,
        }
    }

    fn of_answer(body: Body) -> Messages<M> {
        Messages { has_status: true, ..Messages::of_request(body) }
    }
}

#[allow(private_bounds)] // made for our messages alone
impl<M: Message + Default + Carried> Messages<M> {
    /// The next message. `None`: there are no more, and all went well.
    pub async fn message(&mut self) -> Result<Option<M>, Status> {
        self.next().await.transpose()
    }

    fn push(&mut self, piece: Bytes) {
        if piece.len() < SHARED_BYTES_MIN {
            self.small.extend_from_slice(&piece);
            return;
        }
        self.received.push(self.small.split().freeze());
        self.received.push(piece);
    }

    fn has(&self, bytes: usize) -> bool {
        self.received.remaining() + self.small.len() >= bytes
    }

    /// Takes the next bytes, which are there.
    fn take(&mut self, bytes: usize) -> Rope {
        if self.received.remaining() < bytes {
            self.received.push(self.small.split().freeze());
        }
        self.received.split(bytes)
    }

    fn length(&mut self) -> Result<Option<usize>, Status> {
        if self.length.is_some() || !self.has(HEAD_BYTES) {
            return Ok(self.length);
        }
        let mut head = [0; HEAD_BYTES];
        self.take(HEAD_BYTES).copy_to_slice(&mut head);
        let [is_compressed, length @ ..] = head;
        let length = u32::from_be_bytes(length) as usize;
        if is_compressed != 0 {
            return Err(Failure::invalid("a message is compressed").into());
        }
        if length > MESSAGE_BYTES_MAX {
            return Err(Status::out_of_range(format!("a message of {length} bytes")));
        }
        self.length = Some(length);
        Ok(self.length)
    }

    fn decode(&mut self) -> Result<Option<M>, Status> {
        let Some(length) = self.length()?.filter(|length| self.has(*length)) else { return Ok(None) };
        self.length = None;
        let message = self.take(length);
        if let Some(shape) = M::ASKED {
            check(shape, &mut message.clone()).map_err(Failure::from)?;
        }
        M::decode(message).map(Some).map_err(|error| Status::internal(error.to_string()))
    }

    /// Whether a message has begun and not ended.
    fn is_cut(&self) -> bool {
        self.length.is_some() || self.has(1)
    }

    /// The error that an end like this is, if it is one.
    fn end(&self, trailers: Option<HeaderMap>) -> Option<Status> {
        let said = trailers.as_ref().and_then(Status::from_header_map);
        match said {
            Some(status) if status.code() != tonic::Code::Ok => Some(status),
            _ if self.is_cut() => Some(Status::internal("the last message is cut")),
            None if self.has_status => Some(Status::unavailable("the answer ended and did not say how")),
            _ => None,
        }
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<Result<M, Status>>> {
        loop {
            if let Some(message) = self.decode().transpose() {
                return Poll::Ready(Some(message));
            }
            let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
            match frame {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => self.push(data),
                    Err(frame) => return Poll::Ready(self.end(frame.into_trailers().ok()).map(Err)),
                },
                Some(Err(status)) => return Poll::Ready(Some(Err(status))),
                None => return Poll::Ready(self.end(None).map(Err)),
            }
        }
    }
}

#[allow(private_bounds)]
impl<M: Message + Default + Carried> Stream for Messages<M> {
    type Item = Result<M, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<M, Status>>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        let next = ready!(self.poll(context));
        self.is_over = !matches!(next, Some(Ok(_)));
        Poll::Ready(next)
    }
}

/// The end of a body of messages.
enum Ends {
    /// A request ends with its last message.
    WithData,
    /// An answer ends with how it went.
    WithStatus(Status),
    Ended,
}

/// A body of messages; each goes in one frame or more, its large bodies in frames of their own.
struct Outgoing<S> {
    messages: S,
    ends: Ends,
    frames: VecDeque<Bytes>,
}

impl<S, M> HttpBody for Outgoing<S>
where
    S: Stream<Item = Result<M, Status>> + Unpin,
    M: Message,
{
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Status>>> {
        if let Some(frame) = self.frames.pop_front() {
            return Poll::Ready(Some(Ok(http_body::Frame::data(frame))));
        }
        if matches!(self.ends, Ends::Ended) {
            return Poll::Ready(None);
        }
        let status = match ready!(self.messages.poll_next_unpin(context)) {
            Some(Ok(message)) => {
                self.frames = framed(&message).into_pieces();
                let frame = self.frames.pop_front().expect("a head at least");
                return Poll::Ready(Some(Ok(http_body::Frame::data(frame))));
            }
            Some(Err(status)) => Some(status),
            None => None,
        };
        match std::mem::replace(&mut self.ends, Ends::Ended) {
            Ends::WithStatus(ok) => {
                let mut trailers = HeaderMap::new();
                status.unwrap_or(ok).add_header(&mut trailers)?;
                Poll::Ready(Some(Ok(http_body::Frame::trailers(trailers))))
            }
            Ends::WithData | Ends::Ended => Poll::Ready(status.map(Err)),
        }
    }

    /// The size of the rest of the message that was begun, at least.
    fn size_hint(&self) -> http_body::SizeHint {
        let mut hint = http_body::SizeHint::default();
        hint.set_lower(self.frames.iter().map(|frame| frame.len() as u64).sum());
        hint
    }
}

/// A message and its head.
fn framed(message: &impl Message) -> Rope {
    let mut head = BytesMut::with_capacity(64);
    head.extend_from_slice(&[0]);
    head.extend_from_slice(&(message.encoded_len() as u32).to_be_bytes());
    let mut rope = RopeMut::after(head);
    message.encode(&mut rope).expect("a rope has room");
    rope.freeze()
}

/// A stream of one message.
pub fn one<M: Send + 'static>(message: M) -> impl Stream<Item = M> + Send + 'static {
    stream::once(std::future::ready(message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datanode::{ReadChunk, WriteAck, WriteChunk};
    use std::convert::Infallible;

    fn chunk(seq: u32, bytes: usize) -> WriteChunk {
        let data = (0..bytes).map(|n| (n as u32 * 7 + seq) as u8).collect::<Vec<u8>>();
        WriteChunk { seq, data: data.into(), ..WriteChunk::default() }
    }

    #[derive(Clone)]
    struct Echo;

    impl Service<Request<Body>> for Echo {
        type Response = Response<Body>;
        type Error = Status;
        type Future = std::future::Ready<Result<Response<Body>, Status>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
            Poll::Ready(Ok(()))
        }

        /// Answers each chunk with its bytes, and an odd one ends it.
        fn call(&mut self, request: Request<Body>) -> Self::Future {
            if request.uri().path() == "/refused" {
                return std::future::ready(Ok(answer::<ReadChunk>(Err::<stream::Empty<_>, _>(
                    Status::aborted("no"),
                ))));
            }
            let chunks = Messages::<WriteChunk>::of_request(request.into_body());
            let answers = chunks.map(|chunk| match chunk {
                Ok(chunk) if chunk.seq == 99 => Err(Status::not_found("none")),
                Ok(chunk) => {
                    Ok(ReadChunk { offset: chunk.seq.into(), data: chunk.data, ..ReadChunk::default() })
                }
                Err(status) => Err(status),
            });
            std::future::ready(Ok::<_, Infallible>(answer(Ok(answers))).map_err(|never| match never {}))
        }
    }

    #[tokio::test]
    async fn messages_of_all_sizes_come_as_they_were_sent_and_bodies_are_not_copied() {
        let sizes = [0, 1, 4095, 4096, 100_000, 3 << 20];
        let sent: Vec<WriteChunk> = sizes.iter().zip(0..).map(|(bytes, seq)| chunk(seq, *bytes)).collect();
        let mut answers: Messages<ReadChunk> =
            call(Echo, "/echo", "blue", stream::iter(sent.clone())).await.unwrap();
        for chunk in &sent {
            let read = answers.message().await.unwrap().expect("one for each");
            assert!((read.offset, &read.data) == (chunk.seq.into(), &chunk.data));
            assert!(chunk.data.len() < 4096 || read.data.as_ptr() == chunk.data.as_ptr(), "not copied");
        }
        assert_eq!(answers.message().await.unwrap(), None);
        assert_eq!(answers.message().await.unwrap(), None);
    }

    #[test]
    fn paths_are_those_of_methods() {
        for path in [WRITE, READ, FETCH_CONTAINER, SNAPSHOT, APPEND] {
            assert!(crate::MessageLimit::of_method(path).is_some(), "{path}");
        }
    }

    #[tokio::test]
    async fn statuses_come_before_and_after_messages() {
        let refused = call::<_, _, ReadChunk>(Echo, "/refused", "blue", one(chunk(1, 1))).await;
        assert_eq!(refused.err().map(|status| status.code()), Some(tonic::Code::Aborted));
        let sent = stream::iter([chunk(1, 10), chunk(99, 10)]);
        let mut answers: Messages<ReadChunk> = call(Echo, "/echo", "blue", sent).await.unwrap();
        assert!(answers.message().await.unwrap().is_some());
        assert_eq!(answers.message().await.unwrap_err().code(), tonic::Code::NotFound);
        assert_eq!(answers.message().await.unwrap(), None);
    }

    async fn read(bytes: Vec<u8>) -> Result<Option<WriteChunk>, Status> {
        Messages::of_request(Body::new(http_body_util::Full::new(Bytes::from(bytes)))).message().await
    }

    #[tokio::test]
    async fn what_is_cut_compressed_too_long_or_has_too_many_parts_is_refused() {
        let ack = framed(&WriteAck::default());
        assert_eq!(ack.remaining(), HEAD_BYTES, "an empty message is its head");
        let mut whole = framed(&chunk(1, 100));
        let whole = whole.copy_to_bytes(whole.remaining()).to_vec();
        assert!(read(whole.clone()).await.unwrap().is_some());
        assert!(read(whole[..whole.len() - 1].to_vec()).await.is_err());
        assert!(read([&[1], &whole[1..]].concat()).await.is_err());
        assert!(read(vec![0, 0xff, 0xff, 0xff, 0xff]).await.is_err());
        let crcs = WriteChunk { data_crcs: vec![1; 1 << 20], ..WriteChunk::default() };
        let mut many = framed(&crcs);
        assert!(read(many.copy_to_bytes(many.remaining()).to_vec()).await.is_err());
    }
}
