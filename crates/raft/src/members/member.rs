use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use types::{NodeId, ReplicaId};

/// A member of a group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Member {
    pub replica: ReplicaId,
    pub node: NodeId,
    /// "host:port" when the group was made; [`AddressBook`] may know a newer one.
    pub address: String,
}

/// The addresses at which nodes are now. Updated from SCM's heartbeats; shared by everything in a process.
#[derive(Clone, Default)]
pub struct AddressBook {
    nodes: Arc<RwLock<HashMap<NodeId, String>>>,
}

impl AddressBook {
    pub fn set(&self, node: NodeId, address: String) {
        self.nodes.write().expect("no holder panics").insert(node, address);
    }

    pub fn get(&self, node: NodeId) -> Option<String> {
        self.nodes.read().expect("no holder panics").get(&node).cloned()
    }

    /// The newest known address of a member.
    pub fn of(&self, member: &Member) -> String {
        self.get(member.node).unwrap_or_else(|| member.address.clone())
    }
}
