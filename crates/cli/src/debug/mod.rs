//! `flotilla debug`: looks into segments, hard states and logs (`raftlog::inspect`) and into the containers
//! of a stopped datanode (`datanode::offline`), and prints what is there. Changes nothing, but for `container
//! rebuild` and `unsafe-reset-membership`.

pub(crate) mod args;
mod container;
mod found;
mod hard_state;
mod json;
mod local;
mod log;
mod reset;
mod segment;

use crate::output::complain;
use args::{ContainerCommand, DebugArgs, DebugCommand, LogCommand, SegmentCommand};
use found::Found;
use std::process::ExitCode;

pub(crate) async fn run(args: DebugArgs) -> ExitCode {
    let as_json = args.json;
    let found = match args.command {
        DebugCommand::UnsafeResetMembership(_) if as_json => {
            complain("flotilla: unsafe-reset-membership tells people what it does: leave --json out");
            return ExitCode::from(reset::REFUSED);
        }
        DebugCommand::UnsafeResetMembership(args) => return reset::run(args).await,
        DebugCommand::Segment(SegmentCommand::Dump { range, files }) => {
            each(&files, async |file| segment::dump(file, range, as_json).await).await
        }
        DebugCommand::Segment(SegmentCommand::Verify { files }) => {
            each(&files, async |file| segment::verify(file, as_json).await).await
        }
        DebugCommand::Segment(SegmentCommand::Explain { hard_state, files }) => {
            each(&files, async |file| segment::explain(file, hard_state.as_deref(), as_json).await).await
        }
        DebugCommand::HardState { files } => {
            each(&files, async |file| hard_state::show(file, as_json).await).await
        }
        DebugCommand::Container(ContainerCommand::List { data_dir }) => {
            or_not_seen(container::list(&data_dir, as_json).await)
        }
        DebugCommand::Container(ContainerCommand::Verify { data_dir, container }) => {
            or_not_seen(container::verify(&data_dir, container.map(Into::into), as_json).await)
        }
        DebugCommand::Container(ContainerCommand::Rebuild { data_dir, accept_loss }) => {
            or_not_seen(container::rebuild(&data_dir, accept_loss, as_json).await)
        }
        DebugCommand::Log(LogCommand::Verify { place }) => or_not_seen(log::verify(&place, as_json).await),
        DebugCommand::Log(LogCommand::Dump { range, place }) => {
            or_not_seen(log::dump(&place, range, as_json).await)
        }
    };
    ExitCode::from(found as u8)
}

/// Looks at one file after another; a file that cannot be read stops nothing.
async fn each(
    files: &[std::path::PathBuf],
    look: impl AsyncFn(&std::path::Path) -> anyhow::Result<Found>,
) -> Found {
    let mut worst = Found::Whole;
    for file in files {
        worst = worst.max(or_not_seen(look(file).await));
    }
    worst
}

fn or_not_seen(result: anyhow::Result<Found>) -> Found {
    result.unwrap_or_else(|error| {
        complain(&format!("flotilla: {error:#}"));
        Found::NotSeen
    })
}
