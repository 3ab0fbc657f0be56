use crate::{Code, Failure, Retry};
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// The time for which nobody is sent again to a leader that was found silent: others go on naming one that is
/// gone until they elect.
const SILENT_FOR: Duration = Duration::from_secs(3);

/// Seeks the leader of a service with several members: at the addresses somebody configured, and where
/// answers said it is. Shared by all calls to the service.
#[derive(Debug)]
pub struct Seeker {
    /// The configured addresses; at least one.
    configured: Vec<String>,
    sought: Mutex<Sought>,
}

#[derive(Debug)]
struct Sought {
    address: String,
    /// The last address that did not answer, and when that was.
    silent: Option<(String, Instant)>,
}

impl Sought {
    fn is_silent(&self, address: &str) -> bool {
        self.silent.as_ref().is_some_and(|(silent, since)| silent == address && since.elapsed() < SILENT_FOR)
    }
}

impl Seeker {
    /// Seeks among `addresses`: "host:port", several separated by commas.
    pub fn parse(addresses: &str) -> Result<Seeker, Failure> {
        let mut configured: Vec<String> = Vec::new();
        for address in addresses.split(',').map(str::trim).filter(|address| !address.is_empty()) {
            let (host, port) = address.rsplit_once(':').unwrap_or_default();
            if host.is_empty() || port.parse::<u16>().is_err() {
                return Err(Failure::invalid(format!("`{address}` is not host:port")));
            }
            if !configured.iter().any(|known| known == address) {
                configured.push(address.to_owned());
            }
        }
        let seeker = Seeker::among(configured);
        seeker.ok_or_else(|| Failure::invalid("no address is given, expected host:port"))
    }

    /// Seeks among these, the first of them first. `None` where there is none.
    pub fn among(addresses: Vec<String>) -> Option<Seeker> {
        let first = addresses.first().cloned()?;
        let sought = Mutex::new(Sought { address: first, silent: None });
        Some(Seeker { configured: addresses, sought })
    }

    /// Notes where somebody else says that the leader is: the next question goes there, unless that address
    /// was found silent just now.
    pub fn leads(&self, leader: &str) {
        let mut sought = self.sought.lock().expect("no holder panics");
        if !sought.is_silent(leader) {
            leader.clone_into(&mut sought.address);
        }
    }

    pub fn configured(&self) -> &[String] {
        &self.configured
    }

    /// The address to ask next.
    pub fn address(&self) -> String {
        self.sought.lock().expect("no holder panics").address.clone()
    }

    /// Notes that a call to `asked` failed: the next goes where that member says the leader is, or to the
    /// next configured address when it does not lead, or does not answer. Other failures are the leader's
    /// own.
    pub fn failed(&self, asked: &str, failure: &Failure) {
        let mut sought = self.sought.lock().expect("no holder panics");
        // A leader that says itself that it cannot do it at the moment has answered.
        let is_no_answer = matches!(failure.code, Code::Unavailable | Code::OutcomeUnknown);
        if is_no_answer && failure.retry == Retry::Unknown {
            sought.silent = Some((asked.to_owned(), Instant::now()));
        }
        let next = match (&failure.leader_address, failure.code) {
            (Some(leader), _) if leader != asked && !sought.is_silent(leader) => leader.clone(),
            (_, Code::NotLeader | Code::Unavailable | Code::OutcomeUnknown | Code::WrongCluster) => {
                self.after(asked, &sought)
            }
            _ => return,
        };
        // Another call may have found the leader meanwhile.
        if sought.address == asked {
            sought.address = next;
        }
    }

    /// The next configured address; a silent one only when there is no other.
    fn after(&self, asked: &str, sought: &Sought) -> String {
        let at = self.configured.iter().position(|known| known == asked);
        let first = at.map_or(0, |at| at + 1);
        let mut others = self.configured.iter().cycle().skip(first).take(self.configured.len());
        let next = others.find(|address| !sought.is_silent(address));
        next.unwrap_or(&self.configured[first % self.configured.len()]).clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_a_list() {
        let seeker = Seeker::parse(" a:1, b:2 ,a:1,").unwrap();
        assert_eq!(seeker.configured(), ["a:1", "b:2"]);
        assert_eq!(seeker.address(), "a:1");
        for (wrong, why) in [
            ("", "no address"),
            (",", "no address"),
            ("a", "`a` is not"),
            ("a:1,:2", "`:2` is not"),
            ("a:x", "`a:x`"),
        ] {
            let failure = Seeker::parse(wrong).unwrap_err();
            assert!(failure.message.contains(why), "{wrong}: {failure}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_is_gone_is_not_asked_again_because_others_still_name_it() {
        let seeker = Seeker::parse("a:1,b:2,c:3").unwrap();
        let unavailable = Failure::unanswered("");
        let names_a = Failure::not_leader(Some("a:1".to_owned()));
        seeker.failed("a:1", &unavailable);
        let mut asked = Vec::new();
        for _ in 0..4 {
            asked.push(seeker.address());
            seeker.failed(&seeker.address(), &names_a);
        }
        assert_eq!(asked, ["b:2", "c:3", "b:2", "c:3"]);
        // One that answers is no silent one, even if it cannot do what it was asked for yet.
        seeker.failed("b:2", &Failure::not_leader(Some("c:3".to_owned())));
        assert_eq!(seeker.address(), "c:3");
        seeker.failed("c:3", &Failure::new(Code::Unavailable, "not yet"));
        assert_eq!(seeker.address(), "b:2");
        seeker.failed("b:2", &Failure::not_leader(Some("c:3".to_owned())));
        assert_eq!(seeker.address(), "c:3");
        seeker.failed("c:3", &names_a);
        // The members have elected by this time, and name whom they have elected.
        tokio::time::advance(SILENT_FOR).await;
        seeker.failed("b:2", &names_a);
        assert_eq!(seeker.address(), "a:1");
    }

    #[tokio::test(start_paused = true)]
    async fn where_somebody_says_that_the_leader_is_is_asked_unless_it_was_silent_just_now() {
        assert!(Seeker::among(Vec::new()).is_none());
        let seeker = Seeker::among(["a:1", "b:2", "c:3"].map(str::to_owned).to_vec()).unwrap();
        seeker.leads("c:3");
        assert_eq!(seeker.address(), "c:3");
        seeker.failed("c:3", &Failure::unanswered(""));
        assert_eq!(seeker.address(), "a:1");
        seeker.leads("c:3");
        assert_eq!(seeker.address(), "a:1");
        tokio::time::advance(SILENT_FOR).await;
        seeker.leads("c:3");
        assert_eq!(seeker.address(), "c:3");
    }

    #[test]
    fn one_that_is_silent_is_asked_again_where_there_is_no_other() {
        let seeker = Seeker::parse("a:1").unwrap();
        seeker.failed("a:1", &Failure::unanswered(""));
        assert_eq!(seeker.address(), "a:1");
    }

    #[test]
    fn the_leader_is_found() {
        let seeker = Seeker::parse("a:1,b:2,c:3").unwrap();
        let unavailable = Failure::unanswered("");
        seeker.failed("a:1", &unavailable);
        assert_eq!(seeker.address(), "b:2");
        seeker.failed("a:1", &unavailable);
        assert_eq!(seeker.address(), "b:2", "an older call knows less");
        seeker.failed("b:2", &Failure::not_leader(Some("d:4".to_owned())));
        assert_eq!(seeker.address(), "d:4", "members may have come since the list was written");
        seeker.failed("d:4", &Failure::new(Code::NotFound, ""));
        assert_eq!(seeker.address(), "d:4", "the leader said no");
        seeker.failed("d:4", &unavailable);
        assert_eq!(seeker.address(), "a:1");
        seeker.failed("a:1", &Failure::not_leader(None));
        seeker.failed("b:2", &Failure::not_leader(Some("b:2".to_owned())));
        assert_eq!(seeker.address(), "c:3", "one that names itself is no help");
    }
}
