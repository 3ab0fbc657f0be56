//! Racks: nodes that fail together, by power or by switch. The three replicas of a container should not stand
//! in one rack.

use proto::scm::NodeRecord;
use std::collections::{BTreeMap, BTreeSet};

/// The rack of hosts that nobody has placed.
pub(crate) const UNPLACED: &str = "default";

/// The number of racks in which the replicas of a container stand at least, where there are as many: the loss
/// of one must leave one.
const RACKS: usize = 2;

/// A rack, by its number among those of one look.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Rack(pub(crate) u32);

/// The rack that each host stands in. A host is a name or an address, with a port where several nodes share
/// it.
#[derive(Clone, Default, Debug, PartialEq, Eq)]
pub(crate) struct RackMap(BTreeMap<String, String>);

impl RackMap {
    pub(crate) fn set(&mut self, host: String, rack: String) {
        self.0.insert(host, rack);
    }

    pub(crate) fn forget(&mut self, host: &str) {
        self.0.remove(host);
    }

    pub(crate) fn hosts(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    pub(crate) fn of(&self, node: &NodeRecord) -> &str {
        let address = node.address.as_str();
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let placed = self.0.get(address).or_else(|| self.0.get(host));
        placed.map_or(UNPLACED, String::as_str)
    }

    /// The racks' numbers, by their names.
    pub(crate) fn numbers(&self) -> BTreeMap<&str, Rack> {
        let names: BTreeSet<&str> = self.0.values().map(String::as_str).chain([UNPLACED]).collect();
        names.into_iter().zip((0..).map(Rack)).collect()
    }
}

/// Counts the different racks among these.
pub(crate) fn spread(racks: impl Iterator<Item = Rack>) -> usize {
    racks.collect::<BTreeSet<Rack>>().len()
}

/// The number of racks that replicas should be in, where nodes are in `racks`.
pub(crate) fn wanted(racks: impl Iterator<Item = Rack>) -> usize {
    spread(racks).min(RACKS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(address: &str) -> NodeRecord {
        NodeRecord { address: address.to_owned(), ..NodeRecord::default() }
    }

    #[test]
    fn a_host_is_found_by_address_or_by_name() {
        let mut map = RackMap::default();
        map.set("a.example".into(), "r1".into());
        map.set("a.example:9872".into(), "r2".into());
        map.set("[::1]".into(), "r3".into());
        assert_eq!(map.of(&at("a.example:1")), "r1");
        assert_eq!(map.of(&at("a.example:9872")), "r2", "the nearer one counts");
        assert_eq!(map.of(&at("[::1]:7")), "r3");
        assert_eq!(map.of(&at("b.example:1")), UNPLACED);
        assert_eq!(map.numbers().len(), 4);
        map.forget("a.example:9872");
        assert_eq!(map.of(&at("a.example:9872")), "r1");
    }
}
