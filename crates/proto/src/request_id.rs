use crate::Failure;
use std::time::Duration;
use tonic::Request;
use tonic::metadata::{AsciiMetadataKey, MetadataMap, MetadataValue};

const ID: &str = "flotilla-request";
const AGE: &str = "flotilla-request-age-ms";

/// The name of one change of names. Its sender repeats the request under the same name until it is answered:
/// what took effect once takes effect no second time, and the repetition gets the first one's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestId(pub u128);

/// Marks a call as one more try of a request that was first sent `age` ago.
pub fn as_request<T>(mut call: Request<T>, id: RequestId, age: Duration) -> Request<T> {
    let metadata = call.metadata_mut();
    let id = format!("{:032x}", id.0).parse().expect("hexadecimal digits are ASCII");
    metadata.insert(AsciiMetadataKey::from_static(ID), id);
    let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
    metadata.insert(AsciiMetadataKey::from_static(AGE), MetadataValue::from(age_ms));
    call
}

/// The request that a call is a try of, and how long ago it was first sent.
pub fn request_of(metadata: &MetadataMap) -> Result<(RequestId, Duration), Failure> {
    let text = |key: &str| metadata.get(key).and_then(|value| value.to_str().ok());
    let id = text(ID).filter(|id| id.len() == 32).and_then(|id| {
        let is_hex = id.bytes().all(|byte| byte.is_ascii_hexdigit());
        u128::from_str_radix(id, 16).ok().filter(|_| is_hex)
    });
    let age_ms = text(AGE).and_then(|age| age.parse().ok());
    match (id, age_ms) {
        (Some(id), Some(age_ms)) => Ok((RequestId(id), Duration::from_millis(age_ms))),
        _ => {
            let why = format!(
                "a change of names says which request it is: 32 hexadecimal digits in `{ID}`, its age in `{AGE}`"
            );
            Err(Failure::invalid(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_known_by_its_metadata() {
        for (id, age) in [(0, 0), (1, 7), (u128::MAX, 36_000_000)] {
            let (id, age) = (RequestId(id), Duration::from_millis(age));
            let call = as_request(Request::new(()), id, age);
            assert_eq!(request_of(call.metadata()), Ok((id, age)));
        }
    }

    #[test]
    fn a_change_without_a_good_id_is_refused() {
        let no_id = Request::new(());
        assert_eq!(request_of(no_id.metadata()).unwrap_err().code, crate::Code::Invalid);
        for (key, value) in [(ID, "7"), (ID, "+0000000000000000000000000000007"), (AGE, "-1"), (AGE, "soon")]
        {
            let mut call = as_request(Request::new(()), RequestId(7), Duration::ZERO);
            call.metadata_mut().insert(AsciiMetadataKey::from_static(key), value.parse().unwrap());
            assert!(request_of(call.metadata()).is_err(), "{key}: {value}");
        }
    }
}
