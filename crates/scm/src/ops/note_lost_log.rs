//! A member has lost its log, or cannot read it: from here on nothing that it says, or leaves unsaid, proves
//! what it ever had. The note is not taken back, and is kept with the pipeline: the member's replicas may be
//! deleted, and copied from others, and it would speak as if it had never had more.

use crate::tables::TablesMut;
use proto::scm::{NoteLostLogCommand, PipelineRecord, ScmReply};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: NoteLostLogCommand) -> Result<ScmReply, String> {
    let NoteLostLogCommand { pipeline, replica } = command;
    let record = tables.named_pipeline(pipeline)?;
    if !record.members.iter().any(|member| member.replica == replica) {
        return Err(format!("replica {replica} is no member of pipeline {pipeline}"));
    }
    if !record.lost_logs.contains(&replica) {
        let mut record: PipelineRecord = record.clone();
        record.lost_logs.push(replica);
        tables.put_pipeline(record);
    }
    Ok(ScmReply { pipeline, ..ScmReply::default() })
}

#[cfg(test)]
mod tests {
    use super::super::testing::{create, run, three_nodes};
    use proto::scm::{NoteLostLogCommand, scm_command::Command};
    use types::PipelineId;

    #[test]
    fn a_lost_log_is_noted_once_and_of_members() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        let note = |pipeline, replica| Command::NoteLostLog(NoteLostLogCommand { pipeline, replica });
        for _ in 0..2 {
            assert_eq!(run(&mut tables, note(1, 2)).refused, "");
            assert_eq!(tables.pipeline(PipelineId(1)).unwrap().lost_logs, [2]);
        }
        assert_eq!(run(&mut tables, note(1, 9)).refused, "replica 9 is no member of pipeline 1");
        assert_eq!(run(&mut tables, note(7, 2)).refused, "no pipeline 7");
    }
}
