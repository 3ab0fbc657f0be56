//! gRPC, where nobody asks who calls: what a stranger says there ends no election and takes no memory without
//! end.

use super::house::{House, Peak};
use super::{Failed, Seen};
use crate::commands::{admin_json, flotilla};
use crate::doors;
use proto::process::LogRequest;
use proto::process::process_client::ProcessClient;
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use proto::{Code, Failure};
use serde_json::Value;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};
use tokio::net::{TcpSocket, TcpStream};
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use types::GroupId;

const DEADLINE: Duration = Duration::from_secs(60);
const HEARTBEATS: &str = "/flotilla.raft.v1.RaftTransport/Heartbeats";

async fn channel(address: &str) -> Result<Channel, Failed> {
    let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|why| why.to_string())?;
    endpoint.connect().await.map_err(|why| format!("{address}: {why}"))
}

pub(super) async fn heartbeats(house: &House) -> Seen {
    const GROWTH_BYTES_MAX: u64 = 96 << 20;
    let empty = |count: usize| [1 << 3 | 2, 0].repeat(count);
    let mut said = Vec::new();
    let servers = [
        ("SCM", &house.cluster.scms[0], &house.cluster.scm_addresses[0]),
        ("a datanode", &house.cluster.datanodes[0], &house.cluster.datanode_addresses[0]),
    ];
    for (name, process, address) in servers {
        let channel = channel(address).await?;
        let few = doors::send(channel.clone(), HEARTBEATS, &empty(64)).await;
        if few.as_ref().is_none_or(|status| status.code() != tonic::Code::Ok) {
            return Err(format!("64 heartbeats, which are right, are answered {few:?} by {name}"));
        }
        let peak = Peak::of(process);
        let many = doors::send(channel, HEARTBEATS, &empty(4 << 20)).await;
        if many.as_ref().is_some_and(|status| status.code() == tonic::Code::Ok) {
            return Err(format!("8 MiB of empty heartbeats are taken by {name}"));
        }
        said.push(format!("{name}: {}", peak.stayed_below(GROWTH_BYTES_MAX, "8 MiB of empty heartbeats")?));
    }
    Ok(format!("8 MiB are refused, {}", said.join(", ")))
}

/// Regular expressions in what a process is asked to log: one of 200 bytes would take gigabytes.
pub(super) async fn log_regex(house: &House) -> Seen {
    const GROWTH_BYTES_MAX: u64 = 64 << 20;
    let costly = format!("[{{a=(x|y)*x{}}}]=info", "(x|y)".repeat(18));
    let (process, address) = (&house.cluster.scms[0], &house.cluster.scm_addresses[0]);
    let mut client = ProcessClient::new(channel(address).await?);
    let ask = |directive: &str| LogRequest { directives: vec![directive.to_owned()], reset: false };
    let right = client.log(ask("flotilla_scm=info")).await;
    right.map_err(|status| format!("a module's level is refused: {status}"))?;
    let peak = Peak::of(process);
    let answer = tokio::time::timeout(DEADLINE, client.log(ask(&costly))).await;
    match answer.map_err(|_| "an expression keeps a process busy")?.map_err(Failure::from) {
        Err(Failure { code: Code::Invalid, .. }) => {}
        other => return Err(format!("an expression is answered {other:?}")),
    }
    peak.stayed_below(GROWTH_BYTES_MAX, "a regular expression for a log")
}

/// From an address of their own, so that those of the cluster are not counted with them.
pub(super) async fn rpc_connections(house: &House) -> Seen {
    const COME: usize = 700;
    const OF_AN_ADDRESS_MAX: usize = 512;
    /// Less than what a silent connection is kept for.
    const SILENCE_MAX: Duration = Duration::from_secs(15);
    let address: SocketAddr = house.cluster.datanode_addresses[0].parse().expect("an address");
    let begun = Instant::now();
    let mut connections = Vec::new();
    for _ in 0..COME {
        let socket = TcpSocket::new_v4().map_err(|why| why.to_string())?;
        socket.bind((Ipv4Addr::new(127, 0, 7, 7), 0).into()).map_err(|why| why.to_string())?;
        connections.push(socket.connect(address).await.map_err(|why| why.to_string())?);
    }
    let is_open = |connection: &&TcpStream| {
        let found = connection.try_read(&mut [0; 256]);
        !matches!(found, Ok(0)) && found.as_ref().err().is_none_or(would_block)
    };
    let give_up = Instant::now() + DEADLINE;
    loop {
        let open = connections.iter().filter(is_open).count();
        // Who says nothing is closed in the end, whoever else is there: a machine that stalls shows no limit.
        if open < OF_AN_ADDRESS_MAX / 2 && begun.elapsed() < SILENCE_MAX {
            return Err(format!(
                "of {COME} connections only {open} are left, which is no limit of an address"
            ));
        }
        if open <= OF_AN_ADDRESS_MAX {
            house.put("beside-connections", "text").await?;
            return Ok(format!("{open} of {COME} connections of one address stay; others are served"));
        }
        if Instant::now() > give_up {
            return Err(format!("{open} of {COME} connections of one address are open"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn would_block(why: &std::io::Error) -> bool {
    why.kind() == std::io::ErrorKind::WouldBlock
}

/// A term of 2^62, and others that no election comes to, in each kind of message, to each member of SCM. Then
/// its leader is killed: another one must be elected and commit, and the first must come back.
pub(super) async fn scm_term(house: &mut House) -> Seen {
    let roles = admin_json(&house.cluster.scm_address, &["scm", "roles"]);
    let members = roles["members"].as_array().ok_or("no members")?.clone();
    let cluster = roles["cluster"].as_str().ok_or("no name of the cluster")?;
    let mut refused = 0;
    for (member, other) in members.iter().zip(members.iter().cycle().skip(1)) {
        let from = other["replica"].as_u64().ok_or("no number of a replica")?;
        let address = member["address"].as_str().ok_or("no address")?;
        let to = Some(wire::Address {
            group: GroupId::SCM.to_u64(),
            replica: member["replica"].as_u64().ok_or("no number of a replica")?,
            cluster: cluster.to_owned(),
            version: raft::PROTOCOL_VERSION,
        });
        let mut client = RaftTransportClient::new(channel(address).await?);
        // What any member may say is heard, so the address is right.
        let real = roles["term"].as_u64().ok_or("no term")?;
        let question = wire::VoteRequest { pre_vote: true, ..ask(&to, from, real) };
        client.vote(question).await.map_err(|why| format!("a question that is right: {why}"))?;
        for term in [1 << 62, (1 << 62) + 1, 1 << 45, u64::MAX] {
            refused +=
                tell(&mut client, &to, from, term).await.map_err(|how| format!("a term of {term}: {how}"))?;
        }
    }
    let elected = elects(house, &roles)?;
    Ok(format!("{refused} messages with terms to 2^64 are refused; {elected}"))
}

fn ask(to: &Option<wire::Address>, from: u64, term: u64) -> wire::VoteRequest {
    let vote = Some(wire::Vote { term, replica: from, committed: false });
    wire::VoteRequest { to: to.clone(), vote, ..wire::VoteRequest::default() }
}

/// Answers how many messages were refused for their term: all, or how one was not.
async fn tell(
    client: &mut RaftTransportClient<Channel>,
    to: &Option<wire::Address>,
    from: u64,
    term: u64,
) -> Result<usize, Failed> {
    let vote = Some(wire::Vote { term, replica: from, committed: true });
    let append = wire::AppendRequest { to: to.clone(), vote, ..wire::AppendRequest::default() };
    let hand_over = wire::TransferLeaderRequest {
        to: to.clone(),
        from_leader: vote,
        to_replica: to.as_ref().map_or(0, |to| to.replica),
        last: None,
    };
    is_refused("Vote", client.vote(ask(to, from, term)).await.err())?;
    is_refused("TransferLeader", client.transfer_leader(hand_over).await.err())?;
    let appended = async {
        let mut answers = client.append(futures::stream::iter([append.clone()])).await?.into_inner();
        answers.message().await
    };
    is_refused("Append", appended.await.err())?;
    let beat = wire::HeartbeatsRequest { heartbeats: vec![append] };
    let answer = client.heartbeats(beat).await.map_err(|why| why.to_string())?.into_inner();
    match answer.answers.as_slice() {
        [one] if one.answer.is_none() && one.refusal.contains("cannot have come about") => Ok(4),
        other => Err(format!("Heartbeats is answered {other:?}")),
    }
}

fn is_refused(method: &str, status: Option<Status>) -> Result<(), Failed> {
    let failure = status.map(Failure::from);
    match &failure {
        Some(why) if why.code == Code::Invalid && why.message.contains("cannot have come about") => Ok(()),
        _ => Err(format!("{method} is answered {failure:?}")),
    }
}

/// Kills the leader, has the others commit, and answers what became of it, in words.
fn elects(house: &mut House, before: &Value) -> Result<String, Failed> {
    let killed = leader(before).ok_or("SCM had no leader")?.to_owned();
    let at = house.cluster.scm_addresses.iter().position(|address| *address == killed);
    let at = at.ok_or("a leader of another cluster")?;
    house.cluster.scms[at].kill9();
    let scm = house.cluster.scm_address.clone();
    let give_up = Instant::now() + DEADLINE;
    let after = loop {
        let roles = admin_json(&scm, &["scm", "roles"]);
        if leader(&roles).is_some_and(|leader| leader != killed) {
            break roles;
        }
        if Instant::now() > give_up {
            return Err(format!("nobody is elected after {killed}: {roles:#}"));
        }
    };
    let put = flotilla(&["admin", "--scm", &scm, "registry", "kv", "put", "after", "an election"], None);
    if !put.status.success() {
        return Err(format!("nothing is committed: {}", String::from_utf8_lossy(&put.stderr)));
    }
    let ready = house.cluster.scms[at].start_again();
    if at == 0 {
        // Its HTTP port is another one.
        house.cluster.scm_ready = ready;
    }
    let got = flotilla(&["admin", "--scm", &scm, "registry", "kv", "get", "after"], None);
    let got = String::from_utf8_lossy(&got.stdout).trim().to_owned();
    match (before["term"].as_u64(), after["term"].as_u64(), got.as_str()) {
        (Some(first), Some(next), "an election") if first < next && next < 1 << 32 => {
            Ok(format!("another leader commits, in term {next} after {first}"))
        }
        other => Err(format!("after the election: {other:?}")),
    }
}

fn leader(roles: &Value) -> Option<&str> {
    roles["members"].as_array()?.iter().find(|member| member["role"] == "leader")?["address"].as_str()
}
