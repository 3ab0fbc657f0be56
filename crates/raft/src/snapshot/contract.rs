use crate::Applied;
use disk::Disk;
use futures::future::BoxFuture;
use std::sync::Arc;

/// Copies of a state machine's state, as files in directories of a disk.
pub trait Snapshots: Send + Sync + 'static {
    /// The disk of the group's log, where the directories are.
    fn disk(&self) -> Arc<dyn Disk>;

    /// Writes the state, as it was at some moment between call and return, into files of `dir`, which does
    /// not exist yet and whose parent does; `dir` has no directories in it. Answers how far that state had
    /// come. On return the files are durable, and **so is the state itself** up to the answered position: the
    /// log before it may be purged. Nobody writes into these files any more, by whatever names they have.
    fn write(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>>;

    /// The position that the state in the files of `dir` has come to; an error when they are no state of this
    /// kind. Changes nothing.
    fn check(&self, dir: String) -> BoxFuture<'static, anyhow::Result<Applied>>;

    /// Replaces the state by the one in the files of `dir`, which are durable and stay as they are: they are
    /// sent to other members too. A crash leaves the old state or the new one. Whoever reads meanwhile sees
    /// the old or the new one. On return the new one is durable.
    fn install(&self, dir: String) -> BoxFuture<'static, anyhow::Result<()>>;
}
