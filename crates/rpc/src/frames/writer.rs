use super::wire::Wire;
use bytes::Buf;
use std::io;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Writes what there is to write, all of it that fits with one call, until the connection is over.
pub(super) async fn write(wire: &Wire, mut output: impl AsyncWrite + Unpin) -> io::Result<()> {
    while let Some(mut batch) = wire.to_write().await {
        let (data, frames) = (std::mem::take(&mut batch.data), batch.frames);
        while batch.has_remaining() {
            output.write_buf(&mut batch).await?;
            wire.progressed();
        }
        wire.written(&data, frames);
    }
    output.shutdown().await
}
