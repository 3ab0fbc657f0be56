//! The log engine on a simulated disk that crashes: every acknowledged change must be there after any crash, and nothing
//! that was not asked for. A binary of its own, so that `./dev crash` builds and runs nothing else.

#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

extern crate flotilla_raftlog as raftlog;

#[path = "crash/campaign.rs"]
mod campaign;
#[path = "crash/damage.rs"]
mod damage;
#[path = "crash/driver.rs"]
mod driver;
#[path = "crash/exhaustive.rs"]
mod exhaustive;
#[path = "crash/full.rs"]
mod full;
#[path = "crash/history.rs"]
mod history;
#[path = "crash/liar.rs"]
mod liar;
#[path = "crash/model.rs"]
mod model;
#[path = "crash/planted.rs"]
mod planted;
#[path = "crash/regressions.rs"]
mod regressions;
#[path = "crash/world.rs"]
mod world;
