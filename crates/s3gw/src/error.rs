use client::ClientError;
use httpd::NoRoom;
use proto::{Code, Failure};

/// The reason why a request is refused, in S3's terms. `s3::error` gives each its code and status.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum GatewayError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("The {what} you specified did not match what we received.")]
    BadDigest { what: String },
    #[error("The {what} you specified is not valid.")]
    InvalidDigest { what: String },
    #[error("You did not provide the number of bytes specified by the Content-Length HTTP header")]
    IncompleteBody,
    #[error(
        "Your socket connection to the server was not read from or written to within the timeout period. Idle \
         connections will be closed."
    )]
    RequestTimeout,
    #[error("The provided 'x-amz-content-sha256' header does not match what was computed.")]
    ContentSha256Mismatch,
    #[error("The signature of a chunk does not match.")]
    ChunkSignature,
    #[error("{0}")]
    MalformedBody(String),
    #[error(
        "The request contained trailing data that was not well-formed or did not conform to our published schema."
    )]
    MalformedTrailer,
    #[error("Your proposed upload exceeds the maximum allowed size")]
    EntityTooLarge,
    #[error(
        "Your metadata headers exceed the maximum allowed metadata size (2048 bytes of user metadata, 8 KiB with all that is kept)"
    )]
    MetadataTooLarge,
    #[error("At least one of the pre-conditions you specified did not hold")]
    PreconditionFailed,
    #[error("Not Modified")]
    NotModified { etag: String, modified_ms: u64 },
    #[error("The requested range is not satisfiable")]
    InvalidRange { size: u64 },
    #[error("The requested partnumber is not satisfiable")]
    InvalidPartNumber,
    #[error("One or more of the specified parts could not be found.")]
    InvalidPart,
    #[error("{0}")]
    InvalidArgument(String),
    #[error("{0}")]
    InvalidRequest(String),
    /// A refusal that nobody branches on.
    #[error("{message}")]
    Refused { code: &'static str, status: u16, message: String },
    #[error("{0} is not implemented.")]
    NotImplemented(&'static str),
    #[error("The specified version does not exist.")]
    NoSuchVersion,
    #[error("The bucket does not allow ACLs")]
    NoAcls,
    #[error("The storage class you specified is not valid")]
    InvalidStorageClass,
    #[error("The XML you provided was not well-formed or did not validate against our published schema")]
    MalformedXml,
}

impl GatewayError {
    pub(crate) fn refused(code: &'static str, status: u16, message: impl Into<String>) -> GatewayError {
        GatewayError::Refused { code, status, message: message.into() }
    }
}

impl From<NoRoom> for GatewayError {
    fn from(why: NoRoom) -> GatewayError {
        ClientError::from(Failure::new(Code::Busy, why.to_string())).into()
    }
}

pub(crate) type Result<T, E = GatewayError> = std::result::Result<T, E>;
