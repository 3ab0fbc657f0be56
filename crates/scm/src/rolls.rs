//! Containers that operators want closed while their pipelines write to them.

use crate::leader::Leader;
use crate::nodes::Nodes;
use crate::tables::{Tables, container_state, is_live};
use proto::scm::{ContainerRecord, ContainerState, RollContainer, Task, task};
use proto::{Code, Failure};
use tokio::time::Instant;
use types::{ContainerId, NodeId, PipelineId};

/// Wishes at a time.
const ROLLS_MAX: usize = 1000;

impl Leader {
    /// From now on the pipeline's leader is told to go on to the next container, until it has.
    pub(crate) fn want_roll(&self, container: ContainerId) -> Result<(), Failure> {
        self.read(|tables, _| {
            let record = tables.container(container);
            let record =
                record.ok_or_else(|| Failure::new(Code::NotFound, format!("no container {container}")))?;
            match is_rolling_possible(record, tables) {
                true => Ok(()),
                false => Err(Failure::invalid(format!(
                    "container {container} is {}, and its pipeline takes no more data or went on already",
                    container_state(record).as_str_name()
                ))),
            }
        })?;
        let mut rolls = self.rolls.lock().expect("no holder of the rolls panics");
        if rolls.len() >= ROLLS_MAX {
            return Err(Failure::new(Code::Busy, format!("{ROLLS_MAX} containers are being closed already")));
        }
        rolls.insert(container, Instant::now());
        Ok(())
    }

    /// Those that `node` can carry out as the leader; what is done or took too long is forgotten.
    pub(crate) fn rolls_for(&self, node: NodeId, tables: &Tables, nodes: &Nodes) -> Vec<Task> {
        let now = Instant::now();
        let mut rolls = self.rolls.lock().expect("no holder of the rolls panics");
        rolls.retain(|container, since| {
            let record = tables.container(*container);
            since.elapsed() < self.options.task_within
                && record.is_some_and(|record| is_rolling_possible(record, tables))
        });
        let here = rolls.keys().filter_map(|container| {
            let record = tables.container(*container)?;
            let pipeline = tables.pipeline(PipelineId(record.pipeline))?;
            let seen = nodes.pipeline_seen(pipeline, now);
            let is_here = seen.leader == Some(node) && seen.container == container.0;
            is_here.then_some(RollContainer { pipeline: record.pipeline, container: container.0 })
        });
        here.map(|roll| Task { task: Some(task::Task::Roll(roll)) }).collect()
    }
}

fn is_rolling_possible(record: &ContainerRecord, tables: &Tables) -> bool {
    let live = tables.pipeline(PipelineId(record.pipeline)).is_some_and(is_live);
    live && container_state(record) == ContainerState::ContainerOpen
}
