//! Nobody can lead a closing pipeline: its members end by themselves. That is not taken back, even when a
//! leader appears after all: members may have stopped for good.

use crate::tables::TablesMut;
use proto::scm::{PipelineRecord, PipelineState, QuasiClosePipelineCommand, ScmReply};

pub(super) fn apply(
    tables: &mut TablesMut<'_>,
    command: QuasiClosePipelineCommand,
) -> Result<ScmReply, String> {
    let pipeline = command.pipeline;
    let record = tables.named_pipeline(pipeline)?;
    match record.state() {
        PipelineState::PipelineClosing => {
            let state = PipelineState::PipelineQuasiClosing as i32;
            let record = PipelineRecord { state, ..record.clone() };
            tables.put_pipeline(record);
        }
        PipelineState::PipelineQuasiClosing | PipelineState::PipelineClosed => {}
        state => return Err(format!("pipeline {pipeline} is {}", state.as_str_name())),
    }
    Ok(ScmReply { pipeline, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, create, run, three_nodes};
    use proto::scm::{PipelineState, QuasiClosePipelineCommand, scm_command::Command};
    use types::PipelineId;

    #[test]
    fn only_closing_pipelines_quasi_close() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let quasi_close = || Command::QuasiClosePipeline(QuasiClosePipelineCommand { pipeline: 1 });
        assert_eq!(run(&mut tables, quasi_close()).refused, "pipeline 1 is PIPELINE_ALLOCATED");
        run(&mut tables, close(1, ""));
        for _ in 0..2 {
            assert_eq!(run(&mut tables, quasi_close()).refused, "");
            let state = tables.pipeline(PipelineId(1)).unwrap().state();
            assert_eq!(state, PipelineState::PipelineQuasiClosing);
        }
    }
}
