//! A closing pipeline is over: all members that can end it have. A member that comes later ends it too, which
//! is noted, and then lets go of it.

use crate::tables::TablesMut;
use proto::scm::{EndPipelineCommand, MemberEnd, PipelineRecord, PipelineState, ScmReply};
use std::collections::BTreeMap;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: EndPipelineCommand) -> Result<ScmReply, String> {
    let EndPipelineCommand { pipeline, ended } = command;
    let record = tables.named_pipeline(pipeline)?;
    match record.state() {
        PipelineState::PipelineClosing | PipelineState::PipelineQuasiClosing => {
            let state = PipelineState::PipelineClosed as i32;
            let record = PipelineRecord { state, ended, ..record.clone() };
            tables.put_pipeline(record);
        }
        PipelineState::PipelineClosed => {
            // The end of a member is said again, perhaps by an older report: the end that was shown once
            // stays required.
            let mut noted: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
            for end in record.ended.iter().chain(&ended) {
                let last = noted.entry(end.replica).or_default();
                *last = (end.last_term, end.last_index).max(*last);
            }
            let end = |(replica, (last_term, last_index))| MemberEnd { replica, last_index, last_term };
            let record = PipelineRecord { ended: noted.into_iter().map(end).collect(), ..record.clone() };
            tables.put_pipeline(record);
        }
        state => return Err(format!("pipeline {pipeline} is {}", state.as_str_name())),
    }
    Ok(ScmReply { pipeline, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, create, end, run, three_nodes};
    use super::*;
    use proto::scm::scm_command::Command;
    use types::{NodeId, PipelineId};

    #[test]
    fn only_closing_pipelines_end() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        assert_eq!(run(&mut tables, end(1)).refused, "pipeline 1 is PIPELINE_ALLOCATED");
        run(&mut tables, close(1, ""));
        for _ in 0..2 {
            assert_eq!(run(&mut tables, end(1)).refused, "");
            assert_eq!(tables.unended_pipelines_on(NodeId(1)).count(), 0);
        }
    }

    #[test]
    fn who_ends_later_is_noted_too() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, ""));
        let end = |replica| MemberEnd { replica, last_index: 7, last_term: 1 };
        for ended in [vec![end(2), end(1)], vec![end(3)], vec![end(3)]] {
            let command = EndPipelineCommand { pipeline: 1, ended };
            assert_eq!(run(&mut tables, Command::EndPipeline(command)).refused, "");
        }
        assert_eq!(tables.pipeline(PipelineId(1)).unwrap().ended, [end(1), end(2), end(3)]);
        let older = MemberEnd { replica: 3, last_index: 4, last_term: 1 };
        run(&mut tables, Command::EndPipeline(EndPipelineCommand { pipeline: 1, ended: vec![older] }));
        assert_eq!(tables.pipeline(PipelineId(1)).unwrap().ended[2], end(3), "what was shown once");
    }
}
