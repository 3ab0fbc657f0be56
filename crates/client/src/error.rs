use proto::{Code, Failure};
use std::sync::Arc;

/// The reason why an operation failed, after everything that could be tried again was.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ClientError {
    /// A service said no; its code says why.
    #[error("{0}")]
    Refused(Failure),
    /// Nobody who could have carried the operation out answered within the deadline. Nothing was committed.
    #[error("unavailable: {0}")]
    Unavailable(String),
    /// The deadline passed while it was unknown whether the request had taken effect.
    #[error("outcome unknown: {0}")]
    OutcomeUnknown(String),
    /// No replica has these bytes with a matching checksum.
    #[error("data of block {block} at {offset} cannot be read: {why}")]
    Unreadable { block: types::BlockName, offset: u64, why: String },
    /// The caller's own body stream failed; the error is the caller's.
    #[error("the body failed: {0}")]
    Body(Arc<dyn std::error::Error + Send + Sync>),
    /// The caller asked for something that makes no sense.
    #[error("{0}")]
    Invalid(String),
}

impl ClientError {
    /// The service's code, when a service answered.
    pub fn code(&self) -> Option<Code> {
        match self {
            ClientError::Refused(failure) => Some(failure.code),
            _ => None,
        }
    }
}

impl From<Failure> for ClientError {
    fn from(failure: Failure) -> Self {
        ClientError::Refused(failure)
    }
}
