use crate::blocks::Window;
use anyhow::{Context, bail};
use bytes::Bytes;
use proto::datanode::WriteChunk;
use proto::datanode::datanode_client::DatanodeClient;
use proto::scm::WatchRequest;
use proto::scm::scm_client::ScmClient;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use types::Payload;

/// The number of streams of this process so far: no two may name their blocks alike.
static STREAMS: AtomicU32 = AtomicU32::new(0);

/// A writer of one-chunk blocks to one pipeline's leader, a fixed number of them under way.
pub struct PipelineWriter {
    pipeline: u64,
    chunks: mpsc::Sender<WriteChunk>,
    acks: Streaming<proto::datanode::WriteAck>,
    next_nonce: u128,
}

/// Waits until SCM shows `count` pipelines with leaders, then opens a stream to each.
pub async fn open_pipelines(scm: &str, count: usize) -> anyhow::Result<Vec<PipelineWriter>> {
    let mut scm = ScmClient::connect(format!("http://{scm}")).await.context("connect to SCM")?;
    let mut views = scm.watch(WatchRequest {}).await.context("watch SCM")?.into_inner();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
    loop {
        let view =
            tokio::time::timeout_at(deadline, views.message()).await.context("wait for pipelines")??;
        let Some(view) = view else { bail!("SCM ended the watch") };
        let led: Vec<_> = view.pipelines.iter().filter(|pipeline| pipeline.leader_node != 0).collect();
        if led.len() < count {
            continue;
        }
        let mut writers = Vec::new();
        for pipeline in led.into_iter().take(count) {
            let leader = pipeline.members.iter().find(|member| member.node == pipeline.leader_node);
            let address = &leader.context("the leader is a member")?.address;
            writers.push(PipelineWriter::connect(&view.cluster, pipeline.pipeline, address).await?);
        }
        return Ok(writers);
    }
}

impl PipelineWriter {
    async fn connect(cluster: &str, pipeline: u64, address: &str) -> anyhow::Result<PipelineWriter> {
        let endpoint = tonic::transport::Endpoint::from_shared(format!("http://{address}"))?
            .initial_stream_window_size(8 << 20)
            .initial_connection_window_size(32 << 20)
            .tcp_nodelay(true);
        let channel = endpoint.connect().await.with_context(|| format!("connect to {address}"))?;
        let mut datanode = DatanodeClient::new(channel)
            .max_decoding_message_size(proto::MESSAGE_BYTES_MAX)
            .max_encoding_message_size(proto::MESSAGE_BYTES_MAX);
        let (chunks, receiver) = mpsc::channel(4);
        let request = proto::in_cluster(tonic::Request::new(ReceiverStream::new(receiver)), cluster);
        let acks = datanode.write(request).await.context("open a write stream")?.into_inner();
        let stream = u128::from(STREAMS.fetch_add(1, Ordering::Relaxed));
        let next_nonce = u128::from(pipeline) << 96 | u128::from(std::process::id()) << 64 | stream << 40;
        Ok(PipelineWriter { pipeline, chunks, acks, next_nonce })
    }

    /// Writes `count` blocks, each of them `payload`, at most `outstanding` not yet acknowledged.
    pub async fn write(&mut self, payload: &Payload, count: u64, outstanding: u64) -> anyhow::Result<()> {
        let (mut sent, mut acknowledged) = (0, 0);
        while acknowledged < count {
            while sent < count && sent - acknowledged < outstanding {
                let chunk = self.chunk(payload);
                self.chunks.send(chunk).await.ok().context("the leader ended the stream")?;
                sent += 1;
            }
            let ack = self.acks.message().await?.context("the leader ended the stream")?;
            if let Some(error) = ack.error {
                bail!("block refused: {}", error.message);
            }
            acknowledged += 1;
        }
        Ok(())
    }

    fn chunk(&mut self, payload: &Payload) -> WriteChunk {
        self.next_nonce += 1;
        one_chunk(self.pipeline, self.next_nonce, 0, 0, payload, true)
    }

    /// Keeps `outstanding` blocks under way, each made of these chunks, until the window is over, and answers
    /// with the microseconds that those took which ended while it counted.
    pub(crate) async fn write_while(
        self,
        chunks: Arc<[Payload]>,
        outstanding: usize,
        window: Arc<Window>,
    ) -> anyhow::Result<Vec<u32>> {
        let PipelineWriter { pipeline, chunks: stream, mut acks, mut next_nonce } = self;
        let begun: Mutex<HashMap<Bytes, Instant>> = Mutex::default();
        let places = Semaphore::new(outstanding);
        let last_seq = chunks.len() as u32 - 1;
        let send = async {
            while !window.is_over() {
                places.acquire().await.context("the stream broke")?.forget();
                next_nonce += 1;
                let nonce = Bytes::copy_from_slice(&next_nonce.to_be_bytes());
                begun.lock().expect("no holder panics").insert(nonce, Instant::now());
                let mut offset = 0;
                for (chunk, seq) in chunks.iter().zip(0..) {
                    let chunk = one_chunk(pipeline, next_nonce, seq, offset, chunk, seq == last_seq);
                    offset += chunk.data.len() as u64;
                    stream.send(chunk).await.ok().context("the leader ended the stream")?;
                }
            }
            // The leader ends its side when the writer has ended and all is answered.
            drop(stream);
            anyhow::Ok(())
        };
        let receive = async {
            let mut latencies = Vec::new();
            while let Some(ack) = acks.message().await? {
                if let Some(error) = ack.error {
                    bail!("pipeline {pipeline} refused a chunk: {}", error.message);
                }
                if ack.seq < last_seq {
                    continue;
                }
                let begun = begun.lock().expect("no holder panics").remove(&ack.nonce);
                let begun = begun.context("an answer to nothing")?;
                window.note(begun, &mut latencies);
                places.add_permits(1);
            }
            Ok(latencies)
        };
        let ((), latencies) = futures::try_join!(send, receive)?;
        Ok(latencies)
    }
}

fn one_chunk(
    pipeline: u64,
    nonce: u128,
    seq: u32,
    offset: u64,
    payload: &Payload,
    is_last: bool,
) -> WriteChunk {
    WriteChunk {
        pipeline,
        nonce: Bytes::copy_from_slice(&nonce.to_be_bytes()),
        seq,
        offset,
        data: payload.bytes().clone(),
        data_crcs: payload.crcs().to_vec(),
        seal: is_last,
        ..WriteChunk::default()
    }
}
