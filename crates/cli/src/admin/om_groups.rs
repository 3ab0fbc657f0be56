//! The OMs and the groups of names that SCM knows.

use super::scm::Scm;
use proto::scm::{ListOmsRequest, ListOmsResponse, OmGroupInfo};

pub(super) async fn oms(scm: &mut Scm) -> anyhow::Result<ListOmsResponse> {
    scm.look(async |client| client.list_oms(ListOmsRequest {}).await).await
}

pub(super) fn number(group: &OmGroupInfo) -> u64 {
    group.group.as_ref().map_or(0, |group| group.group)
}
