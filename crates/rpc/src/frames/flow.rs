use super::head::{DATA_BYTES_MAX, Malformed};

/// The bytes that a frame of data takes of the windows besides its own: about what it takes in memory.
/// Without it a peer could fill memory with frames of one byte.
pub(super) const FRAME_COST: u32 = 64;

/// The bytes of a small message: a piece of a chunk that has a checksum, with all that goes with it.
const SMALL_MESSAGE_BYTES: u32 = 66 << 10;

/// Room for data, of a call or of all on a connection: what may be sent, and what may come.
#[derive(Debug)]
pub(super) struct Flow {
    /// The bytes that may be sent.
    credit: u32,
    /// The bytes that may be sent once the peer has taken all.
    credit_max: u32,
    /// The bytes that may come.
    window: u32,
    /// The bytes that may come once all was taken here.
    window_max: u32,
    /// The bytes that were taken here and are not yet given back.
    owed: u32,
}

impl Flow {
    pub(super) fn new(window: u32, credit: u32) -> Flow {
        Flow { credit, credit_max: credit, window, window_max: window, owed: 0 }
    }

    /// The most bytes of `wanted` that one frame may have now. A frame that fits into half the window waits
    /// until it can go in one piece: a peer that has taken all that was sent has said so by then.
    pub(super) fn sendable(&self, wanted: u32) -> Option<u32> {
        let whole = wanted + FRAME_COST;
        let may_go = self.credit >= whole || whole > self.credit_max / 2 && self.credit > FRAME_COST;
        may_go.then(|| wanted.min(self.credit.saturating_sub(FRAME_COST)))
    }

    /// Whether a small message may be sent as a whole, or half of the window if that is less. A peer that has
    /// taken all that was sent has given back so much.
    pub(super) fn has_room(&self) -> bool {
        self.credit >= SMALL_MESSAGE_BYTES.min(self.credit_max / 2)
    }

    /// Notes that a frame of so many bytes is sent.
    pub(super) fn sent(&mut self, bytes: u32) {
        self.credit -= bytes + FRAME_COST;
    }

    pub(super) fn more_credit(&mut self, bytes: u32) -> Result<(), Malformed> {
        let credit = self.credit.checked_add(bytes).filter(|credit| *credit <= i32::MAX as u32);
        self.credit = credit.ok_or(Malformed::Window)?;
        Ok(())
    }

    /// The bytes that came and were not taken here.
    pub(super) fn untaken(&self) -> u32 {
        self.window_max - self.window - self.owed
    }

    /// Notes that something came that takes so much of the window.
    pub(super) fn came(&mut self, cost: u32) -> Result<(), Malformed> {
        self.window = self.window.checked_sub(cost).ok_or(Malformed::Window)?;
        Ok(())
    }

    /// Notes that so much of what came was taken. Answers what is to be given back now: half of the window,
    /// or anything where the peer may be waiting for it. (Of a connection's window calls that nobody reads
    /// may hold the rest.)
    pub(super) fn taken(&mut self, cost: u32) -> Option<u32> {
        self.owed += cost;
        let is_due = self.owed >= self.window_max / 2 || self.window < DATA_BYTES_MAX as u32 + FRAME_COST;
        if !is_due {
            return None;
        }
        let owed = std::mem::take(&mut self.owed);
        self.window += owed;
        Some(owed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1 << 20;

    #[test]
    fn a_frame_goes_in_one_piece_where_it_can_and_in_parts_where_the_window_is_small() {
        let mut large = Flow::new(0, 4 * MIB);
        assert_eq!(large.sendable(MIB), Some(MIB));
        for _ in 0..3 {
            large.sent(MIB);
        }
        assert_eq!(large.sendable(MIB), None, "it waits for the rest of its room");
        assert_eq!(large.sendable(MIB / 2), Some(MIB / 2));
        large.more_credit(4 * FRAME_COST).unwrap();
        assert_eq!(large.sendable(MIB), Some(MIB));
        let mut small = Flow::new(0, MIB);
        assert_eq!(small.sendable(MIB), Some(MIB - FRAME_COST));
        small.sent(MIB - FRAME_COST);
        assert_eq!(small.sendable(1), None);
        small.more_credit(FRAME_COST + 1).unwrap();
        assert_eq!(small.sendable(MIB), Some(1));
    }

    #[test]
    fn what_comes_next_is_asked_for_once_a_small_message_has_room() {
        let mut small = Flow::new(0, 68 << 10);
        assert!(small.has_room());
        small.sent(64 << 10);
        assert!(!small.has_room());
        small.more_credit((64 << 10) + FRAME_COST).unwrap();
        assert!(small.has_room());
        let mut large = Flow::new(0, MIB);
        large.sent(MIB - 2 * FRAME_COST - SMALL_MESSAGE_BYTES);
        assert!(large.has_room());
        large.sent(FRAME_COST);
        assert!(!large.has_room());
    }

    #[test]
    fn room_is_given_back_by_halves_and_at_once_where_a_frame_might_wait() {
        let mut large = Flow::new(16 * MIB, 0);
        large.came(8 * MIB).unwrap();
        assert_eq!((large.untaken(), large.taken(8 * MIB - 1)), (8 * MIB, None));
        assert_eq!((large.untaken(), large.taken(1), large.untaken()), (1, Some(8 * MIB), 0));
        large.came(16 * MIB).unwrap();
        assert_eq!(large.came(1), Err(Malformed::Window));
        assert_eq!(large.taken(65), Some(65));
    }

    #[test]
    fn credit_has_an_end() {
        let mut flow = Flow::new(0, 5);
        assert_eq!(flow.more_credit(i32::MAX as u32), Err(Malformed::Window));
        assert_eq!(flow.more_credit(u32::MAX), Err(Malformed::Window));
        assert_eq!(flow.more_credit(i32::MAX as u32 - 5), Ok(()));
    }
}
