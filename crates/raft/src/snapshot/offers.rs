use crate::adapter::encoding::vote_from_wire;
use crate::adapter::machine::Raft;
use crate::adapter::type_config::RaftVote;
use crate::counts::HostCounts;
use crate::open_groups::OpenGroups;
use crate::snapshot::receiver::{Offered, receive};
use crate::snapshot::store::SnapshotStore;
use crate::transport::append_check::check_sender;
use crate::transport::elections::check_not_lost;
use crate::transport::refusal::{refused, unread};
use crate::{GroupStatus, Role};
use futures::{Stream, StreamExt, TryStreamExt, stream};
use proto::{Code, Failure, raft as wire};
use std::sync::Arc;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

/// The most wishes for pieces that gRPC has not taken yet.
const ANSWERS_COUNT_MAX: usize = 4;

/// Has a group receive what is offered. The stream of answers drives it: it ends when the leader drops that,
/// or when the group is closed.
pub(crate) async fn take_offer(
    open_groups: Arc<OpenGroups>,
    counts: Arc<HostCounts>,
    mut messages: Offered,
) -> Result<impl Stream<Item = Result<wire::SnapshotToLeader, Status>>, Status> {
    use wire::snapshot_to_follower::Message::Offer;
    let first = messages.try_next().await.map_err(|status| unread(&counts, status))?;
    let Some(Offer(offer)) = first.and_then(|first| first.message) else {
        return Err(refused(&counts, Failure::invalid("a snapshot begins with its offer")));
    };
    let offered = take_offer_check(&open_groups, &offer);
    let (raft, store, vote, mut statuses) = offered.map_err(|failure| refused(&counts, failure))?;
    let (answers_tx, answers) = mpsc::channel(ANSWERS_COUNT_MAX);
    let receiving = async move {
        let closed = statuses.wait_for(|status| status.role == Role::Stopped);
        let received = tokio::select! {
            received = receive(store, raft, vote, offer.manifest, messages, &answers_tx) => received.map_err(Failure::from),
            _ = closed => Err(Failure::new(Code::Unavailable, "the group stopped here")),
        };
        if let Err(failure) = received {
            // Who is gone has sent nothing wrong.
            let status = match failure.code {
                Code::Unavailable => failure.into(),
                _ => refused(&counts, failure),
            };
            let _ = answers_tx.send(Err(status)).await;
        }
    };
    let receiving = stream::once(receiving).filter_map(|()| std::future::ready(None));
    Ok(stream::select(ReceiverStream::new(answers), receiving))
}

type SnapshotReceiver = (Raft, Arc<SnapshotStore>, RaftVote, watch::Receiver<GroupStatus>);

/// Checks an offer; of the group it takes only what does not keep its log open.
fn take_offer_check(
    open_groups: &OpenGroups,
    offer: &wire::SnapshotOffer,
) -> Result<SnapshotReceiver, Failure> {
    let group = open_groups.addressed(offer.to.as_ref())?;
    let vote = vote_from_wire(offer.vote, group.terms())?;
    check_sender(vote.leader_id.voted_for, offer.to.as_ref())?;
    check_not_lost(group.standing(), vote.leader_id.voted_for)?;
    let why = || Failure::invalid(format!("{} has no snapshots here", group.id()));
    Ok((group.raft().clone(), group.snapshot_store().ok_or_else(why)?, vote, group.watch()))
}
