use super::deleter::holders;
use super::ledger::Ledger;
use super::view::Views;
use proto::datanode::ListBlocksRequest;
use proto::datanode::datanode_client::DatanodeClient;
use proto::{Code, Failure};
use rpc::Connector;
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tonic::Request;
use types::{BlockId, BlockName, ContainerId, Nonce};

const PAUSE: Duration = Duration::from_secs(1);
const ANSWER_MAX: Duration = Duration::from_secs(3);
/// The bytes of a block in a list: its local and its nonce.
const LISTED_BYTES: usize = 24;

/// A block that a replica has and no key names, if somebody has found one when all were looked at last. A
/// cheap handle.
#[derive(Clone)]
pub(super) struct Unnamed {
    found: Arc<Mutex<Option<String>>>,
}

impl Default for Unnamed {
    fn default() -> Unnamed {
        Unnamed {
            found: Arc::new(Mutex::new(Some("nobody has looked for blocks without a name".to_owned()))),
        }
    }
}

impl Unnamed {
    pub(super) fn found(&self) -> Option<String> {
        self.found.lock().expect("no holder panics").clone()
    }
}

/// Looks at all blocks of all replicas of closed containers, again and again. Each must have what keys name.
pub(super) struct Looker {
    pub(super) views: Views,
    pub(super) connector: Arc<dyn Connector>,
    /// The blocks that keys name.
    pub(super) named: BTreeSet<BlockName>,
    pub(super) ledger: Ledger,
}

impl Looker {
    pub(super) async fn run(self, unnamed: Unnamed) {
        loop {
            let found = self.look().await.err();
            *unnamed.found.lock().expect("no holder panics") = found;
            sleep(PAUSE).await;
        }
    }

    async fn look(&self) -> Result<(), String> {
        let view = self.views.newest().ok_or("SCM has shown nothing")?;
        for info in &view.containers {
            for address in holders(info) {
                self.look_at(&view.status.cluster, ContainerId(info.container), &address).await?;
            }
        }
        Ok(())
    }

    async fn look_at(&self, cluster: &str, container: ContainerId, address: &str) -> Result<(), String> {
        let listed = timeout(ANSWER_MAX, self.list(cluster, container, address)).await;
        let listed = listed.unwrap_or_else(|_| Err(Failure::new(Code::Unavailable, "no answer in time")));
        match listed {
            Ok(blocks) => self.compare(container, address, &blocks),
            // The container went after SCM had shown it.
            Err(failure) if failure.code == Code::NotFound => Ok(()),
            Err(failure) => {
                Err(format!("{address} does not list container {container}: {}", failure.message))
            }
        }
    }

    fn compare(
        &self,
        container: ContainerId,
        address: &str,
        listed: &BTreeSet<BlockName>,
    ) -> Result<(), String> {
        let mut named = self.named.iter().filter(|block| block.container == container);
        if let Some(block) = named.find(|block| !listed.contains(block)) {
            self.ledger.fail(format!("{address} lacks block {block}, which a key names"));
        }
        match listed.difference(&self.named).next() {
            Some(block) => Err(format!("{address} has block {block}, which no key names")),
            None => Ok(()),
        }
    }

    async fn list(
        &self,
        cluster: &str,
        container: ContainerId,
        address: &str,
    ) -> Result<BTreeSet<BlockName>, Failure> {
        let channel = self.connector.connect(address).map_err(Failure::internal)?;
        let mut node = DatanodeClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        let request = ListBlocksRequest { container: container.0, from_local: 0, limit: 0 };
        let listed = node.list_blocks(proto::in_cluster(Request::new(request), cluster)).await?.into_inner();
        let (blocks, _) = listed.blocks.as_chunks::<LISTED_BYTES>();
        let name = |block: &[u8; LISTED_BYTES]| {
            let (local, nonce) = block.split_first_chunk::<8>().expect("it is longer");
            let local = u64::from_be_bytes(*local);
            let nonce = u128::from_be_bytes(nonce.try_into().expect("what is left has 16 bytes"));
            BlockName::new(BlockId { container, local }, Nonce(nonce))
        };
        Ok(blocks.iter().map(name).collect())
    }
}
