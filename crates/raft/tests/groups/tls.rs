//! A group of three hosts over mutual TLS, and who is refused. Nothing in it depends on a seed.

#![allow(clippy::unwrap_used)] // clippy takes only functions with #[test] for tests, not what they call

use bytes::Bytes;
use disk::RealDisk;
use flotilla_raft::{
    AddressBook, Applied, Command, Committed, Group, GroupSpec, GroupStart, HostOptions, Member,
    PROTOCOL_VERSION, RaftHost, Role, StateMachine, Timing,
};
use futures::StreamExt;
use proto::raft as wire;
use proto::raft::raft_transport_client::RaftTransportClient;
use raftlog::{LogSpace, LogSpaceOptions, LogSpec};
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair,
    KeyUsagePurpose,
};
use rpc::{
    Channel, Connector, Gate, GateOptions, TcpConnector, TlsConnector, TlsCounts, TlsIdentity,
    TlsIdentityError, TlsIncoming, TlsPart, TlsPem, TlsRefusal,
};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_rustls::rustls;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use tonic::service::RoutesBuilder;
use types::{GroupId, ManualClock, NodeId, OwnerId, PipelineId, ReplicaId, SystemClock};

const CLUSTER: &str = "test";
/// Longer than anything takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(60);
/// Patient: an election for no other reason than a busy machine would pass for something that a stranger
/// changed.
const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(200),
    election_min: Duration::from_secs(4),
    election_max: Duration::from_secs(6),
};

// ---- certificates ----

struct Authority(CertifiedIssuer<'static, KeyPair>);

/// The PEM of one holder of a certificate.
struct Papers {
    chain: String,
    private_key: String,
    authorities: String,
}

impl Authority {
    fn new(name: &str) -> Authority {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("an authority"))
    }

    /// The authority's certificate for these hosts; the holder believes the same authority.
    fn issue(&self, hosts: &[&str]) -> Papers {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).expect("names");
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Papers { chain: certificate.pem(), private_key: key.serialize_pem(), authorities: self.0.pem() }
    }
}

impl Papers {
    fn pem(&self) -> TlsPem<'_> {
        TlsPem {
            chain: self.chain.as_bytes(),
            private_key: self.private_key.as_bytes(),
            authorities: self.authorities.as_bytes(),
        }
    }

    fn identity(&self) -> TlsIdentity {
        TlsIdentity::new(&self.pem(), Arc::new(SystemClock)).expect("good papers")
    }

    fn connector(&self) -> TlsConnector {
        TlsConnector::new(self.identity())
    }
}

fn cluster_authority() -> Authority {
    Authority::new("authority of the cluster")
}

fn another_authority() -> Authority {
    Authority::new("another authority")
}

const HERE: &[&str] = &["127.0.0.1", "localhost"];

// ---- hosts ----

/// Remembers the commands it was given, in memory.
struct Tally(Arc<Mutex<Vec<Bytes>>>);

impl StateMachine for Tally {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        Ok(None)
    }

    fn apply(&mut self, batch: Vec<Committed>, _applied: Applied) -> anyhow::Result<Vec<Bytes>> {
        let mut commands = self.0.lock().expect("no holder panics");
        let answer = |command: Committed| {
            commands.push(command.meta);
            Bytes::new()
        };
        Ok(batch.into_iter().map(answer).collect())
    }
}

/// A node as a test sees it, all of which strangers must leave as it is.
type Seen = (u64, Option<ReplicaId>, Vec<Bytes>);

struct Node {
    address: String,
    host: RaftHost,
    group: Group,
    commands: Arc<Mutex<Vec<Bytes>>>,
    counts: Arc<TlsCounts>,
    server: JoinHandle<()>,
    _dir: TempDir,
}

struct Cluster {
    authority: Authority,
    nodes: Vec<Node>,
}

impl Cluster {
    async fn start() -> Cluster {
        let authority = cluster_authority();
        let addresses = AddressBook::default();
        let mut nodes = Vec::new();
        // The one that stands for election at once comes last, when there is somebody to vote for it.
        for n in [1, 2, 0] {
            nodes.push(start_node(&authority, &addresses, n).await);
        }
        nodes.rotate_right(1);
        Cluster { authority, nodes }
    }

    async fn leader(&self) -> &Node {
        eventually("a leader", || self.nodes.iter().find(|node| node.group.status().role == Role::Leader))
            .await
    }

    /// Commits a command; on return all three have applied it.
    async fn commit(&self, command: &'static str) {
        let proposed = Command { meta: Bytes::from_static(command.as_bytes()), ..Command::default() };
        let deadline = Instant::now() + DEADLINE;
        while let Err(error) = self.leader().await.group.apply(proposed.clone()).await {
            assert!(Instant::now() < deadline, "no leader took `{command}`: {error}");
        }
        let has = |node: &Node| node.commands.lock().unwrap().iter().any(|it| it == command);
        eventually("all have applied it", || self.nodes.iter().all(has).then_some(())).await;
    }

    fn seen_of_all(&self) -> Vec<Seen> {
        let seen = |node: &Node| {
            let status = node.group.status();
            let leader = status.leader.map(|leader| leader.replica);
            (status.term.0, leader, node.commands.lock().unwrap().clone())
        };
        self.nodes.iter().map(seen).collect()
    }

    async fn stop(self) {
        for node in self.nodes {
            node.server.abort();
            let _aborted = node.server.await;
            node.host.close(node.group.id()).await;
        }
    }
}

fn group_id() -> GroupId {
    GroupId::pipeline(PipelineId(1))
}

fn members() -> Vec<Member> {
    let address = "127.0.0.1:1".to_owned(); // the address book knows better
    (1..=3)
        .map(|n| Member { replica: ReplicaId(100 + n), node: NodeId(n), address: address.clone() })
        .collect()
}

async fn start_node(authority: &Authority, addresses: &AddressBook, n: usize) -> Node {
    let identity = authority.issue(HERE).identity();
    let dir = TempDir::new().expect("make a directory");
    let member = members()[n].clone();
    let disk = Arc::new(RealDisk::open(dir.path(), u128::from(member.node.0)).expect("open a disk"));
    let options =
        LogSpaceOptions { reserve_bytes: 0, segment_bytes_max: 16 << 20, ..LogSpaceOptions::default() };
    let space = LogSpace::new(disk, options);
    let connector = Arc::new(TlsConnector::new(identity.clone()));
    let host = RaftHost::over(connector, HostOptions::default(), addresses.clone());

    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind a free port");
    let address = listener.local_addr().expect("a bound address").to_string();
    addresses.set(member.node, address.clone());
    let incoming = TlsIncoming::new(listener, &identity);
    let counts = incoming.counts();
    let mut routes = RoutesBuilder::default();
    host.add_to(&mut routes);
    let serve =
        Gate::new(GateOptions::default()).server().add_routes(routes.routes()).serve_with_incoming(incoming);
    let server = tokio::spawn(async move { serve.await.expect("serve") });

    let spec = GroupSpec {
        cluster: CLUSTER.to_owned(),
        group: group_id(),
        replica: member.replica,
        timing: TIMING,
        start: GroupStart::First(members()),
        campaign: n == 0,
        snapshots: None,
        lease_reads: false,
    };
    let log = LogSpec {
        log: group_id().to_u64(),
        dir: "group".to_owned(),
        owners_dir: "containers".to_owned(),
        first_owner: OwnerId(1000),
    };
    let commands = Arc::new(Mutex::default());
    let group = host.open(spec, &space, log, Tally(commands.clone())).await.expect("open a group");
    Node { address, host, group, commands, counts, server, _dir: dir }
}

async fn eventually<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + DEADLINE;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "{what} did not come about");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether the first replica is behind a channel; `Err`: why nobody answered.
async fn hello(channel: Channel) -> Result<bool, String> {
    let request = wire::HelloRequest {
        group: group_id().to_u64(),
        replica: members()[0].replica.0,
        cluster: CLUSTER.to_owned(),
        version: PROTOCOL_VERSION,
    };
    let answer = RaftTransportClient::new(channel).hello(request).await;
    answer.map(|answer| answer.get_ref().is_here).map_err(|status| status.to_string())
}

/// Somebody with a host's certificate who does TLS as a test tells it to, and is refused: `certified` shows
/// it, `protocols` are offered.
async fn raw_client(
    papers: &Papers,
    node: &Node,
    certified: bool,
    protocols: &[&str],
) -> std::io::Result<Vec<u8>> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(papers.authorities.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = if certified {
        let chain = vec![CertificateDer::from_pem_slice(papers.chain.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(papers.private_key.as_bytes()).unwrap();
        builder.with_client_auth_cert(chain, key).unwrap()
    } else {
        builder.with_no_client_auth()
    };
    config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
    let refused_before = node.counts.refused_in_all();
    let tcp = TcpStream::connect(&node.address).await?;
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut tls = tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, tcp).await?;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    tls.write_all(preface).await?;
    // Who goes on writing still gets to read why it was refused.
    let is_refused = || (node.counts.refused_in_all() > refused_before).then_some(());
    eventually("the server refuses", is_refused).await;
    tls.write_all(preface).await?;
    let mut answer = Vec::new();
    tls.read_to_end(&mut answer).await?;
    Ok(answer)
}

#[track_caller]
fn check_error<T: std::fmt::Debug>(result: Result<T, impl ToString>, expect: &str) {
    let error = result.expect_err("refused").to_string();
    assert!(error.contains(expect), "`{error}` does not say `{expect}`");
}

// ---- tests ----

#[tokio::test(flavor = "multi_thread")]
async fn three_hosts_commit_over_tls() {
    let cluster = Cluster::start().await;
    for command in ["one", "two", "three"] {
        cluster.commit(command).await;
    }
    for node in &cluster.nodes {
        assert_eq!(*node.commands.lock().unwrap(), ["one", "two", "three"]);
        let refused = node.counts.refused_in_all();
        // Where the machine stands still, members are too slow, or give up before the server does.
        let late: u64 =
            [TlsRefusal::TooSlow, TlsRefusal::Broken].map(|it| node.counts.refused(it)).iter().sum();
        assert!(refused <= late, "{refused} were refused, {late} of them for being late");
    }
    let leader = cluster.leader().await.group.replica();
    for follower in cluster.nodes.iter().filter(|node| node.group.replica() != leader) {
        assert!(follower.counts.accepted() > 0, "the leader reached {} some other way", follower.address);
    }

    // A host may be reached under any name of its certificate.
    let by_name = cluster.nodes[0].address.replace("127.0.0.1", "localhost");
    let channel = cluster.authority.issue(HERE).connector().connect(&by_name).unwrap();
    assert_eq!(hello(channel).await, Ok(true));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_are_not_believed_change_nothing() {
    let cluster = Cluster::start().await;
    cluster.commit("before").await;
    let before = cluster.seen_of_all();
    let node = &cluster.nodes[0];
    let papers = cluster.authority.issue(HERE);
    // Members may be too slow as well.
    let check_refused = async |refusal, expect: u64| {
        eventually(&format!("{refusal:?} is counted"), || {
            (node.counts.refused(refusal) >= expect).then_some(())
        })
        .await;
    };

    let silent = TcpStream::connect(&node.address).await.unwrap();

    let nobody = raw_client(&papers, node, false, &["h2"]).await;
    check_error(nobody, "CertificateRequired");
    check_refused(TlsRefusal::NoCertificate, 1).await;

    let mut foreign = another_authority().issue(HERE);
    foreign.authorities = papers.authorities.clone();
    let channel = foreign.connector().connect(&node.address).unwrap();
    check_error(hello(channel).await, "refuses us: received fatal alert: UnknownCA");
    check_refused(TlsRefusal::BadCertificate, 1).await;

    // The name of our authority does not help.
    let mut forged = cluster_authority().issue(HERE);
    forged.authorities = papers.authorities.clone();
    let channel = forged.connector().connect(&node.address).unwrap();
    check_error(hello(channel).await, "refuses us: received fatal alert");
    check_refused(TlsRefusal::BadCertificate, 2).await;

    let plain = hello(TcpConnector::default().connect(&node.address).unwrap()).await;
    // It hears nothing it could make sense of; who refused it knows why.
    assert!(plain.is_err());
    check_refused(TlsRefusal::NotTls, 1).await;

    let other_protocol = raw_client(&papers, node, true, &["http/1.1"]).await;
    check_error(other_protocol, "NoApplicationProtocol");
    check_refused(TlsRefusal::NotHttp2, 1).await;
    // Without a protocol named TLS has nothing to object.
    let no_protocol = raw_client(&papers, node, true, &[]).await;
    assert!(no_protocol.is_err());
    check_refused(TlsRefusal::NotHttp2, 2).await;

    // All the while a handshake was under way; who says nothing is let go.
    check_refused(TlsRefusal::TooSlow, 1).await;
    drop(silent);

    assert_eq!(cluster.seen_of_all(), before, "strangers changed something");
    cluster.commit("after").await;
    let members_only = hello(papers.connector().connect(&node.address).unwrap()).await;
    assert_eq!(members_only, Ok(true));
    cluster.stop().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn servers_that_are_not_believed_hear_nothing() {
    let authority = cluster_authority();
    let papers = authority.issue(HERE);
    let mut foreign = another_authority().issue(HERE);
    foreign.authorities = papers.authorities.clone();
    check_distrusted(&foreign, &papers.connector(), "UnknownIssuer").await;
    check_distrusted(&authority.issue(&["elsewhere.example"]), &papers.connector(), "not valid for name")
        .await;
    // The clock that is given decides: in 1970 no certificate of this test was valid yet.
    let early = TlsIdentity::new(&papers.pem(), Arc::new(ManualClock::at_ms(0))).unwrap();
    check_distrusted(&papers, &TlsConnector::new(early), "not valid yet").await;
}

/// The client gives up before it has shown who it is, and the server learns that it was refused.
async fn check_distrusted(server: &Papers, client: &TlsConnector, expect: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut incoming = TlsIncoming::new(listener, &server.identity());
    let counts = incoming.counts();
    let accepting = tokio::spawn(async move { incoming.next().await.is_some() });
    let error = hello(client.connect(&address).unwrap()).await;
    check_error(error.clone(), expect);
    check_error(error, &address);
    eventually("the server learns of it", || (counts.refused(TlsRefusal::ByPeer) > 0).then_some(())).await;
    assert_eq!(counts.accepted(), 0);
    accepting.abort();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_without_tls_is_named() {
    let host = RaftHost::new(HostOptions::default(), AddressBook::default());
    let mut routes = RoutesBuilder::default();
    host.add_to(&mut routes);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = tokio::spawn(rpc::serve(listener, routes.routes(), std::future::pending()));
    let connector = cluster_authority().issue(HERE).connector();
    check_error(hello(connector.connect(&address).unwrap()).await, "does not speak TLS");
    // It is there, and answers those who speak as it does.
    assert_eq!(hello(TcpConnector::default().connect(&address).unwrap()).await, Ok(false));
    server.abort();

    for address in ["127.0.0.1", "under_score?:1", ":1", ""] {
        assert!(connector.connect(address).is_err(), "`{address}` is an address");
    }
}

#[test]
fn bad_pem_says_what_is_wrong() {
    let authority = cluster_authority();
    let good = authority.issue(HERE);
    let other = authority.issue(HERE);
    let check = |spoil: &dyn Fn(&mut Papers), expect: TlsIdentityError| {
        let Papers { chain, private_key, authorities } = &good;
        let mut papers = Papers {
            chain: chain.clone(),
            private_key: private_key.clone(),
            authorities: authorities.clone(),
        };
        spoil(&mut papers);
        let error = TlsIdentity::new(&papers.pem(), Arc::new(SystemClock)).err().expect("bad papers");
        // Whoever wrote the parser chose its words.
        let is_same = match (&error, &expect) {
            (
                TlsIdentityError::BadCertificate { part, number, .. },
                TlsIdentityError::BadCertificate { part: expect_part, number: expect_number, .. },
            ) => (part, number) == (expect_part, expect_number),
            (TlsIdentityError::Damaged { part, .. }, TlsIdentityError::Damaged { part: expected, .. }) => {
                part == expected
            }
            (TlsIdentityError::BadKey { .. }, TlsIdentityError::BadKey { .. }) => true,
            (error, expect) => error == expect,
        };
        assert!(is_same, "`{error}` ({error:?}) instead of {expect:?}");
    };
    let why = String::new;
    let garbage = |of: &str| format!("-----BEGIN {of}-----\nAAAA\n-----END {of}-----\n");

    check(&|it| it.chain.clear(), TlsIdentityError::NoCertificate { part: TlsPart::Chain });
    check(&|it| it.authorities.clear(), TlsIdentityError::NoCertificate { part: TlsPart::Authorities });
    check(&|it| it.private_key.clear(), TlsIdentityError::NoKey);
    check(&|it| it.private_key = garbage("ENCRYPTED PRIVATE KEY"), TlsIdentityError::NoKey);
    check(&|it| it.private_key = it.chain.clone(), TlsIdentityError::NoKey);
    check(&|it| it.private_key = good.private_key.repeat(2), TlsIdentityError::SeveralKeys { count: 2 });
    check(&|it| it.private_key = other.private_key.clone(), TlsIdentityError::KeyOfAnother);
    check(&|it| it.private_key = garbage("PRIVATE KEY"), TlsIdentityError::BadKey { why: why() });
    let cut = |pem: &mut String| pem.truncate(pem.find("-----END").expect("an end"));
    check(&|it| cut(&mut it.chain), TlsIdentityError::Damaged { part: TlsPart::Chain, why: why() });
    check(
        &|it| cut(&mut it.private_key),
        TlsIdentityError::Damaged { part: TlsPart::PrivateKey, why: why() },
    );
    let blot = |pem: &mut String| *pem = pem.replacen("\nM", "\n*", 1);
    check(
        &|it| blot(&mut it.authorities),
        TlsIdentityError::Damaged { part: TlsPart::Authorities, why: why() },
    );
    let garbled = |part, number| TlsIdentityError::BadCertificate { part, number, why: why() };
    check(&|it| it.chain = garbage("CERTIFICATE"), garbled(TlsPart::Chain, 1));
    check(&|it| it.chain += &garbage("CERTIFICATE"), garbled(TlsPart::Chain, 2));
    check(&|it| it.authorities += &garbage("CERTIFICATE"), garbled(TlsPart::Authorities, 2));
}
