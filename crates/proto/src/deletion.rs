use crate::scm::{ContainerReplica, DeleteReplica};

impl DeleteReplica {
    /// The order to delete this replica, as it is now.
    pub fn of(replica: &ContainerReplica) -> DeleteReplica {
        let ContainerReplica { container, state, last_term, last_index, .. } = *replica;
        DeleteReplica { container, disk: replica.disk.clone(), state, last_term, last_index }
    }

    /// Whether this is the replica that is to go.
    pub fn means(&self, replica: &ContainerReplica) -> bool {
        *self == DeleteReplica::of(replica)
    }
}
