use crate::idle::heartbeats::Heartbeats;
use crate::{AddressBook, Member};
use proto::messages::{self, Messages};
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use rpc::{Channel, Connector};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status};
use tracing::info;

/// The most processes that are remembered; past it all are forgotten and made anew as they are needed.
const PROCESSES_MAX: usize = 4096;

/// Connections to other processes: two to each address, shared by all groups.
pub(crate) struct Processes {
    addresses: AddressBook,
    connector: Arc<dyn Connector>,
    by_address: Mutex<HashMap<String, Arc<Process>>>,
}

/// A process that members of our groups live in.
pub(crate) struct Process {
    address: String,
    /// The way that entries and snapshots go.
    data: Channel,
    /// The client for all else that is large.
    client: RaftTransportClient<Channel>,
    /// The client for what keeps leaders in office and elects them, on a connection of its own: behind the
    /// entries that a connection may have under way (16 MiB, 0.13 s at 1 Gbit/s) a heartbeat or a vote could
    /// be late.
    control: RaftTransportClient<Channel>,
    heartbeats: Heartbeats,
    /// Whether the process was found to be down, so that this is one line in the log, not one for each group
    /// and heartbeat.
    is_down: AtomicBool,
}

impl Processes {
    pub(crate) fn new(addresses: AddressBook, connector: Arc<dyn Connector>) -> Processes {
        Processes { addresses, connector, by_address: Mutex::default() }
    }

    /// The process a member lives in now. Nothing is connected until something is sent.
    pub(crate) fn of(&self, member: &Member) -> Result<Arc<Process>, String> {
        let address = self.addresses.of(member);
        let mut by_address = self.by_address.lock().expect("no holder panics");
        if let Some(process) = by_address.get(&address) {
            return Ok(process.clone());
        }
        if by_address.len() >= PROCESSES_MAX {
            by_address.clear();
        }
        let (data, control) = (self.connector.connect(&address)?, self.connector.connect(&address)?);
        let process = Arc::new(Process::new(address.clone(), data, control));
        by_address.insert(address, process.clone());
        Ok(process)
    }
}

impl Process {
    pub(crate) fn new(address: String, data: Channel, control: Channel) -> Process {
        let client = |channel| {
            RaftTransportClient::new(channel)
                .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
                .max_encoding_message_size(proto::MESSAGE_BYTES_MAX)
        };
        let (client, control) = (client(data.clone()), client(control));
        let heartbeats = Heartbeats::new(control.clone());
        Process { address, data, client, control, heartbeats, is_down: AtomicBool::new(false) }
    }

    /// Opens a stream of entries. Their addresses name the cluster.
    pub(crate) fn append(
        &self,
        requests: ReceiverStream<wire::AppendRequest>,
    ) -> impl Future<Output = Result<Response<Messages<wire::AppendResponse>>, Status>> + use<> {
        let data = self.data.clone();
        async move { messages::call(data, messages::APPEND, "", requests).await.map(Response::new) }
    }

    /// Offers a snapshot. Its address names the cluster.
    pub(crate) async fn snapshot(
        &self,
        messages: ReceiverStream<wire::SnapshotToFollower>,
    ) -> Result<Messages<wire::SnapshotToLeader>, Status> {
        messages::call(self.data.clone(), messages::SNAPSHOT, "", messages).await
    }

    pub(crate) fn client(&self) -> RaftTransportClient<Channel> {
        self.client.clone()
    }

    pub(crate) fn control(&self) -> RaftTransportClient<Channel> {
        self.control.clone()
    }

    pub(crate) fn heartbeats(&self) -> &Heartbeats {
        &self.heartbeats
    }

    pub(crate) fn answered(&self) {
        if self.is_down.swap(false, Ordering::Relaxed) {
            info!(address = %self.address, "process is reachable again");
        }
    }

    pub(crate) fn failed(&self, why: &str) {
        if !self.is_down.swap(true, Ordering::Relaxed) {
            info!(address = %self.address, why, "process is unreachable");
        }
    }
}
