//! The sweep of one container that all groups have fenced.

use super::compare::{Found, InContainer, Known, Listed, compare};
use super::lost::Lost;
use super::outside::sources;
use super::worker::Worker;
use crate::blocks::IN_CONTAINER_BYTES;
use crate::ops::{FileOrphans, NoteSwept};
use crate::tables::{ROOT, fences};
use bytes::Bytes;
use futures::future::try_join_all;
use proto::om::{FileOrphansCommand, ListKnownBlocksRequest, NoteSweptCommand, SweptContainer};
use proto::scm::{ContainerInfo, ContainerState};
use proto::{Code, Failure};
use std::collections::BTreeSet;
use tracing::info;

/// Blocks of one command, which takes some milliseconds.
const FILED_AT_ONCE: usize = 1024;
/// Blocks of a container that a replica lacks and all others are asked for, one by one.
const MISSING_MAX: usize = 1000;

impl Worker {
    /// Files what nobody knows of a container, finds what is named and nowhere, and notes both.
    pub(super) async fn sweep_container(&self, container: u64) -> Result<(), Failure> {
        let Some(info) = self.closed(container).await? else { return Ok(()) };
        // After the fence: a group that gets its first bucket later has this fence before.
        let groups = self.groups().await?;
        let (mut swept, mut missing) = (SweptContainer::default(), Missing::default());
        let sources = sources(&info);
        let mut from_local = if sources.is_empty() { None } else { Some(0) };
        while let Some(from) = from_local {
            let listed = self.list(&sources, container, from).await?;
            let found = self.sweep_part(container, from, &listed, &groups, &mut swept).await?;
            swept.blocks += listed.blocks.len() as u64;
            missing.take(found);
            from_local = listed.next_local();
        }
        let lost = match sources.is_empty() {
            true => self.lost_with_container(container, &groups).await?,
            false => self.lost_blocks(container, missing, &groups).await?,
        };
        self.note(container, swept, lost).await
    }

    /// The container, while it is closed.
    async fn closed(&self, container: u64) -> Result<Option<ContainerInfo>, Failure> {
        let info = self.sweep.container(container).await?;
        Ok(info.filter(|info| info.state() == ContainerState::ContainerClosed))
    }

    /// A part of the blocks of the first replica that answers.
    async fn list(&self, sources: &[String], container: u64, from: u64) -> Result<Listed, Failure> {
        let mut last = Failure::new(Code::Unavailable, "no replica can be asked");
        for address in sources {
            match self.sweep.blocks_of(address, container, from).await {
                Ok(listed) => return Ok(listed),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn sweep_part(
        &self,
        container: u64,
        from: u64,
        listed: &Listed,
        groups: &BTreeSet<u64>,
        swept: &mut SweptContainer,
    ) -> Result<Found, Failure> {
        // Before the first group is asked. The root's log compares it with what it is when all have answered.
        let moves = fences(&*self.root.dbs.current()).map_err(super::worker::broken)?.moves;
        let range = listed.range(from);
        let known = try_join_all(groups.iter().map(|group| self.known(*group, container, range.clone())));
        let mut all = Known::default();
        for (named, unused) in known.await?.into_iter().flatten() {
            all.take(&named, &unused);
        }
        let found = compare(listed, &all);
        for some in found.orphans.chunks(FILED_AT_ONCE) {
            let blocks: Vec<u8> = some.iter().flat_map(|(block, _)| *block).collect();
            let lengths = some.iter().map(|(_, length)| *length).collect();
            let file = FileOrphansCommand { container, blocks: blocks.into(), lengths, moves };
            let filed = self.change::<FileOrphans>(file).await?;
            swept.orphans += filed.filed;
            swept.orphan_bytes = swept.orphan_bytes.wrapping_add(filed.bytes);
            self.sweep.counts.orphans.add(filed.filed);
            self.sweep.counts.orphan_bytes.add(filed.bytes);
        }
        Ok(found)
    }

    /// What a group knows of the blocks in a range.
    async fn known(
        &self,
        group: u64,
        container: u64,
        (mut from, to): (Bytes, Bytes),
    ) -> Result<Vec<(Bytes, Bytes)>, Failure> {
        let mut all = Vec::new();
        loop {
            let request = ListKnownBlocksRequest { group, container, from, to: to.clone() };
            let known = self
                .sweep
                .others
                .ask(group, request, |mut om, request| async move { om.list_known_blocks(request).await });
            let known = known.await?;
            if !known.is_fenced {
                let why = format!(
                    "group {group} has no fence for container {container}: it was reset, or restored"
                );
                return Err(Failure::new(Code::NotYet, why));
            }
            all.push((known.named, known.unused));
            if known.next.is_empty() {
                return Ok(all);
            }
            from = known.next;
        }
    }

    async fn note(&self, container: u64, swept: SweptContainer, lost: Lost) -> Result<(), Failure> {
        let swept = SweptContainer { lost: lost.count, ..swept };
        if swept.orphans > 0 || swept.lost > 0 {
            let SweptContainer { orphans, orphan_bytes, lost, .. } = swept;
            info!(container, orphans, orphan_bytes, lost, "swept a container");
        }
        self.sweep.counts.note_lost(container, lost.count, lost.some);
        self.change::<NoteSwept>(NoteSweptCommand { container, swept: Some(swept) }).await?;
        self.sweep.counts.swept.count();
        Ok(())
    }

    /// All groups that may have a bucket: those that SCM tells of, and those that the root's buckets are in, or move to.
    pub(super) async fn groups(&self) -> Result<BTreeSet<u64>, Failure> {
        let mut groups = self.sweep.others.groups.all();
        groups.insert(ROOT);
        groups.extend(self.read(super::worker::groups_of_buckets).await?);
        Ok(groups)
    }
}

/// Blocks that are named, and that a replica lacks.
#[derive(Default)]
pub(super) struct Missing {
    pub(super) blocks: Vec<InContainer>,
}

impl Missing {
    fn take(&mut self, found: Found) {
        let room = MISSING_MAX.saturating_sub(self.blocks.len());
        self.blocks.extend(found.missing.into_iter().take(room));
    }
}

const _: () = assert!(FILED_AT_ONCE * IN_CONTAINER_BYTES < 64 << 10);
