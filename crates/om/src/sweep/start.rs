//! An operator's word that the sweep stops, or that there are no other names than those that groups have now.

use super::Sweep;
use super::fences::as_seen;
use super::root::Root;
use crate::ops::{StartSweep, StopSweep};
use crate::tables::ROOT;
use futures::future::try_join_all;
use proto::Failure;
use proto::om::{StartSweepCommand, StopSweepCommand};
use tracing::info;
use types::GroupId;

impl Sweep {
    /// The root, where it is led from here.
    fn root(&self) -> Result<Root, Failure> {
        let replica = self.replicas.serving(GroupId::om(ROOT), &self.addresses)?;
        Ok(Root { replica, others: self.others.clone(), clock: self.clock.clone() })
    }

    pub(crate) async fn switch(&self, start: bool) -> Result<(), Failure> {
        let root = self.root()?;
        match start {
            true => self.start(&root).await?,
            false => {
                let why = "an operator has stopped it".to_owned();
                root.change::<StopSweep>(StopSweepCommand { why, number: 0 }).await?;
            }
        }
        info!(start, "an operator switches the sweep");
        self.counts.wanted.notify_one();
        Ok(())
    }

    /// Starts the sweep once all groups have said how far they are: one that does not may come back with
    /// less, or with more.
    async fn start(&self, root: &Root) -> Result<(), Failure> {
        let number = self.fences_known().await?;
        let own = as_seen(ROOT, &root.fence(&[], 0).await?);
        let _hearing = self.others.groups.hearing.lock().await;
        let others = root.groups().await?.into_iter().filter(|group| *group != ROOT);
        let mut groups = try_join_all(others.map(|group| root.ask(group))).await?;
        groups.push(own);
        root.change::<StartSweep>(StartSweepCommand { groups, number }).await.map(drop)
    }
}
