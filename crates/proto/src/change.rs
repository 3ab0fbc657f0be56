use crate::om::*;
use crate::{Failure, RequestId, bytes16, uuid_bytes};
use std::time::Duration;

/// A request that changes the inside of a bucket.
pub trait ChangesBucket: Clone {
    type Answer;
    /// The request's name, also in the metrics of who answers it.
    const NAME: &'static str;

    fn into_what(self) -> change::What;
    fn answer_of(result: om_reply::Result) -> Option<Self::Answer>;
}

macro_rules! changes {
    ($($name:ident: $variant:ident, $request:ident => $answer:ident;)*) => {
        $(impl ChangesBucket for $request {
            type Answer = $answer;
            const NAME: &'static str = stringify!($name);

            fn into_what(self) -> change::What {
                change::What::$variant(Box::new(self))
            }

            fn answer_of(result: om_reply::Result) -> Option<$answer> {
                match result {
                    om_reply::Result::$variant(answer) => Some(answer),
                    _ => None,
                }
            }
        })*
    };
}

changes! {
    commit_key: CommitKey, CommitKeyRequest => CommitKeyResponse;
    delete_keys: DeleteKeys, DeleteKeysRequest => DeleteKeysResponse;
    create_upload: CreateUpload, CreateUploadRequest => CreateUploadResponse;
    commit_part: CommitPart, CommitPartRequest => CommitPartResponse;
    complete_upload: CompleteUpload, CompleteUploadRequest => CompleteUploadResponse;
    abort_upload: AbortUpload, AbortUploadRequest => AbortUploadResponse;
}

impl Change {
    /// One more try of a request that was first sent `age` ago.
    pub fn of(
        request: impl ChangesBucket,
        id: RequestId,
        age: Duration,
        place: Option<BucketPlace>,
    ) -> Change {
        let age_ms = u64::try_from(age.as_millis()).unwrap_or(u64::MAX);
        Change { request_id: uuid_bytes(id.0), age_ms, place, what: Some(request.into_what()) }
    }

    /// The request that this change is a try of, and how long ago that was first sent.
    pub fn request(&self) -> Result<(RequestId, Duration), Failure> {
        let id = bytes16(&self.request_id, "the id of the request that a change of names is")?;
        Ok((RequestId(u128::from_be_bytes(id)), Duration::from_millis(self.age_ms)))
    }
}

impl OmReply {
    /// The answer to a request of a kind.
    pub fn answer<C: ChangesBucket>(self) -> Result<C::Answer, Failure> {
        match self.result {
            Some(om_reply::Result::Error(error)) => Err(error.into()),
            Some(result) => C::answer_of(result)
                .ok_or_else(|| Failure::internal("the reply is to another kind of request")),
            None => Err(Failure::internal("the reply is empty")),
        }
    }
}

impl From<Result<om_reply::Result, Failure>> for OmReply {
    fn from(result: Result<om_reply::Result, Failure>) -> OmReply {
        OmReply { result: Some(result.unwrap_or_else(|failure| om_reply::Result::Error(failure.into()))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Code;

    #[test]
    fn a_change_says_which_request_it_is_a_try_of() {
        let request = AbortUploadRequest { upload: "u".into(), ..Default::default() };
        for (id, age_ms) in [(0, 0), (1, 7), (u128::MAX, 36_000_000)] {
            let (id, age) = (RequestId(id), Duration::from_millis(age_ms));
            let change = Change::of(request.clone(), id, age, None);
            assert_eq!(change.request(), Ok((id, age)));
            assert_eq!(change.what, Some(change::What::AbortUpload(Box::new(request.clone()))));
        }
        for id in [&b""[..], &[7; 15], &[7; 17]] {
            let change = Change { request_id: id.to_vec().into(), ..Change::default() };
            assert_eq!(change.request().unwrap_err().code, Code::Invalid, "{id:?}");
        }
    }

    #[test]
    fn a_reply_is_the_answer_a_refusal_or_to_something_else() {
        let done = OmReply::from(Ok(om_reply::Result::CommitKey(CommitKeyResponse { modified_ms: 7 })));
        assert_eq!(done.clone().answer::<CommitKeyRequest>(), Ok(CommitKeyResponse { modified_ms: 7 }));
        assert_eq!(done.answer::<AbortUploadRequest>().unwrap_err().code, Code::Internal);
        let refused = Failure::not_leader(Some("om2:1".to_owned()));
        assert_eq!(OmReply::from(Err(refused.clone())).answer::<CommitKeyRequest>(), Err(refused));
        assert_eq!(OmReply::default().answer::<CommitKeyRequest>().unwrap_err().code, Code::Internal);
    }
}
