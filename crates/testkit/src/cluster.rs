use crate::process::{Process, Ready};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const ACCESS_KEY: &str = "FLOTTESTTESTTESTTEST";
pub const SECRET_KEY: &str = "test-secret-key-of-some-length";

#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub disks_per_datanode: usize,
    pub pipelines_per_disk: u32,
    pub container_bytes_max: u64,
    pub datanodes: usize,
    /// More of SCM's command line.
    pub scm_args: String,
}

impl Default for ClusterOptions {
    /// Small containers, so that tests meet the change from one to the next.
    fn default() -> Self {
        Self {
            disks_per_datanode: 2,
            pipelines_per_disk: 2,
            container_bytes_max: 64 << 20,
            datanodes: 3,
            scm_args: String::new(),
        }
    }
}

/// One SCM, one OM, three datanodes or as many as wanted, one gateway: processes on free ports, in a temporary directory.
pub struct Cluster {
    pub scm: Process,
    pub om: Process,
    pub datanodes: Vec<Process>,
    /// In the order of `datanodes`.
    pub datanode_addresses: Vec<String>,
    pub gateway: Process,
    pub scm_address: String,
    pub om_address: String,
    pub endpoint: String,
    // Last, so that the processes end before their directories go.
    dir: TempDir,
}

impl Cluster {
    pub fn start(binary: &Path, options: &ClusterOptions) -> Cluster {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        let root = dir.path();
        let start = |name: &str, line: String| -> (Process, Ready) {
            let line = format!("{line} --http 127.0.0.1:0");
            let args = line.split_whitespace().map(str::to_owned).collect();
            let (mut process, ready) = Process::start(binary, root, name, args);
            // Others are told this port, so it stays the same when the process starts again.
            process.set_arg("--rpc", &ready["RPC"]);
            (process, ready)
        };
        let root_path = root.display();

        let line = format!(
            "server --roles scm --rpc 127.0.0.1:0 --meta {root_path}/scm --pipelines-per-disk {} {}",
            options.pipelines_per_disk, options.scm_args
        );
        let (scm, ready) = start("scm", line);
        let scm_address = ready["RPC"].clone();
        let (om, ready) = start("om", format!("server --roles om --rpc 127.0.0.1:0 --meta {root_path}/om"));
        let om_address = ready["RPC"].clone();

        let (mut datanodes, mut datanode_addresses) = (Vec::new(), Vec::new());
        for number in 1..=options.datanodes {
            let name = format!("dn{number}");
            let disks: String = (1..=options.disks_per_datanode)
                .map(|disk| format!(" --disk {root_path}/{name}/disk{disk}"))
                .collect();
            let line = format!(
                "server --roles datanode --rpc 127.0.0.1:0{disks} --scm {scm_address} --container-bytes-max {}",
                options.container_bytes_max
            );
            let (datanode, ready) = start(&name, line);
            datanodes.push(datanode);
            datanode_addresses.push(ready["RPC"].clone());
        }

        let line = format!(
            "server --roles s3 --rpc 127.0.0.1:0 --s3 127.0.0.1:0 --scm {scm_address} --om {om_address} \
             --access-key {ACCESS_KEY} --secret-key {SECRET_KEY}"
        );
        let (mut gateway, ready) = start("gateway", line);
        let endpoint = ready["S3_ENDPOINT"].clone();
        gateway.set_arg("--s3", endpoint.strip_prefix("http://").expect("an http endpoint"));
        Cluster { scm, om, datanodes, datanode_addresses, gateway, scm_address, om_address, endpoint, dir }
    }

    /// A data directory of a datanode; both are counted from 0.
    pub fn disk(&self, datanode: usize, disk: usize) -> PathBuf {
        self.dir.path().join(format!("dn{}/disk{}", datanode + 1, disk + 1))
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        let metadata = [&mut self.scm, &mut self.om].into_iter();
        metadata.chain(self.datanodes.iter_mut()).chain([&mut self.gateway])
    }

    pub fn kill9_all(&mut self) {
        self.all().for_each(Process::kill9);
    }

    /// All at once, in no order, as after a power cut.
    pub fn start_all_again(&mut self) {
        self.all().for_each(Process::spawn_again);
        self.all().for_each(|process| {
            process.wait_ready();
        });
    }
}
