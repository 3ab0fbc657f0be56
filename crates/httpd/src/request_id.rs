use axum::http::HeaderValue;
use std::fmt;

/// Names a request in its answer and in every line logged about it. Random, so that nobody can tell from it
/// how many there were, and two gateways never give the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(u64);

impl RequestId {
    pub fn random() -> RequestId {
        RequestId(rand::random())
    }

    pub(crate) fn header_value(self) -> HeaderValue {
        HeaderValue::from_str(&self.to_string()).expect("hexadecimal digits")
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016X}", self.0)
    }
}
