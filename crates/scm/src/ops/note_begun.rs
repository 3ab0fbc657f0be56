//! Members of pipelines have logs, in which they may acknowledge things from now on: no replica of theirs is
//! made anew, and their silence does not prove that they had nothing. The note is not taken back. What is
//! noted of a pipeline that is gone, or of one that is no member, changes nothing.

use crate::tables::TablesMut;
use proto::scm::{NoteBegunCommand, PipelineRecord, PipelineReplica, ScmReply};
use types::PipelineId;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: NoteBegunCommand) -> ScmReply {
    for PipelineReplica { pipeline, replica } in command.members {
        let record = tables.pipeline(PipelineId(pipeline)).filter(|record| {
            record.members.iter().any(|member| member.replica == replica) && !record.begun.contains(&replica)
        });
        if let Some(record) = record {
            let mut record: PipelineRecord = record.clone();
            record.begun.push(replica);
            tables.put_pipeline(record);
        }
    }
    ScmReply::default()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, run, three_nodes};
    use proto::scm::{NoteBegunCommand, PipelineReplica, scm_command::Command};
    use types::PipelineId;

    #[test]
    fn a_log_is_noted_once_and_of_members() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let members = [(1, 2), (1, 9), (7, 2), (1, 3)];
        let members = members.map(|(pipeline, replica)| PipelineReplica { pipeline, replica });
        for _ in 0..2 {
            let note = Command::NoteBegun(NoteBegunCommand { members: members.into() });
            assert_eq!(run(&mut tables, note).refused, "");
            assert_eq!(tables.pipeline(PipelineId(1)).unwrap().begun, [2, 3]);
        }
    }
}
