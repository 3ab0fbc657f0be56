use super::reader::Ended;
use super::wire::Wire;
use bytes::Buf;
use std::time::Duration;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, timeout_at};

/// The time within which a peer takes what is written to its connection at once, or a piece of an answer;
/// then that is over, and what was read for it is free. It is as long as a gateway lets its clients stand
/// still: who reads for one of these goes on with another call.
pub const NOTHING_TAKEN_MAX: Duration = Duration::from_secs(60);

/// Writes what there is to write, all of it that fits with one call, until the connection is over. A peer
/// whose socket does not take in time what is written at once is deaf, though it may be heard: what waits for
/// it would wait for ever.
pub(super) async fn write(wire: &Wire, mut output: impl AsyncWrite + Unpin) -> Result<(), Ended> {
    while let Some(mut batch) = wire.to_write().await {
        let (data, frames) = (std::mem::take(&mut batch.data), batch.frames);
        let until = Instant::now() + NOTHING_TAKEN_MAX;
        while batch.has_remaining() {
            let writing = timeout_at(until, output.write_buf(&mut batch));
            writing.await.map_err(|_| Ended::Deaf(NOTHING_TAKEN_MAX))??;
            wire.progressed();
        }
        wire.written(&data, frames);
    }
    Ok(output.shutdown().await?)
}
