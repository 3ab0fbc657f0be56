//! Real processes over loopback: the `flotilla` binary as a user runs it, killed as an operator's night kills
//! it.

// The tests touch files and clocks of their own, outside of any server, and may panic in helpers too.
#![allow(clippy::disallowed_methods, clippy::unwrap_used)]

mod adoption;
mod cluster;
mod commands;
mod compaction;
mod connections;
mod containers;
mod debug;
mod dev;
mod doors;
mod drills;
mod http;
mod lights;
mod load;
mod locks;
mod old_directories;
mod om_backup;
mod om_buckets;
mod om_disks;
mod om_drill;
mod om_members;
mod om_moves;
mod om_names;
mod om_places;
mod om_space;
mod om_sweep;
mod registry;
mod request_log;
mod reset;
mod s3;
mod scm_members;
mod service_manager;
mod small_disk;
mod space_drill;
mod strangers;
mod volumes;
mod wrong_bytes;

/// The binary under test.
fn binary() -> &'static std::path::Path {
    std::path::Path::new(env!("CARGO_BIN_EXE_flotilla"))
}
