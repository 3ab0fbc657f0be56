//! The command line of `flotilla admin`.

use crate::args::ClusterArgs;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use std::time::Duration;

#[derive(ClapArgs, Debug)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    /// JSON instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// Look again every so many seconds, until Ctrl-C; with --json one line for each look
    #[arg(long, global = true, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "2", value_parser = seconds)]
    pub watch: Option<Duration>,
    #[command(subcommand)]
    pub command: AdminCommand,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum AdminCommand {
    /// Raft groups of three datanodes that take writes
    #[command(subcommand)]
    Pipeline(PipelineCommand),
    /// What data is kept in: 2 GiB each, three replicas
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Nodes that store data
    #[command(subcommand)]
    Datanode(DatanodeCommand),
    /// Whether SCM knows enough to repair and to delete
    #[command(subcommand, name = "safemode")]
    SafeMode(SafeModeCommand),
    /// Making and deleting replicas, so that there are three good ones
    #[command(subcommand)]
    Replication(SwitchCommand),
    /// Moving containers from full nodes to empty ones
    #[command(subcommand)]
    Balancer(SwitchCommand),
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum PipelineCommand {
    /// All pipelines: state, members, leader, open container
    List {
        /// Also those that are closed
        #[arg(short, long)]
        all: bool,
    },
    /// One pipeline, and what its members say
    Info { pipeline: u64 },
    /// Create one at once, also beyond the limit for each disk
    Create {
        /// Its three nodes, separated by commas; default: SCM chooses
        #[arg(long, value_delimiter = ',', num_args = 1)]
        nodes: Vec<u64>,
    },
    /// Take no more writes and close the open container; SCM creates another where there is room
    Close { pipeline: u64 },
    /// Move the leader to another member
    TransferLeader {
        pipeline: u64,
        /// The node that is to lead
        #[arg(long)]
        to: u64,
    },
    /// Move the leader to whichever other member is best
    StepDown { pipeline: u64 },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum ContainerCommand {
    /// Containers in the order of their numbers
    List(ContainerListArgs),
    /// One container with its replicas
    Info { container: u64 },
    /// Go on to the next container of its pipeline, whatever its size
    Close { container: u64 },
    /// How many there are, and how many have too few replicas, bad ones, ...
    Report,
}

#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct ContainerListArgs {
    /// Only in this state
    #[arg(long)]
    pub state: Option<StateFilter>,
    /// Only with this trouble
    #[arg(long)]
    pub trouble: Option<TroubleFilter>,
    /// Only of this pipeline
    #[arg(long)]
    pub pipeline: Option<u64>,
    /// Only with a replica on this node
    #[arg(long)]
    pub node: Option<u64>,
    /// Only numbers above this one
    #[arg(long, default_value_t = 0)]
    pub after: u64,
    /// At most so many
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StateFilter {
    Open,
    Closed,
    QuasiClosed,
    Deleted,
}

#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TroubleFilter {
    Missing,
    UnderReplicated,
    OverReplicated,
    MisReplicated,
    Unhealthy,
    Different,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum DatanodeCommand {
    /// All datanodes: state, duty, address, disks, pipelines
    List,
    /// One datanode with its disks, and what it still holds up when it leaves
    Info { node: u64 },
    /// Capacity and use of each disk
    Diskinfo {
        /// Only of this node
        node: Option<u64>,
    },
    /// Empty a node: its pipelines close, its containers get replicas elsewhere. Safe to repeat
    Decommission {
        node: u64,
        /// Also where fewer nodes would stay than replicas are needed: then it never ends
        #[arg(long)]
        force: bool,
        /// Return when nothing depends on the node any more
        #[arg(long)]
        wait: bool,
    },
    /// Prepare a node for being away a while: its pipelines close, its replicas go on counting
    Maintenance {
        node: u64,
        /// For how long at most (30m, 2h, 1d); then it counts as dead while it is away. Default: until recommissioned
        #[arg(long = "for", value_parser = duration)]
        within: Option<Duration>,
        #[arg(long)]
        force: bool,
        /// Return when the node may be switched off
        #[arg(long)]
        wait: bool,
    },
    /// Back into service
    Recommission { node: u64 },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum SafeModeCommand {
    /// Whether it is on, and what it waits for
    Status,
    /// Return when it is off
    Wait,
    /// Decide nothing until told to
    Enter,
    /// Leave it without waiting for what is missing
    Exit,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum SwitchCommand {
    Start,
    Stop,
    Status,
}

impl AdminCommand {
    /// Whether it only looks: what `--watch` may repeat.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            AdminCommand::Pipeline(command) => {
                matches!(command, PipelineCommand::List { .. } | PipelineCommand::Info { .. })
            }
            AdminCommand::Container(command) => !matches!(command, ContainerCommand::Close { .. }),
            AdminCommand::Datanode(command) => matches!(
                command,
                DatanodeCommand::List | DatanodeCommand::Info { .. } | DatanodeCommand::Diskinfo { .. }
            ),
            AdminCommand::SafeMode(command) => matches!(command, SafeModeCommand::Status),
            AdminCommand::Replication(command) | AdminCommand::Balancer(command) => {
                matches!(command, SwitchCommand::Status)
            }
        }
    }
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| format!("`{text}` is no number of seconds"))?;
    match (0.1..=86_400.0).contains(&seconds) {
        true => Ok(Duration::from_secs_f64(seconds)),
        false => Err("between 0.1 and 86400 seconds".to_owned()),
    }
}

/// `90s`, `30m`, `2h`, `1d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is no duration; write 90s, 30m, 2h or 1d");
    let unit = text.chars().last().ok_or_else(wrong)?;
    let seconds_each = match unit {
        's' => 1,
        'm' => 60,
        'h' => 3600,
        'd' => 86_400,
        _ => return Err(wrong()),
    };
    let count: u64 = text[..text.len() - 1].parse().map_err(|_| wrong())?;
    let seconds = count.checked_mul(seconds_each).filter(|&seconds| seconds > 0).ok_or_else(wrong)?;
    Ok(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_unit() {
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7200)));
        for wrong in ["", "5", "h", "0m", "-1h", "2w", "99999999999999999999d", "1é"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn looking_again_needs_a_pause() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["0", "x", "NaN", "inf"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
