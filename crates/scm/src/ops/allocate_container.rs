//! A pipeline gets the container that follows a nearly full one. Who asks again (another leader of the
//! pipeline, or the same one after a broken connection) gets the same answer, so a pipeline's containers form
//! one chain.

use crate::tables::{TablesMut, is_live};
use proto::scm::{AllocateContainerCommand, ContainerRecord, ScmReply};
use types::ContainerId;

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: AllocateContainerCommand,
) -> Result<ScmReply, String> {
    let AllocateContainerCommand { pipeline, after } = command;
    let record = tables.named_pipeline(pipeline)?;
    let takes_data = is_live(record);
    let last = match tables.container(ContainerId(after)) {
        Some(record) if record.pipeline == pipeline => record.clone(),
        Some(record) => {
            return Err(format!("container {after} belongs to pipeline {}, not {pipeline}", record.pipeline));
        }
        None => return Err(format!("no container {after}")),
    };
    if let Some(next) = tables.container_after(&last) {
        return Ok(ScmReply { container: next.0, ..ScmReply::default() });
    }
    if !takes_data {
        return Err(format!("pipeline {pipeline} is closing: it goes on to nothing but its end"));
    }
    let next = tables.draw_container().0;
    tables.put_container(ContainerRecord { container: next, pipeline, ..ContainerRecord::default() });
    Ok(ScmReply { container: next, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, create, run, three_nodes};
    use crate::tables::Tables;
    use proto::scm::{AllocateContainerCommand, ScmReply, scm_command::Command};

    fn allocate(tables: &mut Tables, pipeline: u64, after: u64) -> ScmReply {
        run(tables, Command::AllocateContainer(AllocateContainerCommand { pipeline, after }))
    }

    fn two_pipelines() -> Tables {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, create([1, 2, 3]));
        tables
    }

    #[test]
    fn asking_twice_gives_the_same_container() {
        let mut tables = two_pipelines();
        assert_eq!(allocate(&mut tables, 1, 1).container, 3);
        assert_eq!(allocate(&mut tables, 1, 1).container, 3);
        assert_eq!(allocate(&mut tables, 1, 3).container, 4);
        assert_eq!(allocate(&mut tables, 2, 2).container, 5);
        assert_eq!(allocate(&mut tables, 1, 1).container, 3);
    }

    #[test]
    fn a_closing_pipeline_gets_no_new_container() {
        let mut tables = two_pipelines();
        let next = allocate(&mut tables, 1, 1).container;
        run(&mut tables, close(1, ""));
        assert_eq!(allocate(&mut tables, 1, 1).container, next, "what was given stays given");
        assert!(allocate(&mut tables, 1, next).refused.contains("closing"));
        assert!(allocate(&mut tables, 2, 2).refused.is_empty());
    }

    #[test]
    fn unknown_or_foreign_containers_are_refused() {
        let mut tables = two_pipelines();
        assert_eq!(allocate(&mut tables, 7, 1).refused, "no pipeline 7");
        assert_eq!(allocate(&mut tables, 1, 7).refused, "no container 7");
        assert_eq!(allocate(&mut tables, 1, 2).refused, "container 2 belongs to pipeline 2, not 1");
        assert_eq!(tables, two_pipelines());
    }
}
