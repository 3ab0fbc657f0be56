//! A closing pipeline is over: all members that can end it have. A member that comes later ends it too, which
//! is noted, and then lets go of it. The containers that the log never came to are deleted by the same
//! command.

use crate::member_view::MAJORITY;
use crate::tables::{TablesMut, container_state};
use proto::scm::{
    ContainerRecord, ContainerState, EndPipelineCommand, MemberEnd, PipelineRecord, PipelineState, ScmReply,
};
use std::collections::BTreeMap;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: EndPipelineCommand) -> Result<ScmReply, String> {
    let EndPipelineCommand { pipeline, ended } = command;
    let record = tables.named_pipeline(pipeline)?;
    let ended = match record.state() {
        PipelineState::PipelineClosing | PipelineState::PipelineQuasiClosing => ended,
        PipelineState::PipelineClosed => farthest(record.ended.iter().chain(&ended)),
        state => return Err(format!("pipeline {pipeline} is {}", state.as_str_name())),
    };
    let state = PipelineState::PipelineClosed as i32;
    let record = PipelineRecord { state, ended, ..record.clone() };
    tables.put_pipeline(record.clone());
    delete_unused(tables, &record);
    Ok(ScmReply { pipeline, ..ScmReply::default() })
}

/// Each member's end, the farthest of those it has said: it is said again, perhaps by an older report.
fn farthest<'a>(ends: impl Iterator<Item = &'a MemberEnd>) -> Vec<MemberEnd> {
    let mut noted: BTreeMap<u64, MemberEnd> = BTreeMap::new();
    for end in ends {
        let last = noted.entry(end.replica).or_insert(*end);
        if reach(last) < reach(end) {
            *last = *end;
        }
    }
    noted.into_values().collect()
}

/// The position by which two ends of one member, or two logs of one pipeline, are compared.
pub(crate) fn reach(end: &MemberEnd) -> ((u64, u64), u64, u64, bool) {
    (log_last(end), end.last_index, end.last_container, end.is_last_roll)
}

/// Term and index of the log's last record, which a member of an older version did not say: it is not before
/// the last record of which SCM is told.
pub(crate) fn log_last(end: &MemberEnd) -> (u64, u64) {
    (end.log_term, end.log_index).max((end.last_term, end.last_index))
}

/// Deletes the containers that the pipeline's log never came to. No replica is asked: what the members said
/// of their ends stays true whatever becomes of them, and whoever waits may lose the disk that could have
/// told.
fn delete_unused(tables: &mut TablesMut<'_>, pipeline: &PipelineRecord) {
    let Some(last) = last_container(pipeline) else { return };
    let is_unused = |record: &&ContainerRecord| {
        let state = container_state(record);
        record.container > last
            && matches!(state, ContainerState::ContainerOpen | ContainerState::ContainerQuasiClosed)
    };
    let unused: Vec<ContainerRecord> = tables.containers_of(pipeline).filter(is_unused).cloned().collect();
    let state = ContainerState::ContainerDeleted as i32;
    for record in unused {
        tables.put_container(ContainerRecord { state, ..record });
    }
}

/// The last container in which a record may be that was acknowledged. The pipeline's last roll is committed:
/// one member that has it is enough. Where nobody has it, the highest end of a majority is: whatever was
/// acknowledged, one of them has. A member whose log is lost may have had more than it says.
fn last_container(pipeline: &PipelineRecord) -> Option<u64> {
    let ends = pipeline.ended.iter().filter(|end| end.last_container != 0);
    if let Some(end) = ends.clone().find(|end| end.is_last_roll) {
        return Some(end.last_container);
    }
    let has_log = |end: &&MemberEnd| !pipeline.lost_logs.contains(&end.replica);
    let whole: Vec<&MemberEnd> = ends.filter(has_log).collect();
    let highest = whole.iter().max_by_key(|end| reach(end))?;
    (whole.len() >= MAJORITY).then_some(highest.last_container)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{close, create, end, run, three_nodes};
    use super::*;
    use crate::tables::Tables;
    use proto::scm::{AllocateContainerCommand, scm_command::Command};
    use types::{ContainerId, NodeId, PipelineId};

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

    fn note(tables: &mut Tables, ended: Vec<MemberEnd>) {
        let command = EndPipelineCommand { pipeline: 1, ended };
        assert_eq!(run(tables, Command::EndPipeline(command)).refused, "");
    }

    #[test]
    fn who_ends_later_is_noted_too() {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        run(&mut tables, close(1, ""));
        let end = |replica| at(replica, 1, 7);
        for ended in [vec![end(2), end(1)], vec![end(3)], vec![end(3)]] {
            note(&mut tables, ended);
        }
        assert_eq!(tables.pipeline(PipelineId(1)).unwrap().ended, [end(1), end(2), end(3)]);
        note(&mut tables, vec![at(3, 1, 4)]);
        assert_eq!(tables.pipeline(PipelineId(1)).unwrap().ended[2], end(3), "what was said once");
    }

    /// A pipeline with three containers that is closing.
    fn closing() -> Tables {
        let mut tables = three_nodes();
        run(&mut tables, create([1, 2, 3]));
        for after in 1..3 {
            run(&mut tables, Command::AllocateContainer(AllocateContainerCommand { pipeline: 1, after }));
        }
        run(&mut tables, close(1, ""));
        tables
    }

    fn deleted(tables: &Tables) -> Vec<u64> {
        let record = tables.pipeline(PipelineId(1)).unwrap();
        let is_deleted = |record: &&ContainerRecord| record.state() == ContainerState::ContainerDeleted;
        tables.containers_of(record).filter(is_deleted).map(|record| record.container).collect()
    }

    fn at(replica: u64, last_container: u64, last_index: u64) -> MemberEnd {
        MemberEnd {
            replica,
            last_index,
            last_term: 1,
            last_container,
            is_last_roll: false,
            log_term: 1,
            log_index: last_index,
        }
    }

    #[test]
    fn containers_behind_the_log_are_deleted_as_soon_as_its_end_is_noted() {
        let is_last_roll = MemberEnd { is_last_roll: true, ..at(1, 1, 70) };
        for (ends, expect) in [
            (vec![], &[][..]),
            (vec![at(1, 1, 70)], &[]),
            (vec![at(1, 1, 70), at(2, 1, 60)], &[2, 3]),
            (vec![at(1, 1, 70), at(2, 2, 71)], &[3]),
            (vec![at(1, 1, 70), at(2, 0, 0)], &[]),
            (vec![is_last_roll], &[2, 3]),
        ] {
            let mut tables = closing();
            note(&mut tables, ends.clone());
            assert_eq!(deleted(&tables), expect, "{ends:?}");
            // What was undecided is settled once another one comes.
            if ends.len() == 1 && !ends[0].is_last_roll {
                note(&mut tables, vec![at(3, 2, 71)]);
                assert_eq!(deleted(&tables), [3]);
            }
        }
    }

    #[test]
    fn who_lost_its_log_says_nothing_of_the_end() {
        let mut tables = closing();
        let note_lost = proto::scm::NoteLostLogCommand { pipeline: 1, replica: 2 };
        run(&mut tables, Command::NoteLostLog(note_lost));
        note(&mut tables, vec![at(1, 1, 70), at(2, 1, 60)]);
        assert_eq!(deleted(&tables), [] as [u64; 0]);
        note(&mut tables, vec![at(3, 1, 65)]);
        assert_eq!(deleted(&tables), [2, 3]);
        assert!(
            tables
                .container(ContainerId(1))
                .is_some_and(|record| record.state() != ContainerState::ContainerDeleted)
        );
    }
}
