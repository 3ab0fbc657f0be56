use crate::queue::Kind;
use std::io;
use std::sync::OnceLock;

/// Whether a disk may still be used. After a write or sync failed nobody knows what the kernel kept of the
/// pages it could not write, and a second fsync may succeed without them: so the first failure is final until
/// restart.
#[derive(Default)]
pub(crate) struct Health {
    failure: OnceLock<String>,
}

/// The kind of an operation: what an error of it says about the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    /// An operation that loses nothing when it fails: the error is the caller's.
    Read,
    /// An operation that leaves unknown contents when it fails; running out of space is the exception, the
    /// kernel refuses it cleanly.
    Change,
    /// An operation that has lost data that was accepted before when it fails, whatever the reason.
    Sync,
}

impl Health {
    pub(crate) fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    pub(crate) fn check(&self) -> io::Result<()> {
        match self.failure.get() {
            None => Ok(()),
            Some(failure) => Err(io::Error::other(format!("the disk failed earlier: {failure}"))),
        }
    }

    /// Runs one operation on a disk that has not failed, and fails the disk when the operation's error says
    /// so.
    pub(crate) fn run<T>(
        &self,
        operation: Operation,
        what: impl FnOnce() -> String,
        body: impl FnOnce() -> io::Result<T>,
    ) -> io::Result<T> {
        self.check()?;
        body().inspect_err(|error| self.judge(operation, what, error))
    }

    /// Fails the disk when the error says so.
    pub(crate) fn judge(&self, operation: Operation, what: impl FnOnce() -> String, error: &io::Error) {
        if condemns(operation, error) {
            let failure = format!("{}: {error}", what());
            tracing::error!(failure, "disk failed; it is refused until restart");
            let _ = self.failure.set(failure);
        }
    }
}

impl Operation {
    pub(crate) fn kind(self) -> Kind {
        match self {
            Operation::Read => Kind::Read,
            Operation::Change | Operation::Sync => Kind::Change,
        }
    }
}

fn condemns(operation: Operation, error: &io::Error) -> bool {
    match operation {
        Operation::Read => false,
        // A name that is not there was not synced, and lost nothing.
        Operation::Sync => error.kind() != io::ErrorKind::NotFound,
        // The process, not the disk, has run out of something.
        Operation::Change
            if matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM)) =>
        {
            false
        }
        Operation::Change => !matches!(
            error.kind(),
            io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::NotFound
                | io::ErrorKind::AlreadyExists
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::IsADirectory
                | io::ErrorKind::NotADirectory
                // Somebody created a name in a directory that was being removed.
                | io::ErrorKind::DirectoryNotEmpty
                | io::ErrorKind::PermissionDenied
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failing(health: &Health, operation: Operation, errno: i32) {
        let result: io::Result<()> =
            health.run(operation, || "write x".to_owned(), || Err(io::Error::from_raw_os_error(errno)));
        assert!(result.is_err());
    }

    #[test]
    fn a_failed_write_or_sync_is_final() {
        for operation in [Operation::Change, Operation::Sync] {
            let health = Health::default();
            failing(&health, operation, libc::EIO);
            let later = health.run(Operation::Read, String::new, || Ok(()));
            assert!(later.unwrap_err().to_string().contains("write x"), "later calls name the first failure");
            assert!(health.failure().unwrap().contains("write x"));
        }
    }

    #[test]
    fn what_the_kernel_refuses_cleanly_is_no_failed_disk() {
        let health = Health::default();
        failing(&health, Operation::Change, libc::ENOSPC);
        failing(&health, Operation::Change, libc::EDQUOT);
        failing(&health, Operation::Change, libc::EMFILE);
        failing(&health, Operation::Change, libc::ENOTEMPTY);
        failing(&health, Operation::Read, libc::EIO);
        assert_eq!(health.failure(), None);
    }

    #[test]
    fn a_sync_that_runs_out_of_space_has_lost_data() {
        let health = Health::default();
        failing(&health, Operation::Sync, libc::ENOSPC);
        assert!(health.failure().is_some());
    }
}
