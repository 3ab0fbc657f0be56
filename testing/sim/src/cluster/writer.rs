use super::ledger::{BLOCKS_EACH, Ledger, Written, contents};
use crate::services::ScmCalls;
use bytes::Bytes;
use disk::sim::Random;
use proto::datanode::datanode_client::DatanodeClient;
use proto::datanode::{WriteAck, WriteChunk};
use proto::scm::{ListPipelinesRequest, Pipeline, PipelineState};
use proto::{Code, Failure, uuid_bytes};
use rpc::Connector;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use types::{BlockName, Nonce, Payload};

const ACK_MAX: Duration = Duration::from_secs(3);
/// The most tries of one chunk, on one pipeline.
pub(super) const TRIES: usize = 6;
const RETRY: Duration = Duration::from_millis(300);
const CHUNKS_MAX: u64 = 3;

/// Writes blocks, one after the other, each to some open pipeline.
pub(super) struct Writer {
    pub(super) number: u64,
    pub(super) ledger: Ledger,
    pub(super) connector: Arc<dyn Connector>,
    pub(super) scm: ScmCalls,
    pub(super) cluster: String,
    pub(super) random: Random,
    pub(super) think_ms_max: u64,
    pub(super) chunk_bytes_max: u64,
    pub(super) tries: usize,
}

/// The outcome of a chunk's last try.
enum Tried {
    Acknowledged(WriteAck),
    /// Another datanode is to be asked, whose address is known perhaps.
    Again(Option<String>),
    GivenUp,
}

impl Writer {
    pub(super) async fn run(mut self) {
        let mut written = 0;
        while self.ledger.is_writing() {
            sleep(Duration::from_millis(1 + self.random.below(self.think_ms_max))).await;
            let Some(pipeline) = self.choose().await else { continue };
            let block = self.number * BLOCKS_EACH + written;
            written += 1;
            self.write(block, &pipeline).await;
        }
    }

    /// Writes one block, to that pipeline.
    pub(super) async fn write_one(mut self, pipeline: Pipeline) {
        self.write(self.number * BLOCKS_EACH, &pipeline).await;
    }

    /// Writes the block of that number, to some pipeline; the whole block, or none that anybody may name.
    pub(super) async fn write_object(&mut self, nth: u64) -> Option<Written> {
        let pipeline = self.choose().await?;
        self.write(self.number * BLOCKS_EACH + nth, &pipeline).await
    }

    async fn choose(&mut self) -> Option<Pipeline> {
        let request = ListPipelinesRequest {};
        let answer = self.scm.call(|mut scm| async move { scm.list_pipelines(request).await }).await.ok()?;
        let is_open = |pipeline: &Pipeline| pipeline.state() == PipelineState::PipelineOpen;
        let open: Vec<Pipeline> = answer.pipelines.into_iter().filter(is_open).collect();
        (!open.is_empty()).then(|| self.random.pick(&open).clone())
    }

    async fn write(&mut self, number: u64, pipeline: &Pipeline) -> Option<Written> {
        let nonce = u128::from(self.random.next_u64()) << 64 | u128::from(number);
        let chunks = 1 + self.random.below(CHUNKS_MAX);
        let (mut offset, mut all) = (0, None);
        for seq in 0..chunks {
            let bytes = 1 + self.random.below(self.chunk_bytes_max);
            let data = Bytes::from(contents(number, offset..offset + bytes));
            let (data, crcs) = Payload::checksummed(data).into_parts();
            let chunk = WriteChunk {
                pipeline: pipeline.pipeline,
                nonce: uuid_bytes(nonce),
                seq: seq as u32,
                offset,
                data,
                data_crcs: crcs.to_vec(),
                seal: seq + 1 == chunks && !self.random.one_in(4),
                ..WriteChunk::default()
            };
            offset += bytes;
            let ack = self.write_chunk(pipeline, chunk).await?;
            let Some(block) = ack.block else {
                self.ledger.fail(format!("the acknowledgement of block {number} names no block"));
                return None;
            };
            if ack.length != offset {
                let length = ack.length;
                self.ledger.fail(format!("block {number} has {length} bytes, {offset} were written"));
                return None;
            }
            let (block, commit_index) = (BlockName::new(block.into(), Nonce(nonce)), ack.commit_index);
            let written = Written { number, block, length: offset, commit_index };
            self.ledger.acknowledge(written);
            all = Some(written);
        }
        all
    }

    async fn write_chunk(&mut self, pipeline: &Pipeline, chunk: WriteChunk) -> Option<WriteAck> {
        let leader = pipeline.members.iter().find(|member| member.node == pipeline.leader_node);
        let mut address = leader.map(|leader| leader.address.clone());
        for attempt in 0..self.tries {
            if attempt > 0 {
                self.ledger.count(|counts| counts.chunks_repeated += 1);
                sleep(RETRY).await;
            }
            let to = match address.take() {
                Some(address) => address,
                None => self.random.pick(&pipeline.members).address.clone(),
            };
            match self.try_at(&to, chunk.clone()).await {
                Tried::Acknowledged(ack) => return Some(ack),
                Tried::Again(leader) => address = leader,
                Tried::GivenUp => return None,
            }
        }
        None
    }

    async fn try_at(&self, address: &str, chunk: WriteChunk) -> Tried {
        let Ok(channel) = self.connector.connect(address) else { return Tried::Again(None) };
        let mut client = DatanodeClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
        let written = async {
            let (chunks, receiver) = tokio::sync::mpsc::channel(1);
            let request = tonic::Request::new(ReceiverStream::new(receiver));
            let mut acks = client.write(proto::in_cluster(request, &self.cluster)).await?.into_inner();
            let gone = || Failure::new(Code::OutcomeUnknown, "the stream ended");
            chunks.send(chunk).await.map_err(|_| gone())?;
            let ack = acks.message().await?.ok_or_else(gone)?;
            match ack.error.clone() {
                Some(error) => Err(Failure::from(error)),
                None => Ok(ack),
            }
        };
        match timeout(ACK_MAX, written).await {
            Ok(Ok(ack)) => Tried::Acknowledged(ack),
            Ok(Err(failure)) => self.judge(failure),
            Err(_) => Tried::Again(None),
        }
    }

    fn judge(&self, failure: Failure) -> Tried {
        match failure.code {
            Code::NotLeader => Tried::Again(failure.leader_address),
            Code::Busy | Code::Unavailable | Code::OutcomeUnknown | Code::NotYet => Tried::Again(None),
            Code::Closed | Code::DiskFull | Code::DiskFailed | Code::NotFound | Code::WrongCluster => {
                Tried::GivenUp
            }
            _ => {
                self.ledger.event(format_args!("a chunk is refused: {:?} {}", failure.code, failure.message));
                Tried::GivenUp
            }
        }
    }
}
