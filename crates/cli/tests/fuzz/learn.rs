//! What is real in a cluster, asked for by the methods that tell it.

use crate::examples::{self, Real};
use crate::house::{STRANGERS_BUCKET, STRANGERS_KEYS};
use crate::known::Known;
use crate::methods::Protocol;
use crate::reach::Reach;
use crate::wire::{Names, call};
use bytes::Bytes;
use prost::Message;
use proto::{datanode, om, raft, registry, scm};
use protox::prost_reflect::{DynamicMessage, Value};
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::transport::Channel;
use types::{GroupId, PipelineId};

const ANSWERED_MAX: Duration = Duration::from_secs(10);
/// The most pipelines that are looked at: they are all alike.
const PIPELINES_MAX: usize = 4;

/// Asks, and learns what is answered. Who was led astray may refuse.
struct Asker<'a> {
    protocol: &'a Protocol,
    reach: &'a Reach,
    names: Names,
    known: Known,
}

impl Asker<'_> {
    async fn ask<A: Message + Default>(&mut self, path: &str, request: impl Message) -> A {
        self.ask_or_not(path, request).await.unwrap_or_default()
    }

    /// Asks who has the method until one answers: of several SCMs one leads.
    async fn ask_or_not<A: Message + Default>(&mut self, path: &str, request: impl Message) -> Option<A> {
        for channel in self.reach.serving(path) {
            if let Some(answer) = self.ask_at(channel.clone(), path, &request).await {
                return Some(answer);
            }
        }
        None
    }

    async fn ask_at<A: Message + Default>(
        &mut self,
        channel: Channel,
        path: &str,
        request: &impl Message,
    ) -> Option<A> {
        let method = self.protocol.method(path);
        let asked = Bytes::from(request.encode_to_vec());
        self.known.learn(&DynamicMessage::decode(method.asked.clone(), asked.clone()).expect("of that kind"));
        let answer = call(channel, path, vec![asked], &self.names);
        let answer = tokio::time::timeout(ANSWERED_MAX, answer).await.ok()?.ok()?;
        let first = answer.first()?;
        self.known.learn(&DynamicMessage::decode(method.answered.clone(), first.clone()).ok()?);
        A::decode(first.clone()).ok()
    }

    /// Takes in a message that nobody has answered with.
    fn note(&mut self, name: &str, message: &impl Message) {
        let kind = self.protocol.message(name);
        self.known.learn(&DynamicMessage::decode(kind, &message.encode_to_vec()[..]).expect("of that kind"));
    }
}

/// All that the admin CLI could see, and requests that are made of it.
pub(crate) async fn learn(protocol: &Protocol, reach: &Reach, cluster: &str) -> Known {
    let mut known = Known::of(cluster);
    for (name, text) in [("cluster", cluster), ("volume", client::S3_VOLUME), ("bucket", STRANGERS_BUCKET)] {
        known.learn_value(name, &Value::String(text.to_owned()));
    }
    let mut asker = Asker { protocol, reach, names: Names::of(cluster), known };
    let real = real(&mut asker).await;
    changes_and_blocks(&mut asker, &real);

    const SCM: &str = "/flotilla.scm.v1.Scm";
    let datanodes: scm::ListDatanodesResponse =
        asker.ask(&format!("{SCM}/ListDatanodes"), scm::ListDatanodesRequest {}).await;
    for datanode in &datanodes.datanodes {
        asker.note("flotilla.scm.v1.HeartbeatRequest", &examples::heartbeat(&real, datanode));
    }
    let pipelines: scm::ListPipelinesResponse =
        asker.ask(&format!("{SCM}/ListPipelines"), scm::ListPipelinesRequest {}).await;
    for pipeline in &pipelines.pipelines {
        asker.note("flotilla.datanode.v1.WriteChunk", &examples::chunk(pipeline.pipeline));
    }
    let oms: scm::ListOmsResponse = asker.ask(&format!("{SCM}/ListOms"), scm::ListOmsRequest {}).await;
    if let Some(heartbeat) = examples::om_heartbeat(&real, &oms) {
        asker.note("flotilla.scm.v1.OmHeartbeatRequest", &heartbeat);
    }
    let containers = scm::ListContainersRequest::default();
    let _: scm::ListContainersResponse = asker.ask(&format!("{SCM}/ListContainers"), containers).await;
    let _: scm::ClusterStatus =
        asker.ask(&format!("{SCM}/GetClusterStatus"), scm::GetClusterStatusRequest {}).await;
    let scms: scm::ListScmMembersResponse =
        asker.ask(&format!("{SCM}/ListScmMembers"), scm::ListScmMembersRequest {}).await;
    registered(&mut asker).await;
    logs(&mut asker, replicas(cluster, &pipelines, &oms, &scms)).await;
    asker.known
}

/// Names, and the blocks that they name.
async fn real(asker: &mut Asker<'_>) -> Real {
    const OM: &str = "/flotilla.om.v1.Om";
    let (volume, bucket) = (client::S3_VOLUME.to_owned(), STRANGERS_BUCKET.to_owned());
    let volumes = om::ListVolumesRequest { limit: 10, ..Default::default() };
    let _: om::ListVolumesResponse = asker.ask(&format!("{OM}/ListVolumes"), volumes).await;
    let buckets = om::ListBucketsRequest { volume: volume.clone(), limit: 10, ..Default::default() };
    let _: om::ListBucketsResponse = asker.ask(&format!("{OM}/ListBuckets"), buckets).await;
    let head = om::HeadBucketRequest { volume: volume.clone(), bucket: bucket.clone() };
    let om::HeadBucketResponse { place, .. } = asker.ask(&format!("{OM}/HeadBucket"), head).await;
    asker.names.place = place;
    asker.known.place = place;
    let list = om::ListKeysRequest {
        volume: volume.clone(),
        bucket: bucket.clone(),
        limit: 10,
        ..Default::default()
    };
    let _: om::ListKeysResponse = asker.ask(&format!("{OM}/ListKeys"), list).await;
    let uploads = om::ListUploadsRequest {
        volume: volume.clone(),
        bucket: bucket.clone(),
        limit: 10,
        ..Default::default()
    };
    let uploads: om::ListUploadsResponse = asker.ask(&format!("{OM}/ListUploads"), uploads).await;
    let lookups = STRANGERS_KEYS.iter().map(|key| om::Lookup {
        place,
        volume: volume.clone(),
        bucket: bucket.clone(),
        key: Bytes::from_static(key.as_bytes()),
    });
    let lookups = om::LookupKeysRequest { lookups: lookups.collect(), any_member: false };
    let found: om::LookupKeysResponse = asker.ask(&format!("{OM}/LookupKeys"), lookups).await;
    let keys = found.replies.into_iter().filter_map(|reply| match reply.result {
        Some(om::lookup_reply::Result::Key(key)) => Some(key),
        _ => None,
    });
    Real {
        cluster: asker.names.cluster.clone(),
        bucket,
        place,
        key: keys.last().unwrap_or_default(),
        upload: uploads.uploads.into_iter().next().map(|upload| upload.upload).unwrap_or_default(),
    }
}

/// An instance and a key that are there from now on.
async fn registered(asker: &mut Asker<'_>) {
    const REGISTRY: &str = "/flotilla.registry.v1.Registry";
    let _: registry::RegisterInstanceResponse =
        asker.ask(&format!("{REGISTRY}/RegisterInstance"), examples::instance()).await;
    let put = registry::PutKeyRequest { key: "key-0".to_owned(), ..Default::default() };
    let _: registry::PutKeyResponse = asker.ask(&format!("{REGISTRY}/PutKey"), put).await;
    let keys = registry::ReadKeysRequest::default();
    let _: registry::ReadKeysResponse = asker.ask(&format!("{REGISTRY}/ReadKeys"), keys).await;
    let instances = registry::ListInstancesRequest::default();
    let _: registry::ListInstancesResponse = asker.ask(&format!("{REGISTRY}/ListInstances"), instances).await;
}

fn changes_and_blocks(asker: &mut Asker<'_>, real: &Real) {
    for change in examples::changes(real) {
        asker.note("flotilla.om.v1.Change", &change);
    }
    for piece in &real.key.pieces {
        let block = piece.block.clone();
        asker.note("flotilla.datanode.v1.HeadRequest", &datanode::HeadRequest { block });
        asker.note("flotilla.datanode.v1.ReadRequest", &examples::read(piece));
    }
}

/// How members of groups are spoken to, and where.
fn replicas(
    cluster: &str,
    pipelines: &scm::ListPipelinesResponse,
    oms: &scm::ListOmsResponse,
    scms: &scm::ListScmMembersResponse,
) -> Vec<(raft::Address, String)> {
    let mut members = Vec::new();
    for pipeline in pipelines.pipelines.iter().take(PIPELINES_MAX) {
        let group = GroupId::pipeline(PipelineId(pipeline.pipeline));
        members.extend(pipeline.members.iter().map(|member| (group, member.replica, &member.address)));
    }
    for info in &oms.groups {
        let group = GroupId::om(info.group.as_ref().map_or(0, |group| group.group));
        let replicas = info.replicas.iter().filter_map(|replica| replica.member.as_ref());
        members.extend(replicas.map(|member| (group, member.replica, &member.address)));
    }
    members.extend(scms.members.iter().map(|member| (GroupId::SCM, member.replica, &member.address)));
    let address = |(group, replica, address): (GroupId, u64, &String)| {
        let (cluster, version) = (cluster.to_owned(), ::raft::PROTOCOL_VERSION);
        (raft::Address { group: group.to_u64(), replica, cluster, version }, address.clone())
    };
    members.into_iter().map(address).collect()
}

/// Terms and indexes as they are, and what a leader would say next to each member.
async fn logs(asker: &mut Asker<'_>, replicas: Vec<(raft::Address, String)>) {
    const LEAD: &str = "/flotilla.raft.v1.RaftTransport/Lead";
    let (mut leaders, mut ends) = (BTreeMap::new(), Vec::new());
    for (to, address) in replicas {
        let lead = raft::LeadRequest { to: Some(to.clone()), index: 1 };
        let Some(channel) = asker.reach.at(&address) else { continue };
        let lead: Option<raft::LeadResponse> = asker.ask_at(channel, LEAD, &lead).await;
        let raft::LeadResponse { leads, last, .. } = lead.unwrap_or_default();
        leaders.extend(leads.map(|vote| (to.group, vote)));
        ends.push((to, last));
    }
    for (to, last) in ends {
        let append = examples::append(&to, leaders.get(&to.group).copied(), last);
        asker.note("flotilla.raft.v1.AppendRequest", &append);
        let heartbeats = vec![raft::AppendRequest { entries: Vec::new(), ..append }];
        asker.note("flotilla.raft.v1.HeartbeatsRequest", &raft::HeartbeatsRequest { heartbeats });
    }
}
