//! A file: what the running system sees, what the device has, and the changes between the two.

use super::contents::{Contents, Keeping};
use super::page_set::{PageSet, pages_of};
use super::random::Random;
use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The bytes of a sector, which a device writes whole or not at all.
pub(super) const SECTOR_BYTES: u64 = 512;

pub(super) struct Inode {
    pub(super) seen: Contents,
    durable: Contents,
    pending: Vec<Pending>,
}

struct Pending {
    change: Change,
    /// Whether the caller knows that the change is done. A sync that was started before may or may not cover
    /// it.
    delivered: Arc<AtomicBool>,
}

#[derive(Clone)]
pub(super) enum Change {
    /// Bytes inside the length.
    Write {
        offset: u64,
        bytes: Bytes,
    },
    SetLen(u64),
    Allocate(u64),
    PunchHole {
        offset: u64,
        bytes: u64,
    },
}

impl Change {
    fn apply(&self, contents: &mut Contents) {
        match self {
            Change::Write { offset, bytes } => contents.write(*offset, bytes),
            Change::SetLen(len) => contents.set_len(*len),
            Change::Allocate(bytes) => contents.allocate(*bytes),
            Change::PunchHole { offset, bytes } => contents.punch_hole(*offset, *bytes),
        }
    }

    /// Applies a write that may be torn: each sector arrives or does not, and then keeps what it had.
    fn apply_torn(&self, contents: &mut Contents, random: &mut Random) {
        let Change::Write { offset, bytes } = self else { return self.apply(contents) };
        let end = offset + bytes.len() as u64;
        let mut at = *offset;
        while at < end {
            let step = (SECTOR_BYTES - at % SECTOR_BYTES).min(end - at);
            if random.one_in(2) {
                let from = (at - offset) as usize;
                contents.write(at, &bytes[from..from + step as usize]);
            }
            at += step;
        }
    }

    /// Whether the order in which two changes are applied may make a difference.
    fn touches(&self, other: &Change) -> bool {
        match (self, other) {
            (Change::Write { offset: a, bytes: a_bytes }, Change::Write { offset: b, bytes: b_bytes }) => {
                *a < b + b_bytes.len() as u64 && *b < a + a_bytes.len() as u64
            }
            _ => true,
        }
    }
}

/// The changes that a sync brought to the device.
pub(super) struct Flushed {
    /// The bytes that were written, in whole pages.
    pub(super) bytes: u64,
    /// The end of the last write.
    pub(super) end: Option<u64>,
    pub(super) changes: usize,
}

impl Inode {
    pub(super) fn new(keeping: Keeping) -> Inode {
        Inode { seen: Contents::new(keeping), durable: Contents::new(keeping), pending: Vec::new() }
    }

    /// Makes a change, which is visible at once and durable after a sync. `delivered` is to be set when the
    /// caller has been told.
    pub(super) fn change(&mut self, change: Change, delivered: &Arc<AtomicBool>) {
        change.apply(&mut self.seen);
        self.pending.push(Pending { change, delivered: delivered.clone() });
    }

    /// Writes bytes; beyond the end that changes the length first, which is a change of its own.
    pub(super) fn write(&mut self, offset: u64, bytes: Bytes, delivered: &Arc<AtomicBool>) {
        let end = offset + bytes.len() as u64;
        if bytes.is_empty() {
            return;
        }
        if end > self.seen.len() {
            self.change(Change::SetLen(end), delivered);
        }
        self.change(Change::Write { offset, bytes }, delivered);
    }

    /// Syncs the file: everything that was done when the sync began becomes durable; what was under way may.
    pub(super) fn sync(&mut self, own: Option<&Arc<AtomicBool>>, random: &mut Random) -> Flushed {
        let (mut rest, mut dirty, mut last) = (Vec::new(), PageSet::default(), None);
        let pending = std::mem::take(&mut self.pending);
        for (at, one) in pending.iter().enumerate() {
            let done = one.delivered.load(Ordering::Relaxed)
                || own.is_some_and(|own| Arc::ptr_eq(own, &one.delivered));
            let can_wait = matches!(one.change, Change::Write { .. })
                && !pending[at + 1..].iter().any(|later| later.change.touches(&one.change));
            if !done && can_wait && random.one_in(2) {
                rest.push(Pending { change: one.change.clone(), delivered: one.delivered.clone() });
            } else {
                one.change.apply(&mut self.durable);
                if let Change::Write { offset, bytes } = &one.change {
                    let end = offset + bytes.len() as u64;
                    dirty.insert(pages_of(*offset, bytes.len() as u64));
                    last = Some(end);
                }
            }
        }
        let changes = pending.len() - rest.len();
        self.pending = rest;
        Flushed { bytes: dirty.bytes(), end: last, changes }
    }

    /// Has the machine lose power. Metadata goes through a journal, so of its changes the first so many
    /// survive; each write is lost, whole or torn by itself.
    pub(super) fn lose_power(&mut self, loss: &mut Losing) {
        let metadata =
            self.pending.iter().filter(|one| !matches!(one.change, Change::Write { .. })).count() as u64;
        let mut metadata_kept = match loss {
            Losing::All => 0,
            Losing::Nothing => metadata,
            Losing::Random(random) => random.below(metadata + 1),
        };
        for Pending { change, .. } in std::mem::take(&mut self.pending) {
            match (&change, &mut *loss) {
                (Change::Write { .. }, Losing::All) => {}
                (Change::Write { .. }, Losing::Nothing) => change.apply(&mut self.durable),
                (Change::Write { .. }, Losing::Random(random)) => match random.below(3) {
                    0 => {}
                    1 => change.apply(&mut self.durable),
                    _ => change.apply_torn(&mut self.durable, random),
                },
                _ if metadata_kept > 0 => {
                    metadata_kept -= 1;
                    change.apply(&mut self.durable);
                }
                _ => {}
            }
        }
        self.seen = self.durable.clone();
    }

    /// Has a sync fail: the device takes any part of what was to become durable. The kernel goes on showing
    /// all of it, and takes it for written.
    pub(super) fn fail_sync(&mut self, random: &mut Random) {
        let seen = self.seen.clone();
        self.lose_power(&mut Losing::Random(Random::new(random.next_u64())));
        self.seen = seen;
    }

    /// Settles after a sync: what is seen is what the device has, and what is under way.
    pub(super) fn settle(&mut self) {
        self.seen = self.durable.clone();
        self.pending.iter().for_each(|one| one.change.apply(&mut self.seen));
    }

    /// Ends the process that made the changes, and not the kernel: all of them are done.
    pub(super) fn outlive_process(&mut self) {
        self.pending.iter().for_each(|one| one.delivered.store(true, Ordering::Relaxed));
    }

    /// Damages what is stored.
    pub(super) fn flip_bit(&mut self, offset: u64, bit: u8) {
        for contents in [&mut self.seen, &mut self.durable] {
            if let [byte] = *contents.read(offset, 1) {
                contents.write(offset, &[byte ^ (1 << (bit % 8))]);
            }
        }
    }
}

/// The fate of changes that no sync covers when power is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    AllUnsynced,
    Nothing,
    /// Each write is lost, whole, or torn at sectors of 512 bytes; each change of a name is lost or kept; of
    /// the changes of a file's length and space the first so many are kept.
    Random(u64),
}

/// [`Loss`] in the course of being dealt out.
pub(super) enum Losing {
    All,
    Nothing,
    Random(Random),
}

impl From<Loss> for Losing {
    fn from(loss: Loss) -> Losing {
        match loss {
            Loss::AllUnsynced => Losing::All,
            Loss::Nothing => Losing::Nothing,
            Loss::Random(seed) => Losing::Random(Random::new(seed)),
        }
    }
}
