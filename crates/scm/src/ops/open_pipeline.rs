//! A pipeline has been seen with a leader, and a majority of its members has begun: from now on it is open.

use crate::tables::TablesMut;
use proto::scm::{OpenPipelineCommand, PipelineRecord, PipelineState, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: OpenPipelineCommand) -> Result<ScmReply, String> {
    let record = tables.named_pipeline(command.pipeline)?;
    if record.state() == PipelineState::PipelineAllocated {
        let opened = PipelineRecord { state: PipelineState::PipelineOpen as i32, ..record.clone() };
        tables.put_pipeline(opened);
    }
    Ok(ScmReply { pipeline: command.pipeline, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, run, three_nodes};
    use proto::scm::{OpenPipelineCommand, PipelineState, scm_command::Command};
    use types::PipelineId;

    #[test]
    fn opening_twice_is_opening_once() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        for _ in 0..2 {
            let reply = run(&mut tables, Command::OpenPipeline(OpenPipelineCommand { pipeline: 1 }));
            assert_eq!(reply.refused, "");
            assert_eq!(tables.pipeline(PipelineId(1)).unwrap().state(), PipelineState::PipelineOpen);
        }
        let reply = run(&mut tables, Command::OpenPipeline(OpenPipelineCommand { pipeline: 9 }));
        assert_eq!(reply.refused, "no pipeline 9");
    }
}
