use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::Mutex;
use tokio::io::{AsyncWrite, AsyncWriteExt};
use tokio::sync::Notify;

/// Bytes on their way out of a connection. Whoever has a frame encodes it into the buffer; one task takes
/// what has come together since it last looked and writes it with one call. A client's is bounded by what it
/// lets be under way; a node's by what its client asks for and does not read: this node is for drills and
/// benches, whose clients read.
#[derive(Default)]
pub(crate) struct Outbox {
    state: Mutex<State>,
    filled: Notify,
}

#[derive(Default)]
struct State {
    bytes: BytesMut,
    is_closed: bool,
}

impl Outbox {
    /// Adds a frame to the buffer; false when the connection is gone.
    pub(crate) fn push(&self, encode: impl FnOnce(&mut BytesMut)) -> bool {
        let mut state = self.state.lock().expect("no holder panics");
        if state.is_closed {
            return false;
        }
        let was_empty = state.bytes.is_empty();
        encode(&mut state.bytes);
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
        true
    }

    /// Closes the outbox: what is there is still written, and what is pushed afterwards goes nowhere.
    pub(crate) fn close(&self) {
        self.state.lock().expect("no holder panics").is_closed = true;
        self.filled.notify_one();
    }

    /// Writes until the outbox is closed and empty, or the connection breaks.
    pub(crate) async fn write_to(&self, mut out: impl AsyncWrite + Unpin) -> io::Result<()> {
        while let Some(bytes) = self.take().await {
            out.write_all(&bytes).await?;
        }
        out.shutdown().await
    }

    async fn take(&self) -> Option<Bytes> {
        loop {
            {
                let mut state = self.state.lock().expect("no holder panics");
                if !state.bytes.is_empty() {
                    return Some(state.bytes.split().freeze());
                }
                if state.is_closed {
                    return None;
                }
            }
            self.filled.notified().await;
        }
    }
}
