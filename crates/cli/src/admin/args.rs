//! The command line of `flotilla admin`.

use crate::answer::LookArgs;
use crate::args::ClusterArgs;
use crate::duration::duration;
use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::time::Duration;

#[derive(ClapArgs, Debug)]
pub(crate) struct AdminArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub looks: LookArgs,
    #[command(subcommand)]
    pub command: AdminCommand,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum AdminCommand {
    /// Is all well? What is not, worst first, and the command that tells more. Exits with 0 when all is well,
    /// 1 on warnings, 2 when something is lost, down or full
    Status,
    /// Raft groups of three datanodes that take writes
    #[command(subcommand)]
    Pipeline(PipelineCommand),
    /// Units in which data is kept: 2 GiB each, three replicas
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Nodes that store data
    #[command(subcommand)]
    Datanode(DatanodeCommand),
    /// SCM's own members
    #[command(subcommand)]
    Scm(ScmCommand),
    /// OMs, and the groups of names that are on them
    #[command(subcommand)]
    Om(OmCommand),
    /// Buckets: which group of names has which, and how much is in them
    #[command(subcommand)]
    Bucket(BucketCommand),
    /// Keys: where their bytes are
    #[command(subcommand)]
    Key(KeyCommand),
    /// Groups that have lost a majority of their members
    #[command(subcommand)]
    Raft(RaftCommand),
    /// Which hosts stand in which racks: replicas of the same data do not stand in one
    #[command(subcommand)]
    Rack(RackCommand),
    /// Whether SCM knows enough to repair and to delete
    #[command(subcommand, name = "safemode")]
    SafeMode(SafeModeCommand),
    /// Making and deleting replicas, so that there are three good ones
    #[command(subcommand)]
    Replication(SwitchCommand),
    /// Moving containers from full nodes to empty ones
    #[command(subcommand)]
    Balancer(SwitchCommand),
    /// Where the bytes are: live, discarded, given back; and what of those that nobody names waits for what
    Space {
        #[command(subcommand)]
        command: Option<SpaceCommand>,
    },
    /// Giving back what nobody names any more
    #[command(subcommand)]
    Reclaim(SwitchCommand),
    /// Looking through closed containers for blocks that no name has, and for names whose block no replica
    /// has
    #[command(subcommand)]
    Sweep(SweepCommand),
    /// Who runs where and how they are, and a small key-value space. Exits with 3 when a comparison failed,
    /// with 4 for what is not there
    #[command(subcommand)]
    Registry(RegistryCommand),
    /// Print what one process logs, or change it until the process ends
    Log {
        /// host:port of the process's gRPC, as its own --rpc says
        #[arg(long, default_value = "127.0.0.1:7400", env = "FLOTILLA_RPC", value_name = "HOST:PORT")]
        rpc: String,
        /// The levels with which it was started hold again
        #[arg(long)]
        reset: bool,
        /// LEVEL of everything, or of one module: off, error, warn, info, debug, trace; for example
        /// flotilla_om=debug
        #[arg(value_name = "MODULE=LEVEL")]
        directives: Vec<String>,
    },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum RegistryCommand {
    /// All services, and how many of their instances are well
    Services,
    /// Instances with their addresses and checks
    Instances {
        /// Only of this service
        service: Option<String>,
        /// Only those of which all checks pass
        #[arg(long)]
        passing: bool,
    },
    /// Print what changes among instances, line by line, until Ctrl-C
    Watch {
        /// Only of this service
        service: Option<String>,
        #[command(flatten)]
        watch: WatchArgs,
    },
    /// Keys and values
    #[command(subcommand)]
    Kv(KvCommand),
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum KvCommand {
    /// Print a key's value; with --json also its revisions, and the value in base64
    Get { key: String },
    /// Set a key's value
    Put {
        key: String,
        /// The value; `-` reads standard input
        value: String,
        /// Only if the key is at this revision (mod_revision); 0: only if there is none
        #[arg(long, value_name = "REVISION")]
        cas: Option<u64>,
        /// Delete the key after this time unless it is put or renewed (10s, 5m, 1h)
        #[arg(long, value_parser = duration)]
        ttl: Option<Duration>,
    },
    /// Give a key with a time to live its whole time again, if it is still at this revision
    Renew { key: String, revision: u64 },
    /// Delete a key
    Delete {
        key: String,
        /// All keys that begin with it
        #[arg(long, conflicts_with = "cas")]
        prefix: bool,
        /// Only if the key is at this revision
        #[arg(long, value_name = "REVISION")]
        cas: Option<u64>,
    },
    /// List keys in their order
    List {
        /// Only those that begin with it
        #[arg(default_value = "")]
        prefix: String,
    },
    /// Print what changes among keys, line by line, until Ctrl-C
    Watch {
        /// Keys that begin with it
        #[arg(default_value = "")]
        prefix: String,
        #[command(flatten)]
        watch: WatchArgs,
    },
}

#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct WatchArgs {
    /// Begin with this revision; 0: with the next change
    #[arg(long, default_value_t = 0, value_name = "REVISION")]
    pub from: u64,
    /// End after so many changes
    #[arg(long)]
    pub count: Option<u64>,
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
    /// Create a pipeline at once, also beyond the limit for each disk
    Create {
        /// Its three nodes, separated by commas; default: SCM chooses
        #[arg(long, value_delimiter = ',', num_args = 1)]
        nodes: Vec<u64>,
    },
    /// Take no more writes and close the open container; SCM creates another where there is room
    Close { pipeline: u64 },
    /// A majority of a pipeline's members is lost for good: its containers that are QUASI_CLOSED become what
    /// the best member left has of them. What only the lost ones had is gone
    AcceptLoss {
        pipeline: u64,
        /// Do it, with what this node has: the one that the command names without this option
        #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
        keep: Option<u64>,
    },
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
    /// Close a container, whatever its size: its pipeline goes on to the next one
    Close { container: u64 },
    /// Delete a replica that the good ones contradict (`diverged`, `ahead`, `different`), with what only it
    /// has. SCM never does this by itself
    Drop {
        container: u64,
        /// The node that has the replica
        #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
        node: u64,
        /// Do it; without this the command only shows the replicas
        #[arg(long)]
        accept_loss: bool,
    },
    /// No replica of a container is good, and none will come back (`missing`): it becomes what the best one
    /// left has of it. What only the lost ones had is gone
    AcceptLoss {
        container: u64,
        /// Do it, with what this node has: the one that the command names without this option
        #[arg(long, value_name = "NODE", value_parser = clap::value_parser!(u64).range(1..))]
        keep: Option<u64>,
        /// Do it, where no replica is left at all: the container counts as deleted
        #[arg(long, conflicts_with = "keep")]
        keep_nothing: bool,
    },
    /// How many containers there are, and how many have too few replicas, bad ones, ...
    Report,
    /// Whose data is in a container: the keys, and parts of uploads, that have blocks there
    Keys {
        container: u64,
        /// At most so many
        #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
        limit: u32,
    },
}

#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct ContainerListArgs {
    /// Only in this state
    #[arg(long)]
    pub state: Option<StateFilter>,
    /// Only with this trouble
    #[arg(long)]
    pub trouble: Option<TroubleFilter>,
    /// Only those that a forced reset of SCM had lost, and their replicas brought back
    #[arg(long)]
    pub adopted: bool,
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
    Ahead,
    Diverged,
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
        /// For how long at most (30m, 2h, 1d); then it counts as dead while it is away. Default: until
        /// recommissioned
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
pub(crate) enum RackCommand {
    /// Racks with their nodes and hosts
    List,
    /// Say that hosts stand in a rack; nodes that come later stand there from the beginning
    Set {
        rack: String,
        /// Names or addresses as nodes give them; host:port where several nodes share one
        #[arg(required = true)]
        hosts: Vec<String>,
    },
    /// Say that hosts stand in no rack any more (their nodes: in `default`)
    Unset {
        #[arg(required = true)]
        hosts: Vec<String>,
    },
    /// Replace the whole map by a file's: lines of a host and its rack, `#` begins a comment
    Load { file: PathBuf },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum ScmCommand {
    /// Who leads, who follows, and how far behind; without a leader, what each says of itself
    Roles,
    /// Move the leader to another member
    Transfer {
        /// host:port of the one that is to lead; default: whichever other member is best
        #[arg(long)]
        to: Option<String>,
    },
    /// Take a member out, for good: a process that is never to come back at this address
    Remove { address: String },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum OmCommand {
    /// All OMs: state, duty, address, and what they have of which group
    Roles,
    /// Groups of names: leader, members, and what is not as it should be
    Groups,
    /// Make more groups
    #[command(subcommand)]
    Group(OmGroupCommand),
    /// Move the leader of a group to another member
    Transfer {
        group: u64,
        /// The OM that is to lead; default: whichever other member is best
        #[arg(long)]
        to: Option<u64>,
    },
    /// Empty an OM: others take its place in all groups. Safe to repeat
    Decommission {
        om: u64,
        /// Return when no group needs it any more
        #[arg(long)]
        wait: bool,
    },
    /// Back into service
    Recommission { om: u64 },
    /// All replicas of a group are lost for good: forget it and its names, so that it is begun anew. Refused
    /// while an OM has one
    GiveUp {
        group: u64,
        /// Do it; without this the command only shows the group
        #[arg(long)]
        accept_loss: bool,
    },
    /// What was deleted and is not gone from the disks yet, by group of names, and what it waits for
    Unused,
    /// Buckets that are being made, deleted or moved, and groups of names that were reset and are to hear
    /// which buckets they have: for how long, and why it does not come to its end
    Unsettled,
    /// Keys and parts of uploads of which no replica has a block
    Lost,
    /// Multipart uploads in progress, the oldest first
    Uploads {
        /// Only to this bucket
        #[arg(long)]
        bucket: Option<String>,
        /// Only those that began so long ago (30m, 12h, 7d)
        #[arg(long, value_parser = duration)]
        older_than: Option<Duration>,
        /// End them: their parts are deleted
        #[arg(long, requires = "older_than")]
        abort: bool,
    },
    /// Back up all names, as they belong together at one moment, into a directory of this machine, while
    /// everything goes on
    #[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
    Backup(OmBackupArgs),
    /// All names are lost: bring them back as a backup has them, into OMs with empty directories. What was
    /// written since the backup is gone. Safe to repeat
    Restore {
        /// The directory of a backup
        dir: PathBuf,
        /// Do it; without this the command only looks whether the backup is whole, and says of when it is
        #[arg(long)]
        yes_i_lose_what_was_written_since: bool,
    },
}

#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct OmBackupArgs {
    #[command(subcommand)]
    pub command: Option<OmBackupCommand>,
    /// The directory: an empty one, or one that is not there
    #[arg(required = true)]
    pub dir: Option<PathBuf>,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum OmBackupCommand {
    /// Read a backup, and say whether it is whole. Asks nobody
    Verify { dir: PathBuf },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum KeyCommand {
    /// Where a key's blocks are: its pieces, their containers, and the nodes that have these
    Explain {
        /// BUCKET/KEY
        path: String,
    },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum OmGroupCommand {
    /// One more group of names, for buckets that are made from then on. It stays
    Create,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum BucketCommand {
    /// All buckets, by name
    List,
    /// One bucket
    Info { bucket: String },
    /// A new, empty bucket, in a group of your choice
    Create {
        bucket: String,
        /// Default: any
        #[arg(long)]
        group: Option<u64>,
    },
    /// Move a bucket to another group while it is used, and wait until it is there. The move goes on without
    /// who waits; the same command again waits again
    #[command(group(clap::ArgGroup::new("what").required(true).args(["to", "give_up"])))]
    Move {
        bucket: String,
        /// The group that is to have it
        #[arg(long)]
        to: Option<u64>,
        /// Give up the move that is under way: the bucket stays where it is
        #[arg(long)]
        give_up: bool,
    },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum RaftCommand {
    /// Say what to do, where, when a majority of SCM's members, or of OM's, is lost for good. Changes
    /// nothing: the survivor must be stopped for it
    ResetMembership {
        /// scm, om (all groups of names), om-N, or a pipeline like pipeline-3
        #[arg(long, default_value = "scm")]
        group: String,
    },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum SafeModeCommand {
    /// Whether safe mode is on, and what it waits for
    Status,
    /// Return when safe mode is off
    Wait,
    /// Have SCM decide nothing until told to
    Enter,
    /// Leave safe mode without waiting for what is missing
    Exit,
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum SpaceCommand {
    /// Why what nobody names in one container is still there
    Explain { container: u64 },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum SweepCommand {
    /// How far the sweep is, and what it has found
    Status,
    /// Look through one container now, or through all that are closed, once they have been for --sweep-after
    Run { container: Option<u64> },
    /// Look through nothing until told to
    Stop,
    /// Go on. All names that anybody has are served now: what none of them names is given up for good
    Start,
    /// When one container was looked through last, and what came of it
    Explain { container: u64 },
}

#[derive(Subcommand, Debug, Clone)]
pub(crate) enum SwitchCommand {
    Start,
    Stop,
    Status,
}

impl AdminCommand {
    /// Whether the command only looks, so that `--watch` may repeat it.
    pub(crate) fn only_looks(&self) -> bool {
        match self {
            AdminCommand::Status => true,
            AdminCommand::Pipeline(command) => {
                matches!(command, PipelineCommand::List { .. } | PipelineCommand::Info { .. })
            }
            AdminCommand::Container(command) => {
                use ContainerCommand::{Info, Keys, List, Report};
                matches!(command, List(_) | Info { .. } | Keys { .. } | Report)
            }
            AdminCommand::Datanode(command) => matches!(
                command,
                DatanodeCommand::List | DatanodeCommand::Info { .. } | DatanodeCommand::Diskinfo { .. }
            ),
            AdminCommand::Rack(command) => matches!(command, RackCommand::List),
            AdminCommand::Scm(command) => matches!(command, ScmCommand::Roles),
            AdminCommand::Om(command) => {
                use OmCommand::{Groups, Lost, Roles, Unsettled, Unused, Uploads};
                matches!(command, Roles | Groups | Lost | Unsettled | Unused | Uploads { abort: false, .. })
            }
            AdminCommand::Key(KeyCommand::Explain { .. }) => true,
            AdminCommand::Bucket(command) => {
                matches!(command, BucketCommand::List | BucketCommand::Info { .. })
            }
            AdminCommand::Raft(RaftCommand::ResetMembership { .. }) => true,
            AdminCommand::SafeMode(command) => matches!(command, SafeModeCommand::Status),
            AdminCommand::Replication(command)
            | AdminCommand::Balancer(command)
            | AdminCommand::Reclaim(command) => matches!(command, SwitchCommand::Status),
            AdminCommand::Space { .. } => true,
            AdminCommand::Sweep(command) => !matches!(command, SweepCommand::Run { .. }),
            AdminCommand::Registry(command) => match command {
                RegistryCommand::Services | RegistryCommand::Instances { .. } => true,
                RegistryCommand::Kv(command) => {
                    matches!(command, KvCommand::Get { .. } | KvCommand::List { .. })
                }
                RegistryCommand::Watch { .. } => false,
            },
            AdminCommand::Log { .. } => false,
        }
    }
}
