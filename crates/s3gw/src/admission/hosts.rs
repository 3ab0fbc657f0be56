use crate::error::{GatewayError, Result};
use std::net::IpAddr;

/// The names this gateway answers to. A client that puts the bucket into the host (`bucket.s3.example`) sends
/// the key where other clients have the bucket: taken for one of those, its PUT of a key would make a bucket.
#[derive(Clone, Debug)]
pub(super) struct Hosts {
    /// Domains in small letters, without a dot at either end.
    domains: Vec<String>,
}

/// The way in which a request names its bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Addressing {
    Path,
    /// The bucket stands in front of our own host, which may have a port.
    VirtualHosted {
        bucket: String,
        own_host: String,
    },
}

impl Hosts {
    pub(super) fn new(domains: &[String]) -> Hosts {
        let given = domains.iter().map(|domain| domain.trim_matches('.').to_ascii_lowercase());
        let given = given.filter(|domain| !domain.is_empty());
        Hosts { domains: given.chain(["localhost".to_owned()]).collect() }
    }

    /// Finds how a host names a bucket: addresses, names of one label and our domains are ours; `NAME.domain`
    /// is a bucket; another name is refused.
    pub(super) fn addressing(&self, host: &str) -> Result<Addressing> {
        let (name, port) = match host.rsplit_once(':') {
            Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => (name, Some(port)),
            _ => (host, None),
        };
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        if bare.parse::<IpAddr>().is_ok() {
            return Ok(Addressing::Path);
        }
        let lower = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
        let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
        if lower.is_empty() || !lower.bytes().all(is_name) {
            return Err(GatewayError::InvalidRequest("The Host header is invalid.".to_owned()));
        }
        if self.domains.contains(&lower) || !lower.contains('.') {
            return Ok(Addressing::Path);
        }
        // The longest domain counts: one may be below another.
        let ours = self.domains.iter().filter_map(|domain| {
            let bucket = lower.strip_suffix(domain.as_str())?.strip_suffix('.')?;
            Some((domain, bucket.to_owned()))
        });
        let Some((domain, bucket)) = ours.max_by_key(|(domain, _)| domain.len()) else {
            let why = format!(
                "This gateway does not know the host name {lower}, and so not whether it begins with a bucket. Whoever runs it \
                 names its own with --s3-domain; addresses, localhost and names without a dot are always served."
            );
            return Err(GatewayError::InvalidRequest(why));
        };
        let own_host = port.map_or_else(|| domain.clone(), |port| format!("{domain}:{port}"));
        Ok(Addressing::VirtualHosted { bucket, own_host })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_ours_or_buckets_of_ours_or_refused() {
        let hosts =
            Hosts::new(&["s3.example.com".to_owned(), "EU.s3.example.com.".to_owned(), String::new()]);
        for ours in [
            "127.0.0.1:9000",
            "127.0.0.1",
            "[::1]:9000",
            "[::ffff:10.0.0.1]",
            "localhost",
            "LocalHost:9000",
            "flotilla:9000",
            "s3.example.com",
            "S3.Example.com:443",
            "s3.example.com.",
            "eu.s3.example.com",
        ] {
            assert_eq!(hosts.addressing(ours).unwrap(), Addressing::Path, "{ours}");
        }
        for (host, bucket, own_host) in [
            ("b.s3.example.com", "b", "s3.example.com"),
            ("my.dotted.s3.example.com:9000", "my.dotted", "s3.example.com:9000"),
            ("b.EU.s3.example.com", "b", "eu.s3.example.com"),
            ("b.localhost:9000", "b", "localhost:9000"),
        ] {
            let expect =
                Addressing::VirtualHosted { bucket: bucket.to_owned(), own_host: own_host.to_owned() };
            assert_eq!(hosts.addressing(host).unwrap(), expect, "{host}");
        }
        for other in [
            "bucket.s3.amazonaws.com",
            "example.com",
            "xs3.example.com",
            "s3.example.com.evil",
            "",
            ":80",
            "a b.localhost",
            "a/b.localhost",
            "127.0.0.1.nip.io",
        ] {
            assert!(hosts.addressing(other).is_err(), "{other}");
        }
    }
}
