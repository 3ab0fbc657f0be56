use crate::admin::args::AdminArgs;
use crate::answer::LookArgs;
use crate::credentials::{Secret, access_key};
use crate::debug::args::DebugArgs;
use crate::duration::duration;
use crate::load::args::LoadArgs;
use crate::memory_share::MemoryArgs;
use crate::reclaim_times::ReclaimTimes;
use crate::role::Role;
use crate::s3_limits::S3Limits;
use crate::version::{LONG_VERSION, VERSION};
use clap::{ArgAction, Args as ClapArgs, Parser, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Flotilla: an object store whose every byte is written through Raft.
#[derive(Parser, Debug)]
#[command(name = "flotilla", version = VERSION, long_version = LONG_VERSION, max_term_width = 110)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a whole cluster in this process: for a laptop, a test, a first look
    Dev(DevArgs),
    /// Run one or more roles of a cluster
    Server(Box<ServerArgs>),
    /// Work with files and directories, like `hadoop fs` (both `fs -ls` and `fs ls` work)
    Fs(FsArgs),
    /// Make, look at and delete volumes, like `ozone sh`
    Sh(ShArgs),
    /// Look at and manage a cluster
    Admin(AdminArgs),
    /// Look into the files of a data directory, also of one in use, or at copies of them; recreate a lost
    /// index
    Debug(DebugArgs),
    /// Make load on a cluster, and check what it answers
    Load(LoadArgs),
    /// Ask a process whether it is ready: exit code 0 or 1. For health checks of containers, and for scripts
    Health(HealthArgs),
    /// Print a script that completes this command line in a shell
    Completion {
        /// For example `flotilla completion bash > /etc/bash_completion.d/flotilla`
        shell: clap_complete::Shell,
    },
}

#[derive(ClapArgs, Debug)]
pub(crate) struct DevArgs {
    /// Where everything is kept; made if missing
    #[arg(long, default_value = "./data")]
    pub data: PathBuf,
    /// Address of the S3 endpoint. gRPC (SCM, OM, datanodes) has no authentication and stays on 127.0.0.1
    #[arg(long, default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// Port of the S3 endpoint; 0 takes a free one
    #[arg(long, default_value_t = 9000)]
    pub s3_port: u16,
    /// A host name of the S3 endpoint, as of `flotilla server`
    #[arg(long = "s3-domain", env = "FLOTILLA_S3_DOMAINS", value_delimiter = ',', value_name = "NAME", value_parser = s3_domain)]
    pub s3_domains: Vec<String>,
    /// Port of SCM, OM and the first datanode; the other two datanodes take the next two. 0 takes free ones
    #[arg(long, default_value_t = 7400, value_parser = clap::value_parser!(u16).range(0..=65533))]
    pub rpc_port: u16,
    /// Port of metrics and health checks (`/metrics`, `/healthz`, `/readyz`), on 127.0.0.1; 0 takes a free
    /// one
    #[arg(long, default_value_t = 7480, env = "FLOTILLA_HTTP_PORT")]
    pub http_port: u16,
    /// Answer DNS for the registry's healthy instances on this port of 127.0.0.1, UDP and TCP; 0 takes a free
    /// one. Default: off
    #[arg(long, env = "FLOTILLA_DNS_PORT")]
    pub dns_port: Option<u16>,
    /// Disks (directories) of each of the three datanodes
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    pub disks: u8,
    /// How data files are read and written: `uring`, `threads`, or `auto`: io_uring where the kernel offers
    /// it
    #[arg(long, default_value_t, env = "FLOTILLA_DISK_IO")]
    pub disk_io: disk::DiskIo,
    /// When ready, write endpoint and keys into this file as KEY=value lines
    #[arg(long)]
    pub ready_file: Option<PathBuf>,
    /// SCM and OM each write a snapshot when their log has grown by this much since the last one, and forget
    /// it
    #[arg(long, default_value_t = 256 << 20, env = "FLOTILLA_METADATA_LOG_BYTES", value_parser = clap::value_parser!(u64).range(64 << 10..))]
    pub metadata_log_bytes: u64,
    #[command(flatten)]
    pub reclaim: ReclaimTimes,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[command(flatten)]
    pub s3_limits: S3Limits,
    /// Write each request of S3 into this file, a line of JSON each; SIGHUP opens it again. Default: nowhere
    #[arg(long, env = "FLOTILLA_S3_REQUEST_LOG", value_name = "PATH")]
    pub s3_request_log: Option<PathBuf>,
    /// The process's own log, on standard error: `text` for people, `json` with one object a line
    #[arg(long, value_enum, default_value_t, env = "FLOTILLA_LOG_FORMAT")]
    pub log_format: LogFormat,
}

#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The replicas that a write waits for.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Acks {
    #[default]
    Majority,
    All,
}

/// The reliance of OM's leader when it answers what is read.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum OmReads {
    /// The promise of a majority, given with each heartbeat, to elect nobody else for a second
    #[default]
    Lease,
    /// A majority that is asked each time
    Majority,
}

/// The OMs that a gateway asks for names.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum S3OmReads {
    /// The leader of the names' group
    #[default]
    Leader,
    /// Any member, that of the gateway's own process first; it asks the leader how far its names must be
    Any,
}

/// The zone that DNS answers for unless told otherwise.
pub(crate) const DNS_ZONE: &str = "flotilla";

/// A host name as it stands in requests, without scheme, port and path: any other would match no request.
/// Empty is none: the environment may say so.
fn s3_domain(text: &str) -> Result<String, String> {
    let name = text.trim_matches('.').to_ascii_lowercase();
    let is_byte = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| !label.is_empty() && label.len() <= 63 && label.bytes().all(is_byte);
    match name.is_empty() || name.len() <= 253 && name.split('.').all(is_label) {
        true => Ok(name),
        false => Err("a host name is wanted, such as s3.example.com: no scheme, port or path".to_owned()),
    }
}

fn dns_zone(text: &str) -> Result<String, String> {
    registry::dns::parse_zone(text).map(|_| text.to_owned())
}

#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct ServerArgs {
    /// TOML file with any of these options, written `disk = ["/data/0", "/data/1"]`; what is given here or in
    /// the environment wins
    #[arg(long, env = "FLOTILLA_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Roles of this process, separated by commas
    #[arg(long, value_delimiter = ',', required = true, env = "FLOTILLA_ROLES")]
    pub roles: Vec<Role>,
    /// Address for gRPC: of SCM, OM and datanode alike; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:7400", env = "FLOTILLA_RPC")]
    pub rpc: std::net::SocketAddr,
    /// host:port under which others reach `--rpc`; default: the address it is bound to
    #[arg(long, env = "FLOTILLA_ADVERTISE")]
    pub advertise: Option<String>,
    /// Directory of SCM's and OM's metadata
    #[arg(long, env = "FLOTILLA_META")]
    pub meta: Option<PathBuf>,
    /// A disk (directory) of the datanode; give one for each disk
    #[arg(long = "disk", env = "FLOTILLA_DISKS", value_delimiter = ',')]
    pub disks: Vec<PathBuf>,
    /// host:port of SCM; several separated by commas: its members, the same list for all of them. Default:
    /// this process, if it has the role
    #[arg(long, env = "FLOTILLA_SCM")]
    pub scm: Option<String>,
    /// An option of before, for a word to who still gives it
    #[arg(long = "om", env = "FLOTILLA_OM", hide = true, value_parser = om_is_gone)]
    pub om_of_before: Option<String>,
    /// Address of the S3 endpoint; port 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:9000", env = "FLOTILLA_S3")]
    pub s3: std::net::SocketAddr,
    /// Address of metrics and health checks (`/metrics`, `/healthz`, `/readyz`), without authentication; port
    /// 0 takes a free one
    #[arg(long, default_value = "127.0.0.1:7480", env = "FLOTILLA_HTTP")]
    pub http: std::net::SocketAddr,
    /// Another name under which the registry is asked over HTTP; one that begins with a dot stands for all
    /// below it. It answers at addresses, at names of a single word and below the DNS zone without that, and
    /// nowhere else: pages in a browser could ask it
    #[arg(long, env = "FLOTILLA_HTTP_HOST", value_delimiter = ',')]
    pub http_host: Vec<String>,
    /// Answer DNS for the registry's healthy instances at this address, UDP and TCP; port 0 takes a free one.
    /// Default: off
    #[arg(long, env = "FLOTILLA_DNS_LISTEN")]
    pub dns_listen: Option<std::net::SocketAddr>,
    /// The zone that DNS answers for: s3gw.service.ZONE and others
    #[arg(long, default_value = DNS_ZONE, env = "FLOTILLA_DNS_ZONE", value_parser = dns_zone)]
    pub dns_zone: String,
    /// S3 access key (for the s3 role)
    #[arg(long, env = "FLOTILLA_ACCESS_KEY", value_parser = access_key)]
    pub access_key: Option<String>,
    /// S3 secret key (for the s3 role). Better given with --secret-key-file or in the environment: `ps` shows
    /// it to everybody
    #[arg(long, env = "FLOTILLA_SECRET_KEY", hide_env_values = true)]
    pub secret_key: Option<Secret>,
    /// File with the S3 secret key. Without one, systemd's credential `flotilla-secret-key` is taken
    #[arg(long, env = "FLOTILLA_SECRET_KEY_FILE")]
    pub secret_key_file: Option<PathBuf>,
    /// A host name of the S3 endpoint; give one for each. NAME is asked with the bucket in the path,
    /// BUCKET.NAME for a bucket. Addresses, localhost, names without a dot and s3gw.service.ZONE need none;
    /// other hosts are refused
    #[arg(long = "s3-domain", env = "FLOTILLA_S3_DOMAINS", value_delimiter = ',', value_name = "NAME", value_parser = s3_domain)]
    pub s3_domains: Vec<String>,
    /// A container is closed, and the next one opened, near this size
    #[arg(long, default_value_t = 2 << 30, env = "FLOTILLA_CONTAINER_BYTES_MAX", value_parser = clap::value_parser!(u64).range(1 << 20..))]
    pub container_bytes_max: u64,
    /// A disk of a datanode takes no new data when less than this, and the next segment, is free
    #[arg(long, default_value_t = raftlog::LogSpaceOptions::default().reserve_bytes, env = "FLOTILLA_RESERVE_BYTES")]
    pub reserve_bytes: u64,
    #[command(flatten)]
    pub memory: MemoryArgs,
    #[arg(long, env = "FLOTILLA_READ_MEMORY_BYTES", hide = true, value_parser = read_memory_is_gone)]
    pub read_memory_bytes: Option<String>,
    /// Closed containers of each disk are read at this rate, to find what it lost; 0 turns that off
    #[arg(long, default_value_t = 8 << 20, env = "FLOTILLA_SCRUB_BYTES_PER_SECOND")]
    pub scrub_bytes_per_second: u64,
    /// Time from the beginning of one pass over the closed containers to that of the next, if the pass ends
    /// sooner
    #[arg(long, default_value = "7d", env = "FLOTILLA_SCRUB_INTERVAL", value_parser = duration)]
    pub scrub_interval: Duration,
    /// A closed container is written anew, without what was discarded in it, once so much of what it takes is
    /// dead, in percent; three fifths of it where nothing was deleted for a minute
    #[arg(long, default_value_t = 50, env = "FLOTILLA_COMPACT_ABOVE_PERCENT", value_parser = clap::value_parser!(u64).range(1..=100))]
    pub compact_above_percent: u64,
    /// Writing closed containers anew reads what stays at this rate on each disk; 0 turns it off
    #[arg(long, default_value_t = 32 << 20, env = "FLOTILLA_COMPACT_BYTES_PER_SECOND")]
    pub compact_bytes_per_second: u64,
    /// Pipelines whose logs share one disk
    #[arg(long, default_value_t = 2, env = "FLOTILLA_PIPELINES_PER_DISK", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub pipelines_per_disk: u32,
    /// SCM: copies of containers leave this much of a datanode's space free, in percent. A disk with less is
    /// nearly full
    #[arg(long, default_value_t = 5, env = "FLOTILLA_KEEP_FREE_PERCENT", value_parser = clap::value_parser!(u64).range(0..=50))]
    pub keep_free_percent: u64,
    /// Groups of names, over which buckets are spread: where there are fewer, SCM makes what is missing.
    /// `admin om group create` makes more.
    /// Each costs every OM that has it a Raft group with a database. SCM's to say
    #[arg(long, default_value_t = 4, env = "FLOTILLA_OM_GROUPS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub om_groups: u16,
    /// SCM and OM each write a snapshot when their log has grown by this much since the last one, and forget
    /// it
    #[arg(long, default_value_t = 256 << 20, env = "FLOTILLA_METADATA_LOG_BYTES", value_parser = clap::value_parser!(u64).range(64 << 10..))]
    pub metadata_log_bytes: u64,
    /// How OM's leader makes sure that it still leads before it answers what is read. `majority` where
    /// machines are stopped and resumed with clocks that stood still meanwhile, as some virtual ones are
    #[arg(long, value_enum, default_value_t, env = "FLOTILLA_OM_READS")]
    pub om_reads: OmReads,
    #[command(flatten)]
    pub reclaim: ReclaimTimes,
    /// S3: the OMs that are asked to look up keys and to list them. `any` takes that from leaders, and costs
    /// a small call between OMs for all that wait at a member; what is read is as new
    #[arg(long, value_enum, default_value_t, env = "FLOTILLA_S3_OM_READS")]
    pub s3_om_reads: S3OmReads,
    #[command(flatten)]
    pub s3_limits: S3Limits,
    /// Write each request of S3 into this file, a line of JSON each; SIGHUP opens it again. Default: nowhere
    #[arg(long, env = "FLOTILLA_S3_REQUEST_LOG", value_name = "PATH")]
    pub s3_request_log: Option<PathBuf>,
    /// The process's own log, on standard error: `text` for people, `json` with one object a line
    #[arg(long, value_enum, default_value_t, env = "FLOTILLA_LOG_FORMAT")]
    pub log_format: LogFormat,
    #[command(flatten)]
    pub scm_times: ScmTimes,
    /// How data files are read and written: `uring`, `threads`, or `auto`: io_uring where the kernel offers
    /// it
    #[arg(long, default_value_t, env = "FLOTILLA_DISK_IO")]
    pub disk_io: disk::DiskIo,
    /// When ready, write addresses into this file as KEY=value lines
    #[arg(long)]
    pub ready_file: Option<PathBuf>,
}

/// How long SCM waits before it acts; written as 5s, 10m or 2h.
#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct ScmTimes {
    /// SCM: a datanode that is silent for this long gets no new pipelines and no copies
    #[arg(long, default_value = "5s", env = "FLOTILLA_STALE_AFTER", value_parser = duration)]
    pub stale_after: Duration,
    /// SCM: a datanode that is silent for this long is given up: its containers are copied elsewhere, and its
    /// pipelines close, if three others are there
    #[arg(long, default_value = "10m", env = "FLOTILLA_DEAD_AFTER", value_parser = duration)]
    pub dead_after: Duration,
    /// SCM: a pipeline closes when a member's disk or group is broken for this long while its node speaks
    #[arg(long, default_value = "30s", env = "FLOTILLA_MEMBER_FAULT_GRACE", value_parser = duration)]
    pub member_fault_grace: Duration,
    /// SCM: the members of a closing pipeline that has had no leader for this long end by themselves
    #[arg(long, default_value = "60s", env = "FLOTILLA_QUASI_CLOSE_AFTER", value_parser = duration)]
    pub quasi_close_after: Duration,
    /// SCM: a replica that has more than its container is told of as `ahead` for this long, and deleted then
    #[arg(long, default_value = "1h", env = "FLOTILLA_AHEAD_KEPT", value_parser = duration)]
    pub ahead_kept: Duration,
    /// SCM: a copy that has not come on for this long is given to another node
    #[arg(long, default_value = "2m", env = "FLOTILLA_TASK_WITHIN", value_parser = duration)]
    pub task_within: Duration,
    /// SCM: an open container is closed when blocks in it that nobody names have waited for this long,
    /// however few
    #[arg(long, default_value = "24h", env = "FLOTILLA_ROLL_DEAD_AFTER", value_parser = duration)]
    pub roll_dead_after: Duration,
    /// SCM: an open container is closed when it has had any blocks for this long, so that those of them that
    /// no name ever had are found
    #[arg(long, default_value = "24h", env = "FLOTILLA_ROLL_OPEN_AFTER", value_parser = duration)]
    pub roll_open_after: Duration,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct HealthArgs {
    /// host:port of the process's metrics and health checks, as its own --http says
    #[arg(long, default_value = "127.0.0.1:7480", env = "FLOTILLA_HTTP")]
    pub http: String,
    /// Ask only whether the process answers at all, ready or not. A process that waits for others is not
    /// ready, and nothing is won by restarting it
    #[arg(long)]
    pub live: bool,
    /// Ask again and again until the process is, or until so long after the start; written as 30s, 5m.
    /// Default: ask once
    #[arg(long, value_parser = duration)]
    pub within: Option<Duration>,
}

/// The addresses of a cluster.
#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct ClusterArgs {
    /// host:port of SCM; several separated by commas: any of its members
    #[arg(long, default_value = "127.0.0.1:7400", env = "FLOTILLA_SCM", global = true, value_parser = addresses)]
    pub scm: String,
    /// An option of before, for a word to who still gives it
    #[arg(long = "om", env = "FLOTILLA_OM", hide = true, global = true, value_parser = om_is_gone)]
    pub om_of_before: Option<String>,
}

#[derive(ClapArgs, Debug)]
pub(crate) struct ShArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(flatten)]
    pub looks: LookArgs,
    #[command(subcommand)]
    pub command: ShCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum ShCommand {
    /// Volumes. Buckets that S3 sees are in s3v, which is always there; other volumes have theirs for
    /// `flotilla fs`
    #[command(subcommand)]
    Volume(VolumeCommand),
}

#[derive(Subcommand, Debug)]
pub(crate) enum VolumeCommand {
    /// A new volume
    Create { volume: String },
    /// All volumes, by name
    List,
    /// One volume, and how many buckets it has
    Info { volume: String },
    /// Delete a volume that has no bucket
    Delete { volume: String },
}

#[derive(ClapArgs, Debug)]
pub(crate) struct FsArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[command(subcommand)]
    pub command: FsCommand,
}

/// Paths are /volume/bucket/key; buckets that S3 sees are in the volume s3v.
#[derive(Subcommand, Debug)]
pub(crate) enum FsCommand {
    /// List files and directories
    #[command(disable_help_flag = true)] // -h is for humans, as in Hadoop
    Ls {
        /// Print help
        #[arg(long, action = ArgAction::Help)]
        help: Option<bool>,
        /// Also everything below
        #[arg(short = 'R')]
        recursive: bool,
        /// Sizes as 1.5 K, 2.0 M, ...
        #[arg(short = 'h')]
        human: bool,
        /// Directories themselves, not what is in them
        #[arg(short = 'd')]
        directory: bool,
        #[arg(default_value = "/")]
        paths: Vec<String>,
    },
    /// Copy local files into the store; `-` reads standard input
    #[command(alias = "copyFromLocal")]
    Put {
        /// Overwrite
        #[arg(short = 'f')]
        force: bool,
        /// How many of the three replicas have each byte before it is done; where one of `all` does not have
        /// it within a second, a majority suffices, which is said
        #[arg(long, value_enum, default_value_t)]
        ack: Acks,
        /// Local files, then the destination
        #[arg(required = true, value_name = "LOCAL... DESTINATION")]
        paths: Vec<String>,
    },
    /// Copy files out of the store; `-` writes standard output
    #[command(alias = "copyToLocal")]
    Get {
        /// Overwrite
        #[arg(short = 'f')]
        force: bool,
        /// Paths in the store, then the local destination; a single path goes into the current directory
        #[arg(required = true, value_name = "PATH... [LOCAL]")]
        paths: Vec<String>,
    },
    /// Print files
    Cat {
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Delete files, and directories with -r. There is no trash yet: what is deleted is gone
    Rm {
        /// Say nothing about what does not exist
        #[arg(short = 'f')]
        force: bool,
        /// Directories and buckets with all below them
        #[arg(short = 'r', short_alias = 'R')]
        recursive: bool,
        /// Accepted for scripts; there is no trash to skip
        #[arg(long = "skipTrash")]
        skip_trash: bool,
        #[arg(required = true)]
        paths: Vec<String>,
    },
    /// Make buckets and directories
    Mkdir {
        /// No error if it exists; missing parents are made
        #[arg(short = 'p')]
        parents: bool,
        #[arg(required = true)]
        paths: Vec<String>,
    },
}

fn read_memory_is_gone(_: &str) -> Result<String, String> {
    Err("a datanode has one number for its memory, --data-memory, a quarter of which is for readers: leave \
         --read-memory-bytes and FLOTILLA_READ_MEMORY_BYTES out"
        .to_owned())
}

fn om_is_gone(_: &str) -> Result<String, String> {
    Err("SCM knows where the names are: leave --om and FLOTILLA_OM out".to_owned())
}

fn addresses(text: &str) -> Result<String, String> {
    proto::Seeker::parse(text).map(|_| text.to_owned()).map_err(|failure| failure.message)
}

/// Turns `flotilla fs -ls -R /x` into `flotilla fs ls -R /x`: Hadoop's commands begin with a dash, which no
/// option parser takes. Only the first word after `fs` (and its own options) is touched.
pub(crate) fn with_plain_subcommands(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut args: Vec<OsString> = args.collect();
    if args.get(1).is_none_or(|word| word != "fs") {
        return args;
    }
    let mut at = 2;
    while let Some(word) = args.get(at).and_then(|word| word.to_str()) {
        if word == "--scm" || word == "--om" {
            at += 2;
        } else if word.starts_with("--") {
            at += 1;
        } else {
            break;
        }
    }
    // `-h` and its like are options of `fs` itself.
    if let Some(word) = args.get(at).and_then(|word| word.to_str())
        && word.len() > 2
        && let Some(name) = word.strip_prefix('-')
    {
        args[at] = name.into();
    }
    // `-skipTrash` is one more long option with a single dash.
    for word in args.iter_mut().skip(at) {
        if word == "-skipTrash" {
            *word = "--skipTrash".into();
        }
    }
    args
}

/// The exit code of `hadoop fs` (its -1) for a command that is none.
pub(crate) const WRONG_USAGE: u8 = 255;

/// The exit code for a settings file that is none, or that has settings there are not.
pub(crate) const WRONG_SETTINGS: u8 = 2;

/// The exit code where the parser ends the process: 0 for help and version; for wrong usage 255 in `fs`, as
/// Hadoop's scripts expect, and 2 elsewhere.
pub(crate) fn usage_exit_code(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        return 0;
    }
    if std::env::args_os().nth(1).is_some_and(|word| word == "fs") { WRONG_USAGE } else { 2 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plain(line: &str) -> String {
        let words = with_plain_subcommands(line.split(' ').map(OsString::from));
        words.iter().map(|word| word.to_str().unwrap()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn hadoop_style_commands_become_subcommands() {
        assert_eq!(plain("flotilla fs -ls -R /s3v"), "flotilla fs ls -R /s3v");
        assert_eq!(plain("flotilla fs ls /s3v"), "flotilla fs ls /s3v");
        assert_eq!(
            plain("flotilla fs --scm h:1 -rm -skipTrash -r /x"),
            "flotilla fs --scm h:1 rm --skipTrash -r /x"
        );
        assert_eq!(plain("flotilla fs -h"), "flotilla fs -h");
        assert_eq!(plain("flotilla admin -ls"), "flotilla admin -ls");
    }

    #[test]
    fn what_no_request_could_name_is_refused_at_the_start() {
        let long = "a".repeat(129);
        for name in ["https://s3.example.com", "s3.example.com:9000", "s3.example.com/", "a b", "s3..com"] {
            assert!(s3_domain(name).unwrap_err().contains("host name"), "{name}");
        }
        for key in ["AK/IA", "AK,IA", "AK=IA", "AK IA", "schlüssel", &long] {
            assert!(access_key(key).is_err(), "{key}");
        }
        assert_eq!(s3_domain("S3.Example.com.").unwrap(), "s3.example.com");
        assert_eq!((s3_domain("").unwrap(), access_key("").unwrap()), (String::new(), String::new()));
        assert_eq!(access_key("FLOT-1_x.y@z").unwrap(), "FLOT-1_x.y@z");
    }

    #[test]
    fn the_command_line_is_well_formed() {
        use clap::CommandFactory;
        Args::command().debug_assert();
    }
}
