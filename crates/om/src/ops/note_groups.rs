//! Notes how far each group of names is, as the root has heard. A group that is less far than it was, or has
//! another history, has other names than it had: somebody may still have those that are lacking, and they
//! look like blocks that nobody names. So it stops the sweep, until an operator says that there are no
//! others.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{FENCES_KEY, ROOT, Refusal, fences, seen, seen_key};
use planted::Bug;
use prost::Message;
use proto::om::{Fences, GroupSeen, NoteGroupsCommand, NoteGroupsReply, SweepStop};
use proto::{Code, Failure};

pub(crate) struct NoteGroups;

impl Operation for NoteGroups {
    type Request = NoteGroupsCommand;
    type Command = NoteGroupsCommand;
    type Response = NoteGroupsReply;
    wire!(NoteGroups);

    fn prepare(request: NoteGroupsCommand, _: Fresh) -> Result<NoteGroupsCommand, Failure> {
        Ok(request)
    }

    /// A report from before the root's last fences is an old leader's, and may be older than what is noted.
    fn apply(apply: &mut Apply<'_, '_>, command: NoteGroupsCommand) -> Result<NoteGroupsReply, Refusal> {
        let number = fences(apply.tables)?.number;
        if command.number != number {
            let why = "other fences were made while groups were asked how far they are";
            return Err(Refusal::Passing(Failure::new(Code::NotYet, why)));
        }
        for now in command.groups {
            match less_than_before(seen(apply.tables, now.group)?, &now, number) {
                Some(why) if !planted::has(Bug::LessIsOverlooked) => {
                    apply.stop_sweep(format!("group {} of names {why}", now.group))?;
                }
                _ => apply.tables.put(seen_key(now.group), now.encode_to_vec()),
            }
        }
        Ok(NoteGroupsReply { stop: fences(apply.tables)?.stop })
    }
}

/// The reason why a group may have fewer names than it had; `number` is that of the root's last fences.
fn less_than_before(before: Option<GroupSeen>, now: &GroupSeen, number: u64) -> Option<String> {
    if now.group != ROOT && now.number > number {
        let is = now.number;
        return Some(format!(
            "has fences up to {is}, and the root only up to {number}: the root was put back"
        ));
    }
    let Some(before) = before else {
        return (now.history != 0).then(|| "was once reset by force, or restored from a backup".to_owned());
    };
    if now.history != before.history {
        return Some("was reset by force, restored from a backup, or founded anew".to_owned());
    }
    if now.number < before.number || now.index < before.index {
        let (was, is) = (before.index, now.index);
        return Some(format!(
            "was founded anew, or put back to an older copy: its log was at entry {was}, and is at {is}; it had fences up \
             to {}, and has them up to {}",
            before.number, now.number
        ));
    }
    None
}

impl Apply<'_, '_> {
    /// Stops the sweep, if it is not stopped already.
    pub(super) fn stop_sweep(&mut self, why: String) -> Result<(), Refusal> {
        let before = fences(self.tables)?;
        if before.stop.is_none() {
            let stop = Some(SweepStop { why, at_ms: self.now_ms });
            self.tables.put(FENCES_KEY.to_vec(), Fences { stop, ..before }.encode_to_vec());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::testing::Namespace;
    use crate::ops::{FenceContainers, StartSweep, StopSweep};
    use proto::om::{FenceContainersRequest, StartSweepCommand, StopSweepCommand};

    fn root() -> Namespace {
        let mut root = Namespace::empty();
        root.run::<FenceContainers>(FenceContainersRequest::default()).unwrap();
        root
    }

    fn number(root: &Namespace) -> u64 {
        fences(&root.db).unwrap().number
    }

    /// The reason why the sweep is stopped once a group has said this.
    fn stopped(root: &mut Namespace, group: GroupSeen) -> String {
        let command = NoteGroupsCommand { number: number(root), groups: vec![group] };
        root.run::<NoteGroups>(command).unwrap().stop.unwrap_or_default().why
    }

    const FAR: GroupSeen = GroupSeen { group: 5, history: 0, number: 500, index: 70 };

    #[test]
    fn a_group_that_gets_further_is_noted_and_one_that_is_less_far_stops_the_sweep() {
        let less = [
            (GroupSeen { history: 1_000_000, ..FAR }, "reset by force"),
            (GroupSeen { number: 499, ..FAR }, "older copy"),
            (GroupSeen { index: 69, ..FAR }, "was at entry 70, and is at 69"),
            (GroupSeen { number: 0, index: 2, ..FAR }, "founded anew"),
            (GroupSeen { number: 5_000, ..FAR }, "the root was put back"),
        ];
        for (less, says) in less {
            let mut root = root();
            assert_eq!(stopped(&mut root, FAR), "");
            assert_eq!(stopped(&mut root, GroupSeen { number: 501, index: 71, ..FAR }), "");
            assert_eq!(
                stopped(&mut root, GroupSeen { number: 501, index: 71, ..FAR }),
                "",
                "it has done nothing"
            );
            root.set_seen(FAR);
            let why = stopped(&mut root, less);
            assert!(why.contains("group 5 ") && why.contains(says), "{why}");
            assert_eq!(seen(&root.db, 5).unwrap(), Some(FAR), "what it was stays known");
            assert_eq!(stopped(&mut root, FAR), why, "it is as it was, and somebody is to look all the same");
            let start = StartSweepCommand { groups: vec![less], number: 0 };
            root.run::<StartSweep>(start).unwrap();
            root.run::<FenceContainers>(FenceContainersRequest::default()).unwrap();
            assert_eq!(stopped(&mut root, less), "", "an operator has taken it for all that there is");
        }
    }

    #[test]
    fn a_group_that_comes_new_is_noted_unless_it_has_a_history() {
        let mut root = root();
        assert_eq!(stopped(&mut root, GroupSeen { number: 0, index: 1, ..FAR }), "");
        let why = stopped(&mut root, GroupSeen { group: 6, history: 1_000_000, ..FAR });
        assert!(why.contains("group 6 ") && why.contains("once reset"), "{why}");
    }

    #[test]
    fn the_word_of_a_leader_of_before_stops_nothing() {
        let mut root = root();
        let old = number(&root);
        assert_eq!(stopped(&mut root, FAR), "");
        root.run::<FenceContainers>(FenceContainersRequest::default()).unwrap();
        let less = NoteGroupsCommand { number: old, groups: vec![GroupSeen { index: 1, ..FAR }] };
        root.check_refused::<NoteGroups>(less, Code::NotYet);
        root.run::<StopSweep>(StopSweepCommand { why: "so".into(), number: old }).unwrap();
        assert_eq!(stopped(&mut root, FAR), "");
        root.run::<StopSweep>(StopSweepCommand { why: "an operator".into(), number: 0 }).unwrap();
        assert_eq!(stopped(&mut root, FAR), "an operator");
    }
}
