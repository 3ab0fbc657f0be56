use crate::adapter::encoding::{applied_from, log_id_from};
use crate::adapter::type_config::{RaftLogId, RaftStoredMembership, TypeConfig};
use crate::snapshot::manifest::{Manifest, Piece};
use bytes::Bytes;
use disk::{Disk, File};
use openraft::type_config::alias::{SnapshotMetaOf, SnapshotOf};
use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::OwnedSemaphorePermit;

/// A complete snapshot on a disk. Its files stay while there is a handle to it.
pub(crate) struct Stored {
    pub(crate) disk: Arc<dyn Disk>,
    /// The directory of manifest and files.
    pub(crate) dir: String,
    pub(crate) manifest: Manifest,
    pub(crate) encoded: Bytes,
    position: (RaftLogId, RaftStoredMembership),
    /// The files that the snapshot before it had as damaged: the state has them so.
    inherited: Vec<String>,
    /// The files of which a piece was found not to be what the manifest says.
    damaged: Mutex<BTreeSet<String>>,
}

/// The data that openraft carries from a state machine to a member, and from a member to its state machine.
#[derive(Clone)]
pub(crate) enum SnapshotData {
    Stored(Arc<Stored>),
    /// A snapshot that was received just now, to be installed.
    Received(Arc<Received>),
    /// No snapshot, as the group has none: openraft asks for one nevertheless when a member needs entries
    /// that are purged.
    None,
}

impl SnapshotData {
    pub(crate) fn stored(&self) -> Option<&Arc<Stored>> {
        match self {
            SnapshotData::Stored(stored) => Some(stored),
            SnapshotData::Received(received) => Some(&received.stored),
            SnapshotData::None => None,
        }
    }
}

/// A snapshot that came from a member. Until it is installed, or refused, the group receives no other.
pub(crate) struct Received {
    pub(crate) stored: Arc<Stored>,
    _permits: Permits,
}

/// Permits to receive a snapshot: one at a time for a group, few at a time for a host.
pub(crate) struct Permits {
    pub(crate) _only_one: OwnedSemaphorePermit,
    pub(crate) _few: OwnedSemaphorePermit,
}

impl Received {
    pub(crate) fn new(stored: Arc<Stored>, permits: Permits) -> Received {
        Received { stored, _permits: permits }
    }

    /// Hands the snapshot to openraft, and the permits with it: openraft installs to the end, whether or not
    /// the session that began it is still there.
    pub(crate) fn into_openraft(self) -> SnapshotOf<TypeConfig, SnapshotData> {
        let meta = self.stored.meta();
        SnapshotOf::<TypeConfig, SnapshotData> { meta, snapshot: SnapshotData::Received(Arc::new(self)) }
    }
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum PieceError {
    #[error("the snapshot has no {0:?}")]
    NoSuchPiece(Piece),
    #[error(
        "{0:?} of the snapshot in {1} is damaged on its disk; if it is so in the next one too, the state is"
    )]
    Damaged(Piece, String),
    #[error("read a snapshot: {0}")]
    Io(#[from] io::Error),
}

impl Stored {
    /// The snapshot in `dir`; an error when the position in its manifest is none of ours.
    pub(crate) fn new(
        disk: Arc<dyn Disk>,
        dir: String,
        manifest: Manifest,
        encoded: Bytes,
    ) -> Result<Stored, String> {
        let position = (log_id_from(manifest.applied.id), applied_from(&manifest.applied)?);
        let (inherited, damaged) = Default::default();
        Ok(Stored { disk, dir, manifest, encoded, position, inherited, damaged })
    }

    /// The snapshot, of whose files these are damaged as they were in the one before it.
    pub(crate) fn inheriting(self, inherited: Vec<String>) -> Stored {
        Stored { inherited, ..self }
    }

    pub(crate) fn files_dir(&self) -> String {
        files_dir(&self.dir)
    }

    pub(crate) fn id(&self) -> types::LogId {
        self.manifest.applied.id
    }

    /// Whether a file was found damaged that the next snapshot may have whole, or not at all.
    pub(crate) fn needs_next(&self) -> bool {
        self.damaged().iter().any(|name| !self.inherited.contains(name))
    }

    pub(crate) fn is_damaged(&self, name: &str) -> bool {
        self.damaged().contains(name)
    }

    fn damaged(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.damaged.lock().expect("no holder panics")
    }

    pub(crate) fn meta(&self) -> SnapshotMetaOf<TypeConfig> {
        let (id, membership) = self.position.clone();
        SnapshotMetaOf::<TypeConfig> { last_log_id: Some(id), last_membership: membership }
    }

    pub(crate) fn for_openraft(self: &Arc<Self>) -> SnapshotOf<TypeConfig, SnapshotData> {
        SnapshotOf::<TypeConfig, SnapshotData> {
            meta: self.meta(),
            snapshot: SnapshotData::Stored(self.clone()),
        }
    }
}

/// The files of the snapshot in `dir`.
pub(crate) fn files_dir(dir: &str) -> String {
    format!("{dir}/files")
}

/// Reads the pieces of a snapshot, one file open at a time.
pub(crate) struct PieceReader {
    stored: Arc<Stored>,
    open: Option<(u32, Arc<dyn File>)>,
}

impl PieceReader {
    pub(crate) fn new(stored: Arc<Stored>) -> PieceReader {
        PieceReader { stored, open: None }
    }

    /// A piece whose checksum agrees.
    pub(crate) async fn read(&mut self, piece: Piece) -> Result<Bytes, PieceError> {
        let stored = &self.stored;
        let (entry, offset, bytes, crc) =
            stored.manifest.look_up(piece).ok_or(PieceError::NoSuchPiece(piece))?;
        let file = match &self.open {
            Some((number, file)) if *number == piece.file => file.clone(),
            _ => {
                let path = format!("{}/{}", stored.files_dir(), entry.name);
                let file = stored.disk.open(&path, false).await?;
                self.open = Some((piece.file, file.clone()));
                file
            }
        };
        let data = file.read_at(offset, bytes).await?;
        if data.len() != bytes || crc32c::crc32c(&data) != crc {
            stored.damaged().insert(entry.name.clone());
            return Err(PieceError::Damaged(piece, stored.dir.clone()));
        }
        Ok(data)
    }
}
