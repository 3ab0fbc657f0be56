//! Messages that come to nothing: those that are refused here, and ours that others refuse or do not answer.

use crate::adapter::type_config::TypeConfig;
use crate::counts::HostCounts;
use crate::transport::processes::Process;
use openraft::errors::{NetworkError, RPCError, Unreachable};
use proto::{Code, Failure};
use tonic::Status;
use types::GroupId;

/// The answer to a message that is refused, which is counted here.
pub(crate) fn refused(counts: &HostCounts, failure: Failure) -> Status {
    counts.refused(&failure);
    failure.into()
}

/// The answer to a message that gRPC could not read. One that is too large gets our words for it; the rest
/// are broken connections.
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

/// A refusal or a broken connection: openraft backs off before it tries again.
pub(crate) fn failed(process: &Process, status: &Status) -> RPCError<TypeConfig> {
    // A status with our details comes from a process that is well.
    if status.details().is_empty() {
        process.failed(status.message());
    } else {
        process.answered();
    }
    Unreachable::from_string(format!("{}: {}", status.code(), status.message())).into()
}

pub(crate) fn malformed(error: impl ToString) -> RPCError<TypeConfig> {
    NetworkError::from_string(error).into()
}
