//! Lets the sweep go on: an operator takes the names that groups have now for all that there are.

use super::{Apply, Fresh, Operation, wire};
use crate::tables::{FENCES_KEY, Refusal, SEEN_PREFIX, fences, seen_key};
use prost::Message;
use proto::Failure;
use proto::om::{Fences, StartSweepCommand, StartSweepReply};

pub(crate) struct StartSweep;

impl Operation for StartSweep {
    type Request = StartSweepCommand;
    type Command = StartSweepCommand;
    type Response = StartSweepReply;
    wire!(StartSweep);

    fn prepare(request: StartSweepCommand, _: Fresh) -> Result<StartSweepCommand, Failure> {
        Ok(request)
    }

    /// From here on groups are compared with what they say now. The root's number goes past all that others
    /// have heard of: it is behind nobody any more.
    fn apply(apply: &mut Apply<'_, '_>, command: StartSweepCommand) -> Result<StartSweepReply, Refusal> {
        let before = fences(apply.tables)?;
        let heard = command.groups.iter().map(|group| group.number).chain([command.number, before.number]);
        let number = heard.max().unwrap_or_default().saturating_add(1).max(apply.now_ms);
        apply.tables.put(FENCES_KEY.to_vec(), Fences { number, stop: None, ..before }.encode_to_vec());
        let rows: Vec<_> = apply.tables.scan(SEEN_PREFIX).collect::<anyhow::Result<_>>()?;
        rows.into_iter().for_each(|(key, _)| apply.tables.delete(key));
        for group in command.groups {
            apply.tables.put(seen_key(group.group), group.encode_to_vec());
        }
        Ok(StartSweepReply {})
    }
}
