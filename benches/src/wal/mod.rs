//! Appends to logs on the real disk: ours, its peers', and raw system calls as the limit, taking turns on one
//! machine so that its weather is the same for all. What the columns mean: benches/README.md.

mod appenders;
mod contender;
mod flotilla;
mod meter;
#[cfg(feature = "peers")]
mod raft_engine;
mod raw;
mod report;
#[cfg(feature = "peers")]
mod rocks;
mod run;

pub use contender::{Appended, Case, Contender, Limits};
pub use report::report;
pub use run::{Plan, Rounds, run_case};

use disk::DiskIo;
use std::path::Path;

/// The names of all contenders.
pub const CONTENDERS: &[&str] = &[
    "raw",
    "raw-overwriting",
    "raftlog",
    "raftlog-threads",
    #[cfg(feature = "peers")]
    "raft-engine",
    #[cfg(feature = "peers")]
    "rocksdb",
];

fn open_contender(name: &str, case: Case, limits: Limits, root: &Path) -> Box<dyn Contender> {
    match name {
        "raw" => Box::new(raw::Raw::preallocated(case, limits, root)),
        "raw-overwriting" => Box::new(raw::Raw::overwriting(case, root)),
        "raftlog" => Box::new(flotilla::Flotilla::open(case, DiskIo::Auto, root)),
        "raftlog-threads" => Box::new(flotilla::Flotilla::open(case, DiskIo::Threads, root)),
        #[cfg(feature = "peers")]
        "raft-engine" => Box::new(raft_engine::RaftEngine::open(case, root)),
        #[cfg(feature = "peers")]
        "rocksdb" => Box::new(rocks::Rocks::open(case, root)),
        _ => panic!("no contender is called {name}, only {CONTENDERS:?}"),
    }
}
