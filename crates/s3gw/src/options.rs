/// Settings of one gateway.
#[derive(Clone)]
pub struct GatewayOptions {
    /// The one key pair there is for now.
    pub access_key: String,
    pub secret_key: String,
    /// The answer to `GetBucketLocation`. Requests signed for any region are accepted.
    pub region: String,
    /// The host names of this gateway. `NAME` asks path-style, `BUCKET.NAME` for a bucket; addresses,
    /// `localhost` and names without a dot need not be here, and what is none of these is refused.
    pub domains: Vec<String>,
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
    /// Options without keys, with which nobody gets in.
    fn default() -> Self {
        GatewayOptions {
            access_key: String::new(),
            secret_key: String::new(),
            region: "us-east-1".to_owned(),
            domains: Vec::new(),
        }
    }
}

/// Shows the options without the secret.
impl std::fmt::Debug for GatewayOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GatewayOptions")
            .field("access_key", &self.access_key)
            .field("region", &self.region)
            .field("domains", &self.domains)
            .finish_non_exhaustive()
    }
}
