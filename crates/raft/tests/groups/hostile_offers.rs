//! Snapshots that no host of ours offers, and pieces that nobody asked for.

use crate::cluster::{CLUSTER, Cluster, PATIENT, body, eventually, metadata, pipeline};
use crate::hostile::{Attacker, address, elects_and_commits, encode, state};
use bytes::{BufMut, Bytes, BytesMut};
use flotilla_raft::{PROTOCOL_VERSION, Role};
use prost::Message;
use proto::{Code, raft as wire};
use types::GroupId;
use wire::snapshot_to_follower::Message as ToFollower;

/// A manifest as docs/format/snapshot.md has it, with anything in it.
#[derive(Clone)]
struct Manifest {
    version: u32,
    group: u64,
    at: (u64, u64),
    members_at: Option<wire::LogId>,
    membership: Option<Bytes>,
    files: Vec<(&'static str, Bytes)>,
}

impl Manifest {
    fn encode(&self) -> Bytes {
        let member = |replica| wire::Member { replica, node: replica - 100, address: "127.0.0.1:1".into() };
        let stored = wire::StoredMembership {
            at: self.members_at,
            membership: Some(wire::Membership {
                voter_sets: vec![wire::VoterSet { replicas: vec![101, 102, 103] }],
                members: (101..=103).map(member).collect(),
            }),
        };
        let membership = self.membership.clone().unwrap_or_else(|| stored.encode_to_vec().into());
        let mut rest = BytesMut::new();
        rest.put_u64_le(self.group);
        rest.put_u64_le(self.at.0);
        rest.put_u64_le(self.at.1);
        rest.put_u32_le(256 << 10);
        rest.put_u32_le(self.files.len() as u32);
        rest.put_u32_le(membership.len() as u32);
        rest.put_u32_le(0);
        rest.put_slice(&membership);
        for (name, data) in &self.files {
            rest.put_u8(name.len() as u8);
            rest.put_slice(name.as_bytes());
            rest.put_u64_le(data.len() as u64);
            data.chunks(256 << 10).for_each(|piece| rest.put_u32_le(crc32c::crc32c(piece)));
        }
        let mut out = BytesMut::from(b"FLsnap\0\0".as_slice());
        out.put_u32_le(self.version);
        out.put_u32_le(crc32c::crc32c(&rest));
        out.put_slice(&rest);
        out.freeze()
    }
}

struct Prepared {
    cluster: Cluster,
    attacker: Attacker,
    group: GroupId,
    to: Option<wire::Address>,
    vote: Option<wire::Vote>,
    /// A manifest as good as can be without a state of the group.
    manifest: Manifest,
}

/// Prepares three hosts with a group of metadata and a pipeline, and a stranger who talks to the third.
async fn prepared() -> Prepared {
    let mut cluster = Cluster::start().await.with_timing(PATIENT);
    let group = metadata(1);
    for group in [group, pipeline(2)] {
        cluster.open(group).await;
        for n in 0..5 {
            let done = cluster.apply(group, format!("{n}"), body(n, 10)).await;
            cluster.assert_same(group, done.id.index).await;
        }
    }
    let manifest = Manifest {
        version: 1,
        group: group.to_u64(),
        at: (99, 1000),
        members_at: Some(wire::LogId { term: 0, index: 0 }),
        membership: None,
        files: vec![("a", vec![7; 300 << 10].into()), ("b", vec![8; 10].into())],
    };
    Prepared {
        attacker: Attacker::new(&cluster, 2).await,
        to: address(group, cluster.members(group)[2].replica.0, PROTOCOL_VERSION),
        vote: Some(wire::Vote { term: 99, replica: 101, committed: true }),
        cluster,
        group,
        manifest,
    }
}

fn offer(to: &Option<wire::Address>, vote: Option<wire::Vote>, manifest: Bytes) -> Bytes {
    let offer = wire::SnapshotOffer { to: to.clone(), vote, manifest };
    encode(&wire::SnapshotToFollower { message: Some(ToFollower::Offer(offer)) })
}

fn piece(file: u32, number: u32, data: Bytes) -> Bytes {
    let piece = wire::SnapshotPiece { file, number, data };
    encode(&wire::SnapshotToFollower { message: Some(ToFollower::Piece(piece)) })
}

impl Prepared {
    fn offer(&self, manifest: &Manifest) -> Bytes {
        offer(&self.to, self.vote, manifest.encode())
    }

    /// Sends them and checks that they are refused with `code` and change nothing.
    async fn check(&self, what: &str, messages: Vec<Bytes>, code: Code) {
        let here = self.cluster.group(2, self.group);
        let seen = || {
            let ledger = self.cluster.ledger(2, self.group);
            (state(&here), here.status().applied, here.members(), ledger.digest())
        };
        let before = seen();
        let failure = self.attacker.send("Snapshot", messages).await.expect_err(what);
        assert_eq!(failure.code, code, "{what}: {failure}");
        assert_eq!(seen(), before, "{what}");
        assert_eq!(here.snapshots().installed_count, 0, "{what}");
        let status = here.status();
        assert!(status.failure.is_none() && status.role != Role::Stopped, "{what}: {status:?}");
    }

    /// The group goes on, the attacked replica too.
    async fn stop(self) {
        elects_and_commits(&self.cluster, self.group).await.expect("the group goes on");
        let done = self.cluster.apply(self.group, "after".into(), body(2, 10)).await;
        self.cluster.assert_same(self.group, done.id.index).await;
        self.cluster.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn offers_that_no_leader_of_the_group_makes_get_a_typed_error_and_change_nothing() {
    let it = prepared().await;
    let good = &it.manifest;
    let replica = it.to.as_ref().expect("an address").replica;
    let pipelines = it.cluster.members(pipeline(2))[2].replica.0;
    let cluster = it.to.clone().map(|to| wire::Address { cluster: format!("{CLUSTER} 2"), ..to });
    let addressed = [
        ("an unknown group", address(metadata(9), replica, PROTOCOL_VERSION), Code::NotFound),
        ("an unknown replica", address(it.group, replica + 50, PROTOCOL_VERSION), Code::NotFound),
        ("another cluster", cluster, Code::WrongCluster),
        ("a newer protocol", address(it.group, replica, PROTOCOL_VERSION + 1), Code::NewerVersion),
        ("a group without snapshots", address(pipeline(2), pipelines, PROTOCOL_VERSION), Code::Invalid),
        ("nobody", None, Code::Invalid),
    ];
    for (what, to, code) in addressed {
        it.check(what, vec![offer(&to, it.vote, good.encode())], code).await;
    }
    let vote = |term, replica, committed| Some(wire::Vote { term, replica, committed });
    for (what, vote) in [
        ("no vote", None),
        ("a candidate's", vote(99, 101, false)),
        ("from itself", vote(99, replica, true)),
        ("of a term before the snapshot's", vote(98, 101, true)),
        ("of too large a term", vote(u64::MAX, 101, true)),
    ] {
        it.check(what, vec![offer(&it.to, vote, good.encode())], Code::Invalid).await;
    }

    it.check("a piece first", vec![piece(0, 0, Bytes::new())], Code::Invalid).await;
    let large = offer(&it.to, it.vote, vec![0; proto::MESSAGE_BYTES_MAX].into());
    it.check("a message that is too large", vec![large], Code::TooLarge).await;
    let mut flipped = good.encode().to_vec();
    flipped[60] ^= 1;
    it.check("a bad checksum", vec![offer(&it.to, it.vote, flipped.into())], Code::Corrupt).await;
    let cut = good.encode().slice(..70);
    it.check("half of one", vec![offer(&it.to, it.vote, cut)], Code::Corrupt).await;
    it.check("none", vec![offer(&it.to, it.vote, Bytes::new())], Code::Corrupt).await;

    let file = |name| vec![(name, Bytes::from_static(b"x"))];
    let at = |term, index| Some(wire::LogId { term, index });
    let bad = [
        ("a newer version", Manifest { version: 2, ..good.clone() }),
        ("another group's", Manifest { group: metadata(2).to_u64(), ..good.clone() }),
        ("a path upwards", Manifest { files: file(".."), ..good.clone() }),
        ("a path upwards and down", Manifest { files: file("../../etc/passwd"), ..good.clone() }),
        ("an absolute path", Manifest { files: file("/etc/passwd"), ..good.clone() }),
        ("a path downwards", Manifest { files: file("a/b"), ..good.clone() }),
        ("a file twice", Manifest { files: [file("a"), file("a")].concat(), ..good.clone() }),
        ("too large an index", Manifest { at: (99, u64::MAX), ..good.clone() }),
        ("too large a term", Manifest { at: (u64::MAX, 1000), ..good.clone() }),
        ("members that are none", Manifest { membership: Some("\u{1}".into()), ..good.clone() }),
        ("members from nowhere", Manifest { members_at: None, ..good.clone() }),
        ("members of a later entry", Manifest { members_at: at(1, 1001), ..good.clone() }),
        ("members of a later term", Manifest { members_at: at(100, 3), ..good.clone() }),
        ("another entry where one is committed", Manifest { at: (99, 3), ..good.clone() }),
        ("a committed entry's index in a later term", Manifest { at: (0, 1000), ..good.clone() }),
    ];
    for (what, manifest) in bad {
        it.check(what, vec![it.offer(&manifest)], Code::Invalid).await;
    }
    it.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_that_are_not_what_was_asked_for_get_a_typed_error_and_change_nothing() {
    let it = prepared().await;
    let offer = it.offer(&it.manifest);
    let file = it.manifest.files[0].1.clone();
    let (first, second) = (file.slice(..256 << 10), file.slice(256 << 10..));
    let damaged = {
        let mut damaged = first.to_vec();
        damaged[99] ^= 1;
        piece(0, 0, damaged.into())
    };
    // Three times the three pieces that are asked for: those behind a damaged one are asked for again.
    let messages = [vec![offer.clone()], vec![damaged; 7]].concat();
    it.check("a piece that is damaged again and again", messages, Code::Corrupt).await;
    let messages = vec![offer.clone(), piece(0, 1, second.clone())];
    it.check("a piece out of order", messages, Code::Invalid).await;
    let messages = vec![offer.clone(), piece(7, 0, first.clone())];
    it.check("a piece of no file", messages, Code::Invalid).await;
    // What the right place would have taken.
    let messages = vec![offer.clone(), piece(0, 5, first.clone())];
    it.check("the right bytes in another place", messages, Code::Invalid).await;
    let large = piece(0, 0, vec![7; proto::MESSAGE_BYTES_MAX].into());
    it.check("a piece that is too large", vec![offer.clone(), large], Code::TooLarge).await;
    it.check("two offers", vec![offer.clone(), offer.clone()], Code::Invalid).await;
    it.check("nothing more", vec![offer.clone()], Code::Unavailable).await;

    // All pieces are as the manifest says, and together they are no state.
    let whole = vec![offer, piece(0, 0, first), piece(0, 1, second), piece(1, 0, vec![8; 10].into())];
    it.check("files that are no state", whole, Code::Invalid).await;
    let kept = it.cluster.nodes[2].dir.join(format!("snapshots/{}", it.group));
    #[allow(clippy::disallowed_methods)] // a test's own directory
    let is_empty = || std::fs::read_dir(&kept).expect("a directory").next().is_none().then_some(());
    eventually("nothing of it is kept", is_empty).await;
    it.stop().await;
}
