//! Bits that flip where something is stored and nobody is away: of records, of the list of what was
//! discarded, and of what says how a replica ended.

use super::ending::unsound_replicas;
use super::plan::machine_at;
use super::run::Run;
use super::scheme::{Flipped, Step};
use crate::world::ProcessId;
use proto::scm::{ContainerInfo, ContainerState, ReplicaInfo};
use std::time::Duration;
use types::{ContainerId, OwnerId, PipelineId};

/// The time that a flip waits for a moment in which something may be harmed.
const FLIP_WITHIN: Duration = Duration::from_secs(10);

/// A file on a disk of a machine, and how much of it may be harmed.
#[derive(Clone)]
struct Stored {
    machine: usize,
    disk: usize,
    path: String,
    bytes: u64,
}

impl Run {
    pub(super) fn flip_soon(&mut self) {
        self.flip_by(Flipped::Records, self.world.now() + FLIP_WITHIN);
    }

    /// Flips a bit now, or tries again in a moment.
    pub(super) fn flip_by(&mut self, what: Flipped, until: Duration) {
        let now = self.world.now();
        let is_done = self.all_are_there()
            && match what {
                Flipped::Records => self.flip(),
                Flipped::End => self.flip_end(),
            };
        if is_done {
            self.ledger.count(|counts| counts.bits_flipped += 1);
            self.harmed_at = Some(now);
        } else if now < until {
            self.at(now + Duration::from_millis(500), Step::Flip { what, until });
        }
    }

    /// Closed containers of which three good replicas are there, whatever others lack at the moment.
    fn closed_whole(&self) -> Vec<ContainerInfo> {
        let closed = |info: &&ContainerInfo| {
            info.state() == ContainerState::ContainerClosed
                && info.payload_bytes > 0
                && info.replicas.len() == 3
                && unsound_replicas(info).is_none()
                && !self.losses.has_lost_majority(info)
        };
        let view = self.views.newest();
        view.iter().flat_map(|view| view.containers.iter().filter(closed).cloned()).collect()
    }

    /// Flips a bit of how a replica of a closed container ended, of those that ended by themselves.
    fn flip_end(&mut self) -> bool {
        let ends = self.files_of(&self.closed_whole(), "end");
        if ends.is_empty() {
            return false;
        }
        self.ledger.count(|counts| counts.ends_damaged += 1);
        self.flip_in(&ends)
    }

    /// Flips a bit of a closed container that all its replicas have, or of a list of what was discarded.
    fn flip(&mut self) -> bool {
        let closed = self.closed_whole();
        let lists = self.files_of(&closed, "discarded");
        if !lists.is_empty() && self.random.below(2) == 0 {
            self.ledger.count(|counts| counts.lists_damaged += 1);
            return self.flip_in(&lists);
        }
        if closed.is_empty() {
            return false;
        }
        let info = self.random.pick(&closed).clone();
        let container = ContainerId(info.container);
        let ReplicaInfo { node, replica, .. } = self.random.pick(&info.replicas).clone();
        let Some(machine) = node.and_then(|node| machine_at(&node.address)) else { return false };
        let directory = format!("containers/{:016x}", OwnerId::from(container).0);
        for (disk, of) in self.world.disks(ProcessId(machine)).iter().enumerate() {
            let mut files = of.files_in(&directory);
            files.retain(|(name, bytes)| name.ends_with(".seg") && *bytes > 0);
            let Some((name, bytes)) = files.first() else { continue };
            let path = format!("{directory}/{name}");
            // Beyond its records a segment has room that nobody reads.
            let used = if files.len() > 1 { *bytes / 2 } else { info.payload_bytes.min(*bytes) };
            // A log that still begins there will not open again.
            if replica.is_some_and(|replica| !replica.released) {
                self.note_lost_log(PipelineId(info.pipeline), machine);
            }
            return self.flip_in(&[Stored { machine, disk, path, bytes: used.max(1) }]);
        }
        false
    }

    /// Flips a bit of one of these files.
    fn flip_in(&mut self, files: &[Stored]) -> bool {
        let Stored { machine, disk, path, bytes } = self.random.pick(files).clone();
        let (offset, bit) = (self.random.below(bytes), self.random.below(8) as u8);
        self.ledger.damage(machine);
        self.world.trace().event(format_args!("bit {bit} of byte {offset} of {path} on {machine} flips"));
        self.world.disks(ProcessId(machine))[disk].flip_stored_bit(&path, offset, bit).is_ok()
    }

    /// The files of this name that stand beside the segments of these containers' replicas.
    fn files_of(&self, containers: &[ContainerInfo], name: &str) -> Vec<Stored> {
        let mut found = Vec::new();
        for info in containers {
            let directory = format!("containers/{:016x}", OwnerId::from(ContainerId(info.container)).0);
            let nodes = info.replicas.iter().filter_map(|replica| replica.node.as_ref());
            for machine in nodes.filter_map(|node| machine_at(&node.address)) {
                for (disk, of) in self.world.disks(ProcessId(machine)).iter().enumerate() {
                    let here = of.files_in(&directory).into_iter();
                    let here = here.filter(|(found, bytes)| found == name && *bytes > 0);
                    let stored =
                        |(name, bytes)| Stored { machine, disk, path: format!("{directory}/{name}"), bytes };
                    found.extend(here.map(stored));
                }
            }
        }
        found
    }
}
