//! The view of each SCM of itself, also when none of them leads.

use super::scm::{Scm, connect};
use crate::table::{Cell, Tone, table};
use futures::future::join_all;
use proto::Naming;
use proto::scm::{IntroduceRequest, IntroduceResponse, ScmReplica};
use std::time::Duration;

const ANSWER_MAX: Duration = Duration::from_secs(3);

/// The view that the SCM at one address has of itself.
pub(super) struct View {
    pub(super) address: String,
    /// The SCM's answer, or the reason why it gave none.
    pub(super) said: Result<IntroduceResponse, String>,
}

impl View {
    pub(super) fn replica(&self) -> Option<&ScmReplica> {
        self.said.as_ref().ok().and_then(|said| said.replica.as_ref())
    }
}

pub(super) async fn of_each(scm: &Scm) -> Vec<View> {
    join_all(scm.addresses().iter().map(|address| async move {
        let asked = tokio::time::timeout(ANSWER_MAX, ask(address)).await;
        let said = asked.unwrap_or_else(|_| Err(anyhow::anyhow!("it takes longer than {ANSWER_MAX:?}")));
        View { address: address.clone(), said: said.map_err(|error| error.root_cause().to_string()) }
    }))
    .await
}

async fn ask(address: &str) -> anyhow::Result<IntroduceResponse> {
    // The question names no cluster: each SCM says of which it is.
    Ok(connect(address, Naming::default())
        .await?
        .introduce(IntroduceRequest {})
        .await
        .map_err(proto::Failure::from)?
        .into_inner())
}

pub(super) fn told(views: &[View]) -> String {
    let rows: Vec<_> = views.iter().map(row).collect();
    table(["ADDRESS", "ROLE", "REPLICA", "TERM", "LAST ENTRY", "REMARKS"], &rows)
}

fn row(view: &View) -> [Cell; 6] {
    let address = view.address.clone().into();
    let dash = || Cell::from("-");
    let said = match &view.said {
        Ok(said) => said,
        Err(why) => {
            return [address, Cell::toned("silent", Tone::Bad), dash(), dash(), dash(), why.clone().into()];
        }
    };
    let remarks = said.waits_for.clone().into();
    let Some(replica) = &said.replica else {
        return [address, Cell::toned("no member", Tone::Warning), dash(), dash(), dash(), remarks];
    };
    let last = format!("{} of term {}", replica.last_index, replica.last_term);
    let (number, term) = (replica.replica.to_string(), replica.term.to_string());
    [address, replica.role.clone().into(), number.into(), term.into(), last.into(), remarks]
}
