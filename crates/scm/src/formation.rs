//! Formation: a process gets its place in SCM's group. Why there is never more than one founder:
//! docs/adr/0007-scm-forms-itself.md.
//!
//! Each process is started with the same list of addresses. One whose disk has a replica goes on as that
//! replica. One without asks the others: when one of them belongs to a cluster, it joins that; when all of
//! them answer that they belong to none, the first address of the list founds one, as its only member, and
//! the others join it. So nobody founds a second cluster because others are merely away: a cluster is born
//! when all are there.
//!
//! Whoever comes with an empty disk is a new replica, also at an old address: what the old one promised is
//! forgotten, and must not be promised otherwise. The leader gives it an id and lets it take the place of the
//! old one ([`crate::admission`]).

use crate::seat::{Seat, Seats};
use anyhow::{Context, bail};
use disk::DataDirectory;
use futures::future::join_all;
use proto::scm::scm_client::ScmClient;
use proto::scm::{IntroduceRequest, IntroduceResponse, JoinScmRequest, JoinScmResponse};
use proto::{Code, Failure, Seeker};
use raft::Member;
use rpc::{Channel, Connector};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, info, warn};
use types::ReplicaId;

const ASK_AGAIN: Duration = Duration::from_millis(200);
const INTRODUCE_MAX: Duration = Duration::from_secs(2);
/// The time that a request to join may take: the leader answers when this replica has caught up.
const JOIN_MAX: Duration = Duration::from_secs(15);
/// The interval at which a process that waits says again what it waits for.
const SAY_AGAIN: Duration = Duration::from_secs(10);

pub(crate) struct Formation {
    pub(crate) seats: Arc<Seats>,
    pub(crate) disk: Arc<dyn DataDirectory>,
    pub(crate) connector: Arc<dyn Connector>,
    /// The address of this process, as the others know it.
    pub(crate) address: String,
    /// All members that there are to be, this one too, in order.
    pub(crate) members: Vec<String>,
}

/// The answers of the others, taken together.
enum Situation {
    /// There is a cluster.
    Born {
        cluster: String,
    },
    /// Nobody belongs to any, and everybody answered.
    Unborn,
    Unclear {
        why: String,
    },
}

impl Formation {
    /// Brings this process into the group, and returns when it is a member; what waiting cannot mend is an
    /// error.
    pub(crate) async fn run(&self) -> anyhow::Result<()> {
        let seat = match self.seats.taken() {
            Some(seat) => seat,
            None => self.find_place().await?,
        };
        if !seat.was_member {
            self.be_member(&seat).await?;
        }
        Ok(())
    }

    /// Warns once of what does not fit the list of members. A cluster at work must not fall because of a
    /// list; but where this process is its cluster's only SCM, and others of the list belong to another
    /// cluster, it was started in the wrong place.
    pub(crate) async fn look_around(&self) -> anyhow::Result<()> {
        let Some(seat) = self.seats.taken() else { return Ok(()) };
        let members = seat.group.members().all;
        for Member { address, .. } in members.iter().filter(|member| !self.members.contains(&member.address))
        {
            warn!(address, list = self.members.join(","), "SCM has a member that is not in the --scm list");
        }
        for (address, answer) in join_all(self.others().map(|address| self.introduce(address))).await {
            let theirs = answer.map_or(String::new(), |answer| answer.cluster);
            if theirs.is_empty() || theirs == seat.cluster {
                continue;
            }
            let ours = &seat.cluster;
            if members.len() < 2 {
                bail!(
                    "{} holds the only SCM of cluster {ours}, and {address}, which is in the list too, belongs to cluster {theirs}: give \
                     this one its own list, or an empty directory",
                    self.disk.root().display()
                );
            }
            error!(address, theirs, ours, "an SCM of the list belongs to another cluster");
        }
        Ok(())
    }

    async fn find_place(&self) -> anyhow::Result<Seat> {
        let stamped = self.disk.stamp().cluster;
        let mut said = Said::default();
        loop {
            let why = match self.ask_all().await? {
                Situation::Born { cluster } if !stamped.is_empty() && cluster != stamped => bail!(
                    "{} belongs to cluster {stamped}, the SCMs of the list to cluster {cluster}: give this one its own list, or an \
                     empty directory",
                    self.disk.root().display()
                ),
                Situation::Born { cluster } => match self.ask_for_place(&cluster).await {
                    Ok(replica) => return self.join(cluster, replica).await,
                    Err(failure) if is_final(&failure) => return Err(failure.into()),
                    Err(failure) => format!("asked to join cluster {cluster}: {}", brief(&failure)),
                },
                Situation::Unborn if !stamped.is_empty() => {
                    format!("this one belongs to cluster {stamped}, and no other member of it is there")
                }
                Situation::Unborn if self.members.first() == Some(&self.address) => {
                    return self.found().await;
                }
                Situation::Unborn => format!("{} is to found the cluster", self.members[0]),
                Situation::Unclear { why } => why,
            };
            said.say(&why);
            self.seats.waits_for(why);
            sleep(ASK_AGAIN).await;
        }
    }

    async fn found(&self) -> anyhow::Result<Seat> {
        info!(members = ?self.members, "nobody of the list belongs to a cluster: founding one");
        self.seats.found().await
    }

    async fn join(&self, cluster: String, replica: ReplicaId) -> anyhow::Result<Seat> {
        info!(%cluster, %replica, "joining the cluster's SCM");
        self.disk.join_cluster(&cluster, 0).context("stamp the metadata directory with the cluster's id")?;
        self.seats.join(cluster, replica).await
    }

    /// Asks until the group counts this replica as one of its own: also after a restart, since a crash may
    /// have come in between.
    async fn be_member(&self, seat: &Seat) -> anyhow::Result<()> {
        let replica = seat.group.replica();
        let mut said = Said::default();
        while !seat.group.members().is_voter(replica) {
            match self.ask_leader(self.join_request(&seat.cluster, replica)).await {
                Ok(answer) if answer.is_member => break,
                Ok(_) => {}
                Err(failure) if is_final(&failure) => return Err(failure.into()),
                Err(failure) => {
                    let why = brief(&failure);
                    said.say(&why);
                    self.seats.waits_for(why);
                }
            }
            sleep(ASK_AGAIN).await;
        }
        Ok(())
    }

    async fn ask_for_place(&self, cluster: &str) -> Result<ReplicaId, Failure> {
        let answer = self.ask_leader(self.join_request(cluster, ReplicaId(0))).await?;
        Ok(ReplicaId(answer.replica))
    }

    fn join_request(&self, cluster: &str, replica: ReplicaId) -> JoinScmRequest {
        JoinScmRequest { cluster: cluster.to_owned(), address: self.address.clone(), replica: replica.0 }
    }

    fn others(&self) -> impl Iterator<Item = &String> {
        self.members.iter().filter(|address| **address != self.address)
    }

    async fn ask_all(&self) -> anyhow::Result<Situation> {
        let (mut clusters, mut unclear) = (BTreeMap::new(), Vec::new());
        for (address, answer) in join_all(self.others().map(|address| self.introduce(address))).await {
            match answer {
                Ok(answer) if answer.address != *address => bail!(
                    "the SCM at {address} is at {} by its own account: write each as it is given with --advertise or --rpc",
                    answer.address
                ),
                Ok(answer) if !answer.cluster.is_empty() => {
                    clusters.entry(answer.cluster).or_insert(address);
                }
                Ok(answer) if answer.members != self.members => bail!(
                    "{address} was started with another list of SCMs, {}; this one with {}: start all with the same --scm",
                    answer.members.join(","),
                    self.members.join(",")
                ),
                Ok(_) => {}
                Err(failure) => unclear.push(format!("{address} does not answer ({})", failure.message)),
            }
        }
        if clusters.len() > 1 {
            let each = clusters.iter().map(|(cluster, address)| format!("{address} to {cluster}"));
            let each: Vec<String> = each.collect();
            bail!(
                "the SCMs of the list belong to different clusters, {}: one of them is not for this list",
                each.join(", ")
            );
        }
        Ok(match clusters.into_keys().next() {
            Some(cluster) => Situation::Born { cluster },
            None if unclear.is_empty() => Situation::Unborn,
            None => Situation::Unclear {
                why: format!("all must be there to found a cluster: {}", unclear.join(", ")),
            },
        })
    }

    async fn introduce<'a>(&self, address: &'a String) -> (&'a String, Result<IntroduceResponse, Failure>) {
        (address, introduce(&*self.connector, address).await)
    }

    /// Asks the other members one after the other until the leader is found.
    async fn ask_leader(&self, request: JoinScmRequest) -> Result<JoinScmResponse, Failure> {
        let others: Vec<String> = self.others().cloned().collect();
        let seeker = Seeker::parse(&others.join(","))?;
        // Each may be asked, and say who leads.
        let mut tries = 2 * others.len();
        loop {
            let address = seeker.address();
            let asked = async {
                Ok(client(&*self.connector, &address)?.join_scm(request.clone()).await?.into_inner())
            };
            let failure = match answered(&address, JOIN_MAX, asked).await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            seeker.failed(&address, &failure);
            tries = tries.saturating_sub(1);
            if tries == 0 || is_final(&failure) {
                return Err(failure);
            }
        }
    }
}

fn client(connector: &dyn Connector, address: &str) -> Result<ScmClient<Channel>, Failure> {
    let channel = connector.connect(address);
    let channel = channel.map_err(|why| Failure::invalid(format!("`{address}`: {why}")))?;
    Ok(ScmClient::new(channel))
}

/// The word of another SCM on itself.
pub(crate) async fn introduce(
    connector: &dyn Connector,
    address: &str,
) -> Result<IntroduceResponse, Failure> {
    let asked = async { Ok(client(connector, address)?.introduce(IntroduceRequest {}).await?.into_inner()) };
    answered(address, INTRODUCE_MAX, asked).await
}

fn is_final(failure: &Failure) -> bool {
    matches!(failure.code, Code::WrongCluster | Code::Invalid | Code::PreconditionFailed)
}

/// A failure in few words. Others that wait say what for: told on as it is, it would come back longer.
fn brief(failure: &Failure) -> String {
    match failure.code {
        Code::NotLeader | Code::Unavailable => "none of its SCMs that answer leads it".to_owned(),
        _ => failure.message.clone(),
    }
}

async fn answered<T>(
    address: &str,
    within: Duration,
    asked: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let silent = |why: &str| Failure::new(Code::Unavailable, why.to_owned());
    match timeout(within, asked).await {
        Err(_) => Err(silent("it takes too long")),
        // gRPC says so without words.
        Ok(Err(failure)) if failure.code == Code::Invalid && failure.message.is_empty() => {
            Err(silent(&format!("no SCM runs at {address}")))
        }
        Ok(answer) => answer,
    }
}

/// Says what is waited for: at once when it changes, and again now and then.
#[derive(Default)]
struct Said {
    last: Option<(String, Instant)>,
}

impl Said {
    fn say(&mut self, why: &str) {
        let is_fresh = self.last.as_ref().is_some_and(|(last, at)| last == why && at.elapsed() < SAY_AGAIN);
        if !is_fresh {
            warn!(why, "this SCM is no member of a cluster yet");
            self.last = Some((why.to_owned(), Instant::now()));
        }
    }
}
