use crate::connector::{Channel, Connector};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// The most addresses whose connections are kept. Addresses change rarely; past this many all are forgotten,
/// and connected to anew when somebody asks for them.
const CHANNELS_MAX: usize = 4096;

/// Connections by address, each shared by all who ask for its address. Cheap to clone.
#[derive(Clone)]
pub struct Channels {
    connector: Arc<dyn Connector>,
    by_address: Arc<Mutex<HashMap<String, Channel>>>,
}

impl Channels {
    pub fn new(connector: Arc<dyn Connector>) -> Channels {
        Channels { connector, by_address: Arc::default() }
    }

    /// A channel to "host:port". Connecting happens at the first call, and again by itself after a break.
    pub fn to(&self, address: &str) -> Result<Channel, String> {
        let mut by_address = self.by_address.lock().expect("no holder panics");
        if let Some(channel) = by_address.get(address) {
            return Ok(channel.clone());
        }
        let channel = self.connector.connect(address)?;
        if by_address.len() >= CHANNELS_MAX {
            by_address.clear();
        }
        by_address.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}
