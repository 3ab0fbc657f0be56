use bytes::Bytes;
use std::io;
use std::time::Duration;

/// The operations of [`disk::Disk`] and [`disk::File`], each as it is named there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    Open { create: bool },
    CreateDirAll,
    SyncDir,
    List,
    Rename,
    RemoveFile,
    RemoveDirAll,
    Space,
    WriteAt,
    WriteAndSync,
    ReadAt,
    SyncData,
    Settle,
    Preallocate,
    SetLen,
    PunchHoles,
    Len,
}

/// An operation that is asked for, before the disk has it.
#[derive(Clone, Copy, Debug)]
pub struct Call<'a> {
    pub operation: Operation,
    /// The path of the file or directory; of a rename, the one from which.
    pub path: &'a str,
    /// The buffers of a write; none otherwise.
    pub buffers: &'a [Bytes],
}

/// The fate of an operation.
#[derive(Debug)]
pub enum Act {
    /// The operation is done as it was asked for.
    Pass,
    /// The operation is not done, and its caller is told that it was. Only for what answers with nothing.
    Skip,
    /// The weaker operation is done in its place: a write without its sync, a sync that does not settle.
    Weaken,
    /// A write is synced so long after its caller was told that it is.
    SyncLate(Duration),
    /// The operation is not done, and its caller is told of the error.
    Fail(io::Error),
    /// [`Act::Weaken`], but its caller is told of the error.
    WeakenAndFail(io::Error),
    /// The operation is not done, and its caller waits for ever.
    Hang,
}

impl Operation {
    /// Whether the operation may change what is on the disk or what of it is durable.
    pub fn is_change(self) -> bool {
        match self {
            Operation::Open { create } => create,
            Operation::List | Operation::Space | Operation::ReadAt | Operation::Len => false,
            Operation::CreateDirAll
            | Operation::SyncDir
            | Operation::Rename
            | Operation::RemoveFile
            | Operation::RemoveDirAll
            | Operation::WriteAt
            | Operation::WriteAndSync
            | Operation::SyncData
            | Operation::Settle
            | Operation::Preallocate
            | Operation::SetLen
            | Operation::PunchHoles => true,
        }
    }

    /// Whether the operation makes something durable.
    pub fn is_sync(self) -> bool {
        matches!(self, Operation::SyncDir | Operation::WriteAndSync | Operation::SyncData | Operation::Settle)
    }
}
