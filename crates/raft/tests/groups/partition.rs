use rpc::{Channel, Connector, TcpConnector};
use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The cables that hosts speak over: every connection goes through a forwarder that ends when one of its ends
/// is cut off.
#[derive(Clone)]
pub(crate) struct Cables {
    cut_off: Arc<watch::Sender<BTreeSet<usize>>>,
    /// The node that answers on an address.
    nodes: Arc<Mutex<HashMap<String, usize>>>,
}

impl Default for Cables {
    fn default() -> Cables {
        Cables { cut_off: Arc::new(watch::channel(BTreeSet::new()).0), nodes: Arc::default() }
    }
}

impl Cables {
    pub(crate) fn of(&self, from: usize) -> CableEnd {
        CableEnd { cables: self.clone(), from }
    }

    pub(crate) fn learn(&self, address: &str, node: usize) {
        self.nodes.lock().expect("no holder panics").insert(address.to_owned(), node);
    }

    /// Cuts a node off: nothing comes from it or goes to it any more; what is under way is lost.
    pub(crate) fn cut_off(&self, node: usize) {
        self.cut_off.send_modify(|cut_off| _ = cut_off.insert(node));
    }

    pub(crate) fn mend(&self, node: usize) {
        self.cut_off.send_modify(|cut_off| _ = cut_off.remove(&node));
    }
}

/// One node's way to the others.
pub(crate) struct CableEnd {
    cables: Cables,
    from: usize,
}

impl Connector for CableEnd {
    fn connect(&self, address: &str) -> Result<Channel, String> {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
        listener.set_nonblocking(true).map_err(|error| error.to_string())?;
        let here = listener.local_addr().map_err(|error| error.to_string())?.to_string();
        let listener = TcpListener::from_std(listener).map_err(|error| error.to_string())?;
        let to = self.cables.nodes.lock().expect("no holder panics").get(address).copied();
        let ends = BTreeSet::from_iter([Some(self.from), to].into_iter().flatten());
        // Ends with the test's runtime.
        tokio::spawn(forward(listener, address.to_owned(), self.cables.cut_off.subscribe(), ends));
        TcpConnector::default().connect(&here)
    }
}

async fn forward(
    listener: TcpListener,
    address: String,
    cut_off: watch::Receiver<BTreeSet<usize>>,
    ends: BTreeSet<usize>,
) {
    while let Ok((mut near, _)) = listener.accept().await {
        let (address, mut cut_off, ends) = (address.clone(), cut_off.clone(), ends.clone());
        tokio::spawn(async move {
            let is_cut = |cut_off: &BTreeSet<usize>| !cut_off.is_disjoint(&ends);
            let carry = async {
                if let Ok(mut far) = TcpStream::connect(&address).await {
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                }
            };
            tokio::select! {
                biased;
                _ = cut_off.wait_for(is_cut) => {}
                () = carry => {}
            }
        });
    }
}
