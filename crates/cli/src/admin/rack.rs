//! Racks: which hosts fail together.

use super::args::RackCommand;
use super::datanode::datanodes;
use super::scm::Scm;
use crate::answer::Answer;
use crate::table::{Cell, Tone, table};
use anyhow::{Context, bail};
use proto::scm::{DatanodeInfo, GetRacksRequest, RackOfHost, Racks, SetRacksRequest};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::Path;

pub(super) async fn run(scm: &mut Scm, command: RackCommand) -> anyhow::Result<Answer> {
    match command {
        RackCommand::List => list(scm).await,
        RackCommand::Set { rack, hosts } => set(scm, in_rack(hosts, &rack), false).await,
        RackCommand::Unset { hosts } => set(scm, in_rack(hosts, ""), false).await,
        RackCommand::Load { file } => {
            let hosts = read_map(&file)?;
            set(scm, hosts, true).await
        }
    }
}

fn in_rack(hosts: Vec<String>, rack: &str) -> Vec<RackOfHost> {
    hosts.into_iter().map(|host| RackOfHost { host, rack: rack.to_owned() }).collect()
}

async fn set(scm: &mut Scm, hosts: Vec<RackOfHost>, replace: bool) -> anyhow::Result<Answer> {
    let request = SetRacksRequest { hosts, replace };
    scm.change(async |client| client.set_racks(request.clone()).await).await?;
    list(scm).await
}

async fn list(scm: &mut Scm) -> anyhow::Result<Answer> {
    let map = scm.look(async |client| client.get_racks(GetRacksRequest {}).await).await?;
    let datanodes = datanodes(scm).await?;
    let mut racks: BTreeMap<&str, Vec<&DatanodeInfo>> = BTreeMap::new();
    for host in &map.hosts {
        racks.entry(&host.rack).or_default();
    }
    for datanode in &datanodes {
        racks.entry(&datanode.rack).or_default().push(datanode);
    }
    let hosts_of = |rack: &str| {
        let hosts = map.hosts.iter().filter(|host| host.rack == rack);
        hosts.map(|host| host.host.as_str()).collect::<Vec<_>>()
    };
    let row = |(rack, nodes): (&&str, &Vec<&DatanodeInfo>)| row(rack, &hosts_of(rack), nodes);
    let mut text = table(["RACK", "NODES", "HOSTS"], &racks.iter().map(row).collect::<Vec<_>>());
    if racks.values().filter(|nodes| !nodes.is_empty()).count() < 2 {
        text += "\nall nodes stand in one rack: nothing is spread\n";
    }
    Ok(Answer::new(text, to_json(&map, &racks)))
}

fn row(rack: &str, hosts: &[&str], nodes: &[&DatanodeInfo]) -> [Cell; 3] {
    let numbers: Vec<String> = nodes.iter().map(|datanode| datanode.node.to_string()).collect();
    let nodes = match numbers.is_empty() {
        true => Cell::toned("none", Tone::Warning),
        false => numbers.join(" ").into(),
    };
    [rack.to_owned().into(), nodes, hosts.join(" ").into()]
}

fn to_json(map: &Racks, racks: &BTreeMap<&str, Vec<&DatanodeInfo>>) -> Value {
    let hosts: BTreeMap<&str, &str> =
        map.hosts.iter().map(|host| (host.host.as_str(), host.rack.as_str())).collect();
    let numbers = |nodes: &Vec<&DatanodeInfo>| nodes.iter().map(|datanode| datanode.node).collect::<Vec<_>>();
    let racks: BTreeMap<&str, Vec<u64>> = racks.iter().map(|(rack, nodes)| (*rack, numbers(nodes))).collect();
    json!({ "hosts": hosts, "racks": racks })
}

/// Reads a map of racks: lines of a host and its rack; `#` begins a comment.
fn read_map(file: &Path) -> anyhow::Result<Vec<RackOfHost>> {
    #[allow(clippy::disallowed_methods)] // an operator's file, not data
    let text = std::fs::read_to_string(file);
    let text = text.with_context(|| format!("read {}", file.display()))?;
    parse_map(&text).with_context(|| file.display().to_string())
}

fn parse_map(text: &str) -> anyhow::Result<Vec<RackOfHost>> {
    let mut hosts = BTreeMap::new();
    for (line, number) in text.lines().zip(1..) {
        let words: Vec<&str> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        match words[..] {
            [] => {}
            [host, rack] => {
                if hosts.insert(host, rack).is_some_and(|before| before != rack) {
                    bail!("line {number}: {host} is in another rack already");
                }
            }
            _ => bail!("line {number}: a line is a host and its rack"),
        }
    }
    Ok(hosts.into_iter().map(|(host, rack)| RackOfHost { host: host.into(), rack: rack.into() }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_has_a_host_and_a_rack_on_each_line() {
        let hosts = parse_map("# racks\n\na.example r1 # ground floor\n  b.example:9872\tr2\na.example r1\n")
            .unwrap();
        let hosts: Vec<(&str, &str)> =
            hosts.iter().map(|host| (host.host.as_str(), host.rack.as_str())).collect();
        assert_eq!(hosts, [("a.example", "r1"), ("b.example:9872", "r2")]);
    }

    #[test]
    fn what_is_wrong_with_a_map_is_told_by_line() {
        let why = |text| parse_map(text).unwrap_err().to_string();
        assert_eq!(why("a r1\nb\n"), "line 2: a line is a host and its rack");
        assert_eq!(why("a r1\na r2\n"), "line 2: a is in another rack already");
    }
}
