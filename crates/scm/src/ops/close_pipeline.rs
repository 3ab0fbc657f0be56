//! A pipeline takes no more data: from ALLOCATED or OPEN it goes to CLOSING, and the container that it ends
//! with is drawn.

use crate::tables::{TablesMut, is_live};
use proto::scm::{
    ClosePipelineCommand, ContainerRecord, ContainerState, PipelineRecord, PipelineState, ScmReply,
};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: ClosePipelineCommand) -> Result<ScmReply, String> {
    let ClosePipelineCommand { pipeline, reason, at_ms } = command;
    let record = tables.named_pipeline(pipeline)?;
    if !is_live(record) {
        return Ok(ScmReply { pipeline, container: record.end_container, ..ScmReply::default() });
    }
    let record = record.clone();
    let end_container = tables.draw_container().0;
    tables.put_container(ContainerRecord {
        container: end_container,
        pipeline,
        state: ContainerState::ContainerDeleted as i32,
        ..ContainerRecord::default()
    });
    tables.put_pipeline(PipelineRecord {
        state: PipelineState::PipelineClosing as i32,
        end_container,
        close_reason: reason,
        close_at_ms: at_ms,
        ..record
    });
    Ok(ScmReply { pipeline, container: end_container, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, create, run, three_nodes};
    use proto::scm::{ContainerState, PipelineState};
    use types::{ContainerId, NodeId, PipelineId};

    #[test]
    fn closing_twice_is_closing_once() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, create([1, 2, 3]));
        let first = run(&mut tables, close(1, "node 2 is dead"));
        assert_eq!((first.container, first.refused.as_str()), (3, ""));
        let closed_once = format!("{tables:?}");
        assert_eq!(run(&mut tables, close(1, "another reason")), first);
        assert_eq!(format!("{tables:?}"), closed_once);

        let record = tables.pipeline(PipelineId(1)).unwrap();
        assert_eq!(record.state(), PipelineState::PipelineClosing);
        assert_eq!((record.end_container, record.close_reason.as_str()), (3, "node 2 is dead"));
        assert_eq!(tables.container(ContainerId(3)).unwrap().state(), ContainerState::ContainerDeleted);
        assert_eq!(tables.live_pipelines_on(NodeId(1)).count(), 1, "it counts no more");
        assert_eq!(tables.unended_pipelines_on(NodeId(1)).count(), 2, "its members still work on it");
        assert_eq!(run(&mut tables, close(9, "")).refused, "no pipeline 9");
    }
}
