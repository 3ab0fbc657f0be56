use crate::Place;
use crate::record::ALIGNMENT;
use types::OwnerId;

/// The steps in which space is allocated; they grow, so that the log of an empty pipeline stays small and a
/// busy one seldom waits for the file system's journal: 4, 8, 16, 32, 64, 128 MiB.
const ALLOCATION_STEP_BYTES_MIN: u64 = 4 << 20;
const ALLOCATION_STEP_BYTES_MAX: u64 = 64 << 20;

/// The bound of indexes, and of counts of bytes or writes: a larger one was not written by this code, and
/// nothing is counted on from it.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// The end of the offsets in a segment: [`crate::index`] keeps them in 32 bits, in units of 8.
const OFFSET_END: u64 = 32 << 30;

pub(crate) const SEGMENT_MAX: u32 = u32::MAX / 2;

/// The place of the next record, if it fits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    pub(crate) owner: OwnerId,
    pub(crate) segment: u32,
    pub(crate) offset: u64,
    /// Bytes of all records of the owner before it.
    pub(crate) owner_bytes: u64,
}

impl Position {
    pub(crate) fn start_of(owner: OwnerId) -> Position {
        Position { owner, segment: 0, offset: 0, owner_bytes: 0 }
    }

    /// Whether a log can end here.
    pub(crate) fn is_possible(&self) -> bool {
        self.offset.is_multiple_of(ALIGNMENT)
            && self.offset < OFFSET_END
            && self.segment <= SEGMENT_MAX
            && (self.offset..=NUMBER_MAX).contains(&self.owner_bytes)
    }

    /// The place of a record of `record_bytes`: here, or at the start of the next segment. A function of the
    /// records alone, so all replicas agree.
    pub(crate) fn fit(self, record_bytes: u64, segment_bytes_max: u64) -> Position {
        if self.offset > 0 && self.offset + record_bytes > segment_bytes_max {
            self.next_segment()
        } else {
            self
        }
    }

    pub(crate) fn next_segment(self) -> Position {
        Position { segment: self.segment + 1, offset: 0, ..self }
    }

    /// The place of the record after one of `record_bytes` at this position. Owners of a log only ever
    /// ascend: rolling to the one that has the log already, or to an earlier one, changes nothing. An old
    /// decision that is appended late must not send the log back over the segments of a closed container.
    pub(crate) fn after(self, record_bytes: u64, roll_to: Option<OwnerId>) -> Position {
        match roll_to {
            Some(owner) if owner > self.owner => Position::start_of(owner),
            _ => Position {
                offset: self.offset + record_bytes,
                owner_bytes: self.owner_bytes + record_bytes,
                ..self
            },
        }
    }

    pub(crate) fn place(self, body_bytes: u32) -> Place {
        Place { owner: self.owner, segment: self.segment, offset: self.offset, body_bytes }
    }

    pub(crate) fn file(self) -> SegmentId {
        SegmentId { owner: self.owner, segment: self.segment }
    }
}

/// A segment's name. Later segments of a log have larger ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SegmentId {
    pub(crate) owner: OwnerId,
    pub(crate) segment: u32,
}

pub(crate) fn owner_dir(owners_dir: &str, owner: OwnerId) -> String {
    format!("{owners_dir}/{:016x}", owner.0)
}

impl SegmentId {
    pub(crate) fn path(self, owners_dir: &str) -> String {
        format!("{}/{:08x}.seg", owner_dir(owners_dir, self.owner), self.segment)
    }

    /// The number of a segment's file; `None` for other files.
    pub(crate) fn parse_number(file_name: &str) -> Option<u32> {
        let digits = file_name.strip_suffix(".seg")?;
        let canonical =
            digits.len() == 8 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        if canonical { u32::from_str_radix(digits, 16).ok() } else { None }
    }
}

/// The length to allocate for a segment that must hold `needed_bytes` and has `allocated_bytes`.
pub(crate) fn allocation(allocated_bytes: u64, needed_bytes: u64, segment_bytes_max: u64) -> u64 {
    let step = allocated_bytes.clamp(ALLOCATION_STEP_BYTES_MIN, ALLOCATION_STEP_BYTES_MAX);
    needed_bytes.max((allocated_bytes + step).min(segment_bytes_max))
}

/// The directory a path is in.
pub(crate) fn parent_dir(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(parent, _)| parent)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_grow_in_doubling_steps_to_their_limit() {
        let mut allocated = 0;
        let mut steps = Vec::new();
        while allocated < 100 << 20 {
            allocated = allocation(allocated, allocated + 1, 100 << 20);
            steps.push(allocated >> 20);
        }
        assert_eq!(steps, [4, 8, 16, 32, 64, 100]);
        assert_eq!(allocation(0, 300 << 20, 128 << 20), 300 << 20, "one large record gets what it needs");
    }

    #[test]
    fn a_record_that_would_pass_the_limit_starts_a_segment_unless_it_is_the_first() {
        let position = Position::start_of(OwnerId(1));
        assert_eq!(position.fit(1000, 100), position);
        let second = position.after(96, None);
        assert_eq!(second.fit(4, 100), second);
        assert_eq!(second.fit(8, 100), Position { segment: 1, offset: 0, ..second });
    }

    #[test]
    fn only_canonical_names_are_segments() {
        let id = SegmentId { owner: OwnerId(0xab), segment: 0x1f };
        assert_eq!(id.path("containers"), "containers/00000000000000ab/0000001f.seg");
        assert_eq!(SegmentId::parse_number("0000001f.seg"), Some(0x1f));
        for other in ["0000001F.seg", "1f.seg", "+000001f.seg", "0000001f.tmp", ".seg"] {
            assert_eq!(SegmentId::parse_number(other), None, "{other}");
        }
    }
}
