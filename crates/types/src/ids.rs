use std::fmt;
use std::str::FromStr;

/// Text that should have been an id.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("`{text}` is not a {kind}: expected {expected}")]
pub struct ParseIdError {
    pub kind: &'static str,
    pub text: String,
    pub expected: &'static str,
}

macro_rules! number_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub u64);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl From<u64> for $name {
            fn from(number: u64) -> Self {
                Self(number)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;

            fn from_str(text: &str) -> Result<Self, ParseIdError> {
                text.parse().map(Self).map_err(|_| ParseIdError {
                    kind: stringify!($name),
                    text: text.to_owned(),
                    expected: "a whole number",
                })
            }
        }
    };
}

number_newtype!(
    /// A datanode, numbered by SCM when it registers for the first time. 0 means "none".
    NodeId
);
number_newtype!(
    /// A data pipeline: one Raft group of three datanodes.
    PipelineId
);
number_newtype!(
    /// A container: the unit of placement, repair and accounting.
    ContainerId
);
number_newtype!(
    /// One member's copy of one Raft group. Never used twice, so that an emptied disk comes back as a new
    /// replica and cannot forget a vote it gave. 0 means "none".
    ReplicaId
);
number_newtype!(
    /// A position in a Raft log. The first entry of a group is at 0.
    LogIndex
);
number_newtype!(
    /// A Raft term.
    Term
);
number_newtype!(
    /// The owner of the segments that a log writes: a container, or a metadata group itself.
    OwnerId
);

impl NodeId {
    /// OMs' numbers begin above this one where nodes of all kinds meet: one process may be datanode 2 and OM
    /// 2.
    const OMS: u64 = 1 << 32;

    /// The node that the OM of a number is to members of Raft groups.
    pub fn of_om(number: u64) -> NodeId {
        NodeId(NodeId::OMS + number)
    }

    /// The number of the OM that this node is; 0 where it is none.
    pub fn om_number(self) -> u64 {
        self.0.saturating_sub(NodeId::OMS)
    }
}

impl LogIndex {
    pub fn next(self) -> LogIndex {
        LogIndex(self.0 + 1)
    }
}

impl From<ContainerId> for OwnerId {
    fn from(container: ContainerId) -> Self {
        OwnerId(container.0)
    }
}

/// A log entry's name in Raft: the term it was proposed in and where it stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct LogId {
    pub term: Term,
    pub index: LogIndex,
}

/// A block: `local` is the log index of its first record, so the log itself hands ids out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockId {
    pub container: ContainerId,
    pub local: u64,
}

impl fmt::Display for BlockId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.container, self.local)
    }
}

/// The name of a block, by which one refers to it. An id may come to mean another block when a disaster sets
/// a log or a cluster back, a nonce never does: who asks by name gets this block's bytes or an error.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockName {
    pub container: ContainerId,
    pub local: u64,
    pub nonce: Nonce,
}

impl BlockName {
    pub fn new(id: BlockId, nonce: Nonce) -> BlockName {
        BlockName { container: id.container, local: id.local, nonce }
    }

    pub fn id(&self) -> BlockId {
        BlockId { container: self.container, local: self.local }
    }
}

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:032x})", self.id(), self.nonce.0)
    }
}

/// The name that a writer gives a block before the log has given it an id; 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nonce(pub u128);

impl fmt::Debug for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Nonce({:032x})", self.0)
    }
}

/// A data directory, by the random id stamped into it when it was formatted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskId(pub u128);

impl fmt::Debug for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DiskId({self})")
    }
}

impl fmt::Display for DiskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for DiskId {
    type Err = ParseIdError;

    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let bad =
            || ParseIdError { kind: "DiskId", text: text.to_owned(), expected: "32 hexadecimal digits" };
        if text.len() != 32 {
            return Err(bad());
        }
        u128::from_str_radix(text, 16).map(DiskId).map_err(|_| bad())
    }
}

/// The kind of state that a Raft group replicates. Persisted: never renumber.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum GroupKind {
    Scm = 1,
    Om = 2,
    Pipeline = 3,
}

impl GroupKind {
    /// Whether a group of this kind has the members it began with, and no others ever: one that is broken is
    /// replaced as a whole.
    pub fn has_fixed_members(self) -> bool {
        match self {
            GroupKind::Scm | GroupKind::Om => false,
            GroupKind::Pipeline => true,
        }
    }

    /// Whether the segments of a log of this kind are what it was written for, and stay when the log is
    /// removed: a pipeline's are its containers. Otherwise the state is a state machine's, and snapshots and
    /// segments go.
    pub fn segments_outlive_log(self) -> bool {
        match self {
            GroupKind::Scm | GroupKind::Om => false,
            GroupKind::Pipeline => true,
        }
    }
}

/// A Raft group's name, unique in the cluster; travels as one `u64` (kind in the top byte).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupId {
    pub kind: GroupKind,
    pub number: u64,
}

impl GroupId {
    const NUMBER_BITS: u32 = 56;

    pub const SCM: GroupId = GroupId { kind: GroupKind::Scm, number: 0 };

    pub fn om(number: u64) -> GroupId {
        GroupId { kind: GroupKind::Om, number }
    }

    pub fn pipeline(id: PipelineId) -> GroupId {
        GroupId { kind: GroupKind::Pipeline, number: id.0 }
    }

    pub fn to_u64(self) -> u64 {
        assert!(
            self.number >> Self::NUMBER_BITS == 0,
            "group number {} needs more than 56 bits",
            self.number
        );
        (self.kind as u64) << Self::NUMBER_BITS | self.number
    }
}

impl TryFrom<u64> for GroupId {
    type Error = ParseIdError;

    fn try_from(raw: u64) -> Result<Self, ParseIdError> {
        let number = raw & ((1 << Self::NUMBER_BITS) - 1);
        let kind = match raw >> Self::NUMBER_BITS {
            1 => GroupKind::Scm,
            2 => GroupKind::Om,
            3 => GroupKind::Pipeline,
            _ => {
                return Err(ParseIdError {
                    kind: "GroupId",
                    text: format!("{raw:#018x}"),
                    expected: "a group kind of 1 (scm), 2 (om) or 3 (pipeline) in the top byte",
                });
            }
        };
        Ok(GroupId { kind, number })
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            GroupKind::Scm => write!(f, "scm"),
            GroupKind::Om => write!(f, "om-{}", self.number),
            GroupKind::Pipeline => write!(f, "pipeline-{}", self.number),
        }
    }
}

impl FromStr for GroupId {
    type Err = ParseIdError;

    /// Reads what [`fmt::Display`] writes, and nothing else.
    fn from_str(text: &str) -> Result<Self, ParseIdError> {
        let number = |digits: &str| digits.parse().ok().filter(|number| number >> Self::NUMBER_BITS == 0);
        let group = match text.split_once('-') {
            None if text == "scm" => Some(GroupId::SCM),
            Some(("om", digits)) => number(digits).map(GroupId::om),
            Some(("pipeline", digits)) => number(digits).map(|id| GroupId::pipeline(PipelineId(id))),
            None | Some(_) => None,
        };
        let bad = || ParseIdError {
            kind: "GroupId",
            text: text.to_owned(),
            expected: "scm, om-<number> or pipeline-<number>",
        };
        group.filter(|group| group.to_string() == text).ok_or_else(bad)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn group_ids_survive_the_wire_and_their_names() {
        for group in [GroupId::SCM, GroupId::om(7), GroupId::pipeline(PipelineId(1 << 40))] {
            assert_eq!(GroupId::try_from(group.to_u64()), Ok(group));
            assert_eq!(group.to_string().parse(), Ok(group));
        }
        for other in ["", "om", "om-", "om-07", "om-+7", "om-0.tmp", "scm-1", "om-18446744073709551615"] {
            other.parse::<GroupId>().expect_err(other);
        }
        assert!(GroupId::try_from(0x0900_0000_0000_0001).is_err());
    }

    #[test]
    fn disk_ids_print_as_they_parse() {
        let id = DiskId(0x0123_4567_89ab_cdef_0011_2233_4455_6677);
        assert_eq!(id.to_string().parse(), Ok(id));
        assert!("12".parse::<DiskId>().is_err());
    }
}
