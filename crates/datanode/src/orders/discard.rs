//! Discarding, in this node's replica of a container, what nobody names any more: what SCM says, or what was
//! discarded in another replica. Either is done once SCM hears how much is discarded here: the inventory has
//! been read again.

use super::order::{Means, Run};
use crate::datanode_disk::DatanodeDisk;
use crate::deletion::{BLOCKS_MAX, delete_blocks};
use anyhow::{Context, bail, ensure};
use proto::datanode::datanode_client::DatanodeClient;
use proto::datanode::{DiscardedBlocks, ListDiscardsRequest};
use proto::scm::{DiscardPortion, NodeAddress, TakeDiscards};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;
use tonic::Streaming;
use tracing::info;
use types::{BlockName, ContainerId};

/// The time after which a node that sends nothing is given up.
const SILENCE_MAX: Duration = Duration::from_secs(30);

pub(super) async fn discard(means: &Means, order: DiscardPortion, run: &Run) -> anyhow::Result<()> {
    let container = ContainerId(order.container);
    let (disk, names) = (disk_of(means, container)?, parse(&order.blocks)?);
    delete_blocks(&disk, &means.pipelines, container, names, || run.check_holds()).await?;
    means.disks.inventory.looked().await;
    Ok(())
}

/// Discards what another replica has discarded. May be stopped between two portions; what is done is done.
pub(super) async fn take_discards(means: &Means, order: TakeDiscards, run: &Run) -> anyhow::Result<()> {
    let container = ContainerId(order.container);
    run.check_holds()?;
    let from = order.from.context("it is not said from whom")?;
    let disk = disk_of(means, container)?;
    let discarded = disk.discards(container).await.context("read what is discarded here")?.tags();
    let mut parts = run.until_stop(ask(means, container, &from)).await?;
    let mut taken = 0;
    loop {
        let part = run.until_stop(next(&mut parts)).await?;
        let names = parse(&part.blocks)?;
        check_are_here(&disk, names.clone(), &discarded).await?;
        // The order's age was looked at when the run began: a run may take long.
        let may_go_on = || {
            ensure!(!run.stop.is_cancelled(), "SCM no longer wants it");
            Ok(())
        };
        taken += delete_blocks(&disk, &means.pipelines, container, names, may_go_on).await?;
        if part.is_last {
            break;
        }
    }
    means.disks.inventory.looked().await;
    info!(%container, from = from.node, blocks = taken, "took the discards of another replica");
    Ok(())
}

/// The disk with the replica that SCM is told of.
fn disk_of(means: &Means, container: ContainerId) -> anyhow::Result<Arc<DatanodeDisk>> {
    let replica = means.disks.inventory.get(container);
    let replica = replica.with_context(|| format!("container {container} is not on this node"))?;
    means.disks.get(replica.disk).cloned().context("its disk is not in use")
}

fn parse(blocks: &[proto::datanode::BlockName]) -> anyhow::Result<Vec<BlockName>> {
    let count = blocks.len();
    ensure!(count <= BLOCKS_MAX, "{count} blocks are more than {BLOCKS_MAX}");
    Ok(blocks.iter().map(BlockName::try_from).collect::<Result<_, _>>()?)
}

/// Refuses names of blocks that are not here and were not `discarded` here. Replicas of a container have the
/// same blocks, so what discarded such a one is a replica of something else.
async fn check_are_here(
    disk: &DatanodeDisk,
    names: Vec<BlockName>,
    discarded: &BTreeSet<u64>,
) -> anyhow::Result<()> {
    let found = disk.index.with(move |index| {
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            found.push((name, index.block_record(name.id())?.map(|block| block.nonce)));
        }
        Ok(found)
    });
    for (name, here) in found.await? {
        match here {
            Some(nonce) if nonce == name.nonce => {}
            None if discarded.contains(&name.local) => {}
            Some(_) => bail!("the other replica has discarded block {name}, which is another one here"),
            None => bail!("the other replica has discarded block {name}, which never was here"),
        }
    }
    Ok(())
}

async fn ask(
    means: &Means,
    container: ContainerId,
    from: &NodeAddress,
) -> anyhow::Result<Streaming<DiscardedBlocks>> {
    let cluster = means.disks.cluster().context("this node is in no cluster yet")?;
    let channel = means.connector.connect(&from.address);
    let channel = channel.map_err(|why| anyhow::anyhow!("the address of node {}: {why}", from.node))?;
    let mut client = DatanodeClient::new(channel).max_decoding_message_size(proto::MESSAGE_BYTES_MAX);
    let request = ListDiscardsRequest { container: container.0 };
    let asked = proto::in_cluster(tonic::Request::new(request), &cluster);
    let answer = timeout(SILENCE_MAX, client.list_discards(asked)).await.context("it does not answer")?;
    Ok(answer.map_err(proto::Failure::from)?.into_inner())
}

async fn next(parts: &mut Streaming<DiscardedBlocks>) -> anyhow::Result<DiscardedBlocks> {
    let part = timeout(SILENCE_MAX, parts.message()).await.context("the other node has gone silent")?;
    part.map_err(proto::Failure::from)?.context("the other node broke off")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offline::tests::{FIRST, Left};
    use crate::orders::order::ORDER_HOLDS;
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;
    use types::Nonce;

    #[tokio::test(flavor = "multi_thread")]
    async fn an_order_that_is_too_old_or_taken_back_discards_nothing() {
        let left = Left::new().await.copy();
        let means = Means::over(vec![left.root()]).await;
        let disk = means.disks.open[0].clone();
        let name = BlockName { container: FIRST, local: 3, nonce: Nonce(2) };
        for (age, is_taken_back) in [(ORDER_HOLDS, false), (Duration::ZERO, true), (Duration::ZERO, false)] {
            let (stop, node_ends) = (CancellationToken::new(), CancellationToken::new());
            if is_taken_back {
                stop.cancel();
            }
            let run = Run { asked_at: Instant::now() - age, stop, node_ends, progress: Arc::default() };
            let may_begin = || run.check_holds();
            let done = delete_blocks(&disk, &means.pipelines, FIRST, vec![name], may_begin).await;
            let is_followed = age < ORDER_HOLDS && !is_taken_back;
            assert_eq!(done.is_ok(), is_followed, "{done:?}");
            assert_eq!(disk.index.block_record(name.id()).unwrap().is_none(), is_followed);
        }
        let here = BlockName { local: 2, nonce: Nonce(1), ..name };
        let check = async |name: BlockName| check_are_here(&disk, vec![name], &BTreeSet::from([3])).await;
        assert!(check(here).await.is_ok());
        assert!(check(name).await.is_ok(), "it was discarded here");
        for strange in [BlockName { nonce: Nonce(9), ..here }, BlockName { local: 4, ..name }] {
            assert!(check(strange).await.is_err(), "{strange}");
        }
    }
}
