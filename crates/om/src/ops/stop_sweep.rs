//! Stops the sweep until an operator starts it again: somebody has said so, or SCM knows of later fences than
//! the root, which was put back.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{Refusal, fences};
use proto::Failure;
use proto::om::{StopSweepCommand, StopSweepReply};

pub(crate) struct StopSweep;

impl Operation for StopSweep {
    type Request = StopSweepCommand;
    type Command = StopSweepCommand;
    type Response = StopSweepReply;
    wire!(StopSweep);

    fn prepare(request: StopSweepCommand, _: Fresh) -> Result<StopSweepCommand, Failure> {
        Ok(request)
    }

    fn apply(apply: &mut Apply<'_, '_>, command: StopSweepCommand) -> Result<StopSweepReply, Refusal> {
        // A leader before this one has seen that SCM knows what a later one has told it.
        if command.number == 0 || command.number == fences(apply.tables)?.number {
            apply.stop_sweep(command.why)?;
        }
        Ok(StopSweepReply {})
    }
}
