//! The other groups of names, as SCM tells of them.

use crate::tables::ROOT;
use proto::scm::OmGroupView;
use proto::{Code, Failure, Retry, Seeker};
use rpc::{Channels, Link};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The time for one member to answer: one that takes longer hangs, and the next one is asked.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);
/// The time for which SCM's word counts that a group lacks room: it says so each second.
const SAID_LATELY: Duration = Duration::from_secs(5);

/// All groups that are founded, and the ways to them.
pub(crate) struct Groups {
    /// Connections to OMs, which most groups share.
    channels: Channels,
    known: Mutex<BTreeMap<u64, KnownGroup>>,
    /// Whether an address is known of each group that SCM has told of.
    is_complete: AtomicBool,
    /// The lock that is held from the question how far a group is until its answer is noted and the fences
    /// that it lacks are sent: of two answers the later one is noted later.
    pub(crate) hearing: tokio::sync::Mutex<()>,
}

struct KnownGroup {
    /// The members' addresses, separated by commas.
    addresses: String,
    link: Link,
    /// The bits of the number of the group's keys, as its leader said last. `None`: nobody knows.
    keys_bits: Option<u32>,
    /// The moment when SCM said last that too many of the members' disks are full for a change.
    lacked_room: Option<Instant>,
}

impl Groups {
    pub(crate) fn new(channels: Channels) -> Groups {
        let (known, hearing, is_complete) = Default::default();
        Groups { channels, known, hearing, is_complete }
    }

    /// Takes in what SCM says. A group of which no address is known is as good as none.
    pub(crate) fn note(&self, groups: &[OmGroupView]) {
        let has_address = |group: &OmGroupView| group.members.iter().any(|member| !member.address.is_empty());
        self.is_complete.store(!groups.is_empty() && groups.iter().all(has_address), Ordering::Relaxed);
        let mut known = self.known.lock().expect("no holder panics");
        known.retain(|number, _| groups.iter().any(|group| group.group == *number));
        for group in groups {
            let addresses: Vec<&str> = group.members.iter().map(|member| member.address.as_str()).collect();
            let addresses = addresses.join(",");
            if known.get(&group.group).is_none_or(|known| known.addresses != addresses) {
                let Ok(seeker) = Seeker::parse(&addresses) else { continue };
                let link = Link::over(Arc::new(seeker), self.channels.clone(), ANSWERS_WITHIN);
                let (keys_bits, lacked_room) = Default::default();
                known.insert(group.group, KnownGroup { addresses, link, keys_bits, lacked_room });
            }
            let Some(known) = known.get_mut(&group.group) else { continue };
            known.lacked_room = group.lacks_room.then(Instant::now);
            if let Some(leader) = group.members.iter().find(|member| member.om == group.leader_om) {
                known.link.leads(&leader.address);
                known.keys_bits = group.keys_bits;
            }
        }
    }

    /// The group that is to have a new bucket: of two that are drawn, the one with clearly fewer keys, or the
    /// first. The emptiest of all would be the same one for all buckets of an hour. A group of which nobody
    /// knows how many keys it has is drawn only where that is so of all. Where SCM has told of no group it is
    /// the root.
    pub(crate) fn pick(&self, drawn: [u64; 2]) -> u64 {
        let all = self.known.lock().expect("no holder panics");
        let keys = |(number, group): (&u64, &KnownGroup)| (group.keys_bits, *number);
        let is_any_known = all.values().any(|group| group.keys_bits.is_some());
        let may_have: Vec<_> = all.iter().map(keys).filter(|it| !is_any_known || it.0.is_some()).collect();
        let nth = |random: u64| may_have.get(random.checked_rem(may_have.len() as u64)? as usize);
        let picked = drawn.into_iter().filter_map(nth).min_by_key(|(keys_bits, _)| keys_bits);
        picked.map_or(ROOT, |(_, number)| *number)
    }

    /// Whether SCM has told of the root and has an address of each group that it has told of.
    pub(crate) fn are_all_known(&self) -> bool {
        self.is_complete.load(Ordering::Relaxed) && self.all().contains(&ROOT)
    }

    /// Refuses a group that there is not, or, where SCM has told of none yet, may not be.
    pub(crate) fn check_is_there(&self, group: u64) -> Result<(), Failure> {
        let known = self.known.lock().expect("no holder panics");
        match known.is_empty() {
            _ if group == ROOT || known.contains_key(&group) => Ok(()),
            true => {
                Err(Failure::new(Code::Unavailable, "SCM has not told yet which groups of names there are"))
            }
            false => Err(Failure::invalid(format!("there is no group {group} of names"))),
        }
    }

    /// Refuses changes of a group that can commit none now: they would wait for as long as those who ask do.
    pub(crate) fn check_room(&self, group: u64) -> Result<(), Failure> {
        let known = self.known.lock().expect("no holder panics");
        let lacked_room = known.get(&group).and_then(|known| known.lacked_room);
        if lacked_room.is_none_or(|at| at.elapsed() > SAID_LATELY) {
            return Ok(());
        }
        let why = format!("too many disks of OMs are full for a change in group {group} of names");
        Err(Failure { retry: Retry::No, ..Failure::new(Code::DiskFull, why) })
    }

    /// The numbers of all groups of which SCM has told.
    pub(crate) fn all(&self) -> BTreeSet<u64> {
        self.known.lock().expect("no holder panics").keys().copied().collect()
    }

    pub(crate) fn link(&self, group: u64) -> Result<Link, Failure> {
        let known = self.known.lock().expect("no holder panics");
        let link = known.get(&group).map(|known| known.link.clone());
        link.ok_or_else(|| {
            Failure::new(Code::Unavailable, format!("SCM has not told where group {group} of names is"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::scm::OmMember;

    fn channels() -> Channels {
        Channels::new(Arc::new(rpc::TcpConnector::default()))
    }

    fn group(group: u64, address: &str) -> OmGroupView {
        let member = OmMember { om: 1, address: address.to_owned(), ..OmMember::default() };
        OmGroupView {
            group,
            members: vec![member],
            leader_om: 1,
            keys_bits: Some(0),
            ..OmGroupView::default()
        }
    }

    #[test]
    fn new_buckets_are_spread_over_the_groups_that_scm_tells_of() {
        let groups = Groups::new(channels());
        assert_eq!(groups.pick([7, 8]), ROOT);
        assert_eq!(groups.check_is_there(5).unwrap_err().code, Code::Unavailable);
        groups.note(&[group(0, "a:1"), group(1, "b:1"), group(5, "b:1"), group(9, "")]);
        assert_eq!([0, 1, 2, 3].map(|random| groups.pick([random, random + 1])), [0, 1, 5, 0]);
        assert!(groups.link(5).is_ok() && groups.link(9).is_err() && groups.check_is_there(9).is_err());
        groups.note(&[group(0, "a:1")]);
        assert!(groups.check_is_there(0).is_ok());
        assert_eq!(groups.check_is_there(5).unwrap_err().code, Code::Invalid);
        assert_eq!(groups.pick([5, 6]), ROOT);
    }

    #[tokio::test(start_paused = true)]
    async fn a_group_whose_disks_are_full_changes_nothing_as_long_as_scm_says_so() {
        let groups = Groups::new(channels());
        let full = OmGroupView { lacks_room: true, ..group(1, "a:1") };
        groups.note(&[group(0, "a:1"), full.clone()]);
        assert!(groups.check_room(0).is_ok() && groups.check_room(7).is_ok());
        let refused = groups.check_room(1).unwrap_err();
        assert_eq!((refused.code, refused.retry), (Code::DiskFull, Retry::No));
        groups.note(&[group(0, "a:1"), group(1, "a:1")]);
        assert_eq!(groups.check_room(1), Ok(()));
        groups.note(&[full]);
        tokio::time::advance(2 * SAID_LATELY).await;
        assert_eq!(groups.check_room(1), Ok(()), "SCM is silent, and there may be room since");
    }

    #[test]
    fn a_new_bucket_goes_to_the_group_with_fewer_keys_of_two() {
        let groups = Groups::new(channels());
        let with = |number, keys_bits| OmGroupView { keys_bits: Some(keys_bits), ..group(number, "a:1") };
        groups.note(&[with(0, 20), with(1, 3), with(2, 3)]);
        let picked = [[0, 1], [2, 0], [1, 2], [2, 1], [0, 0]].map(|drawn| groups.pick(drawn));
        assert_eq!(picked, [1, 2, 1, 2, 0]);

        // Group 1 has no leader for a moment: it counts with the keys that it had.
        groups.note(&[with(0, 20), OmGroupView { leader_om: 0, ..group(1, "a:1") }, with(2, 2)]);
        assert_eq!(groups.pick([1, 2]), 2);
    }

    #[test]
    fn a_group_of_which_nobody_knows_how_many_keys_it_has_draws_no_bucket_from_others() {
        let groups = Groups::new(channels());
        let unknown = |number| OmGroupView { keys_bits: None, ..group(number, "a:1") };
        groups.note(&[group(0, "a:1"), unknown(1), OmGroupView { keys_bits: Some(30), ..group(2, "a:1") }]);
        assert_eq!([[0, 1], [1, 1], [2, 3], [3, 3]].map(|drawn| groups.pick(drawn)), [0, 2, 0, 2]);
        // All groups are as good as each other.
        groups.note(&[unknown(0), unknown(1), unknown(2)]);
        assert_eq!([[0, 1], [1, 2], [5, 0]].map(|drawn| groups.pick(drawn)), [0, 1, 2]);
    }
}
