//! The network between the nodes of a drill: every directed pair has a port of its own here, and what one
//! node says to another passes through this process, which can hold it back, cut it or slow it.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinSet};

/// The fate of bytes from one node to another, on connections that either of them opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    Open,
    /// Nothing arrives, and nobody is told: as when packets are dropped. What was sent arrives once the link
    /// is open again, as TCP would have it, unless its connection was given up meanwhile.
    Held,
    /// Connections break, and new ones are refused.
    Cut,
    /// Each piece arrives this much later.
    Slow(Duration),
}

pub(crate) struct Network {
    nodes: usize,
    links: Vec<watch::Sender<Link>>,
    ports: Vec<SocketAddr>,
    targets: Vec<Arc<Mutex<Option<SocketAddr>>>>,
    /// The task that serves each port.
    serving: Vec<AbortHandle>,
    tasks: JoinSet<()>,
}

impl Network {
    pub(crate) async fn start(nodes: usize) -> Network {
        let links: Vec<_> = (0..nodes * nodes).map(|_| watch::Sender::new(Link::Open)).collect();
        let targets: Vec<_> = (0..nodes).map(|_| Arc::new(Mutex::new(None))).collect();
        let (ports, serving, tasks) = Default::default();
        let mut network = Network { nodes, links, ports, targets, serving, tasks };
        for from in 0..nodes {
            for to in 0..nodes {
                let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a free port");
                network.ports.push(listener.local_addr().expect("a bound address"));
                let serving = network.serve(from, to, listener);
                network.serving.push(serving);
            }
        }
        network
    }

    fn serve(&mut self, from: usize, to: usize, listener: TcpListener) -> AbortHandle {
        let there = self.links[from * self.nodes + to].subscribe();
        let back = self.links[to * self.nodes + from].subscribe();
        self.tasks.spawn(serve(listener, self.targets[to].clone(), there, back))
    }

    /// Nobody listens any more where the others reach `node`: connections are refused.
    pub(crate) fn take_down(&self, node: usize) {
        for from in 0..self.nodes {
            self.serving[from * self.nodes + node].abort();
        }
    }

    /// Serves a node's ports again, as before it was taken down.
    pub(crate) async fn bring_up(&mut self, node: usize) {
        for from in 0..self.nodes {
            let at = from * self.nodes + node;
            let listener = TcpListener::bind(self.ports[at]).await.expect("bind the port again");
            self.serving[at] = self.serve(from, node, listener);
        }
    }

    /// The address at which `from` reaches `to`.
    pub(crate) fn port(&self, from: usize, to: usize) -> SocketAddr {
        self.ports[from * self.nodes + to]
    }

    /// Notes the address of `node`, as it says that after each start.
    pub(crate) fn place(&self, node: usize, address: SocketAddr) {
        *self.targets[node].lock().unwrap() = Some(address);
    }

    pub(crate) fn set(&self, from: usize, to: usize, link: Link) {
        self.links[from * self.nodes + to].send_replace(link);
    }

    /// Sets both directions between a node and all others.
    pub(crate) fn set_all(&self, node: usize, link: Link) {
        for other in (0..self.nodes).filter(|&other| other != node) {
            self.set(node, other, link);
            self.set(other, node, link);
        }
    }
}

async fn serve(
    listener: TcpListener,
    target: Arc<Mutex<Option<SocketAddr>>>,
    there: watch::Receiver<Link>,
    back: watch::Receiver<Link>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((caller, _)) = accepted else { continue };
                let is_cut = *there.borrow() == Link::Cut || *back.borrow() == Link::Cut;
                let target = *target.lock().unwrap();
                if let Some(target) = target.filter(|_| !is_cut) {
                    connections.spawn(relay(caller, target, there.clone(), back.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Relays until either direction ends: a broken connection is broken for both.
async fn relay(
    caller: TcpStream,
    target: SocketAddr,
    there: watch::Receiver<Link>,
    back: watch::Receiver<Link>,
) {
    let Ok(called) = TcpStream::connect(target).await else { return };
    for socket in [&caller, &called] {
        socket.set_nodelay(true).expect("set an option of a socket");
    }
    let (from_caller, to_caller) = caller.into_split();
    let (from_called, to_called) = called.into_split();
    tokio::select! {
        () = pump(from_caller, to_called, there) => {}
        () = pump(from_called, to_caller, back) => {}
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut link: watch::Receiver<Link>) {
    let mut piece = vec![0; 64 << 10];
    loop {
        let mut cuts = link.clone();
        let read = tokio::select! {
            read = from.read(&mut piece) => read,
            _ = cuts.wait_for(|link| *link == Link::Cut) => return,
        };
        let Ok(bytes @ 1..) = read else { return };
        let link = match link.wait_for(|link| *link != Link::Held).await {
            Ok(link) => *link,
            Err(_) => return,
        };
        match link {
            Link::Cut => return,
            Link::Slow(by) => tokio::time::sleep(by).await,
            Link::Open | Link::Held => {}
        }
        if to.write_all(&piece[..bytes]).await.is_err() {
            return;
        }
    }
}
