use flotilla_raft::AddressBook;
use rpc::{Channel, Connector, TcpConnector};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use types::NodeId;

/// The side of an exchange: what a node asks of another one, or what it gets for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    Questions,
    Answers,
}

/// The way of a message: who asks, and whom.
type Way = (NodeId, NodeId, Side);

/// The network between the nodes of a cluster: TCP, with a relay in each connection that can hold it up.
#[derive(Clone)]
pub(crate) struct Links {
    /// Ways that are held up: nothing arrives and nothing breaks, until one side gives up or the link is
    /// mended.
    held: Arc<watch::Sender<BTreeSet<Way>>>,
    addresses: AddressBook,
}

impl Links {
    pub(crate) fn new(addresses: AddressBook) -> Links {
        Links { held: Arc::new(watch::Sender::default()), addresses }
    }

    pub(crate) fn connector(&self, from: NodeId) -> Arc<dyn Connector> {
        Arc::new(LinkConnector { links: self.clone(), from })
    }

    /// Holds up what `from` asks of `to`, and its answers.
    pub(crate) fn cut(&self, from: NodeId, to: NodeId) {
        self.hold(from, to, Side::Questions);
        self.hold(from, to, Side::Answers);
    }

    pub(crate) fn hold(&self, from: NodeId, to: NodeId, side: Side) {
        self.held.send_modify(|held| _ = held.insert((from, to, side)));
    }

    pub(crate) fn release(&self, from: NodeId, to: NodeId, side: Side) {
        self.held.send_modify(|held| _ = held.remove(&(from, to, side)));
    }

    /// Cuts a node off from all others.
    pub(crate) fn isolate(&self, node: NodeId) {
        for other in (1..=9).map(NodeId).filter(|other| *other != node) {
            self.cut(node, other);
            self.cut(other, node);
        }
    }

    pub(crate) fn mend_between(&self, one: NodeId, other: NodeId) {
        for (from, to) in [(one, other), (other, one)] {
            self.release(from, to, Side::Questions);
            self.release(from, to, Side::Answers);
        }
    }

    pub(crate) fn mend(&self) {
        self.held.send_modify(BTreeSet::clear);
    }

    fn node_at(&self, address: &str) -> Option<NodeId> {
        (1..=9).map(NodeId).find(|node| self.addresses.get(*node).as_deref() == Some(address))
    }
}

struct LinkConnector {
    links: Links,
    from: NodeId,
}

impl Connector for LinkConnector {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        // Who is in no address book is not there.
        let Some(to) = self.links.node_at(address) else { return TcpConnector::default().connect(address) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        let relay_address = listener.local_addr().map_err(|error| error.to_string())?;
        let listener = TcpListener::from_std(listener).map_err(|error| error.to_string())?;
        let (link, held) = ((self.from, to), self.links.held.subscribe());
        // Ends with the test's runtime.
        tokio::spawn(relay_all(listener, address.to_owned(), link, held));
        TcpConnector::default().connect(&relay_address.to_string())
    }
}

type Held = watch::Receiver<BTreeSet<Way>>;

async fn relay_all(listener: TcpListener, to: String, link: (NodeId, NodeId), held: Held) {
    while let Ok((connection, _)) = listener.accept().await {
        tokio::spawn(relay(connection, to.clone(), link, held.clone()));
    }
}

async fn relay(near: TcpStream, to: String, (from, by): (NodeId, NodeId), held: Held) {
    let Ok(far) = TcpStream::connect(to).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
    tokio::select! {
        () = pump(near_read, far_write, (from, by, Side::Questions), held.clone()) => {}
        () = pump(far_read, near_write, (from, by, Side::Answers), held) => {}
    }
}

async fn pump(mut read: OwnedReadHalf, mut write: OwnedWriteHalf, way: Way, mut held: Held) {
    let mut bytes = vec![0; 64 << 10];
    while let Ok(count @ 1..) = read.read(&mut bytes).await {
        if held.wait_for(|held| !held.contains(&way)).await.is_err()
            || write.write_all(&bytes[..count]).await.is_err()
        {
            return;
        }
    }
}
