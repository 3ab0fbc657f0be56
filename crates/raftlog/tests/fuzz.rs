//! Bytes that no log engine wrote: decoders, recovery and the inspect tool must answer with an error or with
//! the truth. A binary of its own, so that `./dev fuzz` builds and runs nothing else.

#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

extern crate flotilla_raftlog as raftlog;

#[path = "fuzz/allocation.rs"]
mod allocation;
#[path = "fuzz/campaign.rs"]
mod campaign;
#[path = "fuzz/directory.rs"]
mod directory;
#[path = "fuzz/files.rs"]
mod files;
#[path = "fuzz/hard_state.rs"]
mod hard_state;
#[path = "fuzz/inspect.rs"]
mod inspect;
#[path = "fuzz/mutate.rs"]
mod mutate;
#[path = "fuzz/oracle.rs"]
mod oracle;
#[path = "fuzz/planted.rs"]
mod planted;
#[path = "fuzz/record.rs"]
mod record;
#[path = "fuzz/wire.rs"]
mod wire;

// Logs and their model are those of the crash suite.
#[allow(dead_code)]
#[path = "crash/driver.rs"]
mod driver;
#[allow(dead_code)]
#[path = "crash/history.rs"]
mod history;
#[allow(dead_code)]
#[path = "crash/liar.rs"]
mod liar;
#[allow(dead_code)]
#[path = "crash/model.rs"]
mod model;
#[allow(dead_code)]
#[path = "crash/world.rs"]
mod world;
