//! How a replica comes to its log: as one of the group's first members, as one that joins, or again after a restart.

use crate::encoding::{entry_from_meta, entry_to_record, first_membership, log_id_from};
use crate::identity::{Identity, IdentityState};
use crate::type_config::RaftEntry;
use crate::{GroupSpec, GroupStart};
use anyhow::{Context, bail};
use disk::Disk;
use openraft::EntryPayload;
use raftlog::Log;
use std::sync::Arc;
use types::{LogId, LogIndex, ReplicaId};

/// Whether a replica was at work before: it may have promised something then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Past {
    New,
    Restarted,
}

/// What a replica comes with.
pub(crate) struct Begun {
    /// It was one of the group's first members.
    pub(crate) is_first: bool,
    pub(crate) past: Past,
    /// Replicas of the group that a forced reset gave up.
    pub(crate) lost: Vec<ReplicaId>,
}

/// Makes a replica's log and identity agree with what is asked for, or says why they do not. Repeated after a crash at
/// any point, it comes to the same end.
///
/// The log of one replica must not be opened as another's: the new name would not know the votes given under the old.
pub(crate) async fn begin(log: &Log, disk: &Arc<dyn Disk>, spec: &GroupSpec) -> anyhow::Result<Begun> {
    let known = Identity::read(disk, spec.group).await.context("read which replica is here")?;
    let state = log.state();
    let is_empty = state.last.max(state.purged).is_none();
    let past = if state.hard_state.is_some() { Past::Restarted } else { Past::New };
    let lost = known.iter().flat_map(|known| known.lost.clone()).collect();
    let began = match known {
        Some(Identity { state: IdentityState::Removing, replica, .. }) => {
            bail!("the removal of replica {replica} was interrupted: remove it again first")
        }
        Some(Identity { state: IdentityState::Removed, replica, .. }) if replica == spec.replica => {
            bail!("replica {replica} was removed: its id is never used again")
        }
        Some(Identity { state, replica, .. }) if state != IdentityState::Removed => {
            if replica != spec.replica {
                bail!(
                    "the log in this place was made for another group or replica: {replica} of {}",
                    spec.group
                );
            }
            state
        }
        // A log from before identities were kept says itself whose it is.
        _ if !is_empty => {
            check_first_entry(log, spec).await?;
            begin_as(IdentityState::First, disk, spec).await?
        }
        _ if past == Past::Restarted => {
            bail!("the replica has voted, but its log is empty: the log was lost")
        }
        _ => match spec.start {
            GroupStart::First(_) => begin_as(IdentityState::First, disk, spec).await?,
            GroupStart::Join => begin_as(IdentityState::Joined, disk, spec).await?,
        },
    };
    if began == IdentityState::First && is_empty {
        if past == Past::Restarted {
            bail!("the replica has voted, but its log is empty: the log was lost");
        }
        start_log(log, spec).await?;
    }
    Ok(Begun { is_first: began == IdentityState::First, past, lost })
}

/// Durable before the log has anything: a log that is in use names its replica.
async fn begin_as(
    state: IdentityState,
    disk: &Arc<dyn Disk>,
    spec: &GroupSpec,
) -> anyhow::Result<IdentityState> {
    if let GroupStart::First(members) = &spec.start
        && !members.iter().any(|member| member.replica == spec.replica)
    {
        bail!("replica {} is not among the first members {members:?}", spec.replica);
    }
    let identity = Identity { group: spec.group, replica: spec.replica, state, lost: Vec::new() };
    identity.write(disk).await.context("write which replica is here")?;
    Ok(state)
}

/// Gives an empty log its first entry, the members, which is the same on all replicas. Durable before the replica can
/// give a vote: a replica that voted and then lost its members would stand aside for ever.
async fn start_log(log: &Log, spec: &GroupSpec) -> anyhow::Result<()> {
    let GroupStart::First(members) = &spec.start else {
        bail!("replica {} was made as a first member, and the first members are not given", spec.replica);
    };
    let membership = first_membership(members).map_err(anyhow::Error::msg)?;
    if membership.get_node(&spec.replica.0).is_none() {
        bail!("replica {} is not among the first members {members:?}", spec.replica);
    }
    let entry =
        RaftEntry { log_id: log_id_from(LogId::default()), payload: EntryPayload::Membership(membership) };
    log.append(vec![entry_to_record(entry)?])?.durable().await?;
    Ok(())
}

/// The first entry of a log that still has it names the members.
async fn check_first_entry(log: &Log, spec: &GroupSpec) -> anyhow::Result<()> {
    if log.state().purged.is_some() {
        bail!("nothing says which replica this log is of");
    }
    let first = log.read_meta(LogIndex(0)..LogIndex(1), 1).await?.into_iter().next();
    let first = entry_from_meta(first.context("the log has no first entry")?)?;
    match first.payload {
        EntryPayload::Membership(members) if members.get_node(&spec.replica.0).is_some() => Ok(()),
        EntryPayload::Membership(members) => {
            bail!("the log in this place was made for another group or replica: its members are {members}")
        }
        other => bail!("the log begins with {other} instead of its members"),
    }
}

/// A state machine may be behind its log (a crash took what it had in memory), never ahead: it applies only what the
/// log has durably. Ahead means that the log was lost or replaced, and with it entries this replica acknowledged;
/// except by a snapshot, which a crash may find installed and the log not purged to it. Nothing that is purged may be
/// missing: a snapshot that is ahead of the state is installed next.
pub(crate) fn check_log(log: &Log, applied: Option<LogId>, snapshot: Option<LogId>) -> anyhow::Result<()> {
    let state = log.state();
    let last = state.last.max(state.purged);
    if applied.map(|id| id.index) > last.max(snapshot).map(|id| id.index) {
        bail!("the state machine has applied {applied:?}, but the log ends at {last:?}: the log was lost");
    }
    if state.purged > applied.max(snapshot) {
        bail!(
            "the log begins after {:?}, but the state machine has applied {applied:?}: the state was lost",
            state.purged
        );
    }
    Ok(())
}
