//! The other groups of names, as SCM tells of them.

use crate::link::Link;
use crate::tables::ROOT;
use proto::scm::OmGroupView;
use proto::{Code, Failure};
use rpc::Connector;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A member that takes longer hangs, and the next one is asked.
const ANSWERS_WITHIN: Duration = Duration::from_secs(1);

/// All groups that are founded, and the ways to them.
pub(crate) struct Groups {
    connector: Arc<dyn Connector>,
    known: Mutex<BTreeMap<u64, Known>>,
    /// Held from the question how far a group is until its answer is noted, and by what it was told of: of two answers the
    /// later one is noted later.
    pub(crate) hearing: tokio::sync::Mutex<()>,
}

struct Known {
    /// The members' addresses, separated by commas.
    addresses: String,
    link: Arc<Link>,
}

impl Groups {
    pub(crate) fn new(connector: Arc<dyn Connector>) -> Groups {
        Groups { connector, known: Mutex::default(), hearing: Default::default() }
    }

    /// Takes in what SCM says. A group of which no address is known is as good as none.
    pub(crate) fn note(&self, groups: &[OmGroupView]) {
        let mut known = self.known.lock().expect("no holder panics");
        known.retain(|number, _| groups.iter().any(|group| group.group == *number));
        for group in groups {
            let addresses: Vec<&str> = group.members.iter().map(|member| member.address.as_str()).collect();
            let addresses = addresses.join(",");
            if known.get(&group.group).is_none_or(|known| known.addresses != addresses) {
                let Ok(link) = Link::new(&addresses, self.connector.clone(), ANSWERS_WITHIN) else {
                    continue;
                };
                known.insert(group.group, Known { addresses, link: Arc::new(link) });
            }
            let leader = group.members.iter().find(|member| member.om == group.leader_om);
            if let (Some(leader), Some(known)) = (leader, known.get(&group.group)) {
                known.link.leads(&leader.address);
            }
        }
    }

    /// The group that is to have a new bucket: any, with the same chance. Where SCM has told of none it is the root.
    pub(crate) fn pick(&self, random: u64) -> u64 {
        let known = self.known.lock().expect("no holder panics");
        let nth = random.checked_rem(known.len() as u64).unwrap_or_default();
        known.keys().nth(nth as usize).copied().unwrap_or(ROOT)
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

    /// All of which SCM has told.
    pub(crate) fn all(&self) -> BTreeSet<u64> {
        self.known.lock().expect("no holder panics").keys().copied().collect()
    }

    pub(crate) fn link(&self, group: u64) -> Result<Arc<Link>, Failure> {
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

    fn group(group: u64, address: &str) -> OmGroupView {
        let member = OmMember { om: 1, address: address.to_owned(), ..OmMember::default() };
        OmGroupView { group, members: vec![member], leader_om: 1 }
    }

    #[test]
    fn new_buckets_are_spread_over_the_groups_that_scm_tells_of() {
        let groups = Groups::new(Arc::new(rpc::TcpConnector::default()));
        assert_eq!(groups.pick(7), ROOT);
        assert_eq!(groups.check_is_there(5).unwrap_err().code, Code::Unavailable);
        groups.note(&[group(0, "a:1"), group(1, "b:1"), group(5, "b:1"), group(9, "")]);
        assert_eq!([0, 1, 2, 3].map(|random| groups.pick(random)), [0, 1, 5, 0]);
        assert!(groups.link(5).is_ok() && groups.link(9).is_err() && groups.check_is_there(9).is_err());
        groups.note(&[group(0, "a:1")]);
        assert!(groups.check_is_there(0).is_ok());
        assert_eq!(groups.check_is_there(5).unwrap_err().code, Code::Invalid);
        assert_eq!(groups.pick(5), ROOT);
    }
}
