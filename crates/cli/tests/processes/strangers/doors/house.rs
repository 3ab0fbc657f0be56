//! The cluster whose doors are tried: three SCMs, OM, three datanodes and a gateway, each a process.

use super::Failed;
use super::keys::Keys;
use super::request::{Answer, Request, Sent};
use crate::binary;
use crate::s3::S3;
use std::fs;
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, Process, SECRET_KEY};

const STARTED_MAX: Duration = Duration::from_secs(120);
/// The bucket that is there.
pub(super) const BUCKET: &str = "first";

pub(super) struct House {
    pub(super) cluster: Cluster,
    pub(super) keys: Keys,
    pub(super) s3: S3,
    /// host:port of S3.
    pub(super) address: String,
}

impl House {
    pub(super) async fn start() -> House {
        let options = ClusterOptions { scms: 3, disks_per_datanode: 1, ..ClusterOptions::default() };
        let cluster = Cluster::start(binary(), &options);
        let s3 = S3::new(&cluster.endpoint, ACCESS_KEY, SECRET_KEY, BUCKET);
        let address = cluster.endpoint.trim_start_matches("http://").to_owned();
        let keys = Keys {
            access_key: ACCESS_KEY.to_owned(),
            secret_key: SECRET_KEY.to_owned(),
            host: address.clone(),
        };
        let house = House { cluster, keys, s3, address };
        house.is_lived_in().await;
        house
    }

    /// Groups of names and pipelines are founded one after the other.
    async fn is_lived_in(&self) {
        let give_up = Instant::now() + STARTED_MAX;
        loop {
            let made = match self.s3.create_bucket().await {
                Err(why) if !why.contains("BucketAlreadyOwnedByYou") => Err(why),
                _ => self.s3.put("here", b"somebody".to_vec()).await,
            };
            let Err(why) = made else { return };
            assert!(Instant::now() < give_up, "it does not get ready: {why}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    pub(super) fn processes(&self) -> impl Iterator<Item = &Process> {
        let metadata = self.cluster.scms.iter().chain(&self.cluster.oms);
        metadata.chain(&self.cluster.datanodes).chain([&self.cluster.gateway])
    }

    pub(super) async fn ask(&self, sent: Sent) -> Result<Answer, Failed> {
        sent.ask(&self.address).await
    }

    /// Signed in its headers, as it should be.
    pub(super) async fn ask_signed(&self, request: Request) -> Result<Answer, Failed> {
        self.ask(self.keys.in_headers(request)).await
    }

    /// The text of an object, or that there is none.
    pub(super) async fn get(&self, key: &str) -> Result<Option<String>, Failed> {
        let found = self.s3.get(key).await?;
        Ok(found.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
    }

    pub(super) async fn put(&self, key: &str, text: &str) -> Result<(), Failed> {
        self.s3.put(key, text.as_bytes().to_vec()).await
    }

    /// An object that must be as it was, whoever tried what.
    pub(super) async fn still_has(&self, key: &str, text: Option<&str>) -> Result<(), Failed> {
        match self.get(key).await? {
            found if found.as_deref() == text => Ok(()),
            found => Err(format!("{key} is {found:?} by now, not {text:?}")),
        }
    }

    /// The names of all buckets, as the gateway lists them.
    pub(super) async fn buckets(&self) -> Result<String, Failed> {
        let listed = self.ask_signed(Request::new("GET", "/")).await?;
        listed.succeeds("a list of all buckets")?;
        Ok(listed.body)
    }
}

/// The most that a process has taken since it was begun to be watched.
pub(super) struct Peak {
    pid: u32,
    before_bytes: u64,
}

impl Peak {
    pub(super) fn of(process: &Process) -> Peak {
        let pid = process.pid();
        // The kernel forgets the highest peak. Where it may not be told to, only what goes above that one
        // shows.
        let _ = fs::write(format!("/proc/{pid}/clear_refs"), "5");
        Peak { pid, before_bytes: peak_bytes(pid) }
    }

    pub(super) fn grown_bytes(&self) -> u64 {
        peak_bytes(self.pid).saturating_sub(self.before_bytes)
    }

    /// The growth in words, if it is at most so much.
    pub(super) fn stayed_below(&self, bytes_max: u64, what: &str) -> Result<String, Failed> {
        let grown = self.grown_bytes();
        let mib = grown.div_ceil(1 << 20);
        match grown <= bytes_max {
            true => Ok(format!("{mib} MiB more of memory")),
            false => Err(format!("{what} took {mib} MiB of memory, at most {} were to be", bytes_max >> 20)),
        }
    }
}

fn peak_bytes(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).expect("the kernel counts it");
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).expect("a number") << 10
}
