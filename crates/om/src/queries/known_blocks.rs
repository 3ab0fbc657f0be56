use super::scan::Scan;
use crate::blocks::{BlockKey, IN_CONTAINER_BYTES, NAMED_PREFIX, UNUSED_PREFIX, container_prefix};
use crate::tables::{Read, Refusal, fenced_key};
use anyhow::Context;
use bytes::Bytes;
use proto::Failure;
use proto::om::{
    ListKnownBlocksRequest, ListKnownBlocksResponse, ListNamedContainersRequest, ListNamedContainersResponse,
};
use statedb::Db;

/// The most blocks of each of the two lists of an answer: 400 KB each.
const BLOCKS_MAX: usize = 16_384;
/// The most containers of an answer: a leap for each, some milliseconds together.
const CONTAINERS_MAX: usize = 10_000;

/// The blocks of a container that the group knows: rows name them, or are said to, or they wait to go.
pub(crate) fn known_blocks(
    db: &Db,
    request: &ListKnownBlocksRequest,
) -> Result<ListKnownBlocksResponse, Refusal> {
    let (from, to) = (bound(&request.from, 0)?, bound(&request.to, u8::MAX)?);
    let is_fenced = Read::get(db, &fenced_key(request.container))?.is_some();
    // The named blocks are read first: what is named becomes unused, and never the other way round.
    let named = List::read(db, NAMED_PREFIX, request.container, from, to)?;
    let unused = List::read(db, UNUSED_PREFIX, request.container, from, to)?;
    let next = named.next.into_iter().chain(unused.next).min();
    let packed = |list: List| -> Bytes {
        let blocks = list.blocks.into_iter().filter(|block| next.is_none_or(|next| *block < next));
        blocks.flatten().collect()
    };
    let (named, unused) = (packed(named), packed(unused));
    let next = next.map(|next| Bytes::copy_from_slice(&next)).unwrap_or_default();
    Ok(ListKnownBlocksResponse { is_fenced, named, unused, next })
}

type InContainer = [u8; IN_CONTAINER_BYTES];

fn bound(given: &[u8], missing: u8) -> Result<InContainer, Failure> {
    match given.len() {
        0 => Ok([missing; IN_CONTAINER_BYTES]),
        IN_CONTAINER_BYTES => Ok(given.try_into().expect("it was just counted")),
        bytes => Err(Failure::invalid(format!("a block has {IN_CONTAINER_BYTES} bytes, not {bytes}"))),
    }
}

struct List {
    blocks: Vec<InContainer>,
    /// The first block that had no room.
    next: Option<InContainer>,
}

impl List {
    fn read(
        db: &Db,
        table: &[u8],
        container: u64,
        from: InContainer,
        to: InContainer,
    ) -> anyhow::Result<List> {
        let prefix = container_prefix(table, container);
        let mut scan = Scan::new(db, &prefix, &[&prefix[..], &from].concat());
        let mut list = List { blocks: Vec::new(), next: None };
        while let Some((key, _)) = scan.record()? {
            let block = BlockKey::in_key(key).context("a row of a block names it")?;
            let rest: InContainer = block.rest().try_into().context("its rest has so many bytes")?;
            if rest > to {
                break;
            }
            // Several rows may name one block.
            if list.blocks.last() != Some(&rest) {
                if list.blocks.len() == BLOCKS_MAX {
                    list.next = Some(rest);
                    break;
                }
                list.blocks.push(rest);
            }
            scan.step();
        }
        Ok(list)
    }
}

/// Containers of which some row names a block, or is said to.
pub(crate) fn named_containers(
    db: &Db,
    request: &ListNamedContainersRequest,
) -> anyhow::Result<ListNamedContainersResponse> {
    let Some(from) = request.after.checked_add(1) else { return Ok(ListNamedContainersResponse::default()) };
    let mut scan = Scan::new(db, NAMED_PREFIX, &container_prefix(NAMED_PREFIX, from));
    let mut containers = Vec::new();
    while let Some((key, _)) = scan.record()? {
        if containers.len() == CONTAINERS_MAX {
            return Ok(ListNamedContainersResponse { containers, truncated: true });
        }
        let container = BlockKey::in_key(key).context("a row of a block names it")?.container();
        containers.push(container);
        let Some(next) = container.checked_add(1) else { break };
        scan.leap(&container_prefix(NAMED_PREFIX, next));
    }
    Ok(ListNamedContainersResponse { containers, truncated: false })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request, pieces};
    use crate::ops::{CommitKey, FenceContainers};
    use crate::sweep::testing::unuse_all;
    use proto::om::{BlockPiece, FenceContainersRequest};

    /// Puts a key that has these blocks of a container.
    fn put(namespace: &mut Namespace, key: &str, container: u64, locals: std::ops::Range<u64>) {
        let mut request = commit_request(key, container);
        let key = request.key.as_mut().unwrap();
        key.pieces = locals.clone().map(|local| piece(container, local)).collect();
        key.size = 10 * (locals.end - locals.start);
        namespace.run::<CommitKey>(request).unwrap();
    }

    fn piece(container: u64, local: u64) -> BlockPiece {
        let mut piece = pieces(container, 10).remove(0);
        piece.block.as_mut().unwrap().local = local;
        piece
    }

    /// The locals of a list.
    fn locals(list: &[u8]) -> Vec<u64> {
        let (blocks, rest) = list.as_chunks::<IN_CONTAINER_BYTES>();
        assert!(rest.is_empty());
        blocks.iter().map(|block| u64::from_be_bytes(*block.first_chunk().unwrap())).collect()
    }

    #[test]
    fn what_is_named_and_what_is_unused_is_known_in_its_order() {
        let mut namespace = Namespace::new();
        put(&mut namespace, "gone", 1, 1..4);
        put(&mut namespace, "gone", 9, 1..2);
        unuse_all(&mut namespace);
        put(&mut namespace, "a", 1, 4..9);
        put(&mut namespace, "b", 1, 7..12);
        put(&mut namespace, "c", 9, 2..3);
        let of = |namespace: &Namespace, from: u64, to: u64| {
            let rest = |piece| Bytes::copy_from_slice(BlockKey::of(&piece).unwrap().rest());
            let (from, to) = (rest(piece(1, from)), rest(piece(1, to)));
            let request = ListKnownBlocksRequest { group: 0, container: 1, from, to };
            known_blocks(&namespace.db, &request).unwrap()
        };
        let known = of(&namespace, 2, 8);
        assert_eq!((locals(&known.named), locals(&known.unused)), (vec![4, 5, 6, 7, 8], vec![2, 3]));
        assert!(!known.is_fenced && known.next.is_empty());
        let containers = vec![1];
        let fence = FenceContainersRequest { containers, ..FenceContainersRequest::default() };
        namespace.run::<FenceContainers>(fence).unwrap();
        let all = ListKnownBlocksRequest { container: 1, ..ListKnownBlocksRequest::default() };
        let known = known_blocks(&namespace.db, &all).unwrap();
        assert_eq!((locals(&known.named).len(), locals(&known.unused)), (8, vec![1, 2, 3]));
        assert!(known.is_fenced);
        let odd = ListKnownBlocksRequest { from: Bytes::from("short"), ..all };
        assert!(known_blocks(&namespace.db, &odd).is_err());
        let named = |after| {
            let request = ListNamedContainersRequest { group: 0, after };
            named_containers(&namespace.db, &request).unwrap().containers
        };
        assert_eq!((named(0), named(1), named(9), named(u64::MAX)), (vec![1, 9], vec![9], vec![], vec![]));
    }

    #[test]
    fn a_long_list_goes_on_where_it_ended() {
        let mut namespace = Namespace::new();
        let all = BLOCKS_MAX as u64 + 100;
        put(&mut namespace, "gone", 1, all..all + 7);
        put(&mut namespace, "gone", 9, 1..2);
        unuse_all(&mut namespace);
        put(&mut namespace, "a", 1, 0..all);
        let mut request = ListKnownBlocksRequest { container: 1, ..ListKnownBlocksRequest::default() };
        let first = known_blocks(&namespace.db, &request).unwrap();
        assert_eq!((locals(&first.named).len(), first.unused.len()), (BLOCKS_MAX, 0));
        request.from = first.next;
        let second = known_blocks(&namespace.db, &request).unwrap();
        assert_eq!((locals(&second.named).len(), locals(&second.unused).len()), (100, 7));
        assert!(second.next.is_empty());
    }
}
