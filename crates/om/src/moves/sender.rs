//! Sends one bucket to another group, as long as the group that has it is led from here, up to the question
//! whether the bucket has moved.

use super::Moves;
use super::parts::{Part, Parts};
use crate::ops::{self, BeginRun, EndSending, FreezeBucket, Fresh, Operation};
use crate::replica::Replica;
use crate::tables::{BucketNumber, ROOT, Read, record_key, sending_key};
use proto::om::om_client::OmClient;
use proto::om::receive_rows_response::Outcome;
use proto::om::{
    BeginRunCommand, Bucket, BucketMove, BucketRecord, BucketStage, EndMoveRequest, FreezeBucketCommand,
    HeadBucketRequest, ReceiveRowsRequest, SendingBucket, SettleMoveRequest,
};
use proto::{Code, Failure, RequestId, Retry};
use rand::RngExt;
use rpc::Channel;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};
use types::Backoff;
use types::random::random;

/// The time for which the other group may answer nothing before the move is given up. Nobody waits for it
/// meanwhile.
const PATIENCE: Duration = Duration::from_secs(60);
/// The time for which the other group may leave changes of the bucket waiting before the move is given up.
const FROZEN_MAX: Duration = Duration::from_millis(800);
/// The time between questions whether the root answers.
const ROOT_PAUSE: Duration = Duration::from_millis(50);
/// The time after which a root that has answered, and does nothing, is asked once more. Each question has it
/// try for some seconds.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// The time between looks whether the root has been heard.
const LOOK_EVERY: Duration = Duration::from_millis(10);

pub(super) struct Sender {
    pub(super) moves: Moves,
    pub(super) replica: Arc<Replica>,
    pub(super) moved: BucketMove,
    /// The moment since which changes of the bucket wait, set before they do.
    frozen_since: OnceLock<Instant>,
}

/// The parts of one run, as the other group takes them.
struct Run {
    run: u64,
    /// The number of the last part that was taken.
    seq: u64,
    parts: Parts,
}

/// The reason why a run ends before its end.
enum Stopped {
    /// This leader cannot go on. It tries again, or the next one does.
    Later(Failure),
    /// The bucket is to stay where it is.
    Undone(String),
}

impl From<Failure> for Stopped {
    fn from(failure: Failure) -> Stopped {
        Stopped::Later(failure)
    }
}

impl Sender {
    pub(super) fn new(moves: Moves, replica: Arc<Replica>, moved: BucketMove) -> Sender {
        Sender { moves, replica, moved, frozen_since: OnceLock::new() }
    }

    /// Sends the bucket until the root has settled the attempt and this group has heard so, or something
    /// keeps this leader from going on.
    pub(super) async fn run(self) {
        let BucketMove { number, attempt, from, to } = self.moved;
        // Writers of a bucket that another leader froze wait for its end.
        let is_frozen = self.record().is_ok_and(|record| record.frozen);
        let _slot = if is_frozen { None } else { self.moves.slots.acquire().await.ok() };
        let _shown = self.moves.counts.clone().begin(number);
        info!(number, attempt, from, to, "send a bucket to another group");
        let begun = Instant::now();
        let settled = match self.send().await {
            Ok(()) => self.settle(None).await,
            Err(Stopped::Undone(why)) => self.settle(Some(why)).await,
            Err(Stopped::Later(failure)) => Err(failure),
        };
        match settled {
            Ok(true) => info!(number, attempt, to, took = ?begun.elapsed(), "the bucket has moved"),
            Ok(false) => warn!(number, attempt, to, "the bucket stays where it is"),
            Err(failure) => debug!(number, attempt, to, %failure, "send a bucket to another group"),
        }
    }

    async fn send(&self) -> Result<(), Stopped> {
        let BucketMove { number, attempt, .. } = self.moved;
        // The tap is opened before the run begins: what changes from there on is seen.
        let tap = self.replica.followed.taps.open(BucketNumber(number));
        let begun = self.change::<BeginRun>(BeginRunCommand { number, attempt }).await?;
        if begun.is_frozen {
            return Err(Stopped::Undone(
                "another member leads its group since its changes waited".to_owned(),
            ));
        }
        let mut run = Run { run: begun.run, seq: 0, parts: Parts::new(BucketNumber(number), tap) };
        // Send all there is, and what has changed meanwhile, until little is left.
        loop {
            let part;
            (run, part) = self.read(run).await?;
            let is_rest = part.is_rest;
            self.hand_over(&mut run, part, None).await?;
            if is_rest && self.root_waits().await? {
                break;
            }
        }
        let _ = self.frozen_since.set(Instant::now());
        let freeze = FreezeBucketCommand { number, attempt, run: run.run };
        self.change::<FreezeBucket>(freeze).await?;
        match timeout(FROZEN_MAX, self.send_rest(run)).await {
            Ok(Err(Stopped::Later(failure))) => Err(Stopped::Undone(failure.to_string())),
            Ok(sent) => sent,
            Err(_) => {
                let why =
                    "changes of the bucket waited, and the other group had not taken the last ones within";
                Err(Stopped::Undone(format!("{why} {FROZEN_MAX:?}")))
            }
        }
    }

    /// Whether the root answers, and waits for the end of this attempt: while nobody can settle it, changes
    /// need not wait.
    async fn root_waits(&self) -> Result<bool, Stopped> {
        if let Err(failure) = self.moves.others.groups.check_room(ROOT) {
            debug!(number = self.moved.number, %failure, "changes wait for a root that can settle the move");
            sleep(ROOT_PAUSE).await;
            return Ok(false);
        }
        let Bucket { volume, name: bucket, .. } = self.record()?.bucket.unwrap_or_default();
        let head = HeadBucketRequest { volume, bucket };
        let found =
            self.moves.others.ask(ROOT, head, |mut om, head| async move { om.head_bucket(head).await });
        match found.await {
            Ok(found) => {
                let last = found.last_move.as_ref().and_then(|last| last.moved);
                match found.stage() == BucketStage::BucketMoving && last == Some(self.moved) {
                    true => Ok(true),
                    // The root has settled the attempt, or knows of none, as after a forced reset.
                    false => Err(Stopped::Undone("the root does not wait for it".to_owned())),
                }
            }
            // The root has no such bucket, as after a forced reset.
            Err(failure) if failure.retry == Retry::No => Err(Stopped::Undone(failure.to_string())),
            Err(failure) => {
                debug!(number = self.moved.number, %failure, "ask the root before changes wait");
                sleep(ROOT_PAUSE).await;
                Ok(false)
            }
        }
    }

    /// Sends what is left of the bucket, which changes no more, and its record.
    async fn send_rest(&self, mut run: Run) -> Result<(), Stopped> {
        loop {
            let part;
            (run, part) = self.read(run).await?;
            let is_rest = part.is_rest;
            let record = if is_rest { Some(self.record()?) } else { None };
            self.hand_over(&mut run, part, record).await?;
            if is_rest {
                return Ok(());
            }
        }
    }

    async fn read(&self, mut run: Run) -> Result<(Run, Part), Stopped> {
        let db = self.replica.dbs.current();
        let read = raft::blocking(move || {
            let part = run.parts.next(&db);
            part.map(|part| (run, part))
        });
        let read = read.await.map_err(|error| Failure::internal(format!("read a bucket: {error}")))?;
        read.map_err(|error| Stopped::Undone(format!("{error:#}")))
    }

    fn record(&self) -> Result<BucketRecord, Failure> {
        let record = self.replica.dbs.current().message(&record_key(BucketNumber(self.moved.number)));
        let record = record.map_err(|error| Failure::internal(format!("{error:#}")))?;
        record.ok_or_else(|| Failure::new(Code::NotHere, "the bucket is not here any more"))
    }

    /// Sends a part until the other group has taken it.
    async fn hand_over(
        &self,
        run: &mut Run,
        part: Part,
        record: Option<BucketRecord>,
    ) -> Result<(), Stopped> {
        let Part { rows, requests, bytes, .. } = part;
        if rows.is_empty() && requests.is_empty() && record.is_none() {
            return Ok(());
        }
        let (count, seq) = (rows.len(), run.seq + 1);
        let request =
            ReceiveRowsRequest { moved: Some(self.moved), run: run.run, seq, rows, requests, record };
        let mut retry = Backoff::new(Duration::from_millis(10), Duration::from_millis(500));
        let mut heard = Instant::now();
        loop {
            self.check_goes_on()?;
            let taken = self.moves.others.ask(self.moved.to, request.clone(), |mut om, request| async move {
                om.receive_rows(request).await
            });
            match taken.await.map(|taken| taken.outcome()) {
                Ok(Outcome::Taken) => break,
                Ok(Outcome::Sweeping) => heard = Instant::now(),
                Ok(Outcome::Over) => return Err(over(seq)),
                Err(failure) if failure.retry == Retry::No || heard.elapsed() > PATIENCE => {
                    return Err(Stopped::Undone(failure.to_string()));
                }
                Err(failure) => debug!(number = self.moved.number, %failure, "send a part of a bucket"),
            }
            sleep(retry.pause()).await;
        }
        run.seq = seq;
        self.moves.counts.note_sent(self.moved.number, count, bytes);
        Ok(())
    }

    /// Asks the root what becomes of the attempt, until it has said so and this group has heard it; answers
    /// whether the bucket has moved. The root's first answer counts, and until then nothing is known.
    async fn settle(&self, undone: Option<String>) -> Result<bool, Failure> {
        let Bucket { volume, name: bucket, .. } = self.record()?.bucket.unwrap_or_default();
        let BucketMove { number, attempt, .. } = self.moved;
        let (is_done, why) = (undone.is_none(), undone.unwrap_or_default());
        let request = SettleMoveRequest { volume, bucket, number, attempt, is_done, why };
        let (mut settled, mut ask_at) = (None, Instant::now());
        // Changes may wait for the answer: the pauses stay short.
        let mut retry = Backoff::new(LOOK_EVERY, Duration::from_millis(100));
        while self.check_goes_on().is_ok() {
            // Also after an answer: a root that was reset may have forgotten it, and waits for the question.
            if Instant::now() >= ask_at {
                let answer = self.moves.others.ask(ROOT, request.clone(), |mut om, request| async move {
                    om.settle_move(request).await
                });
                match answer.await {
                    Ok(answer) => {
                        settled = Some(answer.is_done);
                        ask_at = Instant::now() + ASK_AGAIN;
                        if !answer.is_done {
                            self.end().await?;
                        }
                    }
                    Err(failure) => {
                        debug!(number, attempt, %failure, "ask the root what becomes of a move");
                        ask_at = Instant::now() + retry.pause();
                    }
                }
            }
            sleep(LOOK_EVERY).await;
        }
        if let Some(since) = self.frozen_since.get() {
            self.moves.counts.frozen.record_duration(since.elapsed());
        }
        let is_done = settled.ok_or_else(|| Failure::new(Code::NotHere, "others go on with it"))?;
        self.moves.counts.note_outcome(is_done);
        Ok(is_done)
    }

    /// Has the bucket stay, as the root would ask for: a root that was reset knows of no attempt to end. A
    /// bucket that has moved leaves only when the root says so, which asks the other group first whether that
    /// has it.
    async fn end(&self) -> Result<(), Failure> {
        let end = EndMoveRequest { moved: Some(self.moved), is_done: false, fences: 0 };
        self.change::<EndSending>(end).await?;
        let forget = |mut om: OmClient<Channel>, end| async move { om.end_receiving(end).await };
        if let Err(failure) = self.moves.others.ask(self.moved.to, end, forget).await {
            debug!(number = self.moved.number, %failure, "have the other group forget what came");
        }
        Ok(())
    }

    /// Refuses to go on with an attempt that is over, or that others go on with.
    fn check_goes_on(&self) -> Result<(), Failure> {
        self.replica.check_serves(&self.moves.addresses)?;
        let sending = self.replica.dbs.current().message(&sending_key(BucketNumber(self.moved.number)));
        let sending: Option<SendingBucket> =
            sending.map_err(|error| Failure::internal(format!("read what is sent: {error:#}")))?;
        match sending.is_some_and(|sending| sending.moved == Some(self.moved)) {
            true => Ok(()),
            false => Err(Failure::new(Code::NotHere, "the attempt is over")),
        }
    }

    async fn change<O: Operation>(&self, what: O::Request) -> Result<O::Response, Failure> {
        let fresh = Fresh { random: 0, now_ms: self.moves.clock.now_ms() };
        let command = ops::prepare::<O>(RequestId(random().random()), None, what, fresh)?;
        self.replica.change::<O>(command).await
    }
}

/// The end of a run of which the other group takes nothing. One of whose parts it took none is, nearly
/// always, of an attempt that has ended there; where it is a deposed leader's, the attempt is undone for
/// nothing.
fn over(seq: u64) -> Stopped {
    match seq {
        1 => Stopped::Undone("the other group knows this attempt as one that has ended".to_owned()),
        _ => Stopped::Later(Failure::new(Code::NotHere, "another run has begun")),
    }
}
