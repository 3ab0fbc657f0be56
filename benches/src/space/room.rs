use crate::Peak;
use std::path::PathBuf;
use std::time::Duration;
use testkit::disk_bytes;

/// The time between two looks at directories.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// The room that directories take on their disk, as `du` counts.
#[derive(Clone, Debug)]
pub(super) struct Room {
    directories: Vec<PathBuf>,
}

impl Room {
    pub(super) fn of(directories: Vec<PathBuf>) -> Room {
        Room { directories }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.directories.iter().map(|directory| disk_bytes(directory)).sum()
    }

    pub(super) fn peak(&self) -> Peak {
        let room = self.clone();
        Peak::watch(LOOK_INTERVAL, move || room.bytes())
    }
}
