//! Containers that operators, or discards, want closed while their pipelines write to them.

use crate::tables::{Tables, container_state, is_live};
use crate::world::World;
use proto::scm::{ContainerRecord, ContainerState, RollContainer, Task, task};
use proto::{Code, Failure};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId};

/// The most containers that are wanted closed at a time.
const ROLLS_MAX: usize = 1000;

/// The containers, and since when each is wanted. Whoever leads a container's pipeline is told to go on to
/// the next one, until it has.
#[derive(Default)]
pub(crate) struct Rolls {
    wanted: BTreeMap<ContainerId, Instant>,
}

impl Rolls {
    pub(crate) fn want(&mut self, container: ContainerId, world: &World<'_>) -> Result<(), Failure> {
        let record = world.tables.container(container);
        let record =
            record.ok_or_else(|| Failure::new(Code::NotFound, format!("no container {container}")))?;
        if !is_rolling_possible(record, world.tables) {
            return Err(Failure::invalid(format!(
                "container {container} is {}, and its pipeline takes no more data or went on already",
                container_state(record).as_str_name()
            )));
        }
        if self.wanted.len() >= ROLLS_MAX {
            return Err(Failure::new(Code::Busy, format!("{ROLLS_MAX} containers are being closed already")));
        }
        self.wanted.insert(container, world.now);
        Ok(())
    }

    /// Forgets the wishes that are done, or older than `within`.
    pub(crate) fn drop_done(&mut self, world: &World<'_>, within: Duration) {
        self.wanted.retain(|container, since| {
            let record = world.tables.container(*container);
            world.now.saturating_duration_since(*since) < within
                && record.is_some_and(|record| is_rolling_possible(record, world.tables))
        });
    }

    /// The tasks of the wishes that `node` can carry out as the leader.
    pub(crate) fn of<'a>(&'a self, node: NodeId, world: &'a World<'_>) -> impl Iterator<Item = Task> + 'a {
        self.wanted.keys().filter_map(move |container| {
            let record = world.tables.container(*container)?;
            let pipeline = world.tables.pipeline(PipelineId(record.pipeline))?;
            let seen = world.nodes.pipeline_seen(pipeline, world.now);
            let is_here = seen.leader == Some(node) && seen.container == container.0;
            let roll = RollContainer { pipeline: record.pipeline, container: container.0 };
            is_here.then_some(Task { task: Some(task::Task::Roll(roll)) })
        })
    }
}

fn is_rolling_possible(record: &ContainerRecord, tables: &Tables) -> bool {
    let live = tables.pipeline(PipelineId(record.pipeline)).is_some_and(is_live);
    live && container_state(record) == ContainerState::ContainerOpen
}
