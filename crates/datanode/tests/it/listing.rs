//! Lists of the blocks of closed containers.

use crate::cluster::{Cluster, FIRST_CONTAINER, in_cluster};
use crate::inventory::{closed, options_of_small_containers, write_until_closed};
use proto::datanode::{ListBlocksRequest, ListBlocksResponse};
use proto::{Code, Failure};
use types::{BlockId, BlockName, ContainerId, Nonce};

async fn list(
    cluster: &Cluster,
    node: usize,
    request: ListBlocksRequest,
) -> Result<ListBlocksResponse, Failure> {
    let answer = cluster.nodes[node].client().await.list_blocks(in_cluster(request)).await;
    Ok(answer.map_err(Failure::from)?.into_inner())
}

fn names(container: ContainerId, part: &ListBlocksResponse) -> Vec<BlockName> {
    let (blocks, rest) = part.blocks.as_chunks::<24>();
    assert!(rest.is_empty() && blocks.len() == part.lengths.len());
    let name = |block: &[u8; 24]| {
        let local = u64::from_be_bytes(*block.first_chunk().unwrap());
        BlockName::new(BlockId { container, local }, Nonce(u128::from_be_bytes(*block.last_chunk().unwrap())))
    };
    blocks.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_blocks_of_a_closed_container_are_told_in_parts_and_those_of_an_open_one_are_not() {
    let (cluster, scm) = Cluster::start_with_scm(options_of_small_containers(), 3).await;
    let written = write_until_closed(&cluster, 1).await;
    let first = FIRST_CONTAINER.0;
    let mut wanted: Vec<BlockName> = written.iter().map(|(acked, _)| acked.block).collect();
    wanted.retain(|block| block.container == FIRST_CONTAINER);
    wanted.sort_by_key(|block| block.local);
    assert!(wanted.len() >= 3, "{wanted:?}");
    for node in 0..3 {
        scm.wait(node as u64 + 1, "that it is closed", |said| closed(said, first).is_some()).await;
        let mut request = ListBlocksRequest { container: first, from_local: 0, limit: 2 };
        let mut found = Vec::new();
        loop {
            let part = list(&cluster, node, request).await.unwrap();
            assert!(part.lengths.iter().all(|length| *length == 150_000), "{:?}", part.lengths);
            found.extend(names(FIRST_CONTAINER, &part));
            if part.is_last {
                break;
            }
            assert_eq!(part.lengths.len(), 2);
            request.from_local = found.last().unwrap().local + 1;
        }
        assert_eq!(found, wanted);
        let request = ListBlocksRequest { container: first, ..ListBlocksRequest::default() };
        assert_eq!(names(FIRST_CONTAINER, &list(&cluster, node, request).await.unwrap()), wanted);
        for (container, code) in [(first + 1, Code::NotYet), (first + 100, Code::NotFound)] {
            let request = ListBlocksRequest { container, ..ListBlocksRequest::default() };
            assert_eq!(list(&cluster, node, request).await.unwrap_err().code, code);
        }
    }
    cluster.shut_down().await;
}
