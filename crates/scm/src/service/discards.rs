//! What nobody names any more, as groups of names say it.

use crate::leader::Leader;
use crate::tables::{Tables, container_state};
use proto::scm::{
    ContainerState, DiscardBlocksRequest, DiscardBlocksResponse, DiscardProgress, DiscardState, UnusedBlocks,
};
use proto::{Code, Failure};
use std::collections::HashSet;
use types::ContainerId;

/// Of one call.
const CONTAINERS_MAX: usize = 64;
const BLOCKS_MAX: usize = 16_384;

pub(super) fn discard_blocks(
    leader: &Leader,
    request: DiscardBlocksRequest,
) -> Result<DiscardBlocksResponse, Failure> {
    check(&request)?;
    let progress =
        leader.read(|world| request.containers.iter().map(|unused| progress(unused, world.tables)).collect());
    Ok(DiscardBlocksResponse { containers: progress })
}

fn check(request: &DiscardBlocksRequest) -> Result<(), Failure> {
    let blocks: usize = request.containers.iter().map(|unused| unused.blocks.len()).sum();
    let containers = request.containers.len();
    if containers > CONTAINERS_MAX || blocks > BLOCKS_MAX {
        let message = format!(
            "{blocks} blocks of {containers} containers: at most {BLOCKS_MAX} of {CONTAINERS_MAX} in a call"
        );
        return Err(Failure::new(Code::TooLarge, message));
    }
    let mut seen = HashSet::new();
    match request.containers.iter().find(|unused| !seen.insert(unused.container)) {
        Some(unused) => Err(Failure::invalid(format!("container {} is named twice", unused.container))),
        None => Ok(()),
    }
}

fn progress(unused: &UnusedBlocks, tables: &Tables) -> DiscardProgress {
    let (state, why) = match tables.container(ContainerId(unused.container)).map(container_state) {
        None => (DiscardState::DiscardUnknown, ""),
        Some(ContainerState::ContainerOpen) => (DiscardState::DiscardOpen, ""),
        Some(_) => (DiscardState::DiscardPaused, "this SCM does not order any node to discard blocks"),
    };
    DiscardProgress { container: unused.container, state: state.into(), why: why.to_owned(), node: 0 }
}
