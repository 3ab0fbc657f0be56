//! A leader of SCM whose disk is full lets another member lead, where that one can commit.

use crate::formation::introduce;
use crate::seat::Seat;
use futures::future::join_all;
use raft::Group;
use rpc::Connector;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;
use tracing::warn;
use types::ReplicaId;

const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// The pause after an attempt: what came of it shows by then.
const PAUSE: Duration = Duration::from_secs(10);

/// The reason why nothing can be written where the group's log is.
pub(crate) fn of(group: &Group) -> Option<String> {
    group.log().space().check_space(1).err().map(|full| full.to_string())
}

/// Hands over for as long as nothing can be written here: this leader can decide nothing, and cannot even
/// note that. Where the others with room are no majority it stays: who follows it could commit no more, and
/// would not get as far as answering questions.
pub(crate) async fn hand_over(seat: &Seat, connector: Arc<dyn Connector>) -> Infallible {
    loop {
        sleep(LOOK_AGAIN).await;
        if seat.full_disk().is_none() {
            continue;
        }
        match successor(seat, &*connector).await {
            Some(replica) => {
                warn!(%replica, "the disk is full: another member of SCM is to lead");
                if let Err(error) = seat.group.transfer_leader(replica).await {
                    warn!(%replica, %error, "the other member does not lead");
                }
            }
            None => warn!("the disk is full, and no majority of SCM has room: nothing can be decided"),
        }
        sleep(PAUSE).await;
    }
}

/// The other voter with room that has most of the log, if those with room are a majority.
async fn successor(seat: &Seat, connector: &dyn Connector) -> Option<ReplicaId> {
    let members = seat.group.members();
    let voters: Vec<_> = members.all.iter().filter(|member| members.is_voter(member.replica)).collect();
    let others = voters.iter().filter(|member| member.replica != seat.group.replica());
    let asked = others.map(async |member| (member.replica, introduce(connector, &member.address).await.ok()));
    let with_room: Vec<_> = join_all(asked)
        .await
        .into_iter()
        .filter_map(|(replica, said)| {
            let said = said?.replica.filter(|said| said.replica == replica.0 && said.full_disk.is_empty())?;
            Some(((said.last_term, said.last_index), replica))
        })
        .collect();
    let is_majority = with_room.len() > voters.len() / 2;
    with_room.into_iter().max().map(|(_, replica)| replica).filter(|_| is_majority)
}
