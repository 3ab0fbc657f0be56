//! The root learns what became of a bucket that it has asked another group to hold, or to let go of. Whoever
//! says so, the first one is heard: all ask under one id, and one attempt has one outcome.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{BucketNumber, Read, Refusal, bucket_key, unsettled_key};
use md5::{Digest, Md5};
use prost::Message;
use proto::om::{BucketEntry, BucketStage, SettleBucketCommand, SettleBucketReply};
use proto::{Failure, RequestId};

pub(crate) struct SettleBucket;

impl Operation for SettleBucket {
    type Request = SettleBucketCommand;
    type Command = SettleBucketCommand;
    type Response = SettleBucketReply;
    wire!(SettleBucket);

    fn prepare(request: SettleBucketCommand, _: Fresh) -> Result<SettleBucketCommand, Failure> {
        Ok(request)
    }

    /// The question without the outcome, which whoever asks once more need not know any more.
    fn asked(request: &SettleBucketCommand) -> Vec<u8> {
        SettleBucketCommand { is_gone: false, refused: 0, ..request.clone() }.encode_to_vec()
    }

    fn apply(apply: &mut Apply<'_, '_>, command: SettleBucketCommand) -> Result<SettleBucketReply, Refusal> {
        let SettleBucketCommand { volume, bucket, number, deletion, is_gone, refused } = command;
        let key = bucket_key(&volume, &bucket);
        let entry: Option<BucketEntry> = apply.tables.message(&key)?;
        let Some(mut entry) = entry.filter(|entry| entry.number == number) else {
            return Ok(SettleBucketReply { is_gone: true });
        };
        let asked_for = match deletion {
            0 => BucketStage::BucketMaking,
            _ => BucketStage::BucketDropping,
        };
        // The attempt was settled before, and the bucket is there still.
        if entry.stage() != asked_for || entry.deletions != deletion {
            return Ok(SettleBucketReply { is_gone: false });
        }
        apply.tables.delete(unsettled_key(BucketNumber(number)));
        if is_gone {
            apply.tables.delete(key);
        } else {
            entry.set_stage(BucketStage::BucketLive);
            entry.deletions = entry.deletions.max(refused);
            apply.tables.put(key, entry.encode_to_vec());
        }
        Ok(SettleBucketReply { is_gone })
    }
}

/// The id under which everybody asks for the outcome of one attempt; no sender draws it.
pub(crate) fn settle_id(number: u64, deletion: u64) -> RequestId {
    let md5 = Md5::new().chain_update("settle a bucket").chain_update(number.to_be_bytes());
    RequestId(u128::from_be_bytes(md5.chain_update(deletion.to_be_bytes()).finalize().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request};
    use crate::ops::{CommitKey, CreateBucket, DeleteBucket, DeleteKeys, HoldBucket, ReleaseBucket};
    use crate::queries::{HeadBucket, ListBuckets, Query};
    use proto::Code;
    use proto::om::*;

    const ELSEWHERE: u64 = 3;

    /// A root, and the group that has its bucket `far`.
    struct Two {
        root: Namespace,
        home: Namespace,
        place: BucketPlace,
        /// The refused attempt that the group named last.
        refused: u64,
    }

    impl Two {
        fn new() -> Two {
            let mut root = Namespace::new();
            let group = Some(ELSEWHERE);
            let create = CreateBucketRequest { volume: "s3v".into(), bucket: "far".into(), group };
            let made = root.run::<CreateBucket>(create).unwrap();
            let mut two = Two { root, home: Namespace::empty(), place: made.place.unwrap(), refused: 0 };
            assert_eq!(two.place.group, ELSEWHERE);
            assert!(!two.is_there(), "nobody holds it yet");
            two.hold();
            assert!(!two.settle(0, false));
            assert!(two.is_there());
            two
        }

        fn hold(&mut self) {
            let bucket = Some(Bucket { volume: "s3v".into(), name: "far".into(), created_ms: 1 });
            self.home
                .run::<HoldBucket>(HoldBucketRequest { place: Some(self.place), bucket, fences: 0 })
                .unwrap();
        }

        fn is_there(&self) -> bool {
            let request = HeadBucketRequest { volume: "s3v".into(), bucket: "far".into() };
            let is_found = HeadBucket::read(&self.root.db, None, request).is_ok();
            let list = ListBucketsRequest { volume: "s3v".into(), ..ListBucketsRequest::default() };
            let listed = ListBuckets::read(&self.root.db, None, list).unwrap().buckets;
            assert_eq!(listed.iter().any(|bucket| bucket.name == "far"), is_found);
            is_found
        }

        /// Begins to delete the bucket, and returns the number of the attempt.
        fn delete(&mut self) -> Result<u64, Failure> {
            let request = DeleteBucketRequest { volume: "s3v".into(), bucket: "far".into() };
            self.root.run::<DeleteBucket>(request).map(|response| response.deletion)
        }

        fn release(&mut self, deletion: u64) -> bool {
            let request = ReleaseBucketRequest { place: Some(self.place), deletion };
            let ReleaseBucketResponse { is_gone, refused } = self.home.run::<ReleaseBucket>(request).unwrap();
            self.refused = refused;
            is_gone
        }

        fn settle(&mut self, deletion: u64, is_gone: bool) -> bool {
            let number = self.place.number;
            let request = SettleBucketCommand {
                volume: "s3v".into(),
                bucket: "far".into(),
                number,
                deletion,
                is_gone,
                refused: self.refused,
            };
            self.root.run_as::<SettleBucket>(settle_id(number, deletion).0, request).unwrap().is_gone
        }

        fn put(&mut self) -> Result<(), Failure> {
            self.home.place = Some(self.place);
            self.home
                .run::<CommitKey>(CommitKeyRequest { bucket: "far".into(), ..commit_request("a", 1) })
                .map(drop)
        }

        fn empty(&mut self) {
            let request = DeleteKeysRequest {
                volume: "s3v".into(),
                bucket: "far".into(),
                keys: vec!["a".into()],
                precondition: None,
            };
            self.home.run::<DeleteKeys>(request).unwrap();
        }
    }

    #[test]
    fn a_bucket_of_another_group_is_there_once_that_holds_it_and_goes_once_that_lets_go() {
        let mut two = Two::new();
        two.put().unwrap();
        let first = two.delete().unwrap();
        assert!(two.is_there(), "its group may say no");
        assert_eq!(two.delete().unwrap_err().code, Code::Unavailable, "one at a time");
        assert!(!two.release(first));
        assert!(!two.settle(first, false));
        two.empty();
        let second = two.delete().unwrap();
        assert!(two.release(second));
        assert_eq!(two.put().unwrap_err().code, Code::NotHere, "before the root knows");
        assert!(two.settle(second, true));
        assert!(!two.is_there());
        assert_eq!(two.delete().unwrap_err().code, Code::NoSuchBucket);
        // Whoever asks once more is told what the outcome was.
        assert!(!two.settle(first, true));
        assert!(two.settle(second, true));
    }

    /// The leader of the root has changed, and the old one's question comes late.
    #[test]
    fn an_attempt_that_was_refused_stays_refused_when_the_bucket_is_empty_later() {
        let mut two = Two::new();
        two.put().unwrap();
        let first = two.delete().unwrap();
        assert!(!two.release(first));
        two.settle(first, false);
        two.empty();
        assert!(!two.release(first), "the root says that the bucket is there");
        two.put().unwrap();
        assert!(two.is_there());
    }

    /// A leader of the root that is none any more goes on with what it had read.
    #[test]
    fn a_bucket_that_was_let_go_of_is_held_never_again() {
        let mut two = Two::new();
        let first = two.delete().unwrap();
        assert!(two.release(first) && two.settle(first, true));
        two.hold();
        two.settle(0, false);
        assert_eq!(two.put().unwrap_err().code, Code::NotHere);
        assert!(!two.is_there());
    }

    #[test]
    fn a_number_that_was_given_out_twice_is_held_for_one_bucket_only() {
        let mut two = Two::new();
        let bucket = Some(Bucket { volume: "s3v".into(), name: "other".into(), created_ms: 9 });
        let request = HoldBucketRequest { place: Some(two.place), bucket, fences: 0 };
        two.home.check_refused::<HoldBucket>(request, Code::Internal);
    }

    /// A forced reset of the root took attempts that its group remembers.
    #[test]
    fn attempts_that_the_root_has_forgotten_are_gone_past() {
        let mut two = Two::new();
        two.put().unwrap();
        for _ in 0..3 {
            let attempt = two.delete().unwrap();
            assert!(!two.release(attempt) && !two.settle(attempt, false));
        }
        two.empty();
        let request = ReleaseBucketRequest { place: Some(two.place), deletion: u64::MAX };
        two.home.check_refused::<ReleaseBucket>(request, Code::Invalid);
        two.release(2);
        assert_eq!(two.refused, 3, "what the root goes on from");
        let next = two.delete().unwrap();
        assert_eq!(next, 4);
        assert!(two.release(next) && two.settle(next, true));
    }

    #[test]
    fn who_goes_by_an_older_place_or_none_is_told_that_it_is_elsewhere() {
        let mut two = Two::new();
        two.root.place = None;
        let put = || CommitKeyRequest { bucket: "far".into(), ..commit_request("a", 1) };
        two.root.check_refused::<CommitKey>(put(), Code::NotHere);
        two.home.place = Some(BucketPlace { epoch: 1, ..two.place });
        two.home.check_refused::<CommitKey>(put(), Code::NotHere);
        two.home.place = Some(BucketPlace { number: two.place.number + 1, ..two.place });
        two.home.check_refused::<CommitKey>(put(), Code::NotHere);
        // The refusal is not remembered: the same request is carried out where the bucket is.
        two.home.place = Some(BucketPlace { epoch: 1, ..two.place });
        assert!(two.home.run_as::<CommitKey>(79, put()).is_err());
        two.home.place = Some(two.place);
        two.home.run_as::<CommitKey>(79, put()).unwrap();
    }
}
