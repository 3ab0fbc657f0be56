//! Parts that the benches share: the binary they measure, a writer that talks to pipelines directly, the raw
//! limit of the disk beneath. How to run them and how to read them: README.md in this folder.

// Benches measure wall-clock time and write files of their own.
#![allow(clippy::disallowed_methods)]

pub mod blocks;
pub mod idle;
pub mod kvnodes;
pub mod multiraft;
pub mod namespace;
mod peak;
mod raw;
pub mod s3;
mod scrape;
pub mod space;
mod usage;
pub mod wal;
mod writer;

pub use peak::Peak;
pub use raw::raw_append;
pub use writer::{PipelineWriter, open_pipelines};

use scrape::scrape;
use std::path::PathBuf;

/// The `flotilla` binary to measure: `FLOTILLA_BIN`, or the release build beside this bench.
pub fn flotilla_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("FLOTILLA_BIN") {
        return path.into();
    }
    let bench = std::env::current_exe().expect("know where this bench is");
    let profile_dir = bench.ancestors().nth(2).expect("target/<profile>/deps/<bench>");
    let binary = profile_dir.join("flotilla");
    assert!(binary.exists(), "no {}: run this through `./dev bench`, which builds it", binary.display());
    binary
}
