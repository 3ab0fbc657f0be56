//! Requests as our own send them, which nobody answers with and so nobody learns: what is made from them with
//! one thing changed comes further into a handler than what is made of nothing.

use proto::{RequestId, datanode, om, raft, registry, scm};
use std::time::Duration;

/// What a cluster has, as far as requests need it.
pub(crate) struct Real {
    pub(crate) cluster: String,
    pub(crate) bucket: String,
    pub(crate) place: Option<om::BucketPlace>,
    pub(crate) key: om::Key,
    pub(crate) upload: String,
}

/// Changes of names, each as one try of a request.
pub(crate) fn changes(real: &Real) -> Vec<om::Change> {
    let (volume, bucket) = (client::S3_VOLUME.to_owned(), real.bucket.clone());
    let (key, upload) = (real.key.key.clone(), real.upload.clone());
    let (upload_key, pieces) = (bytes::Bytes::from_static(b"upload"), real.key.pieces.clone());
    let change = |request| om::Change { what: Some(request), ..one(real.place) };
    let part = om::Part {
        number: 1,
        size: real.key.size,
        etag: real.key.etag.clone(),
        pieces,
        ..Default::default()
    };
    let completed = vec![om::CompletedPart { number: 1, etag: real.key.etag.clone() }];
    use om::change::What;
    vec![
        change(What::CommitKey(Box::new(om::CommitKeyRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: Some(real.key.clone()),
            precondition: None,
        }))),
        change(What::DeleteKeys(Box::new(om::DeleteKeysRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            keys: vec![key.clone()],
            precondition: None,
        }))),
        change(What::CreateUpload(Box::new(om::CreateUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: upload_key.clone(),
            attributes: real.key.attributes.clone(),
        }))),
        change(What::CommitPart(Box::new(om::CommitPartRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: upload_key.clone(),
            upload: upload.clone(),
            part: Some(part),
        }))),
        change(What::CompleteUpload(Box::new(om::CompleteUploadRequest {
            volume: volume.clone(),
            bucket: bucket.clone(),
            key: upload_key.clone(),
            upload: upload.clone(),
            parts: completed,
            precondition: None,
            checksum: None,
        }))),
        change(What::AbortUpload(Box::new(om::AbortUploadRequest {
            volume,
            bucket,
            key: upload_key,
            upload,
        }))),
    ]
}

fn one(place: Option<om::BucketPlace>) -> om::Change {
    om::Change::of(om::DeleteKeysRequest::default(), RequestId(1), Duration::ZERO, place)
}

/// The whole of a block in one chunk.
pub(crate) fn chunk(pipeline: u64) -> datanode::WriteChunk {
    let data = bytes::Bytes::from_static(b"a chunk of a stranger");
    datanode::WriteChunk {
        pipeline,
        nonce: vec![1; 16].into(),
        data_crcs: vec![crc32c::crc32c(&data)],
        data,
        seal: true,
        ..Default::default()
    }
}

/// What reads a block.
pub(crate) fn read(piece: &om::BlockPiece) -> datanode::ReadRequest {
    let om::BlockPiece { block, offset, length, commit_index, .. } = piece.clone();
    datanode::ReadRequest { block, offset, length, commit_index, message_bytes_max: 0 }
}

/// What a leader says to a member, after all that it is known to have: an entry that says nothing.
pub(crate) fn append(
    to: &raft::Address,
    vote: Option<raft::Vote>,
    last: Option<raft::LogId>,
) -> raft::AppendRequest {
    let next = |last: raft::LogId| {
        let term = vote.map_or(last.term, |vote| vote.term);
        raft::Entry { term, index: last.index + 1, kind: 1, ..Default::default() }
    };
    let entries = last.map(next).into_iter().collect();
    raft::AppendRequest { to: Some(to.clone()), vote, prev: last, committed: last, entries }
}

/// What somebody says who is to be found.
pub(crate) fn instance() -> registry::RegisterInstanceRequest {
    let check = registry::Check { name: "disk".to_owned(), health: 1, output: "fine".to_owned() };
    let instance = registry::Instance {
        service: "web".to_owned(),
        id: "one".to_owned(),
        addresses: [("http".to_owned(), "127.0.0.1:80".to_owned())].into(),
        ttl_ms: 60_000,
        checks: vec![check],
        ..Default::default()
    };
    registry::RegisterInstanceRequest { instance: Some(instance), clock_ms: 0 }
}

/// What a datanode says of itself.
pub(crate) fn heartbeat(real: &Real, datanode: &scm::DatanodeInfo) -> scm::HeartbeatRequest {
    scm::HeartbeatRequest {
        node: datanode.node,
        cluster: real.cluster.clone(),
        address: datanode.address.clone(),
        disks: datanode.disks.clone(),
        ..Default::default()
    }
}

/// What an OM says of itself.
pub(crate) fn om_heartbeat(real: &Real, oms: &scm::ListOmsResponse) -> Option<scm::OmHeartbeatRequest> {
    let om = oms.oms.first()?;
    let members = oms.groups.iter().flat_map(|group| &group.replicas);
    let of_om = members.filter(|info| info.member.as_ref().is_some_and(|member| member.om == om.om));
    Some(scm::OmHeartbeatRequest {
        om: om.om,
        cluster: real.cluster.clone(),
        address: om.address.clone(),
        replicas: of_om.filter_map(|info| info.report.clone()).collect(),
        ..Default::default()
    })
}
