//! Calls by which operators see and set which hosts stand in which racks.

use crate::leader::Leader;
use proto::Failure;
use proto::scm::{RackOfHost, Racks, SetRacksCommand, SetRacksRequest, scm_command::Command};
use tracing::info;

pub(super) fn racks(leader: &Leader) -> Racks {
    let hosts = leader.tables.read(|tables| {
        let host = |(host, rack): (&String, &String)| RackOfHost { host: host.clone(), rack: rack.clone() };
        tables.racks().hosts().iter().map(host).collect()
    });
    Racks { hosts }
}

pub(super) async fn set_racks(leader: &Leader, request: SetRacksRequest) -> Result<Racks, Failure> {
    let SetRacksRequest { hosts, replace } = request;
    let count = hosts.len();
    let reply = leader.propose(Command::SetRacks(SetRacksCommand { hosts, replace })).await?;
    if !reply.refused.is_empty() {
        return Err(Failure::invalid(reply.refused));
    }
    info!(hosts = count, replace, "an operator sets racks");
    leader.note_places_changed();
    Ok(racks(leader))
}
