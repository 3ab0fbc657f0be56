use crate::adapter::encoding::{applied_from, log_id_of, vote_to_wire};
use crate::adapter::machine::Raft;
use crate::adapter::type_config::RaftVote;
use crate::snapshot::agreement::Position;
use crate::snapshot::manifest::{DecodeError, Manifest, Piece};
use crate::snapshot::reception::{Mismatch, ReceiveError, Reception};
use crate::snapshot::store::SnapshotStore;
use bytes::Bytes;
use futures::TryStreamExt;
use futures::stream::BoxStream;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse};
use proto::raft as wire;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use tonic::Status;
use wire::snapshot_to_follower::Message as ToFollower;
use wire::snapshot_to_leader::Message as ToLeader;

/// The most pieces that are asked for and not yet here: 2 MiB, what a network of 1 GB/s holds in 2 ms.
const WANTED_COUNT_MAX: usize = 8;
/// The number of times that a piece may come damaged before the attempt ends; the leader begins another.
const TRIES_MAX: u32 = 3;
/// The silence after which a sender counts as gone. With four receptions at a time at 1 MiB/s a piece takes a
/// second.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// The interval at which the leader hears that what takes long goes on; it may take [`WORKING_MAX`], and a
/// state of a terabyte is synced and opened in less.
const WORKING_INTERVAL: Duration = Duration::from_secs(2);
pub(crate) const WORKING_MAX: Duration = Duration::from_secs(600);

/// The leader's messages.
pub(crate) type Offered = BoxStream<'static, Result<wire::SnapshotToFollower, Status>>;
/// The way of answers to the leader; the other end is gone when the leader is.
pub(crate) type Answers = mpsc::Sender<Result<wire::SnapshotToLeader, Status>>;

/// Receives what a leader offers and has it installed. Dropped, it leaves what it has for the next attempt.
pub(crate) async fn receive(
    store: Arc<SnapshotStore>,
    raft: Raft,
    vote: RaftVote,
    manifest: Bytes,
    messages: Offered,
    answers: &Answers,
) -> Result<(), ReceiveError> {
    let receiving = Receiving { store, raft, vote, answers };
    let done = receiving.run(manifest, messages).await?;
    say(answers, ToLeader::Done(vote_to_wire(&done))).await
}

struct Receiving<'a> {
    store: Arc<SnapshotStore>,
    raft: Raft,
    vote: RaftVote,
    answers: &'a Answers,
}

impl Receiving<'_> {
    /// Receives and installs what is offered, unless nothing is to be received; answers this replica's vote.
    async fn run(self, encoded: Bytes, mut messages: Offered) -> Result<RaftVote, ReceiveError> {
        let (manifest, position) = self.check(&encoded)?;
        self.check_here(&position).await?;
        if self.is_settled(&manifest) {
            return self.promise().await;
        }
        let id = manifest.applied.id;
        let store = self.store.clone();
        let mut reception =
            working(self.answers, async { Reception::begin(&store, manifest, encoded).await }).await?;
        let left_bytes = reception.manifest().bytes_from(reception.cursor());
        tracing::info!(group = %self.store.group(), last = id.index.0, left_bytes, "receive a snapshot");
        match self.fetch(&mut reception, &mut messages).await {
            Ok(()) => {}
            // Nobody is helped by a part of a snapshot on a full disk.
            Err(full @ ReceiveError::DiskBecameFull) => {
                reception.discard();
                self.store.sweep().await;
                return Err(full);
            }
            Err(error) => return Err(error),
        }
        let done = working(self.answers, self.install(reception, &position)).await;
        match &done {
            Ok(_) => {
                self.store.sweep().await;
                self.store.let_go.notify_one();
            }
            // Groups without a keeper receive too.
            Err(_) => self.store.sweep_unused().await,
        }
        let done = done?;
        tracing::info!(group = %self.store.group(), last = id.index.0, "installed a snapshot");
        Ok(done)
    }

    /// Installs a snapshot; what cannot be installed is refused before openraft has it: from there on a
    /// failure ends the group.
    async fn install(&self, reception: Reception, position: &Position) -> Result<RaftVote, ReceiveError> {
        let received = reception.finish().await?;
        self.store.check_state(&received.stored).await.map_err(ReceiveError::Refused)?;
        self.check_here(position).await?;
        position.make_way(&self.raft, self.vote).await.map_err(|_| ReceiveError::Gone)?;
        let answer = self.raft.install_full_snapshot(self.vote, received.into_openraft()).await;
        Ok(answer.map_err(|_| ReceiveError::Gone)?.vote)
    }

    async fn check_here(&self, position: &Position) -> Result<(), ReceiveError> {
        let checked = position.check_here(&self.raft).await.map_err(|_| ReceiveError::Gone)?;
        checked.map_err(ReceiveError::Refused)
    }

    /// Checks of an offer what can be told from the offer alone.
    fn check(&self, encoded: &[u8]) -> Result<(Manifest, Position), ReceiveError> {
        let manifest = Manifest::decode(encoded).map_err(|error| match error {
            DecodeError::Damaged(_) => ReceiveError::DamagedOffer(error.to_string()),
            _ => ReceiveError::Refused(error.to_string()),
        })?;
        let refuse = |why: String| Err(ReceiveError::Refused(why));
        if manifest.group != self.store.group() {
            return refuse(format!("a snapshot of {} for {}", manifest.group, self.store.group()));
        }
        let membership = applied_from(&manifest.applied).map_err(ReceiveError::Refused)?;
        let position = Position { id: manifest.applied.id, membership };
        position.check(&self.vote).map_err(ReceiveError::Refused)?;
        Ok((manifest, position))
    }

    /// Whether nothing is to be received: another leader was heard of, or the state is here already.
    fn is_settled(&self, manifest: &Manifest) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let applied = metrics.last_applied.as_ref().map(log_id_of);
        metrics.vote > self.vote || applied >= Some(manifest.applied.id)
    }

    /// Has openraft hear the leader, as from a heartbeat. The leader counts every answer that names no higher
    /// vote as a promise to elect nobody else for a while (docs/adr/0005), and only openraft can keep one.
    async fn promise(&self) -> Result<RaftVote, ReceiveError> {
        let heartbeat = AppendEntriesRequest {
            vote: self.vote,
            prev_log_id: None,
            leader_commit: None,
            entries: Vec::new(),
        };
        match self.raft.append_entries(heartbeat).await.map_err(|_| ReceiveError::Gone)? {
            AppendEntriesResponse::HigherVote(vote) => Ok(vote),
            _ => Ok(self.vote),
        }
    }

    /// Asks for the pieces that are missing until none is.
    async fn fetch(&self, reception: &mut Reception, messages: &mut Offered) -> Result<(), ReceiveError> {
        let mut wanted: VecDeque<Piece> = VecDeque::new();
        // Pieces on their way behind one that came damaged: they are asked for again after it.
        let mut unwanted_count = 0;
        let mut tries = 0;
        let mut next = reception.manifest().pieces_from(reception.cursor()).collect::<VecDeque<_>>();
        loop {
            while wanted.len() + unwanted_count < WANTED_COUNT_MAX
                && let Some(piece) = next.pop_front()
            {
                self.want(reception, piece).await?;
                wanted.push_back(piece);
            }
            let Some(&piece) = wanted.front() else { return Ok(()) };
            let (came, data) = self.next_piece(messages).await?;
            if unwanted_count > 0 {
                unwanted_count -= 1;
                continue;
            }
            assert!(piece == reception.cursor(), "pieces are asked for in order");
            if came != piece {
                return Err(ReceiveError::Refused(format!(
                    "{came:?} of a snapshot where {piece:?} was asked for"
                )));
            }
            match reception.write(data).await? {
                Ok(()) => {
                    wanted.pop_front();
                    tries = 0;
                }
                Err(Mismatch) => {
                    tries += 1;
                    tracing::warn!(group = %self.store.group(), ?piece, tries, "a snapshot's piece came damaged");
                    if tries == TRIES_MAX {
                        return Err(ReceiveError::Damaged(piece));
                    }
                    unwanted_count = wanted.len() - 1;
                    while let Some(again) = wanted.pop_back() {
                        next.push_front(again);
                    }
                }
            }
        }
    }

    async fn want(&self, reception: &Reception, piece: Piece) -> Result<(), ReceiveError> {
        let bytes = reception.manifest().look_up(piece).map_or(0, |(_, _, bytes, _)| bytes);
        self.store.limits.receiving.take(bytes).await;
        let Piece { file, number } = piece;
        say(self.answers, ToLeader::Want(wire::SnapshotWant { file, number })).await
    }

    async fn next_piece(&self, messages: &mut Offered) -> Result<(Piece, Bytes), ReceiveError> {
        if self.raft.metrics().borrow_watched().vote > self.vote {
            return Err(ReceiveError::Gone);
        }
        match tokio::time::timeout(SILENCE_MAX, messages.try_next()).await {
            Ok(Ok(Some(message))) => match message.message {
                Some(ToFollower::Piece(wire::SnapshotPiece { file, number, data })) => {
                    Ok((Piece { file, number }, data))
                }
                _ => Err(ReceiveError::Refused("something else than a piece of a snapshot".to_owned())),
            },
            Ok(Err(status)) if status.code() == tonic::Code::OutOfRange => Err(ReceiveError::TooLarge),
            Ok(Ok(None) | Err(_)) | Err(_) => Err(ReceiveError::Gone),
        }
    }
}

async fn say(answers: &Answers, message: ToLeader) -> Result<(), ReceiveError> {
    let message = wire::SnapshotToLeader { message: Some(message) };
    // Answers are small and few: a leader that takes none of them hangs.
    let said = tokio::time::timeout(SILENCE_MAX, answers.send(Ok(message))).await;
    said.map_err(|_| ReceiveError::Gone)?.map_err(|_| ReceiveError::Gone)
}

/// Does something that may take long, and tells the leader now and then that it goes on.
async fn working<T>(
    answers: &Answers,
    work: impl Future<Output = Result<T, ReceiveError>>,
) -> Result<T, ReceiveError> {
    let end = Instant::now() + WORKING_MAX;
    let mut signs = tokio::time::interval_at(Instant::now() + WORKING_INTERVAL, WORKING_INTERVAL);
    signs.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut work = std::pin::pin!(work);
    loop {
        tokio::select! {
            biased;
            done = &mut work => return done,
            () = tokio::time::sleep_until(end) => return Err(ReceiveError::Gone),
            _ = signs.tick() => say(answers, ToLeader::Working(wire::Empty {})).await?,
        }
    }
}
