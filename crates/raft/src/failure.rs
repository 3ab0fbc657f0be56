//! A group's errors as failures across RPC.

use crate::{AddressBook, Member, ProposeError, ReadIndexError, SetMembersError, TransferError};
use proto::{Code, Failure};

impl ProposeError {
    /// The failure to report; a leader is named by the newest address `addresses` has.
    pub fn into_failure(self, addresses: &AddressBook) -> Failure {
        let message = self.to_string();
        match self {
            ProposeError::NotLeader { leader } => not_leader(leader, addresses),
            ProposeError::Busy { .. } => Failure::new(Code::Busy, message),
            ProposeError::DiskFull { .. } => Failure::new(Code::DiskFull, message),
            ProposeError::TooLarge { .. } => Failure::new(Code::TooLarge, message),
            ProposeError::Stopped { .. } => Failure::new(Code::Unavailable, message),
            ProposeError::OutcomeUnknown => Failure::new(Code::OutcomeUnknown, message),
        }
    }
}

impl ReadIndexError {
    /// The failure to report; a leader is named by the newest address `addresses` has.
    pub fn into_failure(self, addresses: &AddressBook) -> Failure {
        let message = self.to_string();
        match self {
            ReadIndexError::NotLeader { leader } => not_leader(leader, addresses),
            ReadIndexError::Busy { .. } => Failure::new(Code::Busy, message),
            ReadIndexError::Expired => Failure::new(Code::NotYet, message),
            ReadIndexError::NoQuorum { .. }
            | ReadIndexError::Unreachable { .. }
            | ReadIndexError::Stopped { .. } => Failure::new(Code::Unavailable, message),
        }
    }
}

impl SetMembersError {
    /// The failure to report; a leader is named by the newest address `addresses` has.
    pub fn into_failure(self, addresses: &AddressBook) -> Failure {
        let message = self.to_string();
        match self {
            SetMembersError::NotLeader { leader } => not_leader(leader, addresses),
            SetMembersError::FixedMembers | SetMembersError::Invalid { .. } => Failure::invalid(message),
            SetMembersError::Lagging { .. } | SetMembersError::Silent { .. } => {
                Failure::new(Code::NotYet, message)
            }
            SetMembersError::Stopped { .. } => Failure::new(Code::Unavailable, message),
            SetMembersError::Expired { .. } | SetMembersError::OutcomeUnknown => {
                Failure::new(Code::OutcomeUnknown, message)
            }
        }
    }
}

impl TransferError {
    /// The failure to report; a leader is named by the newest address `addresses` has.
    pub fn into_failure(self, addresses: &AddressBook) -> Failure {
        let message = self.to_string();
        match self {
            TransferError::NotLeader { leader } => not_leader(leader, addresses),
            TransferError::NotMember { .. } | TransferError::Learner { .. } => Failure::invalid(message),
            TransferError::Lagging { .. } | TransferError::Silent { .. } => {
                Failure::new(Code::NotYet, message)
            }
            TransferError::Stopped { .. } => Failure::new(Code::Unavailable, message),
            TransferError::Expired { .. } => Failure::new(Code::OutcomeUnknown, message),
        }
    }
}

fn not_leader(leader: Option<Member>, addresses: &AddressBook) -> Failure {
    Failure::not_leader(leader.map(|member| addresses.of(&member)).filter(|address| !address.is_empty()))
}
