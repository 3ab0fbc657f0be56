//! Blocks that nobody names any more, as groups of names tell of them.

use crate::discards::Unused;
use crate::leader::Leader;
use proto::scm::{DiscardBlocksRequest, DiscardBlocksResponse, UnusedBlocks};
use proto::{Code, Failure};
use std::collections::HashSet;
use types::{BlockName, ContainerId};

/// The most containers that one call may name.
const CONTAINERS_MAX: usize = 64;
/// The most blocks that one call may name.
const BLOCKS_MAX: usize = 16_384;

pub(super) fn discard_blocks(
    leader: &Leader,
    request: DiscardBlocksRequest,
) -> Result<DiscardBlocksResponse, Failure> {
    check(&request)?;
    let unused = request.containers.iter().map(parse).collect::<Result<Vec<Unused>, Failure>>()?;
    let answers = leader.plan(|world, replication| {
        replication.discards.ask(request.group, &unused, world, &replication.tasks)
    });
    let answers = unused.iter().zip(answers);
    let containers = answers.map(|(unused, answer)| answer.to_proto(unused.container)).collect();
    Ok(DiscardBlocksResponse { containers })
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

fn parse(unused: &UnusedBlocks) -> Result<Unused, Failure> {
    let container = ContainerId(unused.container);
    let blocks = unused.blocks.iter().map(BlockName::try_from).collect::<Result<Vec<_>, _>>()?;
    match blocks.iter().find(|block| block.container != container) {
        Some(block) => Err(Failure::invalid(format!("block {block} is not one of container {container}"))),
        None => Ok(Unused { container, blocks, bytes: unused.bytes }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_or_of_another_container_is_refused() {
        let block = |container, nonce: usize| {
            let nonce = vec![7; nonce].into();
            proto::datanode::BlockName { container, local: 1, nonce }
        };
        let of = |container, blocks| UnusedBlocks { container, blocks, bytes: 0 };
        let request = |containers| DiscardBlocksRequest { group: 1, containers };
        let code = |containers| check(&request(containers)).map_err(|failure| failure.code);
        assert_eq!(code(vec![of(1, vec![block(1, 16); BLOCKS_MAX])]), Ok(()));
        assert_eq!(code(vec![of(1, vec![block(1, 16); BLOCKS_MAX + 1])]), Err(Code::TooLarge));
        assert_eq!(code((0..64).map(|n| of(n, vec![])).collect()), Ok(()));
        assert_eq!(code((0..65).map(|n| of(n, vec![])).collect()), Err(Code::TooLarge));
        assert_eq!(code(vec![of(1, vec![]), of(1, vec![])]), Err(Failure::invalid("").code));
        assert!(parse(&of(1, vec![block(1, 16)])).is_ok());
        assert!(parse(&of(1, vec![block(2, 16)])).is_err(), "of another container");
        assert!(parse(&of(1, vec![block(1, 15)])).is_err(), "no nonce");
    }
}
