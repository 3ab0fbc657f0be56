use super::files;
use super::manifest::{BackupId, GroupBackup, Manifest};
use super::parts::{Owner, PartsReader, PartsWriter};
use anyhow::{Context, bail, ensure};
use proto::om::{BackupHead, BackupRows};
use std::fs::File;
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

const MANIFEST: &str = "manifest";
/// The name of the manifest before it counts.
const MANIFEST_BEFORE: &str = "manifest.tmp";

/// A directory with a backup, or for one.
pub(crate) struct BackupDir {
    path: PathBuf,
}

/// The rows of one group, as they are written.
pub(crate) struct GroupWriter {
    writer: PartsWriter<BufWriter<File>>,
    head: BackupHead,
}

/// The rows of one group, as they are read.
pub(crate) struct GroupReader {
    reader: PartsReader<BufReader<File>>,
    expected: GroupBackup,
    path: PathBuf,
}

fn name_of(group: u64) -> String {
    format!("om-{group}.rows")
}

/// Whether a backup that was broken off leaves a file of this name.
fn is_left_over(name: &str) -> bool {
    let number = name.strip_prefix("om-").and_then(|rest| rest.strip_suffix(".rows"));
    name == MANIFEST_BEFORE
        || number.is_some_and(|number| number.parse().is_ok_and(|number| name_of(number) == name))
}

impl BackupDir {
    /// Makes room for a backup: what one that was broken off has left goes, and anything else stays and is
    /// refused.
    pub(crate) fn create(path: &Path) -> anyhow::Result<BackupDir> {
        let said = path.display();
        files::create_dir(path).with_context(|| format!("create {said}"))?;
        let names = files::list(path).with_context(|| format!("look into {said}"))?;
        if names.iter().any(|name| name == MANIFEST) {
            bail!("{said} has a whole backup already: give another directory");
        }
        if let Some(other) = names.iter().find(|name| !is_left_over(name)) {
            bail!("{said} has something else in it, `{other}`: give a directory that is empty, or not there");
        }
        let dir = BackupDir { path: path.to_owned() };
        dir.clear()?;
        Ok(dir)
    }

    /// Removes what was written of a backup that does not count.
    pub(crate) fn clear(&self) -> anyhow::Result<()> {
        let names = files::list(&self.path).with_context(|| format!("look into {}", self.path.display()))?;
        for name in names.iter().filter(|name| is_left_over(name)) {
            let path = self.path.join(name);
            files::remove(&path).with_context(|| format!("remove {}", path.display()))?;
        }
        Ok(())
    }

    /// Opens a whole backup, and reads its manifest.
    pub(crate) fn open(path: &Path) -> anyhow::Result<(BackupDir, Manifest)> {
        let (said, at) = (path.display(), path.join(MANIFEST));
        let bytes = disk::read_file(&at).with_context(|| format!("read {}", at.display()))?;
        let bytes = bytes.with_context(|| {
            format!(
                "{said} has no backup: there is no {}, which is written when all else is there",
                at.display()
            )
        })?;
        let manifest = Manifest::decode(&bytes).with_context(|| format!("the manifest {}", at.display()))?;
        Ok((BackupDir { path: path.to_owned() }, manifest))
    }

    pub(crate) fn writer(&self, backup: BackupId, head: BackupHead) -> anyhow::Result<GroupWriter> {
        let path = self.path.join(name_of(head.group));
        let create = || {
            let file = files::create(&path)?;
            PartsWriter::new(BufWriter::new(file), Owner { backup, group: head.group })
        };
        let writer = create().with_context(|| format!("create {}", path.display()))?;
        Ok(GroupWriter { writer, head })
    }

    /// Writes the manifest: from here on the backup counts, whatever crashes.
    pub(crate) fn finish(&self, manifest: &Manifest) -> anyhow::Result<()> {
        let path = self.path.join(MANIFEST);
        disk::write_private_file_durably(&path, &manifest.encode())
            .with_context(|| format!("write {}", path.display()))
    }

    pub(crate) fn reader(&self, manifest: &Manifest, group: u64) -> anyhow::Result<GroupReader> {
        let expected =
            manifest.group(group).with_context(|| format!("the backup has no group {group}"))?.clone();
        let path = self.path.join(name_of(group));
        let open = || {
            let file = files::open(&path).context("open it")?;
            PartsReader::new(BufReader::new(file), Owner { backup: manifest.backup, group })
        };
        let reader = open().with_context(|| format!("the file {}", path.display()))?;
        Ok(GroupReader { reader, expected, path })
    }

    /// Reads the whole backup, and compares it with the manifest.
    pub(crate) fn verify(&self, manifest: &Manifest) -> anyhow::Result<()> {
        for group in &manifest.groups {
            let mut reader = self.reader(manifest, group.group)?;
            let mut rows = 0;
            while let Some(part) = reader.next()? {
                rows += part.rows.len() as u64;
            }
            let said = reader.path.display();
            ensure!(rows == group.rows, "{said} has {rows} rows, and the manifest says {}", group.rows);
        }
        ensure!(manifest.group(0).is_some(), "the backup has no group 0, which says where buckets are");
        Ok(())
    }
}

impl GroupWriter {
    /// The bytes that were written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.writer.bytes
    }

    pub(crate) fn write(&mut self, rows: &BackupRows) -> anyhow::Result<()> {
        self.writer.write(rows).with_context(|| format!("write rows of group {}", self.head.group))
    }

    /// Ends the file, which is durable on return, but for its name, which the manifest makes durable.
    pub(crate) fn finish(self) -> anyhow::Result<GroupBackup> {
        let (BackupHead { group, term, index, entries, .. }, writer) = (self.head, self.writer);
        let (parts, rows, bytes) = (writer.parts, writer.rows, writer.bytes);
        let file = writer.into_inner().into_inner().map_err(std::io::IntoInnerError::into_error);
        file.and_then(|file| file.sync_all()).with_context(|| format!("write rows of group {group}"))?;
        Ok(GroupBackup { group, term, index, entries, parts, rows, bytes })
    }
}

impl GroupReader {
    /// Reads the next part; an error where the file ends before the last, or goes on after it.
    pub(crate) fn next(&mut self) -> anyhow::Result<Option<BackupRows>> {
        let expected = self.expected.parts;
        let next = self.reader.next().and_then(|part| {
            let read = self.reader.parts;
            match part {
                None => {
                    ensure!(read == expected, "it ends after part {read}, and the manifest says {expected}")
                }
                Some(_) => {
                    ensure!(read <= expected, "it goes on after part {expected}, which is the last one")
                }
            }
            Ok(part)
        });
        next.with_context(|| format!("the file {}", self.path.display()))
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // the tests play who damages files
mod tests {
    use super::super::manifest::tests::manifest;
    use super::*;
    use proto::om::MovedRow;
    use std::os::unix::fs::PermissionsExt;

    fn rows(key: &str) -> BackupRows {
        BackupRows { rows: vec![MovedRow { key: key.to_owned().into(), value: Some("value".into()) }] }
    }

    /// A backup of two groups, of two parts each.
    fn write(path: &Path) -> Manifest {
        let dir = BackupDir::create(path).unwrap();
        let group = |group| {
            let head = BackupHead { group, ..BackupHead::default() };
            let mut writer = dir.writer(BackupId(7), head).unwrap();
            ["a", "b"].into_iter().for_each(|key| writer.write(&rows(key)).unwrap());
            writer.finish().unwrap()
        };
        let manifest = Manifest { groups: vec![group(0), group(3)], ..manifest() };
        dir.finish(&manifest).unwrap();
        manifest
    }

    fn verify(path: &Path) -> anyhow::Result<()> {
        let (dir, manifest) = BackupDir::open(path)?;
        dir.verify(&manifest)
    }

    #[test]
    fn a_backup_is_whole_and_private_and_each_flipped_byte_of_each_file_is_found() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("new/backup");
        let manifest = write(&path);
        assert_eq!(BackupDir::open(&path).unwrap().1, manifest);
        assert_eq!((verify(&path).unwrap(), manifest.rows()), ((), 4));
        let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&path), 0o700);
        for name in ["manifest", "om-0.rows", "om-3.rows"] {
            let file = path.join(name);
            assert_eq!(mode(&file), 0o600, "{name}");
            let whole = std::fs::read(&file).unwrap();
            for at in 0..whole.len() {
                let mut flipped = whole.clone();
                flipped[at] ^= 0x10;
                std::fs::write(&file, flipped).unwrap();
                assert!(verify(&path).is_err(), "{name}, byte {at}");
            }
            std::fs::write(&file, whole).unwrap();
        }
        verify(&path).unwrap();
    }

    #[test]
    fn what_is_missing_or_too_much_is_said() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("backup");
        write(&path);
        let why = |change: &dyn Fn(&Path)| {
            let path = root.path().join("changed");
            std::fs::create_dir_all(&path).unwrap();
            for name in files::list(&root.path().join("backup")).unwrap() {
                std::fs::copy(root.path().join("backup").join(&name), path.join(&name)).unwrap();
            }
            change(&path);
            let why = format!("{:#}", verify(&path).expect_err("it is refused"));
            std::fs::remove_dir_all(&path).unwrap();
            why
        };
        let file = |path: &Path| path.join("om-3.rows");
        let said = why(&|path| std::fs::remove_file(file(path)).unwrap());
        assert!(said.contains("om-3.rows") && said.contains("No such file"), "{said}");
        let said = why(&|path| std::fs::remove_file(path.join("manifest")).unwrap());
        assert!(said.contains("has no backup"), "{said}");
        let said = why(&|path| {
            let whole = std::fs::read(file(path)).unwrap();
            let half = 40 + (whole.len() - 40) / 2;
            std::fs::write(file(path), &whole[..half]).unwrap();
        });
        assert!(said.contains("ends after part 1, and the manifest says 2"), "{said}");
        let said =
            why(&|path| std::fs::write(file(path), std::fs::read(path.join("om-0.rows")).unwrap()).unwrap());
        assert!(said.contains("of another backup or group"), "{said}");
    }

    #[test]
    fn a_directory_with_something_else_in_it_is_left_alone_and_one_that_was_broken_off_is_begun_again() {
        let root = tempfile::tempdir().unwrap();
        let refused = |path: &Path| BackupDir::create(path).err().expect("it is refused").to_string();
        let other = root.path().join("other");
        std::fs::create_dir(&other).unwrap();
        for name in ["om-0.rows", "om-00.rows"] {
            std::fs::write(other.join(name), "mine").unwrap();
        }
        assert!(refused(&other).contains("`om-00.rows`"), "{}", refused(&other));
        assert_eq!(files::list(&other).unwrap().len(), 2, "nothing was removed");

        let path = root.path().join("backup");
        let dir = BackupDir::create(&path).unwrap();
        let mut half = dir.writer(BackupId(6), BackupHead { group: 0, ..BackupHead::default() }).unwrap();
        half.write(&rows("half")).unwrap();
        std::fs::write(path.join(MANIFEST_BEFORE), "half").unwrap();
        drop(half);
        assert!(verify(&path).is_err());
        write(&path);
        verify(&path).unwrap();
        assert!(refused(&path).contains("whole backup already"));
        verify(&path).unwrap();
    }
}
