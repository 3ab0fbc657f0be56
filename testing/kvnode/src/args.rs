use clap::{Parser, ValueEnum};
use raft::Timing;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use types::NodeId;

/// A node of a small replicated key-value store, for drills and benches.
#[derive(Clone, Debug, Parser)]
#[command(name = "kvnode")]
pub struct Args {
    /// Which of the peers this is.
    #[arg(long)]
    pub node: u64,
    /// Where the others are reached, this node among them: 1=host:port,2=host:port,...
    #[arg(long, value_delimiter = ',', value_parser = peer)]
    pub peers: Vec<(u64, String)>,
    /// Where to keep disk and databases.
    #[arg(long)]
    pub data: PathBuf,
    /// Raft groups, numbered from 1; all peers are members of all.
    #[arg(long, default_value_t = 1)]
    pub groups: u32,
    /// Where the other members are served.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub raft: SocketAddr,
    /// Where clients are served.
    #[arg(long, default_value = "127.0.0.1:0")]
    pub client: SocketAddr,
    /// Heartbeat and election times in milliseconds: heartbeat,election min,election max.
    #[arg(long, default_value = "200,1000,1500", value_parser = timing)]
    pub timing: Timing,
    /// A database for the node, or one for each group.
    #[arg(long, value_enum, default_value = "node")]
    pub db: DbPer,
    /// Bytes of entries under way to a follower of a group; 1 means one message at a time.
    #[arg(long)]
    pub window_bytes: Option<usize>,
    /// Proposals of merged requests under way in a group.
    #[arg(long, default_value_t = 1)]
    pub rounds: usize,
    /// Requests merged into one proposal; 1 merges none.
    #[arg(long, default_value_t = 4096)]
    pub merge: usize,
    /// Reads ask the quorum even where a write of the same round proves the leader.
    #[arg(long)]
    pub reads_apart: bool,
    #[arg(long, default_value_t = 2)]
    pub worker_threads: usize,
    /// Free space that is kept.
    #[arg(long, default_value_t = 64 << 20)]
    pub reserve_bytes: u64,
    /// Written when the node serves: RAFT=... and CLIENT=...
    #[arg(long)]
    pub ready_file: Option<PathBuf>,
    /// A bug that the drills must find: writes are acknowledged before they are committed.
    #[arg(long, hide = true)]
    pub planted_early_ack: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DbPer {
    Node,
    Group,
}

impl Args {
    pub(crate) fn id(&self) -> NodeId {
        NodeId(self.node)
    }
}

fn peer(text: &str) -> Result<(u64, String), String> {
    let (node, address) = text.split_once('=').ok_or("a peer is NODE=HOST:PORT")?;
    Ok((node.parse().map_err(|error| format!("node `{node}`: {error}"))?, address.to_owned()))
}

fn timing(text: &str) -> Result<Timing, String> {
    let parts: Result<Vec<u64>, _> = text.split(',').map(str::parse).collect();
    let parts = parts.map_err(|error| format!("`{text}`: {error}"))?;
    let [heartbeat, election_min, election_max] =
        parts[..].try_into().map_err(|_| format!("`{text}` is not three numbers"))?;
    let timing = Timing {
        heartbeat: Duration::from_millis(heartbeat),
        election_min: Duration::from_millis(election_min),
        election_max: Duration::from_millis(election_max),
    };
    timing.validate().map_err(|error| format!("`{text}`: {error}"))?;
    Ok(timing)
}
