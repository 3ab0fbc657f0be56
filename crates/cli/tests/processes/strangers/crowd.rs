use super::http2;
use crate::s3::S3;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use tokio::net::{TcpSocket, TcpStream};

/// A quarter of what a gateway takes of one address.
const OF_AN_ADDRESS: usize = 1000;
/// The receive buffer of a client: so little that an answer stands still when nobody reads it.
const RECEIVE_BUFFER_BYTES: u32 = 4096;

/// Connections of strangers, from many addresses. They end with it.
pub(super) struct Crowd {
    connections: Vec<TcpStream>,
    reads: bool,
}

impl Crowd {
    pub(super) fn count(&self) -> usize {
        self.connections.len()
    }

    /// Those who are still connected. Of those who read none is counted out: what they have not read yet
    /// hides whether more comes.
    pub(super) fn staying(&self) -> usize {
        let stays = |connection: &&TcpStream| {
            let read = connection.try_read(&mut [0]);
            self.reads || read.is_err_and(|error| error.kind() == ErrorKind::WouldBlock)
        };
        self.connections.iter().filter(stays).count()
    }

    /// A crowd that says nothing.
    pub(super) async fn idle(address: &str, count: usize) -> Crowd {
        Crowd::idle_from(address, count, OF_AN_ADDRESS).await
    }

    /// A crowd that says nothing, so many of it from one address.
    pub(super) async fn idle_from(address: &str, count: usize, of_an_address: usize) -> Crowd {
        Crowd { connections: come(address, count, of_an_address, |_| Vec::new()).await, reads: false }
    }

    /// A crowd that asks for megabytes in many streams of HTTP/2, and has room for none of them.
    pub(super) async fn slow_streams(address: &str, target: &str, count: usize, streams: usize) -> Crowd {
        let said = |_| http2::asks(address, target, streams);
        Crowd { connections: come(address, count, OF_AN_ADDRESS, said).await, reads: false }
    }

    /// A crowd of which half stop in the head of a request, the others in its body.
    pub(super) async fn half_sent(address: &str, s3: &S3, count: usize) -> Crowd {
        let target = target(&s3.put_url("half"));
        let request = |number: usize| match number % 2 {
            0 => format!("GET /first/half HTTP/1.1\r\nhost: {address}\r\nx-number: {number}").into_bytes(),
            _ => format!("PUT {target} HTTP/1.1\r\nhost: {address}\r\ncontent-length: 100000\r\n\r\nhalf")
                .into_bytes(),
        };
        Crowd { connections: come(address, count, OF_AN_ADDRESS, request).await, reads: false }
    }

    /// A crowd that asks for megabytes, and takes a byte a second.
    pub(super) async fn slow_readers(address: &str, s3: &S3, count: usize) -> Crowd {
        let target = target(&s3.get_url("large", None));
        let request = |_| format!("GET {target} HTTP/1.1\r\nhost: {address}\r\n\r\n").into_bytes();
        Crowd { connections: come(address, count, OF_AN_ADDRESS, request).await, reads: true }
    }

    /// Does what the crowd does in a second.
    pub(super) fn go_on(&mut self) {
        if self.reads {
            // Whoever was let go of, or is not answered yet, has nothing to read.
            self.connections.iter().for_each(|connection| drop(connection.try_read(&mut [0])));
        }
    }
}

/// Connects from so many addresses that none of them is refused for itself, and says what `request` has for
/// each.
async fn come(
    address: &str,
    count: usize,
    of_an_address: usize,
    request: impl Fn(usize) -> Vec<u8>,
) -> Vec<TcpStream> {
    let address: SocketAddr = address.parse().expect("an address");
    let mut connections = Vec::with_capacity(count);
    for number in 0..count {
        let socket = TcpSocket::new_v4().expect("a socket");
        let own = Ipv4Addr::new(127, 0, 1, (number / of_an_address) as u8 + 1);
        socket.bind((own, 0).into()).expect("an address of this machine");
        socket.set_recv_buffer_size(RECEIVE_BUFFER_BYTES).expect("a small buffer");
        let connection =
            socket.connect(address).await.unwrap_or_else(|error| panic!("connection {number}: {error}"));
        connection.writable().await.expect("it is connected");
        let said = request(number);
        assert_eq!(connection.try_write(&said).unwrap_or_default(), said.len(), "it fits into a socket");
        connections.push(connection);
    }
    connections
}

/// The target in a request's first line.
pub(super) fn target(url: &reqwest::Url) -> String {
    url.as_str()[url.origin().ascii_serialization().len()..].to_owned()
}
