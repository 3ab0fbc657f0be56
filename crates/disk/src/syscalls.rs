//! The system calls that std does not offer, each behind a safe function.

use crate::Space;
use bytes::{Buf, Bytes};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Lets this process open as many files as the system allows it: segments, RocksDB's tables and connections
/// add up to more than the 1024 that shells start processes with. Answers the limit there is now.
pub fn raise_open_files_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is a valid rlimit for the kernel to fill.
    #[allow(unsafe_code)]
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is a valid rlimit that the kernel only reads.
    #[allow(unsafe_code)]
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

/// Keeps files and directories that this process makes from all but their owner, from now on and whoever in
/// it makes them: RocksDB gives its files to all who may come to them.
pub fn keep_new_files_private() {
    // SAFETY: takes a number, and cannot fail.
    #[allow(unsafe_code)]
    unsafe {
        libc::umask(0o077)
    };
}

/// Gives the kernel what glibc keeps of memory that was freed, wherever it lies; other allocators have ways
/// of their own. Takes milliseconds for some hundred MiB, and holds up those who allocate meanwhile.
pub fn give_back_freed_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: takes a number, and may be called at any time.
    #[allow(unsafe_code)]
    unsafe {
        libc::malloc_trim(0)
    };
}

/// The most buffers that one `pwritev` takes on Linux.
const IOVECS_MAX: usize = 1024;

/// Writes all buffers one after another from `offset`.
pub(crate) fn write_all_at(file: &File, mut offset: u64, mut buffers: Vec<Bytes>) -> io::Result<()> {
    let mut rest = &mut buffers[..];
    loop {
        while rest.first().is_some_and(|buffer| buffer.is_empty()) {
            rest = &mut rest[1..];
        }
        if rest.is_empty() {
            return Ok(());
        }
        let written = write_vectored_at(file, offset, rest)?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        offset += written as u64;
        advance(&mut rest, written);
    }
}

/// Drops the first `bytes` bytes of the buffers, which are there.
fn advance(rest: &mut &mut [Bytes], mut bytes: usize) {
    while bytes > 0 {
        let step = bytes.min(rest[0].len());
        rest[0].advance(step);
        bytes -= step;
        if rest[0].is_empty() {
            *rest = &mut std::mem::take(rest)[1..];
        }
    }
}

#[allow(unsafe_code)]
fn write_vectored_at(file: &File, offset: u64, buffers: &[Bytes]) -> io::Result<usize> {
    let offset = to_offset(offset)?;
    let iovecs: Vec<libc::iovec> = buffers
        .iter()
        .take(IOVECS_MAX)
        .map(|buffer| libc::iovec { iov_base: buffer.as_ptr() as *mut libc::c_void, iov_len: buffer.len() })
        .collect();
    let count = iovecs.len() as libc::c_int; // at most IOVECS_MAX
    loop {
        // SAFETY: each iovec points to initialized memory of a `Bytes` borrowed for the whole call, which
        // only reads it; the descriptor is open for as long as `file` is borrowed.
        let written = unsafe { libc::pwritev(file.as_raw_fd(), iovecs.as_ptr(), count, offset) };
        match usize::try_from(written) {
            Ok(written) => return Ok(written),
            Err(_) => retry_interrupted()?,
        }
    }
}

/// Reads what the buffer lacks of `bytes` bytes from `offset` on; it is shorter afterwards only at the end of
/// the file. What was read stays in it when the read fails.
pub(crate) fn read_at(file: &File, offset: u64, bytes: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
    read_flagged(file, offset, bytes, buffer, 0)
}

/// [`read_at`] of what the page cache has: fails with [`io::ErrorKind::WouldBlock`] at the first byte that it
/// lacks.
pub(crate) fn read_cached_at(file: &File, offset: u64, bytes: usize, buffer: &mut Vec<u8>) -> io::Result<()> {
    read_flagged(file, offset, bytes, buffer, libc::RWF_NOWAIT)
}

#[allow(unsafe_code)]
fn read_flagged(
    file: &File,
    offset: u64,
    bytes: usize,
    buffer: &mut Vec<u8>,
    flags: libc::c_int,
) -> io::Result<()> {
    to_offset(offset)?;
    // The room is not zeroed: what is not filled is not looked at.
    buffer.reserve_exact(bytes.saturating_sub(buffer.len()));
    while buffer.len() < bytes {
        let at = to_offset(offset + buffer.len() as u64)?;
        let missing = bytes - buffer.len();
        let rest = buffer.spare_capacity_mut().as_mut_ptr();
        let rest = libc::iovec { iov_base: rest.cast(), iov_len: missing };
        // SAFETY: the iovec points to the buffer's spare capacity, of which at least `missing` bytes are
        // left, and which nobody else looks at; the descriptor is open for as long as `file` is borrowed.
        let read = unsafe { libc::preadv2(file.as_raw_fd(), &raw const rest, 1, at, flags) };
        match usize::try_from(read) {
            Ok(0) => break,
            Ok(read) => {
                assert!(read <= missing, "the kernel read {read} bytes where {missing} were asked for");
                // SAFETY: the kernel has written so many bytes behind those that were there.
                unsafe { buffer.set_len(buffer.len() + read) };
            }
            Err(_) => retry_interrupted()?,
        }
    }
    Ok(())
}

/// Allocates `[0, bytes)` and extends the file to it; where the file system cannot, the file becomes sparse.
pub(crate) fn preallocate(file: &File, bytes: u64) -> io::Result<()> {
    if file.metadata()?.len() >= bytes {
        return Ok(());
    }
    match fallocate(file, 0, 0, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => file.set_len(bytes),
        result => result,
    }
}

/// Has the kernel read a file anew. The cache keeps what is still to be written.
#[allow(unsafe_code)]
pub(crate) fn forget_cached(file: &File) -> io::Result<()> {
    // SAFETY: a call without pointers, on a descriptor that is open as long as `file` is.
    match unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Gives a range back; where the file system cannot, zeros are written.
pub(crate) fn punch_hole(file: &File, hole: Range<u64>) -> io::Result<()> {
    let (offset, end) = (hole.start, hole.end.min(file.metadata()?.len()));
    let bytes = end.saturating_sub(offset);
    if bytes == 0 {
        return Ok(());
    }
    match fallocate(file, libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE, offset, bytes) {
        Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => write_zeros(file, offset, bytes),
        result => result,
    }
}

fn write_zeros(file: &File, offset: u64, bytes: u64) -> io::Result<()> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    let mut at = offset;
    while at < offset + bytes {
        let step = ZEROS.len().min((offset + bytes - at) as usize);
        write_all_at(file, at, vec![Bytes::from_static(&ZEROS[..step])])?;
        at += step as u64;
    }
    Ok(())
}

#[allow(unsafe_code)]
fn fallocate(file: &File, mode: libc::c_int, offset: u64, bytes: u64) -> io::Result<()> {
    let (offset, bytes) = (to_offset(offset)?, to_offset(bytes)?);
    loop {
        // SAFETY: takes plain numbers and a descriptor that is open for as long as `file` is borrowed.
        if unsafe { libc::fallocate(file.as_raw_fd(), mode, offset, bytes) } == 0 {
            return Ok(());
        }
        retry_interrupted()?;
    }
}

/// Looks how much room the file system has that this path is in.
#[allow(unsafe_code)]
pub fn space(path: &Path) -> io::Result<Space> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    let mut answer = std::mem::MaybeUninit::<libc::statvfs>::uninit();
    // SAFETY: `path` ends in a zero byte and `answer` has room for the struct; both live through the call.
    if unsafe { libc::statvfs(path.as_ptr(), answer.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has filled the struct.
    let answer = unsafe { answer.assume_init() };
    Ok(Space {
        capacity_bytes: answer.f_blocks.saturating_mul(answer.f_frsize),
        free_bytes: answer.f_bavail.saturating_mul(answer.f_frsize),
    })
}

/// Ok when the call that just failed was only interrupted.
fn retry_interrupted() -> io::Result<()> {
    let error = io::Error::last_os_error();
    if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
}

pub(crate) fn to_offset(bytes: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidInput, format!("{bytes} is past any file's end")))
}
