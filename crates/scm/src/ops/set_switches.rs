//! The switches of what SCM does on its own are set; they are kept, so that a new leader goes on the same
//! way.

use crate::tables::TablesMut;
use proto::scm::{ScmReply, SetSwitchesCommand};

pub(super) fn apply(tables: &mut TablesMut<'_>, command: SetSwitchesCommand) -> Result<ScmReply, String> {
    let switches = command.switches.ok_or_else(|| "no switches".to_owned())?;
    tables.set_switches(switches);
    Ok(ScmReply::default())
}

#[cfg(test)]
mod tests {
    use super::super::testing::run;
    use crate::tables::Tables;
    use proto::scm::{SetSwitchesCommand, Switches, scm_command::Command};

    #[test]
    fn switches_stay_as_they_were_set() {
        let mut tables = Tables::default();
        let (leave_safe_mode, reclaim_stopped) = (true, false);
        let at_first = Switches { replication: true, balancer: false, leave_safe_mode, reclaim_stopped };
        assert_eq!(tables.switches(), at_first);
        let (leave_safe_mode, reclaim_stopped) = (false, true);
        let switches = Switches { replication: false, balancer: true, leave_safe_mode, reclaim_stopped };
        run(&mut tables, Command::SetSwitches(SetSwitchesCommand { switches: Some(switches) }));
        assert_eq!(tables.switches(), switches);
        assert_ne!(run(&mut tables, Command::SetSwitches(SetSwitchesCommand { switches: None })).refused, "");
    }
}
