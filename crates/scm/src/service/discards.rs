//! Blocks that nobody names any more, as groups of names tell of them.

use crate::discards::Unused;
use crate::leader::Leader;
use crate::tables::Tables;
use proto::scm::{DiscardBlocksRequest, DiscardBlocksResponse, OmGroupRecord, UnusedBlocks};
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
    leader.read(|world| check_is_member(world.tables, request.group, request.replica))?;
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

/// Refuses a replica that is not of the group as the cluster has it: names that were restored from a backup
/// name blocks again that the group of before had deleted. A group that SCM has no record of, as its forced
/// reset lost that, has no other replicas.
fn check_is_member(tables: &Tables, group: u64, replica: u64) -> Result<(), Failure> {
    let is_of = |record: &OmGroupRecord| {
        record.is_founded && record.members.iter().any(|member| member.replica == replica)
    };
    match tables.om_group(group).is_none_or(is_of) {
        true => Ok(()),
        false => {
            let why = format!("replica {replica} is not of group {group} of the cluster's names");
            Err(Failure::new(Code::PreconditionFailed, why))
        }
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
    use crate::ops::testing::{begin_restore, found, note, run, three_oms};

    /// The group that was replaced by a backup goes on by itself where its OMs come back.
    #[test]
    fn a_replica_that_is_not_of_the_group_has_nothing_discarded() {
        let mut tables = three_oms();
        assert_eq!(check_is_member(&tables, 0, 7), Ok(()), "SCM has no record of the group");
        run(&mut tables, found(0, 1));
        run(&mut tables, note(0, &[(2, 1)]));
        let code =
            |tables: &Tables, replica| check_is_member(tables, 0, replica).map_err(|failure| failure.code);
        let refused = Err(Code::PreconditionFailed);
        assert_eq!([code(&tables, 2), code(&tables, 3)], [Ok(()), refused]);
        run(&mut tables, begin_restore(9, &[0]));
        assert_eq!(code(&tables, 2), refused);
    }

    #[test]
    fn what_is_too_much_or_of_another_container_is_refused() {
        let block = |container, nonce: usize| {
            let nonce = vec![7; nonce].into();
            proto::datanode::BlockName { container, local: 1, nonce }
        };
        let of = |container, blocks| UnusedBlocks { container, blocks, bytes: 0 };
        let request = |containers| DiscardBlocksRequest { group: 1, replica: 1, containers };
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
