use super::reader::Ended;
use super::wire::Wire;
use bytes::Buf;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

/// The time for which a peer may take nothing of a connection, or not all of a piece of an answer; then that
/// is over, and what was read for it is free. It is as long as a gateway lets its clients stand still: who
/// reads for one of these goes on with another call.
pub const NOTHING_TAKEN_MAX: Duration = Duration::from_secs(60);

/// Writes what there is to write, all of it that fits with one call, until the connection is over. A peer
/// whose socket takes nothing all the while is deaf, though it may be heard: what waits for it would wait for
/// ever.
pub(super) async fn write(wire: &Wire, mut output: impl AsyncWrite + Unpin) -> Result<(), Ended> {
    while let Some(mut batch) = wire.to_write().await {
        let (data, frames) = (std::mem::take(&mut batch.data), batch.frames);
        while batch.has_remaining() {
            let writing = timeout(NOTHING_TAKEN_MAX, output.write_buf(&mut batch));
            writing.await.map_err(|_| Ended::Deaf(NOTHING_TAKEN_MAX))??;
            wire.progressed();
        }
        wire.written(&data, frames);
    }
    Ok(output.shutdown().await?)
}
