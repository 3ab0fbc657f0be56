//! Messages that are refused: counted, and answered with the reason.

use crate::counts::HostCounts;
use proto::{Code, Failure};
use tonic::Status;
use types::GroupId;

/// The answer to a message that is refused, which is counted here.
pub(crate) fn refused(counts: &HostCounts, failure: Failure) -> Status {
    counts.refused(&failure);
    failure.into()
}

/// The answer to a message that gRPC could not read. One that is too large gets our words for it; the rest are broken
/// connections.
pub(crate) fn unread(counts: &HostCounts, status: Status) -> Status {
    match status.code() {
        tonic::Code::OutOfRange => {
            let why = format!("a message is above the limit of {} bytes", proto::MESSAGE_BYTES_MAX);
            refused(counts, Failure::new(Code::TooLarge, why))
        }
        _ => status,
    }
}

pub(crate) fn stopped(group: GroupId, error: impl std::fmt::Display) -> Failure {
    Failure::new(Code::Unavailable, format!("{group} stopped here: {error}"))
}
