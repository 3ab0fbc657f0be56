//! The leader's side of membership in SCM's group: who may come, and in whose place.

use crate::leader::Leader;
use crate::options::ScmOptions;
use crate::seat::Seats;
use proto::scm::{AdmitMemberCommand, JoinScmRequest, JoinScmResponse, scm_command::Command};
use proto::{Code, Failure};
use raft::{Member, SetMembersError};
use std::time::Duration;
use tokio::sync::SemaphorePermit;
use tokio::time::Instant;
use tracing::info;
use types::{NodeId, ReplicaId};

/// The time that one attempt to join may take; who joins asks again.
const CHANGE_MAX: Duration = Duration::from_secs(10);

/// Gives a process that has no replica an id for one; makes a process that has one a member, in place of what
/// was at its address.
pub(crate) async fn join(
    leader: &Leader,
    seats: &Seats,
    request: JoinScmRequest,
) -> Result<JoinScmResponse, Failure> {
    let cluster = leader.tables.read(|tables| tables.cluster().to_owned());
    if request.cluster != cluster {
        let message = format!("this is cluster {cluster}, the caller is for cluster {}", request.cluster);
        return Err(Failure::new(Code::WrongCluster, message));
    }
    check_list(&leader.options, &request.address)?;
    let replica = ReplicaId(request.replica);
    if replica.0 == 0 {
        let admit = Command::AdmitMember(AdmitMemberCommand { address: request.address });
        let replica = leader.propose(admit).await?.replica;
        return Ok(JoinScmResponse { cluster, replica, is_member: false });
    }
    if !leader.tables.read(|tables| tables.is_drawn_member(replica)) {
        return Err(Failure::invalid(format!("replica {replica} of SCM was never given to anybody")));
    }
    if !leader.group.members().is_voter(replica) {
        let _turn = turn(seats)?;
        seat(leader, Member { replica, node: NodeId(0), address: request.address }).await?;
    }
    Ok(JoinScmResponse { cluster, replica: replica.0, is_member: true })
}

fn check_list(options: &ScmOptions, address: &str) -> Result<(), Failure> {
    if options.members.iter().any(|member| member == address) {
        return Ok(());
    }
    let started = match options.members.as_slice() {
        [] => "as the only SCM".to_owned(),
        members => format!("with --scm {}", members.join(",")),
    };
    let message = format!(
        "SCM's leader, at {}, was started {started}, which has no {address}: start it again with the list that has",
        options.address
    );
    Err(Failure::new(Code::PreconditionFailed, message))
}

/// Gives the turn to change members, to one at a time: changes are computed from the members that there are,
/// and one would take back what another has done.
fn turn(seats: &Seats) -> Result<SemaphorePermit<'_>, Failure> {
    let busy = |_| Failure::new(Code::Busy, "SCM's members are just changing");
    seats.member_changes.try_acquire().map_err(busy)
}

async fn seat(leader: &Leader, joiner: Member) -> Result<(), Failure> {
    let mut members = leader.group.members().all;
    // Who was there before has lost its disk: the same process cannot hold two replicas.
    members.retain(|member| member.address != joiner.address && member.replica != joiner.replica);
    info!(replica = %joiner.replica, address = %joiner.address, "a member joins SCM");
    members.push(joiner);
    change(leader, &members).await
}

/// Takes the member at an address out.
pub(crate) async fn remove(leader: &Leader, seats: &Seats, address: &str) -> Result<(), Failure> {
    let _turn = turn(seats)?;
    let mut members = leader.group.members().all;
    let before = members.len();
    members.retain(|member| member.address != address);
    if members.len() == before {
        return Err(Failure::new(Code::NotFound, format!("no member of SCM is at {address}")));
    }
    if members.is_empty() {
        return Err(Failure::new(Code::PreconditionFailed, format!("{address} is SCM's only member")));
    }
    info!(address, "a member of SCM is removed");
    change(leader, &members).await
}

async fn change(leader: &Leader, members: &[Member]) -> Result<(), Failure> {
    let changed = leader.group.set_members(members, Instant::now() + CHANGE_MAX).await;
    changed.map_err(|failure| match failure {
        SetMembersError::NotLeader { leader: known } => {
            Failure::not_leader(known.map(|known| leader.addresses.of(&known)))
        }
        other => Failure::new(Code::Unavailable, other.to_string()),
    })
}
