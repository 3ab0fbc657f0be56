//! Fences containers: from here on the group takes no block of them that it does not name already: what
//! nobody names of them, nobody ever will ([`crate::sweep`]).
//!
//! The root numbers its fences, and each look at which it makes some, or none. Any other group notes up to
//! which number it has all of them: before it has, it takes no bucket ([`Apply::check_fenced`]), so that a
//! group that is made later takes no block either that others were asked about. A group that was reset, or
//! restored, may have lost fences, and does not know which: until it has all again it takes no block that it
//! does not name.

use super::{Apply, Fresh, Operation, wire};
use crate::blocks::{BlockKey, NamingRows};
use crate::tables::{FENCES_KEY, ROOT, Read, Refusal, fenced_key, fences, runs_before};
use planted::Bug;
use prost::Message;
use proto::om::{BlockPiece, FenceContainersRequest, FenceContainersResponse, Fences};
use proto::{Code, Failure};

/// The most containers that one command fences.
pub(crate) const FENCED_AT_ONCE: usize = 1000;
/// The largest number of a container that is fenced: far more than SCM can have drawn, one after the other:
/// whoever invents more leaves no rows.
const CONTAINERS_MAX: u64 = 1 << 40;
/// The time by which the clocks of two leaders may be apart, for numbers: thirty days. Whoever invents a
/// later one shuts no fence out for good.
const AHEAD_MAX_MS: u64 = 30 * 24 * 3600 * 1000;

pub(crate) struct FenceContainers;

impl Operation for FenceContainers {
    type Request = FenceContainersRequest;
    type Command = FenceContainersRequest;
    type Response = FenceContainersResponse;
    wire!(FenceContainers);

    fn prepare(request: FenceContainersRequest, _: Fresh) -> Result<FenceContainersRequest, Failure> {
        let count = request.containers.len();
        if count > FENCED_AT_ONCE {
            let why = format!("{count} containers, at most {FENCED_AT_ONCE} are allowed");
            return Err(Failure::new(Code::TooLarge, why));
        }
        match request.containers.iter().find(|container| !(1..=CONTAINERS_MAX).contains(*container)) {
            Some(container) => Err(Failure::invalid(format!("SCM never draws {container} for a container"))),
            None => Ok(request),
        }
    }

    /// Fences the containers. The command's `history` is that of the parts before: a group that was reset in
    /// between may have lost them.
    fn apply(
        apply: &mut Apply<'_, '_>,
        command: FenceContainersRequest,
    ) -> Result<FenceContainersResponse, Refusal> {
        let (is_root, history) = (command.group == ROOT, runs_before(apply.tables)?);
        if is_root {
            apply.check_not_put_back(command.known)?;
        }
        let before = fences(apply.tables)?;
        if command.complete_to != 0 && command.history != history {
            let why = format!("the group was reset or restored: its history is {history} now");
            return Err(Refusal::Passing(Failure::new(Code::NotHere, why)));
        }
        if !is_root && command.complete_to > apply.now_ms.saturating_add(AHEAD_MAX_MS) {
            let why = format!("fences up to {} are of a time that is to come", command.complete_to);
            return Err(Refusal::Passing(Failure::invalid(why)));
        }
        for container in command.containers {
            let key = fenced_key(container);
            if apply.tables.get(&key)?.is_none() {
                apply.tables.put(key, Vec::new());
            }
        }
        let number = match is_root {
            // A root that was founded anew, or put back, goes on past all that the one before it told groups
            // of.
            true => apply.now_ms.max(before.number.saturating_add(1)),
            false => before.number.max(command.complete_to),
        };
        let lacks = before.lacks && command.complete_to == 0;
        let after = Fences { number, lacks, ..before.clone() };
        if after != before {
            apply.tables.put(FENCES_KEY.to_vec(), after.encode_to_vec());
        }
        Ok(FenceContainersResponse { number, history, before: before.number, index: apply.index })
    }
}

impl Apply<'_, '_> {
    /// Stops the sweep where SCM knows of later fences than this root: with the number that it draws now, a
    /// root that was put back would know as much as SCM.
    fn check_not_put_back(&mut self, known: u64) -> Result<(), Refusal> {
        let number = fences(self.tables)?.number;
        if known <= number || planted::has(Bug::LessIsOverlooked) {
            return Ok(());
        }
        self.stop_sweep(format!(
            "the root of names was founded anew, or put back to an older copy: it had fences up to {known}, as SCM knows, and has \
             them up to {number}"
        ))
    }

    /// Refuses a bucket while this group lacks fences that the root has.
    pub(super) fn check_fenced(&self, wanted: u64) -> Result<(), Refusal> {
        match fences(self.tables)?.number {
            number if number >= wanted => Ok(()),
            number => {
                let why = format!("the group has the fences up to {number}, and is to have {wanted} first");
                Err(Refusal::Passing(Failure::new(Code::NotYet, why)))
            }
        }
    }

    /// The first block that is of a fenced container, or of one that may be (`lacks`), and that no row here
    /// names.
    pub(super) fn beyond_fence(
        &self,
        pieces: &[BlockPiece],
        lacks: bool,
    ) -> anyhow::Result<Option<BlockKey>> {
        let (mut last, mut rows) = (None, NamingRows::default());
        for block in pieces.iter().filter_map(BlockKey::of) {
            let container = block.container();
            let is_fenced = match last {
                Some((of, is_fenced)) if of == container => is_fenced,
                _ => {
                    (lacks || self.tables.get(&fenced_key(container))?.is_some())
                        && !planted::has(Bug::FencesIgnored)
                }
            };
            last = Some((container, is_fenced));
            if is_fenced && !rows.name(self.tables, &block)? {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::{Namespace, commit_request};
    use crate::ops::{CommitKey, FreezeBucket, HoldBucket, KeepBuckets};
    use proto::om::{Bucket, BucketPlace, FreezeBucketCommand, HoldBucketRequest, KeepBucketsRequest};

    fn fence(group: u64, containers: Vec<u64>, complete_to: u64) -> FenceContainersRequest {
        FenceContainersRequest { group, containers, complete_to, ..Default::default() }
    }

    #[test]
    fn of_a_fenced_container_only_what_is_named_is_taken() {
        let mut namespace = Namespace::new();
        namespace.commit("a", 1).unwrap();
        namespace.commit("b", 2).unwrap();
        let fenced = namespace.run::<FenceContainers>(fence(ROOT, vec![1, 3], 0)).unwrap();
        assert_eq!((fenced.before, fenced.number, fenced.history), (0, namespace.now_ms, 0));
        // A block that is named already is taken, by the same key or by another one.
        namespace.commit("a", 1).unwrap();
        namespace.commit("c", 1).unwrap();
        namespace.commit("b", 2).unwrap();
        namespace.check_refused::<CommitKey>(commit_request("d", 3), Code::GivenUp);
        assert_eq!(namespace.deleted_containers(), [3], "what the refused one brought is to go");
        namespace.commit("a", 4).unwrap();
        namespace.commit("c", 5).unwrap();
        namespace.check_refused::<CommitKey>(commit_request("a", 1), Code::GivenUp);
        let again = namespace.run::<FenceContainers>(fence(ROOT, vec![1, 3], 0)).unwrap();
        assert_eq!(
            (again.before, again.number > fenced.number),
            (fenced.number, true),
            "each look has a number"
        );
        let more = namespace.run::<FenceContainers>(fence(ROOT, vec![7], 0)).unwrap();
        assert_eq!((more.before, more.number), (again.number, namespace.now_ms));
    }

    #[test]
    fn a_group_that_was_reset_takes_no_block_before_it_has_all_fences_again() {
        let mut group = Namespace::new();
        group.commit("a", 1).unwrap();
        let number = group.bucket("photos").unwrap().0;
        group.put_records(crate::state_machine::reset_rows(ROOT, &group.db).unwrap());
        let history = runs_before(&group.db).unwrap();
        let kept = vec![BucketPlace { number, ..BucketPlace::default() }];
        group.run::<KeepBuckets>(KeepBucketsRequest { history, kept, ..Default::default() }).unwrap();
        group.check_refused::<CommitKey>(commit_request("b", 2), Code::NotYet);
        assert_eq!(group.deleted_containers(), [0u64; 0], "its writer repeats it");
        group.commit("a", 1).unwrap();
        group.commit("c", 1).unwrap();
        group.run::<FenceContainers>(fence(5, vec![2], 0)).unwrap();
        group.check_refused::<CommitKey>(commit_request("b", 3), Code::NotYet);
        group.check_refused::<FenceContainers>(fence(5, vec![], 9), Code::NotHere);
        group.run::<FenceContainers>(FenceContainersRequest { history, ..fence(5, vec![], 9) }).unwrap();
        group.commit("b", 3).unwrap();
        group.check_refused::<CommitKey>(commit_request("d", 2), Code::GivenUp);
    }

    #[test]
    fn a_root_that_is_founded_anew_goes_on_past_the_numbers_of_the_one_before_it() {
        let mut root = Namespace::new();
        let number = |root: &mut Namespace, container| {
            root.run::<FenceContainers>(fence(ROOT, vec![container], 0)).unwrap().number
        };
        let last = (1..=9).map(|container| number(&mut root, container)).max().unwrap();
        let mut anew = Namespace::new();
        anew.now_ms = root.now_ms;
        assert!(number(&mut anew, 1) > last);
        // A clock that is behind draws no number twice.
        anew.now_ms = 5;
        let numbers = [2, 3].map(|container| number(&mut anew, container));
        assert!(last < numbers[0] && numbers[0] < numbers[1], "{numbers:?}");
    }

    #[test]
    fn a_root_that_has_not_drawn_what_scm_was_told_of_was_put_back() {
        let mut root = Namespace::empty();
        let known = root.run::<FenceContainers>(fence(ROOT, vec![1], 0)).unwrap().number;
        let look = |root: &mut Namespace, known| {
            let look = FenceContainersRequest { known, ..fence(ROOT, vec![], 0) };
            root.run::<FenceContainers>(look).unwrap();
            fences(&root.db).unwrap().stop.map(|stop| stop.why).unwrap_or_default()
        };
        assert_eq!(look(&mut root, known), "");
        let mut old = Namespace::empty();
        old.now_ms = known + 1000;
        assert!(look(&mut old, known).contains("older copy"));
        assert!(
            look(&mut old, known).contains("older copy"),
            "it has drawn a later number, and stays stopped"
        );
    }

    #[test]
    fn numbers_that_nobody_can_have_drawn_are_refused() {
        let mut group = Namespace::new();
        group.now_ms = 1_700_000_000_000;
        let to_come = group.now_ms + 2 * AHEAD_MAX_MS;
        for complete_to in [to_come, u64::MAX] {
            group.check_refused::<FenceContainers>(fence(5, vec![1], complete_to), Code::Invalid);
        }
        let soon = group.now_ms + AHEAD_MAX_MS / 2;
        assert_eq!(group.run::<FenceContainers>(fence(5, vec![1], soon)).unwrap().number, soon);
        for container in [0, CONTAINERS_MAX + 1, u64::MAX] {
            group.check_refused::<FenceContainers>(fence(5, vec![container], 0), Code::Invalid);
        }
    }

    #[test]
    fn a_group_that_lacks_fences_takes_no_bucket() {
        let mut group = Namespace::empty();
        let bucket = Some(Bucket { volume: "s3v".into(), name: "photos".into(), created_ms: 1 });
        let place = Some(BucketPlace { group: 5, number: 7, epoch: 0 });
        let hold = |fences| HoldBucketRequest { place, bucket: bucket.clone(), fences };
        group.check_refused::<HoldBucket>(hold(3), Code::NotYet);
        group.run::<FenceContainers>(fence(5, vec![1], 0)).unwrap();
        group.check_refused::<HoldBucket>(hold(3), Code::NotYet);
        assert_eq!(group.run::<FenceContainers>(fence(5, vec![2], 3)).unwrap().number, 3);
        group.run::<HoldBucket>(hold(3)).unwrap();
        assert_eq!(group.run::<FenceContainers>(fence(5, vec![], 2)).unwrap().number, 3, "a late word");
        group.check_refused::<HoldBucket>(hold(4), Code::NotYet);
        let of_before = FenceContainersRequest { history: 9, ..fence(5, vec![], 4) };
        group.check_refused::<FenceContainers>(of_before, Code::NotHere);
        let many = fence(5, (0..=FENCED_AT_ONCE as u64).collect(), 0);
        group.check_refused::<FenceContainers>(many, Code::TooLarge);
        let freeze = FreezeBucketCommand { number: 7, attempt: 1, run: 1 };
        group.check_refused::<FreezeBucket>(freeze, Code::NotHere);
    }
}
