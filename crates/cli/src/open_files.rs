//! The shares that ports have of the files that this process may open. Strangers can hold as many connections
//! as a port takes; what no port may have is for disks, which can write nothing without files, and for calls
//! of others.

/// The most connections of a port that has this part of all files.
pub(crate) fn part(one_of: u64) -> usize {
    match disk::raise_open_files_limit() {
        Ok(files) => usize::try_from(files / one_of).unwrap_or(usize::MAX),
        Err(_) => usize::MAX,
    }
}

/// A quarter each is for the S3 port and for gRPC, an eighth for HTTP: three eighths are nobody's.
pub(crate) const OF_S3: u64 = 4;
pub(crate) const OF_RPC: u64 = 4;
pub(crate) const OF_HTTP: u64 = 8;
