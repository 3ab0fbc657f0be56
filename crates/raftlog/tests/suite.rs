//! The log engine on a real data directory.

#![allow(clippy::disallowed_methods)] // tests damage files behind the disk's back
#![allow(clippy::unwrap_used)] // in helpers, which clippy does not take for tests

extern crate flotilla_raftlog as raftlog;

#[path = "suite/append.rs"]
mod append;
#[path = "suite/bodies.rs"]
mod bodies;
#[path = "suite/compaction.rs"]
mod compaction;
#[path = "suite/damage.rs"]
mod damage;
#[path = "suite/faults.rs"]
mod faults;
#[path = "suite/golden.rs"]
mod golden;
#[path = "suite/images.rs"]
mod images;
#[path = "suite/inspect.rs"]
mod inspect;
#[path = "suite/model.rs"]
mod model;
#[path = "suite/opening.rs"]
mod opening;
#[path = "suite/recycling.rs"]
mod recycling;
#[path = "suite/support.rs"]
mod support;
#[path = "suite/truncate.rs"]
mod truncate;
#[path = "suite/walk.rs"]
mod walk;
