use proto::Failure;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

/// One lazy HTTP/2 connection per address, shared by everything in the client.
#[derive(Clone, Default)]
pub(crate) struct Channels {
    open: Arc<Mutex<HashMap<String, Channel>>>,
}

/// Addresses change rarely; past this many the old ones are forgotten and made anew when needed.
const CHANNELS_MAX: usize = 4096;

impl Channels {
    /// Connecting happens at the first call, and again by itself after a break.
    pub(crate) fn to(&self, address: &str) -> Result<Channel, Failure> {
        let mut open = self.open.lock().expect("no holder panics");
        if let Some(channel) = open.get(address) {
            return Ok(channel.clone());
        }
        let channel = Endpoint::from_shared(format!("http://{address}"))
            .map_err(|err| Failure::invalid(format!("`{address}` is not an address: {err}")))?
            .connect_timeout(Duration::from_secs(1))
            .tcp_nodelay(true)
            // A peer that vanished without a FIN is noticed within 2 + 3 seconds.
            .http2_keep_alive_interval(Duration::from_secs(2))
            .keep_alive_timeout(Duration::from_secs(3))
            .keep_alive_while_idle(true)
            // 4 MiB per stream and 32 MiB per connection: what may arrive before the reader takes it.
            .initial_stream_window_size(4 << 20)
            .initial_connection_window_size(32 << 20)
            .connect_lazy();
        if open.len() >= CHANNELS_MAX {
            open.clear();
        }
        open.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}
