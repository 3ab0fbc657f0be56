//! A rebuilt index takes the place of the old one. Two renames cannot be one step, so each state that a crash
//! may leave says what is to be done:
//!
//! ```text
//! db.building                  being built: means nothing
//! db.rebuilt + db              complete, and the old one still counts: means nothing
//! db.rebuilt + db.replaced     complete, and the old one gave way: it is to become db
//! db         + db.replaced     done: db.replaced is to be removed
//! ```

use crate::layout::DB_DIR;
use anyhow::Context;
use disk::Disk;

pub(crate) const BUILDING_DIR: &str = "db.building";
const REBUILT_DIR: &str = "db.rebuilt";
const REPLACED_DIR: &str = "db.replaced";
/// The directory where `verify` builds what it compares with.
pub(crate) const SCRATCH_DIR: &str = "db.verify";

/// Finishes an installation that a crash interrupted, or forgets it, and removes what an interrupted tool
/// left.
pub(crate) async fn finish(disk: &dyn Disk) -> anyhow::Result<()> {
    let names = disk.list("").await.context("list the data directory")?;
    let is_here = |name: &str| names.iter().any(|here| here == name);
    if is_here(REBUILT_DIR) && !is_here(DB_DIR) && is_here(REPLACED_DIR) {
        rename(disk, REBUILT_DIR, DB_DIR).await?;
    }
    for left in [BUILDING_DIR, REBUILT_DIR, REPLACED_DIR, SCRATCH_DIR] {
        if is_here(left) {
            remove(disk, left).await?;
        }
    }
    Ok(())
}

/// Whether there is a RocksDB where the index belongs.
pub(crate) async fn has_index(disk: &dyn Disk) -> anyhow::Result<bool> {
    let names = disk.list(DB_DIR).await.with_context(|| format!("list {DB_DIR}"))?;
    Ok(names.iter().any(|name| name == "CURRENT"))
}

/// Puts the index in `db.building`, which is closed and durable, in the place of `db`. After a crash
/// [`finish`] finds the old one or the new one.
pub(crate) async fn install(disk: &dyn Disk) -> anyhow::Result<()> {
    let names = disk.list("").await.context("list the data directory")?;
    // The second rename wants something to rename.
    if !names.iter().any(|name| name == DB_DIR) {
        disk.create_dir_all(DB_DIR).await.with_context(|| format!("create {DB_DIR}"))?;
    }
    rename(disk, BUILDING_DIR, REBUILT_DIR).await?;
    rename(disk, DB_DIR, REPLACED_DIR).await?;
    rename(disk, REBUILT_DIR, DB_DIR).await?;
    remove(disk, REPLACED_DIR).await
}

async fn rename(disk: &dyn Disk, from: &str, to: &str) -> anyhow::Result<()> {
    let rename = async {
        disk.rename(from, to).await?;
        disk.sync_dir("").await
    };
    rename.await.with_context(|| format!("rename {from} to {to}"))
}

pub(crate) async fn remove(disk: &dyn Disk, dir: &str) -> anyhow::Result<()> {
    let remove = async {
        disk.remove_dir_all(dir).await?;
        disk.sync_dir("").await
    };
    remove.await.with_context(|| format!("remove {dir}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use disk::RealDisk;
    use std::path::Path;

    #[allow(clippy::disallowed_methods)] // the test plays the crash
    fn names(root: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(root).unwrap().map(|entry| entry.unwrap().file_name().into_string());
        let mut names: Vec<_> = entries.map(Result::unwrap).filter(|name| name.starts_with("db")).collect();
        names.sort();
        names
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods)]
    async fn whatever_a_crash_leaves_one_index_is_found() {
        let check = async |here: &[&str], expect: &str| {
            let dir = tempfile::tempdir().unwrap();
            let disk = RealDisk::open(dir.path(), 1).unwrap();
            for name in here {
                std::fs::create_dir(dir.path().join(name)).unwrap();
                std::fs::write(dir.path().join(name).join("what"), name).unwrap();
            }
            finish(&disk).await.unwrap();
            assert_eq!(names(dir.path()), ["db"], "{here:?}");
            assert_eq!(std::fs::read(dir.path().join("db/what")).unwrap(), expect.as_bytes(), "{here:?}");
        };
        check(&["db", "db.building"], "db").await;
        check(&["db", "db.rebuilt"], "db").await;
        check(&["db.rebuilt", "db.replaced"], "db.rebuilt").await;
        check(&["db", "db.replaced"], "db").await;
        check(&["db", "db.replaced", "db.verify"], "db").await;
    }

    #[tokio::test]
    #[allow(clippy::disallowed_methods)]
    async fn the_new_index_takes_the_place_also_of_none() {
        for old in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let disk = RealDisk::open(dir.path(), 1).unwrap();
            if old {
                std::fs::create_dir(dir.path().join("db")).unwrap();
            }
            std::fs::create_dir(dir.path().join("db.building")).unwrap();
            std::fs::write(dir.path().join("db.building/new"), "").unwrap();
            install(&disk).await.unwrap();
            assert_eq!(names(dir.path()), ["db"]);
            assert!(dir.path().join("db/new").exists());
        }
    }
}
