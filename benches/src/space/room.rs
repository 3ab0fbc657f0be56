use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use testkit::disk_bytes;

/// Between two looks at directories.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// What directories take on their disk, as `du` counts.
#[derive(Clone, Debug)]
pub struct Room {
    directories: Vec<PathBuf>,
}

impl Room {
    pub fn of(directories: Vec<PathBuf>) -> Room {
        Room { directories }
    }

    pub fn bytes(&self) -> u64 {
        self.directories.iter().map(|directory| disk_bytes(directory)).sum()
    }
}

/// Looks at directories again and again, and keeps the most that they took.
pub struct Watch {
    most: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Watch {
    pub fn start(room: &Room) -> Watch {
        let (most, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (room, most_here, over_here) = (room.clone(), most.clone(), over.clone());
        let thread = std::thread::spawn(move || {
            while !over_here.load(Ordering::Relaxed) {
                most_here.fetch_max(room.bytes(), Ordering::Relaxed);
                std::thread::sleep(LOOK_INTERVAL);
            }
        });
        Watch { most, over, thread: Some(thread) }
    }

    pub fn most_bytes(&self) -> u64 {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
