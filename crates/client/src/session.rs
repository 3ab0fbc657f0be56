use crate::channels::Channels;
use crate::outbox::Outbox;
use crate::stream::{Event, Health, Outgoing};
use futures::FutureExt;
use futures::future::BoxFuture;
use proto::datanode::{Ack, WriteAck, WriteChunk};
use proto::messages::{self, Messages};
use proto::{Code, Failure, Retry};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;
use types::{Nonce, PipelineId};

/// The connection that the chunks of one pipeline go over.
pub(crate) struct Session {
    pipeline: PipelineId,
    orders: mpsc::Receiver<Outgoing>,
    /// Whether no more orders will come.
    orders_closed: bool,
    health: Arc<Health>,
    stall: Duration,
    channels: Channels,
    outbox: Outbox,
    /// Whether the current or last connection has brought an acknowledgement.
    acknowledged: bool,
}

/// The reason why a connection was given up.
#[derive(Debug)]
pub(crate) enum SessionEnd {
    /// Nothing was under way.
    Idle,
    Broken(Failure),
    Stalled,
}

/// The most chunks that are handed to the transport and not yet taken by it.
const WIRE_QUEUE_MAX: usize = 4;

impl Session {
    pub(crate) fn new(
        pipeline: PipelineId,
        orders: mpsc::Receiver<Outgoing>,
        health: Arc<Health>,
        stall: Duration,
        channels: Channels,
    ) -> Session {
        Session {
            pipeline,
            orders,
            orders_closed: false,
            health,
            stall,
            channels,
            outbox: Outbox::default(),
            acknowledged: false,
        }
    }

    pub(crate) fn pipeline(&self) -> PipelineId {
        self.pipeline
    }

    pub(crate) fn was_acknowledged(&self) -> bool {
        self.acknowledged
    }

    /// Waits until there is something to send; false when there never will be.
    pub(crate) async fn wait_for_work(&mut self) -> bool {
        loop {
            self.outbox.connection_ended();
            if !self.outbox.is_empty() {
                return true;
            }
            match self.orders.recv().await {
                Some(outgoing) => self.outbox.push(outgoing),
                None => return false,
            }
        }
    }

    /// Runs one connection, until it breaks or stalls, or a chunk is answered with a failure that a new try
    /// may mend.
    pub(crate) async fn run(&mut self, cluster: &str, address: &str) -> SessionEnd {
        self.acknowledged = false;
        let (to_wire, wire) = mpsc::channel::<WriteChunk>(WIRE_QUEUE_MAX);
        let channel = match self.channels.to(address) {
            Ok(channel) => channel,
            Err(failure) => return SessionEnd::Broken(failure),
        };
        let cluster = cluster.to_owned();
        let chunks = ReceiverStream::new(wire);
        let open = async move { messages::call(channel, messages::WRITE, &cluster, chunks).await }.boxed();
        let end = self.run_open(open, to_wire).await;
        if !end.is_idle() {
            // New blocks look elsewhere until something is acknowledged here again.
            self.health.avoid(self.stall);
        }
        end
    }

    async fn run_open(
        &mut self,
        mut open: BoxFuture<'static, Result<Messages<WriteAck>, Status>>,
        to_wire: mpsc::Sender<WriteChunk>,
    ) -> SessionEnd {
        let mut acks: Option<Messages<WriteAck>> = None;
        // The time since which somebody has been waiting for an answer.
        let mut waiting_since = Instant::now();
        loop {
            if self.orders_closed && self.outbox.is_empty() {
                return SessionEnd::Idle;
            }
            let held_until = self.outbox.held_until();
            let is_open = acks.is_some();
            let ack = async {
                match &mut acks {
                    Some(acks) => acks.message().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                answer = &mut open, if !is_open => match answer {
                    Ok(opened) => acks = Some(opened),
                    Err(status) => return SessionEnd::Broken(status.into()),
                },
                ack = ack => match ack {
                    Ok(Some(ack)) => {
                        waiting_since = Instant::now();
                        if let Err(failure) = self.answered(ack) {
                            return SessionEnd::Broken(failure);
                        }
                    }
                    Ok(None) if self.outbox.is_empty() => return SessionEnd::Idle,
                    Ok(None) => return SessionEnd::Broken(Failure::new(Code::Unavailable, "the write stream ended")),
                    Err(_) if self.outbox.is_empty() => return SessionEnd::Idle,
                    Err(status) => return SessionEnd::Broken(status.into()),
                },
                () = tokio::time::sleep_until(held_until.unwrap_or_else(Instant::now)), if held_until.is_some() => {
                    self.outbox.release();
                }
                room = to_wire.reserve(), if self.outbox.has_unsent() && held_until.is_none() => match room {
                    Ok(room) => {
                        if !self.outbox.is_on_wire() {
                            waiting_since = Instant::now();
                        }
                        if let Some(outgoing) = self.outbox.send() {
                            room.send(outgoing.message(self.pipeline));
                        }
                    }
                    Err(_) => return SessionEnd::Broken(Failure::new(Code::Unavailable, "the write stream was refused")),
                },
                // What is not yet sent waits in the bounded queue of orders.
                order = self.orders.recv(), if !self.orders_closed && !self.outbox.has_unsent() => match order {
                    Some(outgoing) => self.outbox.push(outgoing),
                    None => self.orders_closed = true,
                },
                () = tokio::time::sleep_until(waiting_since + self.stall), if self.outbox.is_on_wire() => return SessionEnd::Stalled,
            }
        }
    }

    /// Hands an answer to its writer. `Err` when everything should be sent again on a new connection.
    fn answered(&mut self, ack: WriteAck) -> Result<(), Failure> {
        let nonce = proto::bytes16(&ack.nonce, "nonce").map(|bytes| Nonce(u128::from_be_bytes(bytes)))?;
        if let Some(error) = ack.error {
            return self.answered_failure(nonce, ack.seq, error.into());
        }
        let Some(outgoing) = self.outbox.answered(nonce, ack.seq) else {
            return Ok(()); // of a block that failed before
        };
        self.acknowledged = true;
        self.health.good();
        let on_all = ack.reached() == Ack::All;
        let Some(block) = ack.block else {
            let failure = Failure::internal(format!("an acknowledgement of {nonce:?} names no block"));
            self.outbox.forget_block(nonce);
            let _ = outgoing.events.try_send(Event::Failed(failure));
            return Ok(());
        };
        // The writer never has more chunks under way than its queue has places; a writer that is gone hears
        // nothing.
        let _ = outgoing.events.try_send(Event::Acked {
            seq: ack.seq,
            block: block.into(),
            length: ack.length,
            commit_index: ack.commit_index,
            on_all,
        });
        Ok(())
    }

    fn answered_failure(&mut self, nonce: Nonce, seq: u32, failure: Failure) -> Result<(), Failure> {
        let try_again = match failure.code {
            // Nothing was proposed, and what else is under way is on its way: only this chunk goes again,
            // later.
            Code::Busy => {
                self.outbox.refused(nonce, seq);
                self.health.avoid(self.stall);
                return Ok(());
            }
            Code::NotLeader | Code::Unavailable | Code::OutcomeUnknown | Code::NotYet => true,
            // The pipeline may not be open yet on this member, or this member is not in it any more.
            Code::NotFound => true,
            Code::Closed | Code::DiskFull | Code::DiskFailed => false,
            _ => failure.retry == Retry::Here,
        };
        let Some(outgoing) = self.outbox.answered(nonce, seq) else {
            return Ok(()); // of a block that failed before
        };
        if try_again {
            self.outbox.take_back(outgoing);
            return Err(failure);
        }
        self.outbox.forget_block(nonce);
        let _ = outgoing.events.try_send(Event::Failed(failure));
        Ok(())
    }
}

impl SessionEnd {
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self, SessionEnd::Idle)
    }

    /// The address at which the peer says the leader is.
    pub(crate) fn leader(&self) -> Option<String> {
        match self {
            SessionEnd::Broken(failure) if failure.code == Code::NotLeader => failure.leader_address.clone(),
            _ => None,
        }
    }
}

impl fmt::Display for SessionEnd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SessionEnd::Idle => write!(f, "idle"),
            SessionEnd::Broken(failure) => write!(f, "{failure}"),
            SessionEnd::Stalled => write!(f, "no acknowledgement within the stall time"),
        }
    }
}
