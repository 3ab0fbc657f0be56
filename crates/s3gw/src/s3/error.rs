use crate::error::GatewayError;
use axum::http::header::{CONTENT_RANGE, CONTENT_TYPE, ETAG, LAST_MODIFIED, RETRY_AFTER};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use client::ClientError;
use proto::{Code, Failure};
use s3s::{S3Error, S3ErrorCode};

use super::convert::http_date;

/// S3's code and status for each failure. Trouble of our own is logged here, where it leaves us.
pub(super) fn to_s3(error: GatewayError) -> S3Error {
    let message = error.to_string();
    let (code, status) = match &error {
        GatewayError::Client(client) => return client_error(client),
        GatewayError::BadDigest { .. } => ("BadDigest", 400),
        GatewayError::InvalidDigest { .. } => ("InvalidDigest", 400),
        GatewayError::IncompleteBody => ("IncompleteBody", 400),
        GatewayError::RequestTimeout => ("RequestTimeout", 400),
        GatewayError::ContentSha256Mismatch => ("XAmzContentSHA256Mismatch", 400),
        GatewayError::ChunkSignature => ("SignatureDoesNotMatch", 403),
        GatewayError::MalformedBody(_) => ("InvalidRequest", 400),
        GatewayError::MalformedTrailer => ("MalformedTrailerError", 400),
        GatewayError::EntityTooLarge => ("EntityTooLarge", 400),
        GatewayError::MetadataTooLarge => ("MetadataTooLarge", 400),
        GatewayError::PreconditionFailed => ("PreconditionFailed", 412),
        GatewayError::NotModified { .. } => ("NotModified", 304),
        GatewayError::InvalidRange { .. } => ("InvalidRange", 416),
        GatewayError::InvalidPartNumber => ("InvalidPartNumber", 416),
        GatewayError::InvalidPart => ("InvalidPart", 400),
        GatewayError::InvalidArgument(_) => ("InvalidArgument", 400),
        GatewayError::InvalidRequest(_) => ("InvalidRequest", 400),
        GatewayError::Refused { code, status, .. } => (*code, *status),
        GatewayError::NotImplemented(_) => ("NotImplemented", 501),
        GatewayError::NoSuchVersion => ("NoSuchVersion", 404),
        GatewayError::NoAcls => ("AccessControlListNotSupported", 400),
        GatewayError::InvalidStorageClass => ("InvalidStorageClass", 400),
        GatewayError::MalformedXml => ("MalformedXML", 400),
    };
    let mut answer = s3_error(code, status, message);
    match error {
        GatewayError::InvalidRange { size } => {
            set_header(&mut answer, CONTENT_RANGE, &format!("bytes */{size}"))
        }
        GatewayError::NotModified { etag, modified_ms } => {
            let mut headers = HeaderMap::new();
            headers.extend(HeaderValue::from_str(&format!("\"{etag}\"")).ok().map(|etag| (ETAG, etag)));
            headers.extend(
                HeaderValue::from_str(&http_date(modified_ms)).ok().map(|date| (LAST_MODIFIED, date)),
            );
            answer.set_headers(headers);
        }
        _ => {}
    }
    answer
}

fn client_error(error: &ClientError) -> S3Error {
    match error {
        ClientError::Refused(failure) => refused(failure),
        ClientError::Unavailable(why) | ClientError::OutcomeUnknown(why) => {
            tracing::warn!(%why, "request not served");
            slow_down("ServiceUnavailable", "The store cannot serve this now. Please try again.")
        }
        ClientError::Body(_) => s3_error("IncompleteBody", 400, "The request body broke off.".to_owned()),
        ClientError::Invalid(why) => s3_error("InvalidArgument", 400, why.clone()),
        ClientError::Unreadable { .. } => {
            tracing::error!(%error, "no good replica");
            s3_error(
                "InternalError",
                500,
                "No replica of this object could be read without damage.".to_owned(),
            )
        }
    }
}

fn refused(failure: &Failure) -> S3Error {
    let code = match failure.code {
        Code::NoSuchBucket => ("NoSuchBucket", 404),
        Code::NoSuchKey => ("NoSuchKey", 404),
        Code::NoSuchUpload => ("NoSuchUpload", 404),
        Code::BucketExists => ("BucketAlreadyOwnedByYou", 409),
        Code::BucketNotEmpty => ("BucketNotEmpty", 409),
        Code::PreconditionFailed => ("PreconditionFailed", 412),
        Code::InvalidPart => ("InvalidPart", 400),
        Code::InvalidPartOrder => ("InvalidPartOrder", 400),
        Code::PartTooSmall => ("EntityTooSmall", 400),
        Code::TooLarge => ("EntityTooLarge", 400),
        Code::Invalid if failure.message.starts_with("bucket name") => ("InvalidBucketName", 400),
        Code::Invalid if failure.message.starts_with("key") => ("KeyTooLongError", 400),
        Code::Invalid => ("InvalidArgument", 400),
        // A client that tries again would find the same, so this is none of the statuses that SDKs repeat.
        Code::DiskFull => {
            tracing::warn!(why = %failure, "the store is full");
            return s3_error("StorageFull", 507, "The disks of this store are full.".to_owned());
        }
        Code::Busy => {
            tracing::info!(code = ?failure.code, why = %failure, "slow down");
            return slow_down("SlowDown", "Please reduce your request rate.");
        }
        Code::Unavailable
        | Code::NotYet
        | Code::NotLeader
        | Code::NotHere
        | Code::OutcomeUnknown
        | Code::Closed
        // A request that the client sends again is written again.
        | Code::GivenUp
        | Code::WrongCluster => {
            tracing::warn!(code = ?failure.code, why = %failure, "request not served");
            return slow_down("ServiceUnavailable", "The store cannot serve this now. Please try again.");
        }
        Code::Unspecified
        | Code::Internal
        | Code::NewerVersion
        | Code::Compacted
        | Code::LimitReached
        | Code::NotFound
        | Code::NoSuchVolume
        | Code::VolumeExists
        | Code::VolumeNotEmpty
        | Code::Corrupt
        | Code::DiskFailed => {
            tracing::error!(code = ?failure.code, why = %failure, "request failed");
            let message = "We encountered an internal error. Please try again.".to_owned();
            return s3_error("InternalError", 500, message);
        }
    };
    s3_error(code.0, code.1, failure.message.clone())
}

fn slow_down(code: &str, message: &str) -> S3Error {
    let mut error = s3_error(code, 503, message.to_owned());
    set_header(&mut error, RETRY_AFTER, "1");
    error
}

fn s3_error(code: &str, status: u16, message: String) -> S3Error {
    let code = S3ErrorCode::from_bytes(code.as_bytes()).unwrap_or_else(|| S3ErrorCode::Custom(code.into()));
    let mut error = S3Error::with_message(code, message);
    error.set_status_code(StatusCode::from_u16(status).expect("a status from the table above"));
    error
}

/// Adds a header to an error's answer, and the content type: the protocol layer sends these in place of its
/// own.
fn set_header(error: &mut S3Error, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        let xml = HeaderValue::from_static("application/xml");
        error.set_headers(HeaderMap::from_iter([(CONTENT_TYPE, xml), (name, value)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_get_the_codes_of_aws() {
        let check = |error: GatewayError, code: &str, status: u16| {
            let answer = to_s3(error);
            assert_eq!(answer.code().as_str(), code);
            assert_eq!(answer.status_code().map(|status| status.as_u16()), Some(status), "{code}");
        };
        let refused = |code| GatewayError::Client(Failure::new(code, "why").into());
        check(refused(Code::NoSuchBucket), "NoSuchBucket", 404);
        check(refused(Code::Busy), "SlowDown", 503);
        check(refused(Code::Internal), "InternalError", 500);
        check(GatewayError::InvalidRange { size: 7 }, "InvalidRange", 416);
        check(GatewayError::ContentSha256Mismatch, "XAmzContentSHA256Mismatch", 400);
        let range = to_s3(GatewayError::InvalidRange { size: 7 });
        assert_eq!(range.headers().unwrap()[CONTENT_RANGE], "bytes */7");
    }
}
