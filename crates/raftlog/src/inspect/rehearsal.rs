use super::Directory;
use bytes::Bytes;
use disk::{Disk, File, IoFuture, Space};
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

/// A disk on which recovery can be rehearsed: it shows the files of a directory that is only looked at, and
/// keeps every change in memory. So what a start of the log would do is found out by the code that would do
/// it.
#[derive(Clone)]
pub(crate) struct Rehearsal {
    source: Arc<dyn Directory>,
    state: Arc<Mutex<State>>,
    changes: Changes,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Arc<RehearsedFile>>,
    removed: BTreeSet<String>,
}

/// The changes in the order in which they were made. The files add to it too, so it is not in the state that
/// holds them.
#[derive(Clone, Default)]
struct Changes(Arc<Mutex<Vec<Change>>>);

impl Changes {
    fn lock(&self) -> MutexGuard<'_, Vec<Change>> {
        self.0.lock().expect("no holder of a list panics")
    }
}

/// A change to a file, as far as anybody would miss it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    Cut { file: String, to: u64, from: u64 },
    Removed { file: String },
    Written { file: String },
}

impl Change {
    /// The file that is cut, and the offset at which; 0 when it is removed.
    pub(crate) fn cut(&self) -> Option<(&str, u64)> {
        match self {
            Change::Cut { file, to, .. } => Some((file, *to)),
            Change::Removed { file } => Some((file, 0)),
            Change::Written { .. } => None,
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Cut { file, to, from } => write!(f, "cut {file} from {from} to {to} bytes"),
            Change::Removed { file } => write!(f, "remove {file}"),
            Change::Written { file } => write!(f, "write {file}"),
        }
    }
}

impl Rehearsal {
    pub(crate) fn new(source: Arc<dyn Directory>) -> Rehearsal {
        Rehearsal { source, state: Arc::default(), changes: Changes::default() }
    }

    pub(crate) fn changes(&self) -> Vec<Change> {
        self.changes.lock().clone()
    }

    /// Paths of the files that were opened, or removed.
    pub(crate) fn used(&self) -> BTreeSet<String> {
        let state = self.lock();
        state.files.keys().chain(&state.removed).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no holder of a rehearsal panics")
    }

    async fn open_file(self, path: String, create: bool) -> io::Result<Arc<RehearsedFile>> {
        let is_removed = {
            let state = self.lock();
            if let Some(file) = state.files.get(&path) {
                return Ok(file.clone());
            }
            state.removed.contains(&path)
        };
        let opened = if is_removed { Err(ErrorKind::NotFound.into()) } else { self.source.open(&path).await };
        let base = match opened {
            Ok(base) => Some(base),
            Err(error) if error.kind() == ErrorKind::NotFound && create => None,
            Err(error) => return Err(error),
        };
        let bytes = match &base {
            Some(base) => base.len().await?,
            None => 0,
        };
        let contents = Contents { shown_bytes: bytes, bytes, patches: Vec::new() };
        let file = RehearsedFile {
            base,
            path: path.clone(),
            contents: Arc::new(Mutex::new(contents)),
            changes: self.changes.clone(),
        };
        Ok(self.lock().files.entry(path).or_insert_with(|| Arc::new(file)).clone())
    }
}

fn done<T: Send + 'static>(result: io::Result<T>) -> IoFuture<T> {
    Box::pin(std::future::ready(result))
}

impl Disk for Rehearsal {
    fn open(&self, path: &str, create: bool) -> IoFuture<Arc<dyn File>> {
        let opening = self.clone().open_file(path.to_owned(), create);
        Box::pin(async move { Ok(opening.await? as Arc<dyn File>) })
    }

    fn create_dir_all(&self, _: &str) -> IoFuture<()> {
        done(Ok(()))
    }

    fn sync_dir(&self, _: &str) -> IoFuture<()> {
        done(Ok(()))
    }

    fn list(&self, path: &str) -> IoFuture<Vec<String>> {
        let (listing, state, prefix) = (self.source.list(path), self.state.clone(), format!("{path}/"));
        Box::pin(async move {
            let mut names: BTreeSet<String> = listing.await?.into_iter().collect();
            let state = state.lock().expect("no holder of a rehearsal panics");
            let below = |path: &String| path.strip_prefix(&prefix).map(str::to_owned);
            names.extend(state.files.keys().filter_map(below).filter(|name| !name.contains('/')));
            for removed in state.removed.iter().filter_map(below) {
                names.remove(&removed);
            }
            Ok(names.into_iter().collect())
        })
    }

    fn rename(&self, from: &str, to: &str) -> IoFuture<()> {
        let (rehearsal, from, to) = (self.clone(), from.to_owned(), to.to_owned());
        Box::pin(async move {
            let file = rehearsal.clone().open_file(from.clone(), false).await?;
            let mut state = rehearsal.lock();
            state.files.remove(&from);
            state.removed.insert(from);
            state.removed.remove(&to);
            rehearsal.changes.lock().push(Change::Written { file: to.clone() });
            state.files.insert(to, file);
            Ok(())
        })
    }

    fn remove_file(&self, path: &str) -> IoFuture<()> {
        let (rehearsal, path) = (self.clone(), path.to_owned());
        Box::pin(async move {
            rehearsal.clone().open_file(path.clone(), false).await?;
            let mut state = rehearsal.lock();
            state.files.remove(&path);
            state.removed.insert(path.clone());
            rehearsal.changes.lock().push(Change::Removed { file: path });
            Ok(())
        })
    }

    fn remove_dir_all(&self, path: &str) -> IoFuture<()> {
        let (rehearsal, path) = (self.clone(), path.to_owned());
        Box::pin(async move {
            for name in rehearsal.list(&path).await? {
                rehearsal.remove_file(&format!("{path}/{name}")).await?;
            }
            Ok(())
        })
    }

    fn space(&self) -> IoFuture<Space> {
        done(Ok(Space { capacity_bytes: u64::MAX, free_bytes: u64::MAX }))
    }

    fn failure(&self) -> Option<String> {
        None
    }
}

struct RehearsedFile {
    base: Option<Arc<dyn File>>,
    path: String,
    contents: Arc<Mutex<Contents>>,
    changes: Changes,
}

struct Contents {
    /// The bytes of the base that are still to be seen.
    shown_bytes: u64,
    bytes: u64,
    /// The writes, in order.
    patches: Vec<(u64, Bytes)>,
}

impl RehearsedFile {
    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().expect("no holder of a rehearsed file panics")
    }

    fn changed(&self, change: Change) {
        self.changes.lock().push(change);
    }
}

impl Contents {
    /// Puts what was written over what the base has from `offset` on.
    fn patched(&self, offset: u64, bytes: usize, base: &[u8]) -> Bytes {
        let mut out = base.to_vec();
        out.resize(bytes, 0);
        let end = offset + bytes as u64;
        for (at, patch) in &self.patches {
            let (from, to) = (offset.max(*at), end.min(at + patch.len() as u64));
            if from < to {
                let patch = &patch[(from - at) as usize..(to - at) as usize];
                out[(from - offset) as usize..(to - offset) as usize].copy_from_slice(patch);
            }
        }
        out.into()
    }
}

impl File for RehearsedFile {
    fn write_at(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        let patch = Bytes::from(buffers.concat());
        let mut contents = self.contents();
        contents.bytes = contents.bytes.max(offset + patch.len() as u64);
        contents.patches.push((offset, patch));
        drop(contents);
        self.changed(Change::Written { file: self.path.clone() });
        done(Ok(()))
    }

    fn write_and_sync(&self, offset: u64, buffers: Vec<Bytes>) -> IoFuture<()> {
        self.write_at(offset, buffers)
    }

    fn read_at(&self, offset: u64, bytes: usize) -> IoFuture<Bytes> {
        let (shown, bytes) = {
            let contents = self.contents();
            let left = usize::try_from(contents.bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
            let shown = usize::try_from(contents.shown_bytes.saturating_sub(offset)).unwrap_or(usize::MAX);
            (shown.min(bytes), left.min(bytes))
        };
        let read = self.base.as_ref().filter(|_| shown > 0).map(|base| base.read_at(offset, shown));
        let contents = self.contents.clone();
        Box::pin(async move {
            let base = match read {
                Some(read) => read.await?,
                None => Bytes::new(),
            };
            let contents = contents.lock().expect("no holder of a rehearsed file panics");
            if contents.patches.is_empty() && base.len() == bytes {
                return Ok(base);
            }
            Ok(contents.patched(offset, bytes, &base))
        })
    }

    fn sync_data(&self) -> IoFuture<()> {
        done(Ok(()))
    }

    fn settle(&self) -> IoFuture<()> {
        done(Ok(()))
    }

    fn preallocate(&self, bytes: u64) -> IoFuture<()> {
        let mut contents = self.contents();
        contents.bytes = contents.bytes.max(bytes);
        done(Ok(()))
    }

    fn set_len(&self, bytes: u64) -> IoFuture<()> {
        let mut contents = self.contents();
        let from = std::mem::replace(&mut contents.bytes, bytes);
        contents.shown_bytes = contents.shown_bytes.min(bytes);
        for (at, patch) in &mut contents.patches {
            patch.truncate(usize::try_from(bytes.saturating_sub(*at)).unwrap_or(usize::MAX));
        }
        drop(contents);
        if bytes < from {
            self.changed(Change::Cut { file: self.path.clone(), to: bytes, from });
        }
        done(Ok(()))
    }

    fn punch_holes(&self, holes: Vec<Range<u64>>) -> IoFuture<()> {
        let mut contents = self.contents();
        for hole in holes {
            let bytes = hole.end.min(contents.bytes).saturating_sub(hole.start);
            contents.patches.push((hole.start, Bytes::from(vec![0; bytes as usize])));
        }
        drop(contents);
        self.changed(Change::Written { file: self.path.clone() });
        done(Ok(()))
    }

    fn len(&self) -> IoFuture<u64> {
        done(Ok(self.contents().bytes))
    }
}
