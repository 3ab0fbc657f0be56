use crate::stream::Outgoing;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use tokio::time::Instant;
use types::{Backoff, Nonce};

/// The chunks of one pipeline that are not acknowledged, and where each of them is.
///
/// ```text
///            send                answered: acknowledged, or its block failed
///  unsent ----------> on wire ----------------------------------------------> its writer
///    ^                   | refused: the node is busy
///    +------ held <------+
///   release
/// ```
///
/// A block whose chunk was refused is held as a whole: chunks of a block are taken in their order only, and
/// those behind the refused one on the wire are refused like it. It goes on when all of them are answered,
/// and not before the pause is over.
#[derive(Default)]
pub(crate) struct Outbox {
    /// Chunks in the order in which they are to be sent.
    unsent: VecDeque<Outgoing>,
    /// Chunks in the order in which they were sent.
    on_wire: VecDeque<Outgoing>,
    held: BTreeMap<Nonce, HeldBlock>,
    /// The end of the pause in which nothing is sent, as the node is busy.
    held_until: Option<Instant>,
    /// The pauses while the node stays busy; none since a chunk was answered.
    pauses: Option<Backoff>,
}

#[derive(Default)]
struct HeldBlock {
    /// The chunks in the order of the block.
    chunks: VecDeque<Outgoing>,
    /// The number of the block's chunks that are on the wire and not answered yet.
    on_wire: usize,
}

/// The pauses of a busy node: the first is a few rounds of group commit. A node that stays busy is asked less
/// and less often, and four times at least before a writer that hears nothing goes elsewhere.
const PAUSES: Backoff = Backoff::new(Duration::from_millis(20), Duration::from_millis(500));

impl Outbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.unsent.is_empty() && self.on_wire.is_empty() && self.held.is_empty()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    pub(crate) fn is_on_wire(&self) -> bool {
        !self.on_wire.is_empty()
    }

    pub(crate) fn held_until(&self) -> Option<Instant> {
        self.held_until
    }

    pub(crate) fn push(&mut self, outgoing: Outgoing) {
        match self.held.get_mut(&outgoing.nonce) {
            Some(block) => block.chunks.push_back(outgoing),
            None => self.unsent.push_back(outgoing),
        }
    }

    /// The next chunk to send, which is on the wire from here on. Chunks whose writer went on elsewhere are
    /// nobody's.
    pub(crate) fn send(&mut self) -> Option<&Outgoing> {
        let outgoing = loop {
            let outgoing = self.unsent.pop_front()?;
            if !outgoing.events.is_closed() {
                break outgoing;
            }
        };
        self.on_wire.push_back(outgoing);
        self.on_wire.back()
    }

    /// A chunk that was sent and is answered now, for good; `None` when nobody waits for it.
    pub(crate) fn answered(&mut self, nonce: Nonce, seq: u32) -> Option<Outgoing> {
        let outgoing = self.take_from_wire(nonce, seq)?;
        self.pauses = None;
        if let Some(block) = self.held.get_mut(&nonce) {
            block.on_wire -= 1;
            self.release_block(nonce);
        }
        Some(outgoing)
    }

    /// A chunk that the node has no room for now.
    pub(crate) fn refused(&mut self, nonce: Nonce, seq: u32) {
        let Some(outgoing) = self.take_from_wire(nonce, seq) else { return };
        if self.held_until.is_none() {
            let pause = self.pauses.get_or_insert(PAUSES).pause();
            self.held_until = Some(Instant::now() + pause);
        }
        match self.held.get_mut(&nonce) {
            Some(block) => {
                block.on_wire -= 1;
                let at = block.chunks.partition_point(|chunk| chunk.seq < seq);
                block.chunks.insert(at, outgoing);
            }
            None => {
                let on_wire = self.on_wire.iter().filter(|chunk| chunk.nonce == nonce).count();
                let (of_block, others) = std::mem::take(&mut self.unsent)
                    .into_iter()
                    .partition::<VecDeque<_>, _>(|chunk| chunk.nonce == nonce);
                self.unsent = others;
                let chunks = std::iter::once(outgoing).chain(of_block).collect();
                self.held.insert(nonce, HeldBlock { chunks, on_wire });
            }
        }
    }

    /// Ends the pause: blocks whose chunks are all answered go on.
    pub(crate) fn release(&mut self) {
        self.held_until = None;
        let blocks: Vec<Nonce> = self.held.keys().copied().collect();
        blocks.into_iter().for_each(|nonce| self.release_block(nonce));
    }

    fn release_block(&mut self, nonce: Nonce) {
        let is_due = self.held_until.is_none() && self.held.get(&nonce).is_some_and(|it| it.on_wire == 0);
        if is_due && let Some(block) = self.held.remove(&nonce) {
            // The chunks of a held block have waited longer than what was never sent.
            block.chunks.into_iter().rev().for_each(|chunk| self.unsent.push_front(chunk));
        }
    }

    /// Takes back a chunk whose answer says that the connection is of no more use: everything goes again.
    pub(crate) fn take_back(&mut self, outgoing: Outgoing) {
        self.on_wire.push_front(outgoing);
    }

    pub(crate) fn forget_block(&mut self, nonce: Nonce) {
        self.unsent.retain(|chunk| chunk.nonce != nonce);
        self.on_wire.retain(|chunk| chunk.nonce != nonce);
        self.held.remove(&nonce);
    }

    /// Notes that the connection has ended: everything is to be sent on another one, as nobody knows what
    /// became of the chunks on the wire. Chunks whose writer went on elsewhere are nobody's.
    pub(crate) fn connection_ended(&mut self) {
        let Outbox { unsent, on_wire, held, .. } = std::mem::take(self);
        let sent = on_wire.into_iter().map(|chunk| Outgoing { again: true, ..chunk });
        let held = held.into_values().flat_map(|block| block.chunks);
        let all = sent.chain(held).chain(unsent).filter(|chunk| !chunk.events.is_closed());
        self.unsent = all.collect();
        // Each block in its order; the blocks in any.
        self.unsent.make_contiguous().sort_by_key(|chunk| chunk.seq);
    }

    fn take_from_wire(&mut self, nonce: Nonce, seq: u32) -> Option<Outgoing> {
        let at = self.on_wire.iter().position(|chunk| chunk.nonce == nonce && chunk.seq == seq)?;
        self.on_wire.remove(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Chunk;
    use std::sync::Arc;
    use tokio::sync::{Semaphore, mpsc};
    use types::Payload;

    struct Bench {
        outbox: Outbox,
        room: Arc<Semaphore>,
        writers: Vec<mpsc::Receiver<crate::stream::Event>>,
    }

    impl Bench {
        fn new() -> Bench {
            Bench { outbox: Outbox::default(), room: Arc::new(Semaphore::new(1000)), writers: Vec::new() }
        }

        fn push(&mut self, nonce: u128, seq: u32) {
            let (events, writer) = mpsc::channel(1);
            self.writers.push(writer);
            let chunk = Chunk { payload: Payload::default(), last: false };
            let share = self.room.clone().try_acquire_owned().unwrap();
            self.outbox.push(Outgoing {
                nonce: Nonce(nonce),
                seq,
                offset: 0,
                chunk,
                seal: false,
                ack_all_within: None,
                again: false,
                events,
                _share: share,
            });
        }

        /// Sends all that may be sent.
        fn send_all(&mut self) -> Vec<(u128, u32, bool)> {
            let mut sent = Vec::new();
            while self.outbox.has_unsent() && self.outbox.held_until().is_none() {
                let chunk = self.outbox.send().unwrap();
                sent.push((chunk.nonce.0, chunk.seq, chunk.again));
            }
            sent
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_refused_goes_again_in_its_order_and_nothing_else_does() {
        let mut bench = Bench::new();
        for (nonce, seq) in [(1, 0), (2, 0), (1, 1), (2, 1), (1, 2)] {
            bench.push(nonce, seq);
        }
        assert_eq!(bench.send_all().len(), 5);
        bench.outbox.refused(Nonce(1), 1);
        let pause = bench.outbox.held_until().unwrap() - Instant::now();
        assert_eq!(pause, PAUSES.next_pause());
        // Its writer goes on.
        bench.push(1, 3);
        bench.push(2, 2);
        assert_eq!(bench.send_all(), [], "while the node is busy");
        bench.outbox.release();
        assert_eq!(bench.send_all(), [(2, 2, false)], "chunk 2 of the refused block is not answered");
        assert!(bench.outbox.answered(Nonce(2), 0).is_some());
        bench.outbox.refused(Nonce(1), 2);
        bench.outbox.release();
        assert_eq!(bench.send_all(), [], "nor is its chunk 0");
        assert!(bench.outbox.answered(Nonce(1), 0).is_some());
        assert_eq!(bench.send_all(), [(1, 1, false), (1, 2, false), (1, 3, false)]);
        assert!(bench.outbox.answered(Nonce(1), 0).is_none(), "once");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_stays_busy_is_asked_less_and_less_often() {
        let mut bench = Bench::new();
        bench.push(1, 0);
        let mut pauses = Vec::new();
        for _ in 0..7 {
            assert_eq!(bench.send_all().len(), 1);
            bench.outbox.refused(Nonce(1), 0);
            pauses.push((bench.outbox.held_until().unwrap() - Instant::now()).as_millis());
            bench.outbox.release();
        }
        assert_eq!(pauses, [20, 40, 80, 160, 320, 500, 500]);
    }

    #[tokio::test]
    async fn after_a_broken_connection_what_was_on_it_goes_again_and_says_so() {
        let mut bench = Bench::new();
        for (nonce, seq) in [(1, 0), (1, 1), (1, 2), (2, 0)] {
            bench.push(nonce, seq);
        }
        bench.send_all();
        bench.push(1, 3);
        bench.outbox.refused(Nonce(1), 1);
        bench.outbox.refused(Nonce(2), 0);
        // The writer of the other block went on elsewhere.
        bench.writers.remove(3);
        bench.outbox.connection_ended();
        let again = [(1, 0, true), (1, 1, false), (1, 2, true), (1, 3, false)];
        assert_eq!(bench.send_all(), again);
    }

    #[tokio::test]
    async fn a_block_that_failed_is_forgotten_wherever_its_chunks_are() {
        let mut bench = Bench::new();
        for (nonce, seq) in [(1, 0), (1, 1), (2, 0)] {
            bench.push(nonce, seq);
        }
        bench.send_all();
        bench.push(1, 2);
        bench.outbox.refused(Nonce(1), 1);
        bench.outbox.forget_block(Nonce(1));
        bench.outbox.release();
        assert_eq!(bench.send_all(), []);
        assert!(bench.outbox.answered(Nonce(1), 0).is_none());
        assert!(bench.outbox.answered(Nonce(2), 0).is_some());
        assert!(bench.outbox.is_empty());
    }
}
