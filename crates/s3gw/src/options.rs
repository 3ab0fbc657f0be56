use std::time::Duration;

/// Settings of one gateway.
#[derive(Clone)]
pub struct GatewayOptions {
    /// The one key pair there is for now.
    pub access_key: String,
    pub secret_key: String,
    /// What `GetBucketLocation` answers. Requests signed for any region are accepted.
    pub region: String,
    /// Requests under way at once, streaming of bodies included; more get `SlowDown`. Each holds at most two chunks
    /// of 1 MiB besides the windows of its connections.
    pub requests_max: usize,
    /// A request whose client sends nothing of its body for this long is refused.
    pub body_idle_max: Duration,
}

impl GatewayOptions {
    pub fn new(access_key: impl Into<String>, secret_key: impl Into<String>) -> GatewayOptions {
        GatewayOptions {
            access_key: access_key.into(),
            secret_key: secret_key.into(),
            ..GatewayOptions::default()
        }
    }
}

impl Default for GatewayOptions {
    /// No keys: nobody gets in.
    fn default() -> Self {
        GatewayOptions {
            access_key: String::new(),
            secret_key: String::new(),
            region: "us-east-1".to_owned(),
            requests_max: 1024,
            body_idle_max: Duration::from_secs(60),
        }
    }
}

/// Without the secret.
impl std::fmt::Debug for GatewayOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayOptions")
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .field("requests_max", &self.requests_max)
            .field("body_idle_max", &self.body_idle_max)
            .finish_non_exhaustive()
    }
}
