use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The time within which RocksDB goes on by itself where there is room again: it tries each five seconds.
const GOES_ON_WITHIN: Duration = Duration::from_secs(60);

/// The tables that a RocksDB is going to write, on a device that is full, until this is dropped.
pub struct FullTables(Vec<PathBuf>);

impl FullTables {
    /// Fills up the directory of a database.
    pub fn of(db: &Path) -> FullTables {
        let tables = (1..5000).map(|number| db.join(format!("{number:06}.sst")));
        let new: Vec<_> = tables.filter(|table| !table.exists()).collect();
        new.iter()
            .for_each(|table| symlink("/dev/full", table).expect("write into the database's directory"));
        FullTables(new)
    }

    /// Makes room, and waits until the database is well.
    pub fn make_room(self, mut is_well: impl FnMut() -> bool) {
        drop(self);
        let since = Instant::now();
        while !is_well() {
            assert!(since.elapsed() < GOES_ON_WITHIN, "the database has room, and does not go on");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for FullTables {
    fn drop(&mut self) {
        // RocksDB has deleted those that it gave up, and may do so with others meanwhile.
        let is_device = |table: &&PathBuf| std::fs::read_link(table).is_ok();
        self.0.iter().filter(is_device).for_each(|table| drop(std::fs::remove_file(table)));
    }
}
