//! `SetRacks` says which hosts stand in which racks. Nodes need not be there yet: a rack is wired before
//! its machines speak.

use crate::tables::TablesMut;
use proto::scm::{RackOfHost, ScmReply, SetRacksCommand};

/// The longest name of a host and of a rack: longer than DNS allows.
const NAME_BYTES_MAX: usize = 255;
/// The most hosts that have racks: ten times the nodes that SCM is made for; five megabytes of names at most.
const HOSTS_MAX: usize = 10_000;

pub(super) fn apply(tables: &mut TablesMut<'_>, command: SetRacksCommand) -> Result<ScmReply, String> {
    let SetRacksCommand { hosts, replace } = command;
    for RackOfHost { host, rack } in &hosts {
        check_name("host", host)?;
        if !rack.is_empty() {
            check_name("rack", rack)?;
        }
    }
    let kept = if replace { 0 } else { tables.racks().hosts().len() };
    if kept + hosts.len() > HOSTS_MAX {
        return Err(format!("{} hosts would have racks, {HOSTS_MAX} may", kept + hosts.len()));
    }
    if replace {
        let before: Vec<String> = tables.racks().hosts().keys().cloned().collect();
        before.iter().for_each(|host| tables.forget_rack(host));
    }
    for RackOfHost { host, rack } in hosts {
        match rack.is_empty() {
            true => tables.forget_rack(&host),
            false => tables.set_rack(&host, &rack),
        }
    }
    Ok(ScmReply::default())
}

fn check_name(what: &str, name: &str) -> Result<(), String> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return Err(format!("the name of a {what} has 1 to {NAME_BYTES_MAX} bytes, not {}", name.len()));
    }
    if name.chars().any(|c| c.is_whitespace() || c.is_control()) {
        return Err(format!("`{}` is no name of a {what}", name.escape_debug()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::run;
    use crate::tables::Tables;
    use proto::scm::{RackOfHost, SetRacksCommand, scm_command::Command};

    fn set(tables: &mut Tables, hosts: &[(&str, &str)], replace: bool) -> String {
        let hosts =
            hosts.iter().map(|(host, rack)| RackOfHost { host: (*host).into(), rack: (*rack).into() });
        run(tables, Command::SetRacks(SetRacksCommand { hosts: hosts.collect(), replace })).refused
    }

    fn check(tables: &Tables, expect: &[(&str, &str)]) {
        let hosts = tables.racks().hosts().iter();
        assert_eq!(hosts.map(|(host, rack)| (host.as_str(), rack.as_str())).collect::<Vec<_>>(), expect);
    }

    #[test]
    fn hosts_are_placed_moved_and_forgotten() {
        let mut tables = Tables::default();
        assert_eq!(set(&mut tables, &[("a", "r1"), ("b", "r1")], false), "");
        assert_eq!(set(&mut tables, &[("b", "r2"), ("c", "r2")], false), "");
        check(&tables, &[("a", "r1"), ("b", "r2"), ("c", "r2")]);
        assert_eq!(set(&mut tables, &[("a", ""), ("d", "")], false), "");
        check(&tables, &[("b", "r2"), ("c", "r2")]);
        assert_eq!(set(&mut tables, &[("e", "r9")], true), "");
        check(&tables, &[("e", "r9")]);
    }

    #[test]
    fn names_that_nobody_can_type_change_nothing() {
        let mut tables = Tables::default();
        for (host, rack) in [("", "r"), ("a b", "r"), ("a", "r\n"), ("a", &"r".repeat(256))] {
            assert_ne!(set(&mut tables, &[("good", "r"), (host, rack)], false), "", "{host:?} {rack:?}");
        }
        check(&tables, &[]);
        let many: Vec<String> = (0..10_001).map(|n| n.to_string()).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|host| (host.as_str(), "r")).collect();
        assert_eq!(set(&mut tables, &many, true), "10001 hosts would have racks, 10000 may");
    }
}
