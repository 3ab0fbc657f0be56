//! The way of changes into a group's log: what waits while others are under way goes together, as one entry.
//! The busier a group is, the less each change costs.

use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use prost::Message;
use proto::om::{OmCommand, OmEntry, OmReplies, OmReply};
use proto::{Code, Failure};
use raft::{AddressBook, Command, Group};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Entries under way at a time: while the disks write one, the next is made.
const UNDER_WAY_MAX: usize = 2;
/// The limits of an entry: some hundred changes, and far below what a Raft command may have. A larger change
/// goes alone.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// The most commands of an entry: applying as many takes some milliseconds of a thread on which other tasks
/// wait.
const ENTRY_COMMANDS_MAX: usize = 256;
/// The bytes of changes that wait or are under way, of all groups of an OM; more are told to come again.
pub(crate) const WAITING_BYTES_MAX: usize = 64 << 20;

pub(crate) struct ChangeQueue {
    queue: mpsc::UnboundedSender<Queued>,
    room: Arc<Semaphore>,
    task: JoinHandle<()>,
}

/// A change that waits, encoded as an entry of its own.
struct Queued {
    entry: Bytes,
    answer: oneshot::Sender<Result<OmReply, Failure>>,
    _room: OwnedSemaphorePermit,
}

impl Drop for ChangeQueue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ChangeQueue {
    pub(crate) fn new(group: Group, addresses: AddressBook, room: Arc<Semaphore>) -> ChangeQueue {
        let (queue, waiting) = mpsc::unbounded_channel();
        let task = tokio::spawn(run(group, addresses, waiting));
        ChangeQueue { queue, room, task }
    }

    /// Puts a command into the log; resolves when it is applied. Whoever stops waiting takes it back at most
    /// while it is in the queue.
    pub(crate) async fn apply(&self, command: OmCommand) -> Result<OmReply, Failure> {
        let entry = Bytes::from(OmEntry { commands: vec![command] }.encode_to_vec());
        let bytes = u32::try_from(entry.len()).unwrap_or(u32::MAX);
        let room = self.room.clone().try_acquire_many_owned(bytes);
        let room = room.map_err(|_| Failure::new(Code::Busy, "too many changes are under way"))?;
        let (answer, answered) = oneshot::channel();
        let stopped = || Failure::new(Code::Unavailable, "this replica is being closed");
        self.queue.send(Queued { entry, answer, _room: room }).map_err(|_| stopped())?;
        // The task ends with the group, and what it had proposed may be applied yet.
        answered.await.unwrap_or_else(|_| Err(Failure::new(Code::OutcomeUnknown, "this replica was closed")))
    }
}

/// Makes entries of what waits until the queue is dropped.
async fn run(group: Group, addresses: AddressBook, mut waiting: mpsc::UnboundedReceiver<Queued>) {
    let mut under_way = FuturesUnordered::new();
    let mut gathered = Vec::new();
    loop {
        tokio::select! {
            biased;
            Some(()) = under_way.next() => {}
            count = waiting.recv_many(&mut gathered, ENTRY_COMMANDS_MAX), if under_way.len() < UNDER_WAY_MAX => {
                if count == 0 {
                    break;
                }
                under_way.push(propose(&group, &addresses, std::mem::take(&mut gathered)));
            }
        }
    }
    while under_way.next().await.is_some() {}
}

/// Proposes what has gathered, in the order in which it came, and answers.
async fn propose(group: &Group, addresses: &AddressBook, gathered: Vec<Queued>) {
    // A change whose sender has gone is left out: the sender sends it again, or never will.
    let mut rest = gathered.into_iter().filter(|queued| !queued.answer.is_closed()).peekable();
    while let Some(first) = rest.next() {
        let mut bytes = first.entry.len();
        let mut together = vec![first];
        while let Some(next) = rest.next_if(|next| bytes + next.entry.len() <= ENTRY_BYTES_MAX) {
            bytes += next.entry.len();
            together.push(next);
        }
        propose_one(group, addresses, bytes, together).await;
    }
}

async fn propose_one(group: &Group, addresses: &AddressBook, bytes: usize, together: Vec<Queued>) {
    let meta = match &together[..] {
        [alone] => alone.entry.clone(),
        many => {
            let mut entry = BytesMut::with_capacity(bytes);
            many.iter().for_each(|queued| entry.extend_from_slice(&queued.entry));
            entry.freeze()
        }
    };
    let applied = group.apply(Command { meta, ..Command::default() }).await;
    let replies = applied
        .map_err(|error| error.into_failure(addresses))
        .and_then(|done| replies(done.reply, together.len()));
    match replies {
        Ok(replies) => {
            for (queued, reply) in together.into_iter().zip(replies) {
                let _ = queued.answer.send(Ok(reply));
            }
        }
        Err(failure) => {
            for queued in together {
                let _ = queued.answer.send(Err(failure.clone()));
            }
        }
    }
}

/// The replies to the commands of an entry.
pub(crate) fn replies(reply: Bytes, count: usize) -> Result<Vec<OmReply>, Failure> {
    let replies = OmReplies::decode(reply)
        .map_err(|error| Failure::internal(format!("decode the replies: {error}")))?
        .replies;
    match replies.len() == count {
        true => Ok(replies),
        false => Err(Failure::internal(format!("{} replies to {count} commands", replies.len()))),
    }
}

/// The commands of an entry. An entry of an earlier release is one bare command.
pub(crate) fn commands(meta: Bytes) -> Result<Vec<OmCommand>, prost::DecodeError> {
    let commands = OmEntry::decode(meta.clone())?.commands;
    match commands.is_empty() {
        true => Ok(vec![OmCommand::decode(meta)?]),
        false => Ok(commands),
    }
}
