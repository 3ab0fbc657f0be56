//! A way to a datanode that breaks for some of those who go it.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use testkit::Detour;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Everybody reaches a datanode through here.
pub(super) struct Way {
    detour: Detour,
    /// The processes for which it is broken.
    broken: watch::Sender<BTreeSet<u32>>,
    held: Arc<AtomicUsize>,
    // The tasks that serve it end with it.
    _serving: JoinSet<()>,
}

impl Way {
    pub(super) async fn open() -> Way {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("bind a free port");
        let advertised = listener.local_addr().expect("it is bound").to_string();
        let bound = testkit::free_addresses(1).remove(0);
        let broken = watch::Sender::new(BTreeSet::new());
        let held = Arc::new(AtomicUsize::new(0));
        let mut serving = JoinSet::new();
        serving.spawn(serve(listener, bound.clone(), broken.subscribe(), held.clone()));
        Way { detour: Detour { bound, advertised }, broken, held, _serving: serving }
    }

    pub(super) fn detour(&self) -> Detour {
        self.detour.clone()
    }

    /// From now on nothing that these processes say arrives, and they hear nothing, on old connections and on
    /// new ones: as when their packets are dropped. All others go on.
    pub(super) fn break_for(&self, processes: impl IntoIterator<Item = u32>) {
        self.broken.send_replace(processes.into_iter().collect());
    }

    pub(super) fn mend(&self) {
        self.broken.send_replace(BTreeSet::new());
    }

    /// Connections that were met while it was broken for who made them.
    pub(super) fn held(&self) -> usize {
        self.held.load(Ordering::Relaxed)
    }
}

async fn serve(
    listener: TcpListener,
    target: String,
    broken: watch::Receiver<BTreeSet<u32>>,
    held: Arc<AtomicUsize>,
) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((caller, from)) = accepted else { continue };
                connections.spawn(relay(caller, from, target.clone(), broken.clone(), held.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn relay(
    mut caller: TcpStream,
    from: SocketAddr,
    target: String,
    mut broken: watch::Receiver<BTreeSet<u32>>,
    held: Arc<AtomicUsize>,
) {
    let mut mended = broken.clone();
    let is_broken = broken.wait_for(|processes| processes.iter().any(|process| has_socket(*process, from)));
    let pass_on = async {
        let Ok(mut called) = TcpStream::connect(&target).await else { return };
        for socket in [&caller, &called] {
            socket.set_nodelay(true).expect("set an option of a socket");
        }
        // How either side broke it off is told to the other one by its end.
        let _ = tokio::io::copy_bidirectional(&mut caller, &mut called).await;
    };
    tokio::select! {
        biased;
        _ = is_broken => {}
        () = pass_on => return,
    }
    held.fetch_add(1, Ordering::Relaxed);
    let _ = mended.wait_for(BTreeSet::is_empty).await;
}

/// Whether this end of a connection belongs to the process, as the kernel shows it in /proc.
fn has_socket(process: u32, end: SocketAddr) -> bool {
    let SocketAddr::V4(end) = end else { return false };
    let local = format!("{:08X}:{:04X}", u32::from_ne_bytes(end.ip().octets()), end.port());
    let connections = std::fs::read_to_string("/proc/net/tcp").expect("read the table of connections");
    let mut inodes = connections.lines().filter_map(|line| {
        let mut fields = line.split_whitespace();
        (fields.nth(1)? == local).then(|| fields.nth(7)).flatten()
    });
    let Some(inode) = inodes.next() else { return false };
    let Ok(open) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let name = format!("socket:[{inode}]");
    open.flatten().any(|file| std::fs::read_link(file.path()).is_ok_and(|to| to.to_str() == Some(&name)))
}
