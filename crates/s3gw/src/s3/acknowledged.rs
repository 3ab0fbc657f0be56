//! `x-flotilla-ack: all`: an upload whose bytes should be on all three replicas before it is answered, and
//! not only on two. The answer's header of the same name says whether they were: a replica that is down is
//! waited for a moment, and the upload succeeds without it.

use super::error::to_s3;
use crate::error::{GatewayError, Result};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use client::Ack;
use s3s::{S3Response, S3Result};

static HEADER: HeaderName = HeaderName::from_static("x-flotilla-ack");

/// The acknowledgement that a request asks for in `x-flotilla-ack`.
#[derive(Clone, Default)]
pub(super) struct Acknowledged(Option<HeaderValue>);

impl Acknowledged {
    pub(super) fn of(headers: &HeaderMap) -> Acknowledged {
        Acknowledged(headers.get(&HEADER).cloned())
    }

    pub(super) fn asked(&self) -> Result<Ack> {
        match self.0.as_ref().map(HeaderValue::as_bytes) {
            None | Some(b"majority") => Ok(Ack::Majority),
            Some(b"all") => Ok(Ack::All),
            Some(_) => Err(GatewayError::InvalidArgument(format!("{HEADER} is \"all\" or \"majority\"."))),
        }
    }

    /// The answer to an upload. Who asked for nothing is told nothing.
    pub(super) fn answer<T>(&self, result: Result<(T, Ack)>) -> S3Result<S3Response<T>> {
        let (output, reached) = result.map_err(to_s3)?;
        let mut response = S3Response::new(output);
        if self.0.is_some() {
            let name = if reached == Ack::All { "all" } else { "majority" };
            response.headers.insert(HEADER.clone(), HeaderValue::from_static(name));
        }
        Ok(response)
    }
}
