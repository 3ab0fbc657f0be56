use bytes::Bytes;
use prost::Message;
use tonic::Status;

pub use crate::v1::{ErrorCode as Code, Retry};

/// A failure as it crosses RPC: stable code, whether to retry, a sentence for a person.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("{message}")]
pub struct Failure {
    pub code: Code,
    pub retry: Retry,
    pub message: String,
    /// The leader's address, when known; for [`Code::NotLeader`].
    pub leader_address: Option<String>,
}

impl Failure {
    pub fn new(code: Code, message: impl Into<String>) -> Failure {
        Failure { code, retry: code.default_retry(), message: message.into(), leader_address: None }
    }

    pub fn invalid(message: impl Into<String>) -> Failure {
        Failure::new(Code::Invalid, message)
    }

    pub fn internal(message: impl Into<String>) -> Failure {
        Failure::new(Code::Internal, message)
    }

    /// The failure of a request that nobody answered; whether it arrived is unknown.
    pub fn unanswered(message: impl Into<String>) -> Failure {
        Failure { retry: Retry::Unknown, ..Failure::new(Code::Unavailable, message) }
    }

    pub fn not_leader(leader_address: Option<String>) -> Failure {
        let message = match &leader_address {
            Some(address) => format!("not the leader; try {address}"),
            None => "not the leader, and none is known yet".to_owned(),
        };
        Failure { leader_address, ..Failure::new(Code::NotLeader, message) }
    }
}

impl Code {
    /// The retry that a caller should choose when the server does not say otherwise.
    pub fn default_retry(self) -> Retry {
        match self {
            Code::NotLeader
            | Code::NotHere
            | Code::Closed
            | Code::DiskFull
            | Code::DiskFailed
            | Code::Corrupt => Retry::Elsewhere,
            Code::Busy | Code::Unavailable | Code::NotYet => Retry::Here,
            Code::OutcomeUnknown => Retry::Unknown,
            Code::Unspecified
            | Code::Internal
            | Code::Invalid
            | Code::WrongCluster
            | Code::NotFound
            | Code::TooLarge
            | Code::NewerVersion
            | Code::Compacted
            | Code::LimitReached
            | Code::NoSuchBucket
            | Code::BucketExists
            | Code::BucketNotEmpty
            | Code::NoSuchVolume
            | Code::VolumeExists
            | Code::VolumeNotEmpty
            | Code::NoSuchKey
            | Code::NoSuchUpload
            | Code::PreconditionFailed
            | Code::InvalidPart
            | Code::InvalidPartOrder
            | Code::GivenUp
            | Code::PartTooSmall => Retry::No,
        }
    }

    fn status_code(self) -> tonic::Code {
        match self {
            Code::Unspecified | Code::Internal => tonic::Code::Internal,
            Code::Invalid | Code::InvalidPart | Code::InvalidPartOrder | Code::PartTooSmall => {
                tonic::Code::InvalidArgument
            }
            Code::NotLeader
            | Code::NotHere
            | Code::WrongCluster
            | Code::NewerVersion
            | Code::Closed
            | Code::BucketNotEmpty
            | Code::VolumeNotEmpty
            | Code::GivenUp
            | Code::PreconditionFailed => tonic::Code::FailedPrecondition,
            Code::Busy | Code::DiskFull | Code::TooLarge | Code::LimitReached => {
                tonic::Code::ResourceExhausted
            }
            Code::Compacted => tonic::Code::OutOfRange,
            Code::Unavailable | Code::NotYet | Code::DiskFailed => tonic::Code::Unavailable,
            Code::OutcomeUnknown => tonic::Code::Unknown,
            Code::NotFound
            | Code::NoSuchVolume
            | Code::NoSuchBucket
            | Code::NoSuchKey
            | Code::NoSuchUpload => tonic::Code::NotFound,
            Code::Corrupt => tonic::Code::DataLoss,
            Code::BucketExists | Code::VolumeExists => tonic::Code::AlreadyExists,
        }
    }
}

/// The most bytes of a sentence that cross RPC. It goes twice, and in the headers of an answer, of which
/// there are 16 KiB.
const SENTENCE_BYTES_MAX: usize = 2 << 10;

/// A sentence, or the beginning of a long one.
fn shortened(mut sentence: String) -> String {
    if sentence.len() > SENTENCE_BYTES_MAX {
        sentence.truncate(sentence.floor_char_boundary(SENTENCE_BYTES_MAX));
        sentence.push('…');
    }
    sentence
}

impl From<Failure> for crate::v1::Error {
    fn from(failure: Failure) -> Self {
        crate::v1::Error {
            code: failure.code as i32,
            retry: failure.retry as i32,
            message: failure.message,
            leader_address: failure.leader_address.unwrap_or_default(),
        }
    }
}

impl From<crate::v1::Error> for Failure {
    fn from(error: crate::v1::Error) -> Self {
        Failure {
            code: error.code(),
            retry: error.retry(),
            leader_address: (!error.leader_address.is_empty()).then_some(error.leader_address),
            message: error.message,
        }
    }
}

impl From<Failure> for Status {
    fn from(failure: Failure) -> Self {
        let code = failure.code.status_code();
        let message = shortened(failure.message);
        let failure = Failure { message: message.clone(), ..failure };
        let details = Bytes::from(crate::v1::Error::from(failure).encode_to_vec());
        Status::with_details(code, message, details)
    }
}

impl From<Status> for Failure {
    /// A status without our details comes from the transport. Whether the request arrived is then unknown,
    /// unless gRPC says that the request was refused before it was processed.
    fn from(status: Status) -> Self {
        if !status.details().is_empty()
            && let Ok(error) = crate::v1::Error::decode(status.details())
        {
            return error.into();
        }
        let is_of_connection = std::error::Error::source(&status).is_some();
        let (code, retry) = match status.code() {
            // HTTP/2 ends a connection with `ENHANCE_YOUR_CALM`, whatever became of the requests on it, and
            // gRPC has for that the word it has for what is too large.
            _ if is_of_connection && status.code() != tonic::Code::Unavailable => {
                (Code::OutcomeUnknown, Retry::Unknown)
            }
            tonic::Code::InvalidArgument | tonic::Code::Unimplemented => (Code::Invalid, Retry::No),
            tonic::Code::OutOfRange | tonic::Code::ResourceExhausted => (Code::TooLarge, Retry::No),
            tonic::Code::Unavailable => (Code::Unavailable, Retry::Unknown),
            _ => (Code::OutcomeUnknown, Retry::Unknown),
        };
        let message = match status.message() {
            "" => status.code().description(),
            said => said,
        };
        Failure { code, retry, message: message.to_owned(), leader_address: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_survive_a_status() {
        let failure = Failure::not_leader(Some("10.0.0.1:7400".to_owned()));
        assert_eq!(Failure::from(Status::from(failure.clone())), failure);
    }

    #[test]
    fn the_beginning_of_a_long_sentence_survives_a_status_and_all_else_of_a_failure() {
        let failure = Failure { retry: Retry::Here, ..Failure::new(Code::Closed, "€".repeat(100_000)) };
        let status = Status::from(failure.clone());
        let mut headers = tonic::codegen::http::HeaderMap::new();
        status.add_header(&mut headers).unwrap();
        let bytes: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        assert!(bytes < 12 << 10, "{bytes} bytes are in its headers");
        let heard = Failure::from(status);
        assert_eq!((heard.code, heard.retry), (failure.code, failure.retry));
        assert!(heard.message.starts_with("€€") && heard.message.ends_with("€…"), "{}", heard.message);
    }

    #[test]
    fn a_broken_connection_leaves_the_outcome_unknown() {
        assert_eq!(Failure::from(Status::unavailable("gone")).retry, Retry::Unknown);
        // As tonic reports a connection that the other side ended with ENHANCE_YOUR_CALM.
        let mut status = Status::resource_exhausted("h2 protocol error");
        assert_eq!(Failure::from(status.clone()).retry, Retry::No);
        status.set_source(std::sync::Arc::new(std::io::Error::other("too_many_resets")));
        assert_eq!(Failure::from(status).retry, Retry::Unknown);
    }
}
