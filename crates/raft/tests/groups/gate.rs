//! Limits of connections, calls and messages: who opens them without end finds one, and others do not notice.

use crate::cluster::{CLUSTER, DEADLINE, eventually, pipeline};
use bytes::Bytes;
use flotilla_raft::{AddressBook, HostOptions, PROTOCOL_VERSION, RaftHost};
use proto::raft::raft_transport_client::RaftTransportClient;
use proto::{Code, Failure, MessageLimit, raft as wire};
use rpc::{Gate, GateOptions};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::service::RoutesBuilder;
use tonic::transport::{Channel, Endpoint};

const OURS: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const STRANGER: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));

struct Port {
    address: SocketAddr,
    gate: Gate,
    server: JoinHandle<()>,
}

impl Port {
    async fn open(options: GateOptions) -> Port {
        let gate = Gate::new(options);
        let host = RaftHost::new(HostOptions::default(), AddressBook::default());
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a free port");
        let address = listener.local_addr().expect("a bound address");
        let mut routes = RoutesBuilder::default();
        host.add_to(&mut routes);
        let serving = gate.clone();
        let serve = async move { serving.serve(listener, routes.routes(), std::future::pending()).await };
        Port { address, gate, server: tokio::spawn(serve) }
    }

    async fn channel(&self, from: IpAddr) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("an address");
        endpoint.local_address(Some(from)).connect().await.expect("connect")
    }

    fn lazy_channel(&self, from: IpAddr) -> Channel {
        let endpoint = Endpoint::from_shared(format!("http://{}", self.address)).expect("an address");
        endpoint.local_address(Some(from)).connect_lazy()
    }

    async fn silent_connection(&self, from: IpAddr) -> TcpStream {
        let socket = TcpSocket::new_v4().expect("a socket");
        socket.bind(SocketAddr::new(from, 0)).expect("bind");
        socket.connect(self.address).await.expect("connect")
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.server.abort();
    }
}

async fn hello(channel: Channel) -> Result<bool, Failure> {
    let request = wire::HelloRequest {
        group: pipeline(1).to_u64(),
        replica: 1,
        cluster: CLUSTER.to_owned(),
        version: PROTOCOL_VERSION,
    };
    let mut client = RaftTransportClient::new(channel);
    let answer = timeout(DEADLINE, client.hello(request)).await.expect("an answer");
    answer.map(|answer| answer.into_inner().is_here).map_err(Failure::from)
}

/// Whether the other end has closed it.
async fn is_closed(connection: &mut TcpStream, within: Duration) -> bool {
    let ended = async {
        let mut buffer = [0; 64];
        while connection.read(&mut buffer).await.is_ok_and(|count| count > 0) {}
    };
    timeout(within, ended).await.is_ok()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_past_an_addresss_share_are_closed_and_others_go_on() {
    let options = GateOptions { connections_per_address_max: 20, ..GateOptions::default() };
    let port = Port::open(options).await;
    let mut connections = Vec::new();
    for _ in 0..100 {
        connections.push(port.silent_connection(STRANGER).await);
    }
    eventually("the rest is refused", || (port.gate.counts().connections_refused.get() == 80).then_some(()))
        .await;
    for connection in &mut connections[20..] {
        assert!(is_closed(connection, DEADLINE).await);
    }
    assert_eq!(hello(port.channel(OURS).await).await, Ok(false), "another address is not in its way");

    // What is let go of is free again.
    drop(connections);
    let deadline = Instant::now() + DEADLINE;
    while hello(port.lazy_channel(STRANGER)).await.is_err() {
        assert!(Instant::now() < deadline, "its places stay taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Half a request may be all that ever comes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_says_nothing_is_closed_and_one_that_is_only_idle_is_not() {
    let port = Port::open(GateOptions::default()).await;
    let idle = port.channel(OURS).await;
    let mut silent = port.silent_connection(STRANGER).await;
    let mut half = port.silent_connection(STRANGER).await;
    half.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0").await.expect("write");
    assert!(is_closed(&mut silent, DEADLINE).await && is_closed(&mut half, DEADLINE).await);
    // One that began to speak was asked for a sign of life before.
    assert!(port.gate.counts().connections_silent.get() >= 1);
    assert_eq!(hello(idle).await, Ok(false));
}

async fn idle_stream(
    channel: Channel,
) -> Result<(mpsc::Sender<wire::AppendRequest>, Streaming<wire::AppendResponse>), Failure> {
    let (keep, messages) = mpsc::channel(1);
    let mut client = RaftTransportClient::new(channel);
    let opened = timeout(DEADLINE, client.append(ReceiverStream::new(messages))).await.expect("an answer");
    Ok((keep, opened.map_err(Failure::from)?.into_inner()))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_past_an_addresss_share_are_refused_and_others_go_on() {
    let options = GateOptions { calls_per_address_max: 50, ..GateOptions::default() };
    let port = Port::open(options).await;
    let channels = [port.channel(STRANGER).await, port.channel(STRANGER).await];
    let mut streams = Vec::new();
    for n in 0..50 {
        streams.push(idle_stream(channels[n % 2].clone()).await.expect("it has room"));
    }
    for channel in &channels {
        idle_stream(channel.clone())
            .await
            .map(|_| ())
            .expect_err("its share is used up, whatever the connection");
        hello(channel.clone()).await.expect_err("for short calls too");
    }
    assert_eq!(port.gate.counts().calls_refused.get(), 4);
    assert_eq!(hello(port.channel(OURS).await).await, Ok(false), "another address is not in its way");
    streams.truncate(49);
    let deadline = Instant::now() + DEADLINE;
    while hello(channels[0].clone()).await.is_err() {
        assert!(Instant::now() < deadline, "the call's place stays taken");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The message is refused by the five bytes in front of it: what would follow is not waited for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_above_its_methods_limit_is_refused_before_it_comes() {
    let port = Port::open(GateOptions::default()).await;
    let channel = port.channel(STRANGER).await;
    for (path, limit) in MessageLimit::of_all().filter(|(path, _)| path.contains(".raft.")) {
        for (bytes, is_refused) in [(limit.bytes_max, false), (limit.bytes_max + 1, true)] {
            let before = port.gate.counts().messages_too_large.get();
            let announced = send_head(&channel, path, bytes).await;
            let refused = port.gate.counts().messages_too_large.get() - before;
            assert_eq!(refused == 1, is_refused, "{path}, {bytes} of {}: {announced:?}", limit.bytes_max);
            if is_refused {
                let failure = announced.expect_err("refused");
                assert_eq!(failure.code, Code::TooLarge, "{path}: {failure}");
            }
        }
    }
    assert_eq!(hello(channel).await, Ok(false), "the connection is whole");
}

/// Announces a message of so many bytes, sends none of them, and ends.
async fn send_head(channel: &Channel, path: &str, bytes: usize) -> Result<(), Failure> {
    use tonic::codegen::{Service, http};
    let bytes = u32::try_from(bytes).expect("a length");
    let head = Bytes::from([&[0][..], &bytes.to_be_bytes()].concat());
    let body = tonic::body::Body::new(OneFrame(Some(head)));
    let request = http::Request::builder()
        .method("POST")
        .uri(path)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .expect("a request");
    let mut channel = channel.clone();
    std::future::poll_fn(|cx| channel.poll_ready(cx)).await.expect("connected");
    let answer = timeout(DEADLINE, channel.call(request)).await.expect("an answer").expect("an answer");
    let (parts, mut body) = answer.into_parts();
    let mut headers = parts.headers;
    while let Some(frame) =
        std::future::poll_fn(|cx| tonic::codegen::Body::poll_frame(std::pin::Pin::new(&mut body), cx)).await
    {
        if let Ok(Ok(trailers)) = frame.map(http_body::Frame::into_trailers) {
            headers.extend(trailers);
        }
    }
    match tonic::Status::from_header_map(&headers) {
        Some(status) if status.code() != tonic::Code::Ok => Err(status.into()),
        _ => Ok(()),
    }
}

struct OneFrame(Option<Bytes>);

impl tonic::codegen::Body for OneFrame {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, tonic::Status>>> {
        std::task::Poll::Ready(self.0.take().map(|data| Ok(http_body::Frame::data(data))))
    }
}
