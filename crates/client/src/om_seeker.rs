use crate::view::{OmGroupView, View};
use proto::{Code, Failure, Seeker};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use tokio::sync::watch;

/// Seeks the OM that leads a group of names: among addresses that somebody gave, or among the members that
/// SCM tells of. These come and go; the one that answered last is asked first while it is one of them.
pub(crate) enum OmSeeker {
    Given(Arc<Seeker>),
    Followed(Followed),
}

pub(crate) struct Followed {
    view: watch::Receiver<Arc<View>>,
    /// The groups as they were followed last, and the searches among their members.
    sought: Mutex<HashMap<u64, (OmGroupView, Arc<Seeker>)>>,
}

impl OmSeeker {
    pub(crate) fn new(given: Option<Seeker>, view: watch::Receiver<Arc<View>>) -> OmSeeker {
        match given {
            Some(seeker) => OmSeeker::Given(Arc::new(seeker)),
            None => OmSeeker::Followed(Followed { view, sought: Mutex::default() }),
        }
    }

    /// The search among those that are members of a group now. Addresses that somebody gave have all groups.
    pub(crate) fn of(&self, group: u64) -> Result<Arc<Seeker>, Failure> {
        match self {
            OmSeeker::Given(seeker) => Ok(seeker.clone()),
            OmSeeker::Followed(followed) => followed.of(group),
        }
    }
}

impl Followed {
    fn of(&self, number: u64) -> Result<Arc<Seeker>, Failure> {
        let view = self.view.borrow().clone();
        let unknown = || {
            let who = if view.cluster.is_empty() {
                "SCM has not answered yet"
            } else {
                "SCM has told of no OM yet"
            };
            Failure::new(Code::Unavailable, format!("{who}: nobody is known to have group {number} of names"))
        };
        let group = view.om_group(number).ok_or_else(unknown)?;
        let mut sought = self.sought.lock().expect("no holder panics");
        if let Some((known, seeker)) = sought.get(&number)
            && known == group
        {
            return Ok(seeker.clone());
        }
        let addresses = group.addresses();
        let kept = sought.remove(&number).filter(|(known, _)| known.addresses() == addresses);
        let has_moved = |known: &OmGroupView| known.leader != group.leader;
        let (seeker, is_news) = match kept {
            Some((known, seeker)) => (seeker, has_moved(&known)),
            None => (Arc::new(Seeker::among(addresses).ok_or_else(unknown)?), true),
        };
        if let Some(leader) = group.leader_address().filter(|_| is_news) {
            seeker.leads(leader);
        }
        sought.insert(number, (group.clone(), seeker.clone()));
        Ok(seeker)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::MemberView;
    use types::NodeId;

    const NAMES: u64 = 3;

    fn view(members: &[u64], leader: u64) -> Arc<View> {
        let member = |node: &u64| MemberView { node: NodeId(*node), address: format!("om{node}:1") };
        let group = OmGroupView {
            number: NAMES,
            members: members.iter().map(member).collect(),
            leader: (leader != 0).then_some(NodeId(leader)),
            lacks_room: false,
        };
        Arc::new(View { cluster: "blue".to_owned(), om_groups: vec![group], ..View::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn the_leader_is_asked_first_and_others_when_it_is_silent() {
        let (told, views) = watch::channel(Arc::new(View::default()));
        let om = OmSeeker::new(None, views);
        let address = || om.of(NAMES).unwrap().address();
        let failed = |failure: &Failure| {
            let seeker = om.of(NAMES).unwrap();
            seeker.failed(&seeker.address(), failure);
        };
        assert_eq!(om.of(NAMES).unwrap_err().code, Code::Unavailable);
        told.send_replace(view(&[1, 2, 3], 2));
        assert_eq!(address(), "om2:1");
        failed(&Failure::unanswered(""));
        assert_eq!(address(), "om3:1");
        // SCM still believes in the one that is gone, or knows nobody.
        for leader in [0, 2, 0] {
            told.send_replace(view(&[1, 2, 3], leader));
            assert_eq!(address(), "om3:1", "{leader}");
        }
        failed(&Failure::not_leader(Some("om2:1".to_owned())));
        assert_eq!(address(), "om1:1", "it names the one that is gone");
        failed(&Failure::not_leader(Some("om3:1".to_owned())));
        assert_eq!(address(), "om3:1");
        // What was found out stays while nothing new is told of who leads.
        told.send_replace(Arc::new(View { pipelines: Vec::new(), ..(*view(&[1, 2, 3], 0)).clone() }));
        assert_eq!(address(), "om3:1");
        told.send_replace(view(&[1, 2, 3], 1));
        assert_eq!(address(), "om1:1");
    }

    #[test]
    fn members_that_are_none_any_more_are_asked_no_more() {
        let (told, views) = watch::channel(view(&[1, 2, 3], 1));
        let om = OmSeeker::new(None, views);
        assert_eq!(om.of(NAMES).unwrap().address(), "om1:1");
        told.send_replace(view(&[2, 3, 4], 0));
        assert_eq!(om.of(NAMES).unwrap().configured(), ["om2:1", "om3:1", "om4:1"]);
        assert_eq!(om.of(NAMES).unwrap().address(), "om2:1");
        told.send_replace(view(&[2, 3, 4], 4));
        assert_eq!(om.of(NAMES).unwrap().address(), "om4:1");
    }
}
