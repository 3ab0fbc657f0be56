//! Records and slots written down from docs/format alone: a second opinion on what the engine's own decoder
//! accepts.

use disk::sim::Random;

pub(crate) const HEADER_BYTES: usize = 72;
pub(crate) const SLOT_BYTES: usize = 512;
pub(crate) const INDEX_HEADER_BYTES: usize = 64;

/// A record's fields as they stand in its bytes, whatever they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: u8,
    pub(crate) flags: u16,
    pub(crate) log: u64,
    pub(crate) owner: u64,
    pub(crate) term: u64,
    pub(crate) index: u64,
    pub(crate) next_owner: u64,
    pub(crate) offset: u64,
    pub(crate) segment: u32,
    pub(crate) meta: Vec<u8>,
    pub(crate) body: Vec<u8>,
}

impl Record {
    pub(crate) fn random(random: &mut Random) -> Record {
        let flags = random.below(2) as u16;
        let body_bytes = *random.pick(&[0, 1, 7, 8, 100, 3000, 65_535, 65_536, 65_537, 140_000]);
        let meta_bytes = *random.pick(&[0, 1, 4, 8, 300]);
        Record {
            kind: random.next_u64() as u8,
            flags,
            log: random.below(3),
            owner: random.below(5),
            term: random.below(9),
            index: random.next_u64() >> random.below(64),
            next_owner: if flags == 1 { random.below(9) } else { 0 },
            offset: random.below(1 << 20) * 8,
            segment: random.below(4) as u32,
            meta: bytes(random, meta_bytes),
            body: bytes(random, body_bytes),
        }
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = b"FLog\x01".to_vec();
        out.push(self.kind);
        out.extend(self.flags.to_le_bytes());
        for field in [self.log, self.owner, self.term, self.index, self.next_owner, self.offset] {
            out.extend(field.to_le_bytes());
        }
        for field in [self.segment, self.meta.len() as u32, self.body.len() as u32, 0] {
            out.extend(field.to_le_bytes());
        }
        out.extend(self.body.chunks(65_536).flat_map(|piece| crc32c::crc32c(piece).to_le_bytes()));
        out.extend(&self.meta);
        let crc = head_crc(&out);
        out[68..72].copy_from_slice(&crc.to_le_bytes());
        out.extend(&self.body);
        out.resize(out.len().next_multiple_of(8), 0);
        out
    }
}

fn bytes(random: &mut Random, count: usize) -> Vec<u8> {
    (0..count.div_ceil(8)).flat_map(|_| random.next_u64().to_le_bytes()).take(count).collect()
}

fn head_crc(head: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&head[..68]), &head[72..])
}

pub(crate) fn field(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Makes the checksums of the record at the start of the bytes fit what it says of itself, as far as it is
/// there.
pub(crate) fn fit_record(bytes: &mut [u8]) {
    if bytes.len() < HEADER_BYTES {
        return;
    }
    let (meta_bytes, body_bytes) = (field(bytes, 60), field(bytes, 64));
    let meta_at = HEADER_BYTES + 4 * body_bytes.div_ceil(65_536);
    let (body_at, end) = (meta_at + meta_bytes, meta_at + meta_bytes + body_bytes);
    if end <= bytes.len() {
        let pieces = bytes[body_at..end].chunks(65_536);
        let sums: Vec<u8> = pieces.flat_map(|piece| crc32c::crc32c(piece).to_le_bytes()).collect();
        bytes[HEADER_BYTES..meta_at].copy_from_slice(&sums);
    }
    if body_at <= bytes.len() {
        let crc = head_crc(&bytes[..body_at]);
        bytes[68..72].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Whether the checksums of the record at the start of the bytes fit.
pub(crate) fn fits(bytes: &[u8]) -> bool {
    let mut fitted = bytes.to_vec();
    fit_record(&mut fitted);
    fitted == bytes
}

pub(crate) fn fit_slot(slot: &mut [u8]) {
    if slot.len() >= SLOT_BYTES {
        let crc = crc32c::crc32c(&slot[..508]);
        slot[508..512].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The first block of a segment's index, docs/format/segment-index.md.
pub(crate) fn fit_index(bytes: &mut [u8]) {
    let end = INDEX_HEADER_BYTES + 8 * field(bytes, 52);
    if let Some(block) = bytes.get_mut(..end) {
        let crc = crc32c::crc32c_append(crc32c::crc32c(&block[..60]), &block[INDEX_HEADER_BYTES..]);
        block[60..64].copy_from_slice(&crc.to_le_bytes());
    }
}

/// The part of a slot that checks which recovery must keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Slot {
    pub(crate) sequence: u64,
    pub(crate) log: u64,
    pub(crate) vote: Option<(u64, u64, bool)>,
    /// Term and index.
    pub(crate) purged: Option<(u64, u64)>,
    pub(crate) durable: Option<(u64, u64)>,
    /// Owner and segment of the start, and of the newest segment.
    pub(crate) start: (u64, u32),
    pub(crate) begun: Option<(u64, u32)>,
}

/// The slot of a file that counts.
pub(crate) fn newest_slot(file: &[u8]) -> Option<Slot> {
    let slots = [0, 4096].into_iter().filter_map(|at| file.get(at..at + SLOT_BYTES));
    let valid = slots.filter(|slot| {
        slot.starts_with(b"FLhs\x01") && crc32c::crc32c(&slot[..508]).to_le_bytes() == slot[508..512]
    });
    let read = |slot: &[u8]| {
        let number = |at: usize| u64::from_le_bytes(slot[at..at + 8].try_into().unwrap());
        let small = |at: usize| u32::from_le_bytes(slot[at..at + 4].try_into().unwrap());
        let given = |flag: u8| slot[5] & flag != 0;
        Slot {
            sequence: number(8),
            log: number(16),
            vote: given(1).then(|| (number(24), number(32), given(2))),
            purged: given(4).then(|| (number(40), number(48))),
            durable: given(16).then(|| (number(72), number(80))),
            start: (number(88), small(112)),
            begun: given(32).then(|| (number(116), small(124))),
        }
    };
    valid.map(read).max_by_key(|slot| slot.sequence)
}

/// The offsets at which records start, one after another, as far as their lengths lead.
pub(crate) fn records(bytes: &[u8]) -> Vec<usize> {
    let (mut starts, mut at) = (Vec::new(), 0);
    while bytes.len() >= at + HEADER_BYTES && bytes[at..].starts_with(b"FLog") {
        starts.push(at);
        let (meta_bytes, body_bytes) = (field(bytes, at + 60), field(bytes, at + 64));
        let record = HEADER_BYTES + 4 * body_bytes.div_ceil(65_536) + meta_bytes + body_bytes;
        at += record.next_multiple_of(8);
    }
    starts
}
