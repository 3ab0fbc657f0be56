use super::ledger::{Ledger, Written, contents};
use disk::sim::Random;
use proto::Failure;
use proto::datanode::ReadRequest;
use proto::datanode::datanode_client::DatanodeClient;
use rpc::Connector;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

const ANSWER_MAX: Duration = Duration::from_secs(3);
const PAUSE_MS_MAX: u64 = 400;

/// Reads acknowledged blocks, whole or in part, from any node: the answer is right, or an error.
pub(super) struct Reader {
    pub(super) ledger: Ledger,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) cluster: String,
    pub(super) addresses: Vec<String>,
    pub(super) random: Random,
}

impl Reader {
    pub(super) async fn run(mut self) {
        while self.ledger.is_writing() {
            sleep(Duration::from_millis(1 + self.random.below(PAUSE_MS_MAX))).await;
            let Some(written) = self.ledger.pick(|count| self.random.below(count as u64) as usize) else {
                continue;
            };
            let offset = if self.random.one_in(2) { 0 } else { self.random.below(written.length) };
            let length = 1 + self.random.below(written.length - offset);
            let address = self.random.pick(&self.addresses).clone();
            let way = Way { connector: &*self.connector, cluster: &self.cluster, address: &address };
            match read_checked(&way, &self.ledger, &written, offset, length).await {
                Ok(()) => self.ledger.count(|counts| counts.reads += 1),
                Err(_) => self.ledger.count(|counts| counts.reads_failed += 1),
            }
        }
    }
}

/// Where a block is read.
pub(super) struct Way<'a> {
    pub(super) connector: &'a dyn Connector,
    pub(super) cluster: &'a str,
    pub(super) address: &'a str,
}

/// Reads and compares; other bytes, or fewer without a word, are a violation.
pub(super) async fn read_checked(
    way: &Way<'_>,
    ledger: &Ledger,
    written: &Written,
    offset: u64,
    length: u64,
) -> Result<(), Failure> {
    let read = timeout(ANSWER_MAX, read(way, written, offset, length)).await;
    let found = read.unwrap_or_else(|_| Err(Failure::new(proto::Code::Unavailable, "no answer in time")))?;
    let expected = contents(written.number, offset..offset + length);
    if found != expected {
        let (same, found) = (found.iter().zip(&expected).take_while(|(a, b)| a == b).count(), found.len());
        ledger.fail(format!(
            "{} answers {found} bytes at {offset} of {written:?}, of which {same} are right; {length} were asked for",
            way.address
        ));
    }
    Ok(())
}

async fn read(way: &Way<'_>, written: &Written, offset: u64, length: u64) -> Result<Vec<u8>, Failure> {
    let channel = way.connector.connect(way.address).map_err(Failure::internal)?;
    let mut client = DatanodeClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
    let (block, commit_index) = (Some(written.block.into()), written.commit_index);
    let request =
        tonic::Request::new(ReadRequest { block, offset, length, commit_index, message_bytes_max: 0 });
    let mut chunks = client.read(proto::in_cluster(request, way.cluster)).await?.into_inner();
    let mut bytes = Vec::new();
    while let Some(chunk) = chunks.message().await? {
        bytes.extend_from_slice(&chunk.data);
    }
    Ok(bytes)
}
