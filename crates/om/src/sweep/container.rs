//! The sweep of one container that all groups have fenced.

use super::compare::{InContainer, KnownBlocks, Listed};
use super::look_through::{Asked, FILED_AT_ONCE, Since, look_through};
use super::lost::Lost;
use super::outside::sources;
use super::worker::Worker;
use crate::blocks::IN_CONTAINER_BYTES;
use crate::ops::{FileOrphans, NoteSwept};
use crate::tables::fences;
use bytes::Bytes;
use futures::future::try_join_all;
use proto::om::{
    FileOrphansCommand, FileOrphansReply, ListKnownBlocksRequest, NoteSweptCommand, SweptContainer,
};
use proto::scm::{ContainerInfo, ContainerState};
use proto::{Code, Failure};
use std::collections::BTreeSet;
use tracing::info;

/// The most blocks of a container that a replica lacks and all others are asked for, one by one.
const MISSING_MAX: usize = 1000;

impl Worker {
    /// Files what nobody knows of a container, finds what is named and nowhere, and notes both.
    pub(super) async fn sweep_container(&self, container: u64) -> Result<(), Failure> {
        let Some(info) = self.closed(container).await? else { return Ok(()) };
        let mut swept = SweptContainer::default();
        let asked = Asking { worker: self, container, sources: sources(&info) };
        // The groups are read after the fence was made: a group that gets its first bucket later has this
        // fence before.
        let since = Since::read(&asked).await?;
        let lost = match asked.sources.is_empty() {
            true => self.lost_with_container(container, &since.groups).await?,
            false => {
                let missing = look_through(&asked, &since, &mut swept, MISSING_MAX).await?;
                self.lost_blocks(container, &missing, &since.groups).await?
            }
        };
        self.note(container, swept, lost).await
    }

    /// The container, while it is closed.
    async fn closed(&self, container: u64) -> Result<Option<ContainerInfo>, Failure> {
        let info = self.sweep.container(container).await?;
        Ok(info.filter(|info| info.state() == ContainerState::ContainerClosed))
    }

    /// The blocks that a group knows in a range.
    async fn known_by(
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
                self.lacking.lock().expect("no holder panics").insert(group);
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
        self.root.change::<NoteSwept>(NoteSweptCommand { container, swept: Some(swept) }).await?;
        self.sweep.counts.swept.count();
        Ok(())
    }
}

/// The questions about one container, as they are asked of a cluster.
struct Asking<'a> {
    worker: &'a Worker,
    container: u64,
    /// Nodes with a replica, the best first.
    sources: Vec<String>,
}

impl Asked for Asking<'_> {
    async fn moves(&self) -> Result<u64, Failure> {
        self.worker.root.read(|root| Ok(fences(root)?.moves)).await
    }

    async fn groups(&self) -> Result<BTreeSet<u64>, Failure> {
        self.worker.root.groups().await
    }

    /// A part of the blocks of the first replica that answers.
    async fn list(&self, from_local: u64) -> Result<Listed, Failure> {
        let mut last = Failure::new(Code::Unavailable, "no replica can be asked");
        for address in &self.sources {
            match self.worker.sweep.blocks_of(address, self.container, from_local).await {
                Ok(listed) => return Ok(listed),
                Err(failure) => last = failure,
            }
        }
        Err(last)
    }

    async fn known(
        &self,
        groups: &BTreeSet<u64>,
        from_local: u64,
        part: &Listed,
    ) -> Result<KnownBlocks, Failure> {
        let range = part.range(from_local);
        let known = groups.iter().map(|group| self.worker.known_by(*group, self.container, range.clone()));
        let mut all = KnownBlocks::default();
        for (named, unused) in try_join_all(known).await?.into_iter().flatten() {
            all.take(&named, &unused);
        }
        Ok(all)
    }

    async fn file(&self, orphans: &[(InContainer, u64)], moves: u64) -> Result<FileOrphansReply, Failure> {
        let blocks: Vec<u8> = orphans.iter().flat_map(|(block, _)| *block).collect();
        let lengths = orphans.iter().map(|(_, length)| *length).collect();
        let file = FileOrphansCommand { container: self.container, blocks: blocks.into(), lengths, moves };
        let filed = self.worker.root.change::<FileOrphans>(file).await?;
        let counts = &self.worker.sweep.counts;
        counts.orphans.add(filed.filed);
        counts.orphan_bytes.add(filed.bytes);
        Ok(filed)
    }
}

const _: () = assert!(FILED_AT_ONCE * IN_CONTAINER_BYTES < 64 << 10);
