use super::connection::Connection;
use super::objects::{Objects, Size};
use super::sign::{Asked, Keys, Signer};
use anyhow::Context;
use std::path::Path;
use std::time::{Duration, Instant};
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, SECRET_KEY};

/// The time for the start: pipelines come within seconds, and a busy machine is slow.
const START_MAX: Duration = Duration::from_secs(60);
/// The number of clients that write what is to be read.
const FILLERS: u64 = 8;

/// A server under load: a cluster of ours, or somebody else's.
pub struct Target {
    pub name: String,
    address: String,
    keys: Keys,
    pub(super) bucket: String,
    /// The processes of the target, by what is reported together; nothing of a server that we did not start.
    pub(super) processes: Vec<(&'static str, Vec<u32>)>,
    // The cluster ends with the target.
    cluster: Option<Cluster>,
}

impl Target {
    /// Starts three datanodes, SCM, OM and a gateway of this binary, each a process.
    pub fn start(name: &str, binary: &Path) -> anyhow::Result<Target> {
        let options = ClusterOptions { container_bytes_max: 2 << 30, ..ClusterOptions::default() };
        let cluster = Cluster::start(binary, &options);
        let processes = vec![
            ("gateway", vec![cluster.gateway.pid()]),
            ("om", cluster.oms.iter().map(|om| om.pid()).collect()),
            ("scm", vec![cluster.scms[0].pid()]),
            ("datanodes", cluster.datanodes.iter().map(|datanode| datanode.pid()).collect()),
        ];
        let keys = Keys { access_key: ACCESS_KEY.to_owned(), secret_key: SECRET_KEY.to_owned() };
        let address = cluster.endpoint.strip_prefix("http://").context("an http endpoint")?.to_owned();
        let cluster = Some(cluster);
        let target = Target { name: name.to_owned(), address, keys, bucket: bucket(), processes, cluster };
        target.wait_ready()?;
        Ok(target)
    }

    /// A server that runs already, on this machine; `pid` for its processor time and memory.
    pub fn at(url: &str, access_key: String, secret_key: String, pid: Option<u32>) -> anyhow::Result<Target> {
        let address = url.strip_prefix("http://").context("a URL of the form http://host:port")?;
        let address = address.trim_end_matches('/').to_owned();
        let keys = Keys { access_key, secret_key };
        let processes = pid.map(|pid| ("server", vec![pid])).into_iter().collect();
        let target =
            Target { name: "peer".to_owned(), address, keys, bucket: bucket(), processes, cluster: None };
        target.wait_ready()?;
        Ok(target)
    }

    pub(crate) fn connect(&self) -> anyhow::Result<Connection> {
        Connection::open(&self.address, Signer::new(&self.address, &self.keys))
    }

    /// The addresses at which the processes of one kind show their metrics.
    pub(super) fn http_of(&self, name: &str) -> Vec<String> {
        let Some(cluster) = &self.cluster else { return Vec::new() };
        match name {
            "gateway" => vec![cluster.gateway_http.clone()],
            "om" => cluster.om_http.clone(),
            "scm" => vec![cluster.scm_ready["HTTP"].clone()],
            _ => cluster.datanode_http.clone(),
        }
    }

    fn wait_ready(&self) -> anyhow::Result<()> {
        let give_up = Instant::now() + START_MAX;
        let object = format!("/{}/first", self.bucket);
        let mut bucket_is_there = false;
        loop {
            let tried = self.connect().and_then(|mut connection| {
                if !bucket_is_there {
                    let path = format!("/{}", self.bucket);
                    connection.ask(put(&path, 0), b"", |_, _| Ok(()))?;
                    bucket_is_there = true;
                }
                connection.ask(put(&object, 5), b"first", |_, _| Ok(()))
            });
            match tried {
                Ok(_) => return Ok(()),
                Err(_) if Instant::now() < give_up => std::thread::sleep(Duration::from_millis(100)),
                Err(failure) => return Err(failure.context(format!("{} takes no objects", self.name))),
            }
        }
    }

    /// Writes the objects of this size that are to be read.
    pub fn fill(&self, size: &Size, objects: &Objects) -> anyhow::Result<()> {
        std::thread::scope(|scope| {
            let fillers = (0..FILLERS).map(|first| {
                scope.spawn(move || {
                    let mut connection = self.connect()?;
                    for number in (first..size.kept).step_by(FILLERS as usize) {
                        let path = self.kept(size, number);
                        connection.ask(put(&path, size.bytes), objects.body(size, number), |_, _| Ok(()))?;
                    }
                    anyhow::Ok(())
                })
            });
            let fillers: Vec<_> = fillers.collect();
            fillers.into_iter().try_for_each(|filler| filler.join().expect("fillers do not panic"))
        })
    }

    /// The path of an object that is there to be read.
    pub(super) fn kept(&self, size: &Size, number: u64) -> String {
        format!("/{}/kept-{}/{number:08}", self.bucket, size.name)
    }
}

pub(super) fn put(path: &str, body_bytes: usize) -> Asked<'_> {
    Asked { method: "PUT", path, query: "", body_bytes }
}

/// The name of a bucket, another one each time: a server that somebody else runs may have those of earlier
/// runs.
fn bucket() -> String {
    format!("bench-{}-{}", std::process::id(), time::OffsetDateTime::now_utc().unix_timestamp())
}
