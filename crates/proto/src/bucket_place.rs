use crate::Failure;
use crate::om::BucketPlace;
use tonic::Request;
use tonic::metadata::{AsciiMetadataKey, MetadataMap};

const PLACE: &str = "flotilla-bucket";

/// Says in which group a bucket is that a call is about.
pub fn in_bucket<T>(mut call: Request<T>, place: &BucketPlace) -> Request<T> {
    let BucketPlace { group, number, epoch } = place;
    let place = format!("{group}.{number}.{epoch}").parse().expect("digits are ASCII");
    call.metadata_mut().insert(AsciiMetadataKey::from_static(PLACE), place);
    call
}

/// The place of the bucket that a call is about, where it says one.
pub fn bucket_of(metadata: &MetadataMap) -> Result<Option<BucketPlace>, Failure> {
    let Some(place) = metadata.get(PLACE) else { return Ok(None) };
    let numbers = |text: &str| -> Option<[u64; 3]> {
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let parts = text.split('.').map(|part| part.parse().ok().filter(|_| is_digits(part)));
        parts.collect::<Option<Vec<u64>>>()?.try_into().ok()
    };
    match place.to_str().ok().and_then(numbers) {
        Some([group, number, epoch]) if number != 0 => Ok(Some(BucketPlace { group, number, epoch })),
        _ => {
            let why =
                format!("`{PLACE}` is a bucket's group, number and epoch: three numbers with dots between");
            Err(Failure::invalid(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_known_by_its_metadata() {
        assert_eq!(bucket_of(Request::new(()).metadata()), Ok(None));
        for (group, number, epoch) in [(0, 1, 0), (3, 7, 2), (u64::MAX, u64::MAX, u64::MAX)] {
            let place = BucketPlace { group, number, epoch };
            assert_eq!(bucket_of(in_bucket(Request::new(()), &place).metadata()), Ok(Some(place)));
        }
    }

    #[test]
    fn what_is_no_place_is_refused() {
        for place in
            ["", "1", "1.2", "1.0.2", "1.2.3.4", "+1.2.3", "1..3", "a.b.c", "1.2.18446744073709551616"]
        {
            let mut call = Request::new(());
            call.metadata_mut().insert(AsciiMetadataKey::from_static(PLACE), place.parse().unwrap());
            assert_eq!(bucket_of(call.metadata()).unwrap_err().code, crate::Code::Invalid, "{place}");
        }
    }
}
