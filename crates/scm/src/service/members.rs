//! SCM's own members, told and changed.

use crate::leader::Leader;
use proto::scm::{ListScmMembersResponse, ScmMember, TransferScmLeaderRequest};
use proto::{Code, Failure};
use raft::{Member, TransferError};
use types::ReplicaId;

pub(crate) fn list(leader: &Leader) -> ListScmMembersResponse {
    let (status, members, metrics) = (leader.group.status(), leader.group.members(), leader.group.metrics());
    let behind = |replica| {
        let follower = metrics.followers.iter().find(|follower| follower.replica == replica);
        follower.map_or(0, |follower| follower.lag)
    };
    let member = |member: &Member| ScmMember {
        replica: member.replica.0,
        address: leader.addresses.of(member),
        is_leader: status.leader.as_ref().is_some_and(|leader| leader.replica == member.replica),
        is_voter: members.is_voter(member.replica),
        behind: behind(member.replica),
    };
    ListScmMembersResponse {
        cluster: leader.tables.read(|tables| tables.cluster().to_owned()),
        term: status.term.0,
        members: members.all.iter().map(member).collect(),
    }
}

pub(crate) async fn transfer(leader: &Leader, request: TransferScmLeaderRequest) -> Result<(), Failure> {
    let members = leader.group.members();
    let others = members.all.iter().filter(|member| member.replica != leader.group.replica());
    let target = match request.address.as_str() {
        // The first member that can lead gets the lead: one that lags or is away refuses at once.
        "" => others.map(|member| member.replica).collect::<Vec<_>>(),
        address => {
            let at = members.all.iter().find(|member| member.address == address);
            let at =
                at.ok_or_else(|| Failure::new(Code::NotFound, format!("no member of SCM is at {address}")))?;
            if at.replica == leader.group.replica() {
                return Ok(());
            }
            vec![at.replica]
        }
    };
    let mut last = Failure::new(Code::PreconditionFailed, "SCM has no other member");
    for replica in target {
        match leader.group.transfer_leader(replica).await {
            Ok(()) => return Ok(()),
            Err(TransferError::NotLeader { .. }) if request.address.is_empty() => return Ok(()),
            Err(TransferError::NotLeader { .. }) => return check_moved(leader, replica),
            Err(error @ (TransferError::NotMember { .. } | TransferError::Learner { .. })) => {
                last = error.into_failure(&leader.addresses);
            }
            Err(error) => last = Failure::new(Code::Unavailable, error.to_string()),
        }
    }
    Err(last)
}

/// Checks that the replica that was wanted leads. Where others have elected another one meanwhile, the caller
/// is sent there, to ask again.
fn check_moved(leader: &Leader, wanted: ReplicaId) -> Result<(), Failure> {
    let leads = leader.group.status().leader;
    match leads.as_ref().is_some_and(|member| member.replica == wanted) {
        true => Ok(()),
        false => Err(TransferError::NotLeader { leader: leads }.into_failure(&leader.addresses)),
    }
}
