//! SCM's tables: everything in memory, and the same in RocksDB (`docs/format/scm-tables.md`).
//!
//! | key | value |
//! |---|---|
//! | `a` | applied position |
//! | `c` | cluster id, text |
//! | `e` + key | `KeyValue` |
//! | `f` | format of the tables, `u32` |
//! | `g` + service + 0 + id | `Instance` |
//! | `i` + `n`/`o`/`g`/`p`/`c`/`r`/`m`/`v` | next datanode / OM / group of names / pipeline / container / replica / replica of SCM itself / revision, `u64` |
//! | `k` + container, big-endian | `ContainerRecord` |
//! | `m` + group of names, big-endian | `OmGroupRecord` |
//! | `n` + node, big-endian | `NodeRecord` |
//! | `o` + OM, big-endian | `OmRecord` |
//! | `p` + pipeline, big-endian | `PipelineRecord` |
//! | `s` | `Switches` |
//! | `t` + host | the rack it stands in, text |
//! | `u` + `n`/`o`/`p`/`c`/`r` + from, big-endian | to, `u64`: numbers that those whom a forced reset gave up may have drawn |
//! | `w` | the number of the last fences that the root of names was heard to have made, `u64` |
//!
//! Numbers in values are little-endian; in keys big-endian, so that they sort.

mod oms;
mod registry;

pub(crate) use oms::{NAMES_OF_BEFORE, OM_GROUPS_MAX, OM_MEMBERS, OmReplica, ROOT_OF_NAMES, om_duty};

use crate::racks::RackMap;
use crate::registry::Directory;
use anyhow::{Context, bail};
use planted::Bug;
use prost::Message;
use proto::registry::{Event, Instance, KeyValue};
use proto::scm::{
    ContainerRecord, ContainerState, NodeDuty, NodeRecord, OmGroupRecord, OmRecord, PipelineRecord,
    PipelineState, Switches,
};
use rocksdb::{Direction, IteratorMode, WriteBatch};
use statedb::Db;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::{Bound, Range};
use types::{ContainerId, NodeId, PipelineId, ReplicaId};

/// The key of the applied position.
pub const APPLIED_KEY: &[u8] = b"a";
const CLUSTER_KEY: &[u8] = b"c";
const FORMAT_KEY: &[u8] = b"f";
const CONTAINERS: u8 = b'k';
const INSTANCES: u8 = b'g';
const KEYS: u8 = b'e';
const NODES: u8 = b'n';
const OMS: u8 = b'o';
const OM_GROUPS: u8 = b'm';
const PIPELINES: u8 = b'p';
const SWITCHES_KEY: &[u8] = b"s";
const RACKS: u8 = b't';
const LOST_NUMBERS: u8 = b'u';
const FENCES_KEY: &[u8] = b"w";

/// Persisted: older formats stay readable, newer ones are refused. 1 had no states of containers, no
/// pipelines that close, no duties and no switches: it reads as 2, with all containers open and all nodes in
/// service. 2 kept apart from the state of a pipeline that its members are to end by themselves: for a
/// pipeline that is still to end, that is forgotten, and decided again after a minute without a leader.
const FORMAT: u32 = 3;

/// The switches before anybody has set them. Replicas are made up for on their own; moving what is well is
/// for operators to begin.
const SWITCHES_AT_FIRST: Switches =
    Switches { replication: true, balancer: false, leave_safe_mode: true, reclaim_stopped: false };

/// A forced reset of SCM leaves free so many of each kind of number, at least: more than lost members can
/// have given out since the one that is left fell behind. A million containers hold two petabytes; decimal,
/// so that people see in a number how many resets were before it.
const NUMBERS_SKIPPED: u64 = 1_000_000;

/// The replica that founds SCM's group; the others' ids are drawn.
pub(crate) const FOUNDER: ReplicaId = ReplicaId(1);

/// The kinds of numbers that are drawn. Persisted: never renumber.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
enum Counter {
    Node = b'n',
    Om = b'o',
    OmGroup = b'g',
    Pipeline = b'p',
    Container = b'c',
    /// Replicas of pipelines and of groups of names.
    Replica = b'r',
    /// Changes of the registry.
    Revision = b'v',
    /// Replicas of SCM's own group.
    Member = b'm',
}

impl Counter {
    const ALL: [Counter; 8] = [
        Counter::Node,
        Counter::Om,
        Counter::OmGroup,
        Counter::Pipeline,
        Counter::Container,
        Counter::Replica,
        Counter::Revision,
        Counter::Member,
    ];

    /// The kinds of things that datanodes and OMs have and a forced reset may have lost.
    const OF_OTHERS: [Counter; 5] =
        [Counter::Node, Counter::Om, Counter::Pipeline, Counter::Container, Counter::Replica];

    fn key(self) -> [u8; 2] {
        [b'i', self as u8]
    }

    fn lost_key(self, from: u64) -> [u8; 10] {
        let mut key = [LOST_NUMBERS; 10];
        key[1] = self as u8;
        key[2..].copy_from_slice(&from.to_be_bytes());
        key
    }

    /// The first number that is drawn: 0 means "none", or the root of the names, and the founder has its id
    /// without drawing it.
    fn first(self) -> u64 {
        match self {
            Counter::Member => FOUNDER.0 + 1,
            _ => 1,
        }
    }
}

/// The state that SCM replicates. It is small enough to stay in memory: 1 000 nodes, 10 000 pipelines and a
/// million containers (2 PiB) are about 100 MB.
#[derive(Default, PartialEq, Debug)]
pub(crate) struct Tables {
    /// The cluster's id; empty until the cluster is born.
    cluster: String,
    nodes: BTreeMap<NodeId, NodeRecord>,
    nodes_by_uuid: HashMap<bytes::Bytes, NodeId>,
    pipelines: BTreeMap<PipelineId, PipelineRecord>,
    /// The pipelines that are not over.
    unended: BTreeSet<PipelineId>,
    /// The pipelines that are not over, by the nodes of their members.
    unended_by_node: HashMap<NodeId, BTreeSet<PipelineId>>,
    containers: BTreeMap<ContainerId, ContainerRecord>,
    /// The containers of a pipeline in the order in which they follow each other: each has a higher number
    /// than the one before.
    containers_by_pipeline: HashMap<PipelineId, BTreeSet<ContainerId>>,
    /// The containers that are open or quasi-closed.
    unresolved: BTreeSet<ContainerId>,
    oms: BTreeMap<NodeId, OmRecord>,
    oms_by_uuid: HashMap<bytes::Bytes, NodeId>,
    om_groups: BTreeMap<u64, OmGroupRecord>,
    racks: RackMap,
    directory: Directory,
    /// `None` until they are set for the first time.
    switches: Option<Switches>,
    /// The number of the last fences of the root of names that somebody has told of.
    fences: u64,
    /// The next number of each kind; numbers start at 1 because 0 means "none".
    counters: BTreeMap<Counter, u64>,
    /// Numbers that those whom a forced reset gave up may have drawn: by the first of them, half-open.
    lost_numbers: BTreeMap<Counter, BTreeMap<u64, u64>>,
}

impl Tables {
    pub(crate) fn load(db: &Db) -> anyhow::Result<Tables> {
        let mut tables = Tables::default();
        for pair in db.rocks().iterator(IteratorMode::From(&[], Direction::Forward)) {
            let (key, value) = pair.context("read tables")?;
            tables
                .load_record(&key, &value)
                .with_context(|| format!("record {:?}", key.escape_ascii().to_string()))?;
        }
        Ok(tables)
    }

    fn load_record(&mut self, key: &[u8], value: &[u8]) -> anyhow::Result<()> {
        match key {
            APPLIED_KEY => {}
            FORMAT_KEY => {
                let format = u32::from_le_bytes(value.try_into().context("format has 4 bytes")?);
                if format > FORMAT {
                    bail!(
                        "tables have format {format}, this version reads up to {FORMAT}; run a newer flotilla"
                    );
                }
            }
            SWITCHES_KEY => self.switches = Some(Switches::decode(value)?),
            FENCES_KEY => {
                self.fences = u64::from_le_bytes(value.try_into().context("a number of fences has 8 bytes")?);
            }
            CLUSTER_KEY => self.cluster = String::from_utf8(value.to_vec()).context("cluster id is text")?,
            [b'i', kind] => {
                let counter = Counter::ALL.into_iter().find(|counter| *counter as u8 == *kind);
                let next = u64::from_le_bytes(value.try_into().context("a counter has 8 bytes")?);
                self.counters.insert(counter.context("unknown counter")?, next);
            }
            [LOST_NUMBERS, kind, from @ ..] => {
                let counter = Counter::ALL.into_iter().find(|counter| *counter as u8 == *kind);
                let from = u64::from_be_bytes(from.try_into().context("a number has 8 bytes")?);
                let to = u64::from_le_bytes(value.try_into().context("a number has 8 bytes")?);
                self.insert_lost_numbers(counter.context("unknown counter")?, from, to);
            }
            [NODES, ..] => self.insert_node(NodeRecord::decode(value)?),
            [OMS, ..] => self.insert_om(OmRecord::decode(value)?),
            [OM_GROUPS, ..] => self.insert_om_group(OmGroupRecord::decode(value)?),
            [PIPELINES, ..] => self.insert_pipeline(PipelineRecord::decode(value)?),
            [CONTAINERS, ..] => self.insert_container(ContainerRecord::decode(value)?),
            [RACKS, host @ ..] => {
                let text =
                    |bytes: &[u8]| String::from_utf8(bytes.to_vec()).context("hosts and racks are text");
                self.racks.set(text(host)?, text(value)?);
            }
            [INSTANCES, ..] => self.directory.insert_instance(Instance::decode(value)?),
            [KEYS, ..] => self.directory.insert_key(KeyValue::decode(value)?),
            _ => bail!("unknown table; a newer flotilla wrote it"),
        }
        Ok(())
    }

    fn insert_node(&mut self, record: NodeRecord) {
        let node = NodeId(record.node);
        self.nodes_by_uuid.insert(record.uuid.clone(), node);
        self.nodes.insert(node, record);
    }

    fn insert_pipeline(&mut self, record: PipelineRecord) {
        let pipeline = PipelineId(record.pipeline);
        let over = record.state() == PipelineState::PipelineClosed;
        let sets = record.members.iter().map(|member| NodeId(member.node));
        for node in sets {
            let of_node = self.unended_by_node.entry(node).or_default();
            if over {
                of_node.remove(&pipeline)
            } else {
                of_node.insert(pipeline)
            };
        }
        if over {
            self.unended.remove(&pipeline)
        } else {
            self.unended.insert(pipeline)
        };
        self.pipelines.insert(pipeline, record);
    }

    fn insert_container(&mut self, record: ContainerRecord) {
        let container = ContainerId(record.container);
        match record.state() {
            ContainerState::ContainerClosed | ContainerState::ContainerDeleted => {
                self.unresolved.remove(&container)
            }
            _ => self.unresolved.insert(container),
        };
        self.containers_by_pipeline.entry(PipelineId(record.pipeline)).or_default().insert(container);
        self.containers.insert(container, record);
    }

    fn insert_lost_numbers(&mut self, counter: Counter, from: u64, to: u64) {
        self.lost_numbers.entry(counter).or_default().insert(from, to);
    }

    fn is_lost(&self, counter: Counter, number: u64) -> bool {
        let ranges = self.lost_numbers.get(&counter);
        let range = ranges.and_then(|ranges| ranges.range(..=number).next_back());
        range.is_some_and(|(_, to)| number < *to)
    }

    /// Whether a forced reset may have lost a datanode of this number, and nobody has it yet.
    pub(crate) fn is_lost_node(&self, node: NodeId) -> bool {
        self.is_lost(Counter::Node, node.0) && self.node(node).is_none()
    }

    /// [`Tables::is_lost_node`] of an OM.
    pub(crate) fn is_lost_om(&self, om: NodeId) -> bool {
        self.is_lost(Counter::Om, om.0) && self.om(om).is_none()
    }

    pub(crate) fn is_lost_pipeline(&self, pipeline: PipelineId) -> bool {
        self.is_lost(Counter::Pipeline, pipeline.0) && self.pipeline(pipeline).is_none()
    }

    pub(crate) fn is_lost_container(&self, container: ContainerId) -> bool {
        self.is_lost(Counter::Container, container.0) && self.container(container).is_none()
    }

    pub(crate) fn may_be_lost_replica(&self, replica: ReplicaId) -> bool {
        self.is_lost(Counter::Replica, replica.0)
    }

    /// The containers that a forced reset may have lost, as ranges of numbers.
    pub(crate) fn lost_containers(&self) -> impl Iterator<Item = Range<ContainerId>> {
        let ranges = self.lost_numbers.get(&Counter::Container).into_iter().flatten();
        ranges.map(|(from, to)| ContainerId(*from)..ContainerId(*to))
    }

    /// Whether there was a forced reset after this pipeline was drawn: what was decided about it may be lost.
    pub(crate) fn pipeline_is_before_a_reset(&self, pipeline: PipelineId) -> bool {
        self.is_before_a_reset(Counter::Pipeline, pipeline.0)
    }

    /// Whether there was a forced reset after this container was drawn, as
    /// [`Tables::pipeline_is_before_a_reset`].
    pub(crate) fn container_is_before_a_reset(&self, container: ContainerId) -> bool {
        self.is_before_a_reset(Counter::Container, container.0)
    }

    fn is_before_a_reset(&self, counter: Counter, number: u64) -> bool {
        let ranges = self.lost_numbers.get(&counter);
        ranges.and_then(|ranges| ranges.values().next_back()).is_some_and(|to| number < *to)
    }

    /// Whether this id of a replica of SCM's own group was given to somebody.
    pub(crate) fn is_drawn_member(&self, replica: ReplicaId) -> bool {
        replica.0 != 0 && replica.0 < self.counter(Counter::Member)
    }

    pub(crate) fn cluster(&self) -> &str {
        &self.cluster
    }

    pub(crate) fn nodes(&self) -> &BTreeMap<NodeId, NodeRecord> {
        &self.nodes
    }

    pub(crate) fn node(&self, node: NodeId) -> Option<&NodeRecord> {
        self.nodes.get(&node)
    }

    pub(crate) fn node_by_uuid(&self, uuid: &[u8]) -> Option<&NodeRecord> {
        self.nodes_by_uuid.get(uuid).and_then(|node| self.nodes.get(node))
    }

    pub(crate) fn pipelines(&self) -> &BTreeMap<PipelineId, PipelineRecord> {
        &self.pipelines
    }

    /// Pipelines that take data or will: ALLOCATED and OPEN ones.
    pub(crate) fn live_pipelines(&self) -> impl Iterator<Item = &PipelineRecord> {
        self.unended_pipelines().filter(|record| is_live(record))
    }

    /// The live pipelines with a member on `node`.
    pub(crate) fn live_pipelines_on(&self, node: NodeId) -> impl Iterator<Item = &PipelineRecord> {
        self.unended_pipelines_on(node).filter(|record| is_live(record))
    }

    /// Pipelines whose members have something to do for them: all but CLOSED ones.
    pub(crate) fn unended_pipelines(&self) -> impl Iterator<Item = &PipelineRecord> {
        self.unended.iter().map(|id| self.pipeline(*id).expect("the index names pipelines of the table"))
    }

    pub(crate) fn unended_pipelines_on(&self, node: NodeId) -> impl Iterator<Item = &PipelineRecord> {
        let ids = self.unended_by_node.get(&node).into_iter().flatten();
        ids.map(|id| self.pipeline(*id).expect("the index names pipelines of the table"))
    }

    pub(crate) fn pipeline(&self, pipeline: PipelineId) -> Option<&PipelineRecord> {
        self.pipelines.get(&pipeline)
    }

    /// The pipeline that a command names; an error, in words, where there is none.
    pub(crate) fn named_pipeline(&self, pipeline: u64) -> Result<&PipelineRecord, String> {
        self.pipeline(PipelineId(pipeline)).ok_or_else(|| format!("no pipeline {pipeline}"))
    }

    pub(crate) fn container(&self, container: ContainerId) -> Option<&ContainerRecord> {
        self.containers.get(&container)
    }

    pub(crate) fn containers(&self) -> &BTreeMap<ContainerId, ContainerRecord> {
        &self.containers
    }

    /// A pipeline's containers in their order, without the one it ends with.
    pub(crate) fn containers_of(&self, pipeline: &PipelineRecord) -> impl Iterator<Item = &ContainerRecord> {
        let end = ContainerId(pipeline.end_container);
        let ids = self.containers_by_pipeline.get(&PipelineId(pipeline.pipeline)).into_iter().flatten();
        let ids = ids.filter(move |id| **id != end);
        ids.map(|id| self.container(*id).expect("the index names containers of the table"))
    }

    /// The container that follows this one in its pipeline; `None` while there is none.
    pub(crate) fn container_after(&self, record: &ContainerRecord) -> Option<ContainerId> {
        let pipeline = PipelineId(record.pipeline);
        let end = self.pipeline(pipeline).map_or(0, |pipeline| pipeline.end_container);
        let above = (Bound::Excluded(ContainerId(record.container)), Bound::Unbounded);
        let next = self.containers_by_pipeline.get(&pipeline)?.range(above).next().copied();
        next.filter(|next| next.0 != end)
    }

    /// Containers that are open or quasi-closed.
    pub(crate) fn unresolved_containers(&self) -> impl Iterator<Item = &ContainerRecord> {
        self.unresolved.iter().map(|id| self.container(*id).expect("the index names containers of the table"))
    }

    pub(crate) fn racks(&self) -> &RackMap {
        &self.racks
    }

    pub(crate) fn switches(&self) -> Switches {
        self.switches.unwrap_or(SWITCHES_AT_FIRST)
    }

    pub(crate) fn fences(&self) -> u64 {
        self.fences
    }

    fn counter(&self, counter: Counter) -> u64 {
        self.counters.get(&counter).copied().unwrap_or_else(|| counter.first())
    }
}

/// Changes the tables in memory and collects the same changes for RocksDB; the two become one when the batch
/// is written, under the lock that readers of the tables take.
pub(crate) struct TablesMut<'a> {
    tables: &'a mut Tables,
    pub(crate) batch: WriteBatch,
    /// Changes of the registry, in the order of the revisions.
    pub(crate) events: Vec<Event>,
}

impl<'a> TablesMut<'a> {
    pub(crate) fn new(tables: &'a mut Tables) -> Self {
        let mut batch = WriteBatch::default();
        batch.put(FORMAT_KEY, FORMAT.to_le_bytes());
        TablesMut { tables, batch, events: Vec::new() }
    }

    pub(crate) fn set_cluster(&mut self, cluster: &str) {
        self.batch.put(CLUSTER_KEY, cluster);
        self.tables.cluster = cluster.to_owned();
    }

    pub(crate) fn put_node(&mut self, record: NodeRecord) {
        self.batch.put(key(NODES, record.node), record.encode_to_vec());
        self.tables.insert_node(record);
    }

    pub(crate) fn put_pipeline(&mut self, record: PipelineRecord) {
        self.batch.put(key(PIPELINES, record.pipeline), record.encode_to_vec());
        self.tables.insert_pipeline(record);
    }

    pub(crate) fn put_container(&mut self, record: ContainerRecord) {
        self.batch.put(key(CONTAINERS, record.container), record.encode_to_vec());
        self.tables.insert_container(record);
    }

    pub(crate) fn set_switches(&mut self, switches: Switches) {
        self.batch.put(SWITCHES_KEY, switches.encode_to_vec());
        self.tables.switches = Some(switches);
    }

    pub(crate) fn set_fences(&mut self, number: u64) {
        self.batch.put(FENCES_KEY, number.to_le_bytes());
        self.tables.fences = number;
    }

    pub(crate) fn set_rack(&mut self, host: &str, rack: &str) {
        self.batch.put([&[RACKS], host.as_bytes()].concat(), rack);
        self.tables.racks.set(host.to_owned(), rack.to_owned());
    }

    pub(crate) fn forget_rack(&mut self, host: &str) {
        self.batch.delete([&[RACKS], host.as_bytes()].concat());
        self.tables.racks.forget(host);
    }

    pub(crate) fn draw_node(&mut self) -> NodeId {
        NodeId(self.draw(Counter::Node))
    }

    pub(crate) fn draw_om(&mut self) -> NodeId {
        NodeId(self.draw(Counter::Om))
    }

    pub(crate) fn draw_om_group(&mut self) -> u64 {
        self.draw(Counter::OmGroup)
    }

    pub(crate) fn draw_pipeline(&mut self) -> PipelineId {
        PipelineId(self.draw(Counter::Pipeline))
    }

    pub(crate) fn draw_container(&mut self) -> ContainerId {
        ContainerId(self.draw(Counter::Container))
    }

    pub(crate) fn draw_replica(&mut self) -> ReplicaId {
        ReplicaId(self.draw(Counter::Replica))
    }

    pub(crate) fn draw_member(&mut self) -> ReplicaId {
        ReplicaId(self.draw(Counter::Member))
    }

    /// Changes what a forced reset leaves in doubt.
    pub(crate) fn reset(&mut self) {
        self.skip_numbers();
        self.doubt_om_groups();
    }

    /// Goes on with numbers past all that may have been given out without this replica's knowledge, and
    /// remembers which these are: a thing that has one of them and is not in the tables was lost, and never
    /// deleted.
    pub(crate) fn skip_numbers(&mut self) {
        if planted::has(Bug::NumbersDrawnAgain) {
            return;
        }
        for counter in Counter::ALL {
            let next = (self.tables.counter(counter) / NUMBERS_SKIPPED + 2) * NUMBERS_SKIPPED;
            self.batch.put(counter.key(), next.to_le_bytes());
            let before = self.tables.counters.insert(counter, next).unwrap_or_else(|| counter.first());
            if Counter::OF_OTHERS.contains(&counter) {
                self.batch.put(counter.lost_key(before), next.to_le_bytes());
                self.tables.insert_lost_numbers(counter, before, next);
            }
        }
    }

    /// Draws a number that was never given out before and never will be again.
    fn draw(&mut self, counter: Counter) -> u64 {
        let number = self.tables.counter(counter);
        self.batch.put(counter.key(), (number + 1).to_le_bytes());
        self.tables.counters.insert(counter, number + 1);
        number
    }
}

impl std::ops::Deref for TablesMut<'_> {
    type Target = Tables;

    fn deref(&self) -> &Tables {
        self.tables
    }
}

/// Whether a pipeline takes data or will.
pub(crate) fn is_live(record: &PipelineRecord) -> bool {
    matches!(record.state(), PipelineState::PipelineAllocated | PipelineState::PipelineOpen)
}

/// The duty of a node; one that has none is in service.
pub(crate) fn duty(record: &NodeRecord) -> NodeDuty {
    duty_or_service(record.duty())
}

fn duty_or_service(duty: NodeDuty) -> NodeDuty {
    match duty {
        NodeDuty::Unspecified => NodeDuty::NodeInService,
        duty => duty,
    }
}

/// The state of a container; one without a state is open.
pub(crate) fn container_state(record: &ContainerRecord) -> ContainerState {
    match record.state() {
        ContainerState::Unspecified => ContainerState::ContainerOpen,
        state => state,
    }
}

fn key(table: u8, number: u64) -> [u8; 9] {
    let mut key = [table; 9];
    key[1..].copy_from_slice(&number.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    fn filled() -> (Tables, WriteBatch) {
        let mut tables = Tables::default();
        let mut change = TablesMut::new(&mut tables);
        change.set_cluster("c");
        let node = change.draw_node().0;
        let uuid = Bytes::from_static(&[7; 16]);
        change.put_node(NodeRecord {
            node,
            uuid,
            address: "a:1".into(),
            disks: vec![Bytes::from_static(&[1; 16])],
            ..NodeRecord::default()
        });
        let pipeline = change.draw_pipeline().0;
        change.put_pipeline(PipelineRecord { pipeline, ..PipelineRecord::default() });
        let container = change.draw_container().0;
        change.put_container(ContainerRecord { container, pipeline, ..ContainerRecord::default() });
        change.draw_replica();
        let om = change.draw_om().0;
        let uuid = Bytes::from_static(&[8; 16]);
        change.put_om(OmRecord { om, uuid, address: "o:1".into(), ..OmRecord::default() });
        change.put_om_group(OmGroupRecord { group: 0, ..OmGroupRecord::default() });
        change.set_switches(Switches { balancer: true, ..SWITCHES_AT_FIRST });
        change.set_fences(77);
        change.set_rack("a", "r1");
        change.set_rack("b", "r2");
        change.forget_rack("a");
        change.reset();
        let batch = change.batch;
        (tables, batch)
    }

    #[test]
    fn tables_are_read_back_as_they_were_written() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &statedb::DbOptions::default()).unwrap();
        let (tables, batch) = filled();
        db.write(batch).unwrap();
        assert_eq!(Tables::load(&db).unwrap(), tables);
    }

    #[test]
    fn numbers_start_at_one_and_are_drawn_once() {
        let mut tables = Tables::default();
        let mut change = TablesMut::new(&mut tables);
        assert_eq!((change.draw_node(), change.draw_node()), (NodeId(1), NodeId(2)));
        assert_eq!(change.draw_pipeline(), PipelineId(1));
    }

    /// The survivor lags: others have drawn 4 to 9 already, and datanodes have containers with these numbers.
    #[test]
    fn what_was_drawn_by_those_that_are_given_up_is_not_drawn_again() {
        let mut tables = Tables::default();
        let mut change = TablesMut::new(&mut tables);
        assert_eq!([1, 2, 3].map(|_| change.draw_container().0), [1, 2, 3]);
        change.skip_numbers();
        assert_eq!(change.draw_container(), ContainerId(2 * NUMBERS_SKIPPED));
        assert_eq!(change.draw_pipeline(), PipelineId(2 * NUMBERS_SKIPPED));
        change.skip_numbers();
        assert_eq!(change.draw_container(), ContainerId(4 * NUMBERS_SKIPPED));
    }

    #[test]
    fn lost_is_what_others_may_have_drawn_and_nobody_knows() {
        let mut tables = Tables::default();
        let mut change = TablesMut::new(&mut tables);
        let known = change.draw_container().0;
        change.put_container(ContainerRecord { container: known, pipeline: 1, ..ContainerRecord::default() });
        assert!(!change.is_lost_container(ContainerId(known + 1)), "nobody was given up");
        assert!(!change.pipeline_is_before_a_reset(PipelineId(1)));
        change.skip_numbers();
        let drawn = change.draw_container().0;
        change.skip_numbers();
        let is_lost = |number| change.is_lost_container(ContainerId(number));
        assert!(!is_lost(known) && !is_lost(drawn), "what is drawn here is known");
        let lost = [known + 1, drawn - 1, drawn + 1, 4 * NUMBERS_SKIPPED - 1];
        assert_eq!(lost.map(is_lost), [true; 4]);
        assert!(!is_lost(4 * NUMBERS_SKIPPED), "it is yet to be drawn");
        assert!(change.is_lost_node(NodeId(1)) && change.is_lost_pipeline(PipelineId(5)));
        assert!(
            [1, 5, 3_999_999].iter().all(|before| change.pipeline_is_before_a_reset(PipelineId(*before)))
        );
        assert!(!change.container_is_before_a_reset(ContainerId(4 * NUMBERS_SKIPPED)));
    }

    #[test]
    fn tables_of_a_newer_version_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &statedb::DbOptions::default()).unwrap();
        let mut batch = WriteBatch::default();
        batch.put(FORMAT_KEY, (FORMAT + 1).to_le_bytes());
        db.write(batch).unwrap();
        let error = format!("{:#}", Tables::load(&db).unwrap_err());
        assert!(error.contains("run a newer flotilla"), "{error}");
    }

    /// The bytes of `docs/format/scm-tables.md`; a change here is a change of format.
    #[test]
    fn keys_and_counters_have_their_documented_bytes() {
        assert_eq!(key(NODES, 0x0102), *b"n\0\0\0\0\0\0\x01\x02");
        assert_eq!(key(PIPELINES, 1), *b"p\0\0\0\0\0\0\0\x01");
        assert_eq!(key(CONTAINERS, 1), *b"k\0\0\0\0\0\0\0\x01");
        assert_eq!(key(OMS, 1), *b"o\0\0\0\0\0\0\0\x01");
        assert_eq!(key(OM_GROUPS, 0), *b"m\0\0\0\0\0\0\0\0");
        let keys: Vec<_> = Counter::ALL.map(Counter::key).to_vec();
        assert_eq!(keys, [*b"in", *b"io", *b"ig", *b"ip", *b"ic", *b"ir", *b"iv", *b"im"]);
        assert_eq!(Counter::Container.lost_key(0x0102), *b"uc\0\0\0\0\0\0\x01\x02");
    }
}
