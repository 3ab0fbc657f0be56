//! Which requests took effect lately, and what they were answered: a commit that its sender repeats after a broken
//! connection takes effect once.

use super::Apply;
use crate::tables::{QUEUE_KEY, Read, Refusal, queue_key, request_key};
use prost::Message;
use proto::Failure;
use proto::om::{OmReply, RequestQueue, om_reply};

/// Remembered requests, oldest forgotten first. At 10 000 commits a second that is the last ten seconds, which is
/// longer than a sender keeps trying. Part of the replicated state: all members must agree, so changing it takes a
/// new format.
pub(super) const REQUESTS_MAX: u64 = 100_000;

/// What the request was answered when it took effect.
pub(super) fn answered(
    apply: &Apply<'_, '_>,
    request_id: &[u8],
) -> Result<Option<om_reply::Result>, Refusal> {
    if request_id.is_empty() {
        return Ok(None);
    }
    Ok(apply.tables.message::<OmReply>(&request_key(request_id))?.and_then(|reply| reply.result))
}

/// The answer belongs to another kind of request.
pub(super) fn foreign() -> Failure {
    Failure::invalid("the request id was used for another kind of request")
}

pub(super) fn remember(
    apply: &mut Apply<'_, '_>,
    request_id: &[u8],
    answer: om_reply::Result,
    requests_max: u64,
) -> Result<(), Refusal> {
    if request_id.is_empty() {
        return Ok(());
    }
    let mut queue: RequestQueue = apply.tables.message(QUEUE_KEY)?.unwrap_or_default();
    apply.tables.put(request_key(request_id), OmReply { result: Some(answer) }.encode_to_vec());
    apply.tables.put(queue_key(queue.next), request_id.to_vec());
    queue.next += 1;
    while queue.next - queue.first > requests_max {
        if let Some(oldest) = apply.tables.get(&queue_key(queue.first))? {
            apply.tables.delete(request_key(&oldest));
        }
        apply.tables.delete(queue_key(queue.first));
        queue.first += 1;
    }
    apply.tables.put(QUEUE_KEY.to_vec(), queue.encode_to_vec());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::overlay::Overlay;
    use proto::om::CommitKeyResponse;

    #[test]
    fn the_oldest_requests_are_forgotten() {
        let namespace = Namespace::new();
        let mut overlay = Overlay::new(&namespace.db);
        let mut apply = Apply::new(&mut overlay, 1, 0);
        for number in 0..10u8 {
            let answer = om_reply::Result::CommitKey(CommitKeyResponse { modified_ms: number.into() });
            remember(&mut apply, &[number; 16], answer, 3).unwrap();
        }
        for number in 0..10u8 {
            let known = answered(&apply, &[number; 16]).unwrap().is_some();
            assert_eq!(known, number >= 7, "request {number}");
        }
        assert!(answered(&apply, b"").unwrap().is_none());
        assert_eq!((overlay.scan(b"r").count(), overlay.scan(b"s").count()), (3, 3));
    }
}
