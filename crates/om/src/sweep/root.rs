//! The root of names as its leader changes it, and what it keeps of how far each group is: what a group says
//! of itself is noted before it is told of anything, since what it is told hides how far it was.

use super::fences::{Lacks, Told, as_seen, ask, broken, send};
use crate::ops::{self, FenceContainers, Fresh, NoteGroups, Operation};
use crate::others::Others;
use crate::replica::Replica;
use crate::tables::{NAMES_PREFIX, ROOT, decode, fences};
use crate::upgrade::rows;
use proto::om::{
    BucketEntry, FenceContainersRequest, FenceContainersResponse, GroupSeen, NoteGroupsCommand, SweepStop,
};
use proto::{Code, Failure, RequestId};
use rand::RngExt;
use statedb::Db;
use std::collections::BTreeSet;
use std::sync::Arc;
use types::Clock;
use types::random::random;

/// The number of tries to tell a group of fences while others are made.
const TRIES: usize = 5;

/// The root where it is led from here, and the ways to the other groups.
#[derive(Clone)]
pub(crate) struct Root {
    pub(crate) replica: Arc<Replica>,
    pub(crate) others: Others,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Root {
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Db) -> anyhow::Result<T> + Send + 'static,
    ) -> Result<T, Failure> {
        let db = self.replica.dbs.current();
        let read = raft::blocking(move || read(&db)).await;
        read.map_err(|error| Failure::internal(format!("read the root: {error}")))?.map_err(broken)
    }

    pub(super) async fn change<O: Operation>(&self, what: O::Request) -> Result<O::Response, Failure> {
        let fresh = Fresh { random: 0, now_ms: self.clock.now_ms() };
        let command = ops::prepare::<O>(RequestId(random().random()), None, what, fresh)?;
        self.replica.change::<O>(command).await
    }

    /// All groups that may have a bucket: those that SCM tells of, and those that the root's buckets are in,
    /// or move to.
    pub(crate) async fn groups(&self) -> Result<BTreeSet<u64>, Failure> {
        let mut groups = self.others.groups.all();
        groups.insert(ROOT);
        groups.extend(self.read(groups_of_buckets).await?);
        Ok(groups)
    }

    /// The reason why nothing is to be swept before an operator says so, if there is one.
    pub(super) async fn stop(&self) -> Result<Option<SweepStop>, Failure> {
        self.read(|root| Ok(fences(root)?.stop)).await
    }

    /// Has the root take no block of these that it does not name. `known`: the last number that SCM was told
    /// of, 0: nobody has asked.
    pub(super) async fn fence(
        &self,
        containers: &[u64],
        known: u64,
    ) -> Result<FenceContainersResponse, Failure> {
        let containers = containers.to_vec();
        let fence = FenceContainersRequest { group: ROOT, containers, known, ..Default::default() };
        self.change::<FenceContainers>(fence).await
    }

    /// Asks the leader of another group how far that is.
    pub(super) async fn ask(&self, group: u64) -> Result<GroupSeen, Failure> {
        let nothing = FenceContainersRequest { group, ..FenceContainersRequest::default() };
        ask(&self.others, nothing).await.map(|said| as_seen(group, &said))
    }

    pub(super) async fn note(
        &self,
        number: u64,
        groups: Vec<GroupSeen>,
    ) -> Result<Option<SweepStop>, Failure> {
        self.change::<NoteGroups>(NoteGroupsCommand { number, groups }).await.map(|noted| noted.stop)
    }

    /// Tells a group of the fences that it lacks, once it is noted how far the group is.
    pub(super) async fn send(&self, said: GroupSeen, lacks: Lacks<'_>) -> Result<Told, Failure> {
        send(self.replica.dbs.current(), said, lacks, |some| ask(&self.others, some)).await
    }

    /// Has a group take all fences that the root has now, and answers up to which number these are.
    pub(crate) async fn bring(&self, group: u64, lacks: Lacks<'_>) -> Result<u64, Failure> {
        let mut tries = 0;
        loop {
            tries += 1;
            match self.try_to_bring(group, lacks).await {
                Err(failure) if failure.code == Code::NotYet && tries < TRIES => {}
                brought => return brought,
            }
        }
    }

    async fn try_to_bring(&self, group: u64, lacks: Lacks<'_>) -> Result<u64, Failure> {
        let number = self.read(|root| Ok(fences(root)?.number)).await?;
        if group == ROOT {
            return Ok(number);
        }
        let _hearing = self.others.groups.hearing.lock().await;
        let said = self.ask(group).await?;
        self.note(number, vec![said]).await?;
        self.send(said, lacks).await.map(|told| told.seen.number)
    }
}

/// The groups that buckets are in, or move to.
fn groups_of_buckets(root: &Db) -> anyhow::Result<BTreeSet<u64>> {
    let mut groups = BTreeSet::new();
    for row in rows(root, NAMES_PREFIX) {
        let (key, value) = row?;
        let entry: BucketEntry = decode(&key, &value)?;
        groups.insert(entry.group);
        groups.extend(entry.last_move.and_then(|last| last.moved).map(|moved| moved.to));
    }
    Ok(groups)
}
