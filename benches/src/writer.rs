use anyhow::{Context, bail};
use bytes::Bytes;
use proto::datanode::WriteChunk;
use proto::datanode::datanode_client::DatanodeClient;
use proto::scm::WatchRequest;
use proto::scm::scm_client::ScmClient;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use types::Payload;

/// Writes one-chunk blocks to one pipeline's leader, a fixed number of them under way.
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
        let next_nonce = u128::from(pipeline) << 96 | u128::from(std::process::id()) << 64;
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
        WriteChunk {
            pipeline: self.pipeline,
            nonce: Bytes::copy_from_slice(&self.next_nonce.to_be_bytes()),
            seq: 0,
            offset: 0,
            data: payload.bytes().clone(),
            data_crcs: payload.crcs().to_vec(),
            seal: true,
            ..WriteChunk::default()
        }
    }
}
