use super::BlocksCluster;
use crate::flotilla_binary;
use crate::usage::Usage;
use std::time::Duration;
use testkit::{Process, Ready};

/// The time after which first heartbeats are over, and groups that nobody used doze.
const SETTLE: Duration = Duration::from_secs(15);

/// The cost of processes that nobody uses.
pub struct Idle {
    pub name: String,
    pub cpu_percent: f64,
    pub resident_bytes: u64,
    pub wakeups_per_second: f64,
}

/// The cost of the first datanode, and that of all processes of the cluster together.
pub async fn idle_cluster(cluster: &BlocksCluster, title: &str, measured: Duration) -> Vec<Idle> {
    let of = &cluster.cluster;
    let processes =
        [&of.datanodes[0], &of.datanodes[1], &of.datanodes[2], &of.scms[0], &of.oms[0], &of.gateway];
    let pids: Vec<u32> = processes.iter().map(|process| process.pid()).collect();
    let each = idle(&pids, measured).await;
    let sum = |of: fn(&Idle) -> f64| each.iter().map(of).sum::<f64>();
    let all = Idle {
        name: format!("{title}: all six processes"),
        cpu_percent: sum(|it| it.cpu_percent),
        resident_bytes: each.iter().map(|it| it.resident_bytes).sum(),
        wakeups_per_second: sum(|it| it.wakeups_per_second),
    };
    let first = each.into_iter().next().expect("there are six");
    vec![Idle { name: format!("{title}: one datanode"), ..first }, all]
}

/// The cost of `flotilla dev`: all services and three datanodes of two disks each in one process.
pub async fn idle_dev(measured: Duration) -> Idle {
    let dir = tempfile::tempdir().expect("make a temporary directory");
    let line = format!("dev --data {}/data --s3-port 0 --rpc-port 0 --http-port 0", dir.path().display());
    let args = line.split_whitespace().map(str::to_owned).collect();
    let (process, _): (Process, Ready) = Process::start(&flotilla_binary(), dir.path(), "dev", args);
    let idle = idle(&[process.pid()], measured).await.into_iter().next().expect("one process");
    Idle { name: "flotilla dev".to_owned(), ..idle }
}

async fn idle(pids: &[u32], measured: Duration) -> Vec<Idle> {
    tokio::time::sleep(SETTLE).await;
    let before: Vec<Usage> = pids.iter().map(|pid| Usage::of(*pid)).collect();
    tokio::time::sleep(measured).await;
    let costs = pids.iter().zip(&before).map(|(pid, before)| {
        let after = Usage::of(*pid);
        let rates = after.since(before);
        Idle {
            name: String::new(),
            cpu_percent: rates.cpu_percent,
            resident_bytes: after.resident_bytes,
            wakeups_per_second: rates.wakeups_per_second,
        }
    });
    costs.collect()
}
