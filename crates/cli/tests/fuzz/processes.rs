use crate::binary;
use crate::reach::Reach;
use crate::watch::Watch;
use std::path::PathBuf;
use tempfile::TempDir;
use testkit::{ACCESS_KEY, Cluster, ClusterOptions, Process, Ready, SECRET_KEY};

/// The processes of a cluster.
pub(crate) enum Processes {
    /// `flotilla dev`: all roles, and three datanodes.
    One { process: Process, ready: Ready, dir: TempDir },
    /// Three SCMs, an OM, three datanodes and a gateway.
    Many(Box<Cluster>),
}

/// What an S3 client has to know.
pub(crate) struct Door {
    pub(crate) endpoint: String,
    pub(crate) access_key: String,
    pub(crate) secret_key: String,
}

impl Processes {
    pub(crate) fn start_one() -> Processes {
        let dir = tempfile::tempdir().unwrap();
        let data = dir.path().join("data").display().to_string();
        let line = format!("dev --data {data} --s3-port 0 --rpc-port 0 --http-port 0");
        let words = line.split_whitespace().map(str::to_owned).collect();
        let (process, ready) = Process::start(binary(), dir.path(), "dev", words);
        Processes::One { process, ready, dir }
    }

    pub(crate) fn start_many() -> Processes {
        let options = ClusterOptions { scms: 3, disks_per_datanode: 1, ..ClusterOptions::default() };
        Processes::Many(Box::new(Cluster::start(binary(), &options)))
    }

    pub(crate) fn door(&self) -> Door {
        match self {
            Processes::One { ready, .. } => Door {
                endpoint: ready["S3_ENDPOINT"].clone(),
                access_key: ready["ACCESS_KEY"].clone(),
                secret_key: ready["SECRET_KEY"].clone(),
            },
            Processes::Many(cluster) => Door {
                endpoint: cluster.endpoint.clone(),
                access_key: ACCESS_KEY.to_owned(),
                secret_key: SECRET_KEY.to_owned(),
            },
        }
    }

    /// The address of the first SCM.
    pub(crate) fn scm(&self) -> &str {
        match self {
            Processes::One { ready, .. } => &ready["RPC"],
            Processes::Many(cluster) => &cluster.scm_addresses[0],
        }
    }

    /// Where all of them are reached; `datanodes` is what SCM has said of these.
    pub(crate) fn reach(&self, datanodes: &[String]) -> Reach {
        match self {
            Processes::One { ready, .. } => {
                let first = [ready["RPC"].clone()];
                Reach::of(&first, &first, datanodes)
            }
            Processes::Many(cluster) => Reach::of(&cluster.scm_addresses, &cluster.om_addresses, datanodes),
        }
    }

    fn all(&self) -> Vec<(&Process, PathBuf)> {
        match self {
            Processes::One { process, dir, .. } => vec![(process, dir.path().join("dev"))],
            Processes::Many(cluster) => {
                let scms = (1..).map(|number| format!("scm{number}")).zip(&cluster.scms);
                let datanodes = (1..).map(|number| format!("dn{number}")).zip(&cluster.datanodes);
                let oms = (1..).map(|number| format!("om{number}")).zip(&cluster.oms);
                let named =
                    scms.chain(oms).chain(datanodes).chain([("gateway".to_owned(), &cluster.gateway)]);
                named.map(|(name, process)| (process, cluster.path().join(name))).collect()
            }
        }
    }

    /// Watches all of them, since they were started for the nth time.
    pub(crate) fn watch(&self, starts: u32, memory_bytes_max: u64) -> Watch {
        let log = |path: PathBuf| path.with_extension(format!("{starts}.log"));
        Watch::new(self.all().into_iter().map(|(process, path)| (process, log(path))), memory_bytes_max)
    }

    /// Kills all of them, and has them start from what is on their disks.
    pub(crate) fn start_again(&mut self) {
        match self {
            Processes::One { process, .. } => {
                process.kill9();
                process.spawn_again();
            }
            Processes::Many(cluster) => {
                cluster.kill9_all();
                cluster.spawn_all_again();
            }
        }
    }

    /// Waits until all are ready.
    pub(crate) fn wait_ready(&mut self) {
        match self {
            Processes::One { process, ready, .. } => *ready = process.wait_ready(),
            Processes::Many(cluster) => cluster.wait_all_ready(),
        }
    }
}
