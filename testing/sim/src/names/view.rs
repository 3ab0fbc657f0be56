use super::record::Record;
use crate::services::ScmCalls;
use proto::scm::{ListOmsRequest, ListOmsResponse, NodeState, OmGroupInfo};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::sleep;

const INTERVAL: Duration = Duration::from_millis(250);

/// OMs and groups of names as SCM showed them last. A cheap handle.
#[derive(Clone, Default)]
pub(super) struct View {
    newest: Arc<Mutex<Option<Shown>>>,
}

#[derive(Clone)]
pub(super) struct Shown {
    /// The world's time before SCM was asked.
    pub(super) asked_at: Duration,
    pub(super) oms: ListOmsResponse,
}

impl View {
    pub(super) fn newest(&self) -> Option<Shown> {
        self.newest.lock().expect("no holder panics").clone()
    }

    /// Asks SCM again and again.
    pub(super) async fn follow(self, scm: ScmCalls, record: Record, now: impl Fn() -> Duration) {
        loop {
            let asked_at = now();
            match scm.call(|mut scm| async move { scm.list_oms(ListOmsRequest {}).await }).await {
                Ok(oms) => *self.newest.lock().expect("no holder panics") = Some(Shown { asked_at, oms }),
                Err(failure) => record.event(format_args!("SCM shows nothing: {}", failure.message)),
            }
            sleep(INTERVAL).await;
        }
    }
}

impl Shown {
    /// The reason why a group is not on three OMs, all of them well, as its leader says.
    pub(super) fn unwhole(&self) -> Option<String> {
        const MEMBERS: usize = 3;
        let is_whole = |group: &OmGroupInfo| {
            let members = group.group.as_ref().map_or(0, |group| group.members.len());
            let are_well = group.replicas.iter().all(|it| it.om_state() == NodeState::NodeHealthy);
            group.problem.is_empty() && group.leader_om != 0 && members == MEMBERS && are_well
        };
        let wrong = self.oms.groups.iter().find(|group| !is_whole(group));
        match wrong {
            Some(group) => Some(format!("{group:?}")),
            None => self.oms.groups.is_empty().then(|| "there are no groups".to_owned()),
        }
    }

    /// The address of the OM that leads a group.
    pub(super) fn leader(&self, group: usize) -> Option<&str> {
        let group = self.oms.groups.get(group)?;
        let om = self.oms.oms.iter().find(|om| om.om == group.leader_om)?;
        Some(&om.address)
    }
}
