use disk::{Disk, File};
use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};

/// The most segments that are kept open for reading.
const FILES_MAX: usize = 256;

/// Open segments, so that a read is one operation of the disk and not two.
pub(crate) struct Files {
    disk: Arc<dyn Disk>,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: HashMap<String, (Arc<dyn File>, u64)>,
    clock: u64,
    /// Counts [`Files::forget`]: a file that was opened before one may be a removed one, and is not kept.
    forgotten: u64,
}

impl Files {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Files {
        Files { disk, open: Mutex::default() }
    }

    pub(crate) async fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        let forgotten = {
            let mut open = self.lock();
            open.clock += 1;
            let now = open.clock;
            if let Some((file, used)) = open.files.get_mut(path) {
                *used = now;
                return Ok(file.clone());
            }
            open.forgotten
        };
        let file = self.disk.open(path, false).await?;
        let mut open = self.lock();
        if open.forgotten == forgotten {
            let now = open.clock;
            open.files.insert(path.to_owned(), (file.clone(), now));
            if open.files.len() > FILES_MAX
                && let Some(oldest) =
                    open.files.iter().min_by_key(|(_, (_, used))| *used).map(|(path, _)| path.clone())
            {
                open.files.remove(&oldest);
            }
        }
        Ok(file)
    }

    /// Lets go of all files in a directory: called when some of them are removed.
    pub(crate) fn forget(&self, dir: &str) {
        let mut open = self.lock();
        open.forgotten += 1;
        open.files.retain(|path, _| !path.strip_prefix(dir).is_some_and(|rest| rest.starts_with('/')));
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().expect("no holder of the open files panics")
    }
}
