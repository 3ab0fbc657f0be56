use flotilla_raft::{AddressBook, Channel, Connector, TcpConnector};
use std::collections::BTreeSet;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use types::NodeId;

/// The network between the nodes of a cluster: TCP, with a relay in each connection that can hold it up.
#[derive(Clone)]
pub(crate) struct Links {
    /// Nodes whose connections to another one are held up, in both directions: nothing arrives and nothing breaks, until
    /// one side gives up or the link is mended.
    cut: Arc<watch::Sender<BTreeSet<(NodeId, NodeId)>>>,
    addresses: AddressBook,
}

impl Links {
    pub(crate) fn new(addresses: AddressBook) -> Links {
        Links { cut: Arc::new(watch::Sender::default()), addresses }
    }

    pub(crate) fn connector(&self, from: NodeId) -> Arc<dyn Connector> {
        Arc::new(LinkConnector { links: self.clone(), from })
    }

    /// Holds up what `from` asks of `to`, and its answers.
    pub(crate) fn cut(&self, from: NodeId, to: NodeId) {
        self.cut.send_modify(|cut| {
            cut.insert((from, to));
        });
    }

    /// Cuts a node off from all others.
    pub(crate) fn isolate(&self, node: NodeId) {
        for other in (1..=9).map(NodeId).filter(|other| *other != node) {
            self.cut(node, other);
            self.cut(other, node);
        }
    }

    pub(crate) fn mend_between(&self, one: NodeId, other: NodeId) {
        self.cut.send_modify(|cut| cut.retain(|link| *link != (one, other) && *link != (other, one)));
    }

    pub(crate) fn mend(&self) {
        self.cut.send_modify(BTreeSet::clear);
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
        let Some(to) = self.links.node_at(address) else { return TcpConnector.connect(address) };
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        let relay_address = listener.local_addr().map_err(|error| error.to_string())?;
        let listener = TcpListener::from_std(listener).map_err(|error| error.to_string())?;
        let (link, cut) = ((self.from, to), self.links.cut.subscribe());
        // Ends with the test's runtime.
        tokio::spawn(relay_all(listener, address.to_owned(), link, cut));
        TcpConnector.connect(&relay_address.to_string())
    }
}

type Cut = watch::Receiver<BTreeSet<(NodeId, NodeId)>>;

async fn relay_all(listener: TcpListener, to: String, link: (NodeId, NodeId), cut: Cut) {
    while let Ok((connection, _)) = listener.accept().await {
        tokio::spawn(relay(connection, to.clone(), link, cut.clone()));
    }
}

async fn relay(mut near: TcpStream, to: String, link: (NodeId, NodeId), mut cut: Cut) {
    let Ok(mut far) = TcpStream::connect(to).await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let mut copy = std::pin::pin!(tokio::io::copy_bidirectional(&mut near, &mut far));
    loop {
        tokio::select! {
            biased;
            is_cut = cut.wait_for(|cut| cut.contains(&link)) => {
                if is_cut.is_err() {
                    return;
                }
            }
            _ = &mut copy => return,
        }
        if cut.wait_for(|cut| !cut.contains(&link)).await.is_err() {
            return;
        }
    }
}
