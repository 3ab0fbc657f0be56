use crate::ports::free_addresses;
use crate::process::{Process, Ready};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

pub const ACCESS_KEY: &str = "FLOTTESTTESTTESTTEST";
pub const SECRET_KEY: &str = "test-secret-key-of-some-length";

#[derive(Clone, Debug)]
pub struct ClusterOptions {
    /// The number of SCMs: one or three.
    pub scms: usize,
    pub oms: usize,
    pub disks_per_datanode: usize,
    pub pipelines_per_disk: u32,
    pub container_bytes_max: u64,
    pub datanodes: usize,
    /// Further words of SCM's command line, of OM's, and of each datanode's.
    pub scm_args: String,
    pub om_args: String,
    pub datanode_args: String,
    /// The place of the first datanode's first disk, if that is not in the cluster's directory.
    pub first_disk: Option<PathBuf>,
    /// The place of all datanodes' disks, if that is not in the cluster's directory.
    pub disks_at: Option<PathBuf>,
    /// The addresses of the first datanodes: where each is bound, and under which one others are told to
    /// reach it, if that is another one.
    pub detours: Vec<Detour>,
}

/// A way around to a datanode: whoever made it passes on what is said to `advertised`.
#[derive(Clone, Debug)]
pub struct Detour {
    pub bound: String,
    pub advertised: String,
}

impl Default for ClusterOptions {
    /// Small containers, so that tests meet the change from one to the next.
    fn default() -> Self {
        Self {
            scms: 1,
            oms: 1,
            disks_per_datanode: 2,
            pipelines_per_disk: 2,
            container_bytes_max: 64 << 20,
            datanodes: 3,
            scm_args: String::new(),
            om_args: String::new(),
            datanode_args: String::new(),
            first_disk: None,
            disks_at: None,
            detours: Vec::new(),
        }
    }
}

/// One SCM or three, as many OMs and datanodes as wanted, one gateway: processes on free ports, in a
/// temporary directory.
pub struct Cluster {
    pub scms: Vec<Process>,
    pub oms: Vec<Process>,
    pub datanodes: Vec<Process>,
    /// The addresses at which others reach `datanodes`, in their order.
    pub datanode_addresses: Vec<String>,
    /// "http://host:port" of their metrics, in the same order; others after a restart.
    pub datanode_http: Vec<String>,
    pub gateway: Process,
    /// "http://host:port" of the metrics of `oms`, in their order, and of the gateway's; others after a
    /// restart.
    pub om_http: Vec<String>,
    pub gateway_http: String,
    /// The addresses of `scms`, in their order.
    pub scm_addresses: Vec<String>,
    /// The addresses of all SCMs, as in `--scm`.
    pub scm_address: String,
    /// The words of the first SCM when it was ready.
    pub scm_ready: Ready,
    /// The addresses of `oms`, in their order.
    pub om_addresses: Vec<String>,
    pub endpoint: String,
    binary: PathBuf,
    options: ClusterOptions,
    // Last, so that the processes end before their directories go.
    dir: TempDir,
}

impl Cluster {
    pub fn start(binary: &Path, options: &ClusterOptions) -> Cluster {
        let dir = tempfile::tempdir().expect("make a temporary directory");
        let root = dir.path();
        let start = |name: &str, line: String| -> (Process, Ready) {
            Process::start(binary, root, name, words(&line))
        };
        let root_path = root.display();

        // Others are told these addresses, so they stay the same when a process starts again. Their ports are
        // not of those that the kernel gives to whoever asks: it might give them away while their process is
        // down.
        let mut addresses = free_addresses(options.scms + options.oms + options.datanodes + 2).into_iter();
        let scm_addresses: Vec<String> = addresses.by_ref().take(options.scms).collect();
        let mut datanode_addresses: Vec<String> = addresses.by_ref().take(options.datanodes).collect();
        for (detour, address) in options.detours.iter().zip(&mut datanode_addresses) {
            address.clone_from(&detour.advertised);
        }
        let om_addresses: Vec<String> = addresses.by_ref().take(options.oms).collect();
        let [gateway_address, s3_address] = [(); 2].map(|()| addresses.next().expect("one for each"));
        let scm_address = scm_addresses.join(",");
        // The SCMs start together: none is ready before a majority is there.
        let scm_names = (1..).map(|number| format!("scm{number}"));
        let mut scms: Vec<Process> = scm_names
            .zip(&scm_addresses)
            .map(|(name, address)| {
                // The machine's disk may be nearly full: what it tests are copies, not that they are put off.
                let line = format!(
                    "server --roles scm --rpc {address} --meta {root_path}/{name} --scm {scm_address} --pipelines-per-disk {} \
                     --keep-free-percent 0 {}",
                    options.pipelines_per_disk, options.scm_args
                );
                Process::spawn(binary, root, &name, words(&line))
            })
            .collect();
        let scm_ready: Vec<Ready> = scms.iter_mut().map(Process::wait_ready).collect();
        let scm_ready = scm_ready.into_iter().next().expect("there is an SCM");
        let (mut oms, mut om_http) = (Vec::new(), Vec::new());
        for (number, address) in (1..).zip(&om_addresses) {
            let name = format!("om{number}");
            let line = format!(
                "server --roles om --rpc {address} --meta {root_path}/{name} --scm {scm_address} {}",
                options.om_args
            );
            let (om, ready) = start(&name, line);
            oms.push(om);
            om_http.push(ready["HTTP"].clone());
        }

        let (mut datanodes, mut datanode_http) = (Vec::new(), Vec::new());
        for (number, address) in (1..).zip(&datanode_addresses) {
            let (name, line) = datanode(options, root, &scm_address, number, address);
            let (datanode, ready) = start(&name, line);
            datanodes.push(datanode);
            datanode_http.push(ready["HTTP"].clone());
        }

        write_secret_key(&root.join("key"));
        let line = format!(
            "server --roles s3 --rpc {gateway_address} --s3 {s3_address} --scm {scm_address} \
             --access-key {ACCESS_KEY} --secret-key-file {root_path}/key"
        );
        let (gateway, ready) = start("gateway", line);
        let endpoint = ready["S3_ENDPOINT"].clone();
        Cluster {
            scms,
            oms,
            datanodes,
            datanode_addresses,
            datanode_http,
            gateway,
            om_http,
            gateway_http: ready["HTTP"].clone(),
            scm_addresses,
            scm_address,
            scm_ready,
            om_addresses,
            endpoint,
            binary: binary.to_owned(),
            options: options.clone(),
            dir,
        }
    }

    /// Adds a datanode, which is the last of the list from now on.
    pub fn add_datanode(&mut self) {
        let address = free_addresses(1).remove(0);
        let number = self.datanodes.len() + 1;
        let (name, line) = datanode(&self.options, self.dir.path(), &self.scm_address, number, &address);
        let (datanode, ready) = Process::start(&self.binary, self.dir.path(), &name, words(&line));
        self.datanodes.push(datanode);
        self.datanode_addresses.push(address);
        self.datanode_http.push(ready["HTTP"].clone());
    }

    /// Starts all datanodes again, with other further words of their command lines.
    pub fn restart_datanodes(&mut self, args: &str) {
        self.options.datanode_args = args.to_owned();
        for process in &mut self.datanodes {
            assert!(process.terminate().success(), "a datanode did not end well");
        }
        let addresses = (1..).zip(&self.datanode_addresses);
        for (process, (number, address)) in self.datanodes.iter_mut().zip(addresses) {
            let (_, line) = datanode(&self.options, self.dir.path(), &self.scm_address, number, address);
            process.set_args(words(&line));
            process.spawn_again();
        }
        let ready = self.datanodes.iter_mut().map(|process| process.wait_ready()["HTTP"].clone());
        self.datanode_http = ready.collect();
    }

    /// The directory in which everything of the cluster is; it goes with the cluster.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// A data directory of a datanode; both are counted from 0.
    pub fn disk(&self, datanode: usize, disk: usize) -> PathBuf {
        disk_dir(&self.options, self.dir.path(), datanode + 1, disk + 1)
    }

    fn all(&mut self) -> impl Iterator<Item = &mut Process> {
        let metadata = self.scms.iter_mut().chain(&mut self.oms);
        metadata.chain(self.datanodes.iter_mut()).chain([&mut self.gateway])
    }

    pub fn kill9_all(&mut self) {
        self.all().for_each(Process::kill9);
    }

    /// Starts all processes at once, in no order, as after a power cut.
    pub fn start_all_again(&mut self) {
        self.spawn_all_again();
        self.wait_all_ready();
    }

    pub fn spawn_all_again(&mut self) {
        self.all().for_each(Process::spawn_again);
    }

    pub fn wait_all_ready(&mut self) {
        self.all().for_each(|process| drop(process.wait_ready()));
    }
}

/// The words of a command line, of a process whose HTTP port is any that is free.
fn words(line: &str) -> Vec<String> {
    line.split_whitespace().chain(["--http", "127.0.0.1:0"]).map(str::to_owned).collect()
}

/// Writes the secret key for its owner alone, as an operator keeps it.
fn write_secret_key(path: &Path) {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    file.and_then(|mut file| file.write_all(SECRET_KEY.as_bytes())).expect("write the secret key");
}

/// A data directory of a datanode; both are counted from 1.
fn disk_dir(options: &ClusterOptions, root: &Path, number: usize, disk: usize) -> PathBuf {
    match &options.first_disk {
        Some(first) if (number, disk) == (1, 1) => first.clone(),
        _ => options.disks_at.as_deref().unwrap_or(root).join(format!("dn{number}/disk{disk}")),
    }
}

/// A datanode's name and command line.
fn datanode(
    options: &ClusterOptions,
    root: &Path,
    scm_address: &str,
    number: usize,
    address: &str,
) -> (String, String) {
    let place = match options.detours.get(number - 1) {
        Some(Detour { bound, advertised }) => format!("--rpc {bound} --advertise {advertised}"),
        None => format!("--rpc {address}"),
    };
    let disks = (1..=options.disks_per_datanode).map(|disk| disk_dir(options, root, number, disk));
    let disks: String = disks.map(|disk| format!(" --disk {}", disk.display())).collect();
    let line = format!(
        "server --roles datanode {place}{disks} --scm {scm_address} --container-bytes-max {} {}",
        options.container_bytes_max, options.datanode_args
    );
    (format!("dn{number}"), line)
}
