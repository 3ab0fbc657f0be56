use crate::world::{ProcessId, World};
use disk::Stamp;
use disk::sim::{Random, SimDirectory};
use types::DiskId;

/// An empty, formatted directory on the first disk of a machine. No two have the same `root`.
pub(crate) fn empty_directory(
    world: &World,
    machine: usize,
    root: String,
    random: &mut Random,
) -> SimDirectory {
    let mut random_u128 = || u128::from(random.next_u64()) << 64 | u128::from(random.next_u64());
    let (node_uuid, disk) = (random_u128(), DiskId(random_u128()));
    let stamp = Stamp { disk, cluster: String::new(), node_uuid, node: 0 };
    SimDirectory::new(root, world.disk(ProcessId(machine)).clone(), stamp)
}
