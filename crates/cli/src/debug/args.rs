use clap::{Args as ClapArgs, Subcommand};
use std::path::PathBuf;

#[derive(ClapArgs, Debug)]
#[command(
    after_help = "Exit status: 0 all that was looked at is whole, 1 something is damaged, 2 something could not be \
    looked at.\nOf a whole log, a tail that its start would cut is no damage; of a file alone nobody can tell."
)]
pub(crate) struct DebugArgs {
    /// JSON instead of text, one object on a line
    #[arg(long, global = true)]
    pub json: bool,
    #[command(subcommand)]
    pub command: DebugCommand,
}

#[derive(Subcommand, Debug)]
pub(crate) enum DebugCommand {
    /// Segments (.seg), of a data directory or copied under any name
    #[command(subcommand)]
    Segment(SegmentCommand),
    /// Whole logs of a data directory
    #[command(subcommand)]
    Log(LogCommand),
    /// Containers of a stopped datanode's disk, and their index
    #[command(subcommand)]
    Container(ContainerCommand),
    /// Make the one replica that is left of a metadata group its only member, because a majority is lost for
    /// good. Without --yes nobody is given up: it only says what it would do
    #[command(after_help = RESET_HELP)]
    UnsafeResetMembership(ResetArgs),
    /// Both slots of a file `hard-state`
    HardState {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

const RESET_HELP: &str = "What the lost members had acknowledged and this replica does not have is gone. The lost members must \
    never be started again: where a majority of them is, there would be a second group. docs/forced-recovery.md says \
    when this is the right thing, and what to do afterwards.\nWithout --yes nobody is given up and nothing is added to the log. Opening the log still does what a start of the node \
    would: it cuts a torn tail, finishes an interrupted install of a snapshot, and settles a reset that was cut short.\nExit status: 0 done (or, without --yes, possible), 1 refused.";

#[derive(ClapArgs, Debug)]
pub(crate) struct ResetArgs {
    /// The directory with VERSION in it, of a node that does not run
    pub data_dir: PathBuf,
    /// The group: scm, om-0, ...
    #[arg(long)]
    pub group: String,
    /// A replica that is lost for good; all members but the one here must be named. Who they are is said when
    /// they are not
    #[arg(long, value_name = "REPLICA")]
    pub lost: Vec<u64>,
    /// Why, for those who read the log later
    #[arg(long)]
    pub reason: String,
    /// Ask here too whether a lost member lives; by default it is asked at the address its group knows
    #[arg(long, value_name = "HOST:PORT")]
    pub ask: Vec<String>,
    /// Go on though a member that is named as lost answers, hangs, or cannot be reached: only where a
    /// connection is refused it is believed that nobody is there. If one of them lives, the group splits in
    /// two
    #[arg(long)]
    pub even_if_alive: bool,
    /// Do it
    #[arg(long)]
    pub yes: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SegmentCommand {
    /// Every record, on a line each
    Dump {
        #[command(flatten)]
        range: RangeArgs,
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Check every checksum; a summary for each file
    Verify {
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// What is wrong with a damaged segment, how it may have come about, and what a start of its log would do
    Explain {
        /// The log's file `hard-state`, for segments that were copied; in a data directory it is found
        #[arg(long)]
        hard_state: Option<PathBuf>,
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum LogCommand {
    /// Check hard states, every checksum of every segment, how segments and owners follow each other, and
    /// rehearse a start
    Verify {
        #[command(flatten)]
        place: PlaceArgs,
    },
    /// Every record of a log, segment by segment
    Dump {
        #[command(flatten)]
        range: RangeArgs,
        #[command(flatten)]
        place: PlaceArgs,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum ContainerCommand {
    /// What the index and the directory say of each container
    List {
        /// The directory with VERSION in it; no datanode may use it
        data_dir: PathBuf,
    },
    /// Check every checksum of every segment and every row of the index; a hash of each closed container by
    /// which replicas are compared
    Verify {
        /// The directory with VERSION in it; no datanode may use it
        data_dir: PathBuf,
        /// This one only
        #[arg(long)]
        container: Option<u64>,
    },
    /// Recreate the index from logs and segments alone, and put it in the place of the one that is there
    Rebuild {
        /// The directory with VERSION in it; no datanode may use it
        data_dir: PathBuf,
        /// Replace the index that is there even if damaged segments no longer hold all that it knows
        #[arg(long)]
        accept_loss: bool,
    },
}

#[derive(ClapArgs, Debug)]
pub(crate) struct PlaceArgs {
    /// The directory with VERSION in it
    pub data_dir: PathBuf,
    /// One log only, by the name of its directory in groups/, like pipeline-3, om-1 or scm
    #[arg(long)]
    pub group: Option<String>,
}

#[derive(ClapArgs, Debug, Clone, Copy)]
pub(crate) struct RangeArgs {
    /// From this entry on
    #[arg(long, default_value_t = 0)]
    pub from_index: u64,
    /// Before this entry
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    pub to_index: u64,
    /// From this byte of the file on
    #[arg(long, default_value_t = 0)]
    pub from_offset: u64,
    /// Before this byte of the file
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    pub to_offset: u64,
    /// Meta of each record in hexadecimal
    #[arg(long)]
    pub hex: bool,
}
