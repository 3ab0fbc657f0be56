use crate::Failure;
use crate::om::*;

impl From<lookup_reply::Result> for Result<Key, Failure> {
    fn from(result: lookup_reply::Result) -> Result<Key, Failure> {
        match result {
            lookup_reply::Result::Key(key) => Ok(key),
            lookup_reply::Result::Error(error) => Err(error.into()),
        }
    }
}

impl From<Result<Key, Failure>> for LookupReply {
    fn from(result: Result<Key, Failure>) -> LookupReply {
        let error = |failure: Failure| lookup_reply::Result::Error(failure.into());
        LookupReply { result: Some(result.map_or_else(error, lookup_reply::Result::Key)) }
    }
}
