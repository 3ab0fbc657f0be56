use crate::args::ClusterArgs;
use crate::duration::duration;
use clap::{Args, ValueEnum};
use std::time::Duration;

/// Makes load, and checks each answer: what is read must be what was written, to the byte.
///
/// Names, metadata and bytes follow from the seed and a number, so another run, or another machine, can check
/// what this one wrote. Exit codes: 0, 1 when something failed, 3 when something was wrong.
#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    #[command(flatten)]
    pub cluster: ClusterArgs,
    #[arg(value_enum)]
    pub kind: Kind,
    /// The bucket; made if missing. What is written stays there, below `load/`
    #[arg(long, default_value = "load")]
    pub bucket: String,
    /// So many at a time; each waits for its answer before it goes on
    #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub clients: u32,
    /// Sets of connections, which the clients share
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub connections: u32,
    /// Operations in all; the default is 10 000, or no end where `--during` is given
    #[arg(long)]
    pub count: Option<u64>,
    /// End after so long, if the operations have not ended before
    #[arg(long, value_parser = duration, value_name = "TIME")]
    pub during: Option<Duration>,
    /// Names or objects that were written with the same seed and sizes, for `lookups` and `read`
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub written: u64,
    /// The first number, for `names`, `objects`, `deletes` and `check`: to go on where another run ended
    #[arg(long, default_value_t = 0)]
    pub first: u64,
    /// One in so many objects stays at `deletes`, and `check` finds those and no other; 0: none stays
    #[arg(long, default_value_t = 0, value_name = "N")]
    pub stays: u64,
    /// Bytes of a name
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u16).range(64..=1024))]
    pub name_bytes: u16,
    /// Directories over which names are spread; 0: there are none
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1_000_000))]
    pub directories: u64,
    /// Bytes of the metadata of a user that each name has
    #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u16).range(0..=2000))]
    pub metadata_bytes: u16,
    /// Bytes of an object
    #[arg(long, default_value_t = 64 << 10, value_parser = clap::value_parser!(u64).range(0..=1 << 40))]
    pub object_bytes: u64,
    /// Another seed has other names and bytes
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// A line for each such time
    #[arg(long, default_value = "10s", value_parser = duration, value_name = "TIME")]
    pub every: Duration,
    /// Lines of JSON
    #[arg(long)]
    pub json: bool,
}

/// The operation that is done again and again.
#[derive(ValueEnum, Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Write a name without bytes: the namespace alone
    Names,
    /// Look up a name of those that were written
    Lookups,
    /// Write an object
    Objects,
    /// Read an object of those that were written, whole
    Read,
    /// Delete an object of those that were written, unless it stays
    Deletes,
    /// Read an object whole that stays, or find that one is not there that does not
    Check,
    /// Put, read, list and delete, each client with names of its own and of this run, of which it knows what
    /// they must be
    Mixed,
}
