use raft::{Member, ResetError};
use serde_json::{Value, json};
use std::fmt;
use types::ReplicaId;

/// Why a group was not reset, and what to do about it.
#[derive(Debug)]
pub(super) struct Refusal {
    /// For programs.
    code: &'static str,
    why: String,
    /// A sentence, flags in it to be copied; empty where `why` says all.
    next: String,
}

impl Refusal {
    fn new(code: &'static str, why: String, next: impl Into<String>) -> Refusal {
        Refusal { code, why, next: next.into() }
    }

    /// Something failed while the group was being reset: the one case in which more than a look was taken.
    pub(super) fn cut_short(error: ResetError) -> Refusal {
        let next = "the reset had begun, and nobody is given up by half of it: repeat the command with the same flags. \
                    If it then says that the group needs no reset, the first one was done";
        Refusal::new("cut_short", error.to_string(), next)
    }

    pub(super) fn in_json(&self) -> Value {
        json!({ "code": self.code, "why": self.why, "next": self.next })
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not reset: {}", self.why)?;
        if self.next.is_empty() { Ok(()) } else { write!(f, "\nNext: {}.", self.next) }
    }
}

/// Before a log was opened.
impl From<anyhow::Error> for Refusal {
    fn from(error: anyhow::Error) -> Refusal {
        Refusal::new("not_seen", format!("{error:#}"), "")
    }
}

impl From<ResetError> for Refusal {
    fn from(error: ResetError) -> Refusal {
        let why = error.to_string();
        match error {
            ResetError::Pipeline(_) => Refusal::new("pipeline", why, ""),
            ResetError::NoReplica(_) => {
                let next = "look on the other disks of the cluster; `flotilla debug log verify DATA_DIR` lists what is on one";
                Refusal::new("no_replica", why, next)
            }
            ResetError::Log { .. } => {
                let next = "`flotilla debug log verify DATA_DIR` says what is wrong with it; another replica that is left may \
                            be the better survivor";
                Refusal::new("log", why, next)
            }
            ResetError::NoMembers => {
                Refusal::new("no_members", why, "take another replica that is left as the survivor")
            }
            ResetError::NotVoter { .. } => {
                Refusal::new("not_voter", why, "take another replica that is left as the survivor")
            }
            ResetError::QuorumIsLeft { left, voters } => {
                let sets: Vec<_> = voters.iter().map(|set| format!("[{}]", joined(set))).collect();
                let (left, sets) = (joined(&left), sets.join(" and "));
                let why = format!(
                    "replicas [{left}] would be left, a majority of the voters {sets}: they need no reset"
                );
                let next = "start them; if some of them are lost for good too, name all but the one here, each with --lost";
                Refusal::new("quorum_is_left", why, next)
            }
            ResetError::OthersDiffer { others, named } => {
                let (all, said) = (joined(&others), joined(&named));
                let why = format!(
                    "the members beside the one here are [{all}], not [{said}], and all must be given up"
                );
                let flags: Vec<_> = others.iter().map(|replica| format!("--lost {replica}")).collect();
                Refusal::new("others_differ", why, format!("repeat with {}", flags.join(" ")))
            }
            ResetError::Alive { alive } => {
                let why = format!("said to be lost, but it answers: {}", named_all(&alive));
                let next = "start it, and a majority may be left; if it is not to come back, stop it for good and repeat";
                Refusal::new("alive", why, next)
            }
            ResetError::TooManyLost { .. } => Refusal::new("too_many_lost", why, ""),
        }
    }
}

fn joined(replicas: &[ReplicaId]) -> String {
    replicas.iter().map(ReplicaId::to_string).collect::<Vec<_>>().join(", ")
}

fn named_all(members: &[Member]) -> String {
    members.iter().map(named).collect::<Vec<_>>().join("; ")
}

pub(super) fn named(member: &Member) -> String {
    format!("replica {} on node {} at {}", member.replica, member.node, member.address)
}
