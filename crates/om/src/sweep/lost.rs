//! Names without a block. No block is lost before all that may have it have said that they do not, and it is
//! named still after that; what is lost is told of, by name, and never "repaired".

use super::compare::InContainer;
use super::outside::Word;
use super::worker::Worker;
use crate::blocks::BlockKey;
use bytes::Bytes;
use proto::om::{
    ContainerKey, ListContainerKeysRequest, ListContainerKeysResponse, ListNamedContainersRequest, LostKey,
};
use proto::scm::ContainerState;
use proto::{Code, Failure};
use std::collections::BTreeSet;
use tracing::error;

/// The most names of one container that are told of.
const TOLD_MAX: usize = 1000;
/// The most containers that one look asks after, of those that names are of and SCM does not list.
const UNKNOWN_MAX: usize = 1000;

#[derive(Debug, Default)]
pub(super) struct Lost {
    /// The number of names; of very many at least so many.
    pub(super) count: u64,
    pub(super) some: Vec<LostKey>,
}

impl Lost {
    fn add(&mut self, group: u64, key: ContainerKey, why: &str, found_ms: u64) {
        self.count += 1;
        if self.some.len() < TOLD_MAX {
            self.some.push(LostKey { key: Some(key), group, why: why.to_owned(), found_ms });
        }
    }

    fn report(&self, container: u64) {
        if let Some(LostKey { key: Some(first), why, .. }) = self.some.first() {
            let (bucket, key) = (&first.bucket_name, first.key.escape_ascii().to_string());
            error!(container, names = self.count, bucket, key, why, "names have blocks that no replica has");
        }
    }
}

fn unsure(container: u64) -> Failure {
    let why =
        format!("not all nodes say what they have of container {container}, and what is named may be there");
    Failure::new(Code::Unavailable, why)
}

/// The fate of a container that is missing from SCM's list of those that are there.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    /// Some node has it, or SCM knows it after all.
    There,
    Unsure,
    Lost(&'static str),
}

/// The fate of a container by SCM's word, which may be that of an earlier leader, and by the nodes that have
/// a replica.
fn fate(state: Option<ContainerState>, holders: Option<&[String]>) -> Fate {
    match (state, holders) {
        (None | Some(ContainerState::ContainerDeleted), None) => Fate::Unsure,
        (None, Some([])) => Fate::Lost("SCM does not know the container, and no node has it"),
        (Some(ContainerState::ContainerDeleted), Some([])) => {
            Fate::Lost("SCM has deleted the container: nothing was left in it")
        }
        _ => Fate::There,
    }
}

impl Worker {
    /// The names of blocks that one replica lacks and no other has.
    pub(super) async fn lost_blocks(
        &self,
        container: u64,
        missing: &[InContainer],
        groups: &BTreeSet<u64>,
    ) -> Result<Lost, Failure> {
        let mut lost = Lost::default();
        if missing.is_empty() {
            return Ok(lost);
        }
        let holders = self.holders(container).await?.ok_or_else(|| unsure(container))?;
        for block in missing.iter().map(|rest| BlockKey::in_container(container, rest)) {
            if self.is_nowhere(&holders, block).await {
                let why = "none of the container's replicas has the block";
                for group in groups {
                    self.names(*group, container, Some(block), why, &mut lost).await?;
                }
            }
        }
        lost.report(container);
        Ok(lost)
    }

    /// The names of all blocks of a container without a replica that can be listed: they are lost, if nobody
    /// has one of any kind.
    pub(super) async fn lost_with_container(
        &self,
        container: u64,
        groups: &BTreeSet<u64>,
    ) -> Result<Lost, Failure> {
        match self.holders(container).await? {
            Some(holders) if holders.is_empty() => {
                self.all_names(container, groups, "no node has a replica of the container").await
            }
            Some(holders) => {
                let some = holders.join(", ");
                let why = format!("no replica of container {container} can be listed, and {some} have one");
                Err(Failure::new(Code::Unavailable, why))
            }
            None => Err(unsure(container)),
        }
    }

    async fn all_names(&self, container: u64, groups: &BTreeSet<u64>, why: &str) -> Result<Lost, Failure> {
        let mut lost = Lost::default();
        for group in groups {
            self.names(*group, container, None, why, &mut lost).await?;
        }
        lost.report(container);
        Ok(lost)
    }

    /// The nodes that have a replica; `None`: some may have one that cannot be asked.
    async fn holders(&self, container: u64) -> Result<Option<Vec<String>>, Failure> {
        let Some(nodes) = self.sweep.all_nodes().await? else { return Ok(None) };
        let mut holders = Vec::new();
        for address in nodes {
            match self.sweep.has_container(&address, container).await {
                Word::Has => holders.push(address),
                Word::HasNot => {}
                Word::Unsure => return Ok(None),
            }
        }
        Ok(Some(holders))
    }

    async fn is_nowhere(&self, holders: &[String], block: BlockKey) -> bool {
        for address in holders {
            if self.sweep.has_block(address, block).await != Word::HasNot {
                return false;
            }
        }
        true
    }

    /// Adds the rows of a group that name a block, or any of the container's.
    async fn names(
        &self,
        group: u64,
        container: u64,
        block: Option<BlockKey>,
        why: &str,
        lost: &mut Lost,
    ) -> Result<(), Failure> {
        let after = block.map(|block| Bytes::from(block.named_prefix())).unwrap_or_default();
        let mut request = ListContainerKeysRequest { group, container, after, limit: 0 };
        let now_ms = self.sweep.clock.now_ms();
        loop {
            let page = self.keys(request.clone()).await?;
            for key in page.keys {
                if block.is_some_and(|block| key.block.as_ref() != Some(&block.to_proto())) {
                    return Ok(());
                }
                // Rows without a bucket here are those of one that comes, or has left: its group tells of
                // them.
                if !key.bucket_name.is_empty() {
                    lost.add(group, key, why, now_ms);
                }
            }
            if !page.truncated {
                return Ok(());
            }
            request.after = page.next_after;
        }
    }

    async fn keys(&self, request: ListContainerKeysRequest) -> Result<ListContainerKeysResponse, Failure> {
        let keys = self.sweep.others.ask(request.group, request, |mut om, request| async move {
            om.list_container_keys(request).await
        });
        keys.await
    }

    /// Finds names of blocks in containers that SCM has deleted or does not know, and no node has. Answers
    /// whether there are none, for certain.
    pub(super) async fn find_unknown(&self) -> Result<bool, Failure> {
        let groups = self.root.groups().await?;
        let mut named = BTreeSet::new();
        for group in &groups {
            self.named_containers(*group, &mut named).await?;
        }
        // SCM's list is read after the names: a container was there before anything in it was named.
        self.leave_unknown(&mut named).await?;
        let before = self.sweep.counts.lost_containers();
        let (mut unknown, mut is_well) = (BTreeSet::new(), named.len() <= UNKNOWN_MAX);
        for container in named.into_iter().take(UNKNOWN_MAX) {
            let state = self.sweep.container(container).await?.map(|info| info.state());
            let lost = match fate(state, self.holders(container).await?.as_deref()) {
                Fate::There => continue,
                Fate::Unsure => {
                    self.fail(&unsure(container));
                    is_well = false;
                    unknown.insert(container);
                    continue;
                }
                Fate::Lost(why) => self.all_names(container, &groups, why).await?,
            };
            is_well &= lost.count == 0;
            self.sweep.counts.note_lost(container, lost.count, lost.some);
            unknown.insert(container);
        }
        // Of others, the sweep of each says what is lost.
        for container in before.into_iter().filter(|container| !unknown.contains(container)) {
            if self
                .sweep
                .container(container)
                .await?
                .is_none_or(|info| info.state() != ContainerState::ContainerClosed)
            {
                self.sweep.counts.note_lost(container, 0, Vec::new());
            }
        }
        Ok(is_well)
    }

    async fn named_containers(&self, group: u64, named: &mut BTreeSet<u64>) -> Result<(), Failure> {
        let mut request = ListNamedContainersRequest { group, after: 0 };
        loop {
            let page = self.sweep.others.ask(group, request, |mut om, request| async move {
                om.list_named_containers(request).await
            });
            let page = page.await?;
            let last = page.containers.last().copied();
            named.extend(page.containers);
            match last.filter(|_| page.truncated) {
                Some(last) => request.after = last,
                None => return Ok(()),
            }
        }
    }

    /// Takes from `named` the containers of which SCM says that they are there.
    async fn leave_unknown(&self, named: &mut BTreeSet<u64>) -> Result<(), Failure> {
        let mut after = 0;
        loop {
            let (containers, more) = self.sweep.containers(after, None).await?;
            let there = containers.iter().filter(|info| info.state() != ContainerState::ContainerDeleted);
            there.for_each(|info| {
                named.remove(&info.container);
            });
            match containers.last().filter(|_| more) {
                Some(last) => after = last.container,
                None => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_node_has_is_not_lost_whatever_scm_says_and_while_one_is_silent_nobody_knows() {
        let (nobody, some) = ([], ["node:1".to_owned()]);
        for state in [None, Some(ContainerState::ContainerDeleted)] {
            assert_eq!(fate(state, Some(&some)), Fate::There);
            assert_eq!(fate(state, None), Fate::Unsure);
            assert!(matches!(fate(state, Some(&nobody)), Fate::Lost(_)));
        }
        for holders in [None, Some(&nobody[..]), Some(&some)] {
            let state = Some(ContainerState::ContainerOpen);
            assert_eq!(fate(state, holders), Fate::There, "it opened meanwhile; its own sweep says more");
        }
    }
}
