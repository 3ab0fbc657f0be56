//! Watches: events in order, for as long as somebody listens.

use super::feed::{Interest, LOOK_INTERVAL, Told};
use super::reading::{Reader, stopping};
use futures::Stream;
use proto::registry::{Event, WatchResponse};
use proto::{Code, Failure};
use tokio::time::Instant;
use tonic::Status;

/// The most events of one message, of at most 64 KiB and a little each: below the message limit.
const EVENTS_MAX: usize = 256;

/// The position of a watch.
struct Cursor {
    reader: Reader,
    interest: Interest,
    /// The revision up to which all events are told.
    told: u64,
    /// Whether the next message is the first, which says where the watch begins.
    begins: bool,
    is_over: bool,
}

/// Streams the events after the revision `told`, and between them, now and then, just the revision.
pub(super) fn watch(
    reader: Reader,
    interest: Interest,
    told: u64,
) -> impl Stream<Item = Result<WatchResponse, Status>> {
    let cursor = Cursor { reader, interest, told, begins: true, is_over: false };
    futures::stream::unfold(cursor, async |mut cursor| {
        if cursor.is_over {
            return None;
        }
        let next = cursor.next().await;
        cursor.is_over = next.is_err();
        Some((next.map_err(Status::from), cursor))
    })
}

impl Cursor {
    async fn next(&mut self) -> Result<WatchResponse, Failure> {
        if !std::mem::take(&mut self.begins) {
            let silent_until = Instant::now() + LOOK_INTERVAL;
            let changed = self.reader.feed.changed(self.told, &self.interest, silent_until);
            let stop = self.reader.stop.clone();
            stop.run_until_cancelled(changed).await.ok_or_else(stopping)??;
        }
        match self.reader.feed.after(self.told, &self.interest, EVENTS_MAX) {
            Told::Compacted { forgotten } => Err(compacted(self.told + 1, forgotten)),
            Told::Events { events, revision } => {
                if events.is_empty() {
                    self.check_led()?;
                }
                self.told = revision;
                let events = events.iter().map(|event| Event::clone(event)).collect();
                Ok(WatchResponse { revision, events })
            }
        }
    }

    /// Refuses to go on where no leader is known. A member that is cut off has nothing to tell and does not
    /// know it: whoever watches is better served by another.
    fn check_led(&self) -> Result<(), Failure> {
        let status = self.reader.leadership.group()?.status();
        match status.leader.filter(|_| !status.is_removed) {
            Some(_) => Ok(()),
            None => Err(Failure::new(Code::Unavailable, "this member of SCM knows no leader")),
        }
    }
}

pub(super) fn compacted(asked: u64, forgotten: u64) -> Failure {
    let message = format!("events up to revision {forgotten} are forgotten, {asked} among them: list again");
    Failure::new(Code::Compacted, message)
}
