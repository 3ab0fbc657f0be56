use std::fmt;
use std::str::FromStr;

/// The way in which a data directory's files are read, written and synced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DiskIo {
    /// io_uring where the kernel offers it, else threads.
    #[default]
    Auto,
    /// io_uring; a kernel that does not offer it is an error.
    Uring,
    /// A pool of threads with blocking calls.
    Threads,
}

impl fmt::Display for DiskIo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DiskIo::Auto => "auto",
            DiskIo::Uring => "uring",
            DiskIo::Threads => "threads",
        })
    }
}

impl FromStr for DiskIo {
    type Err = String;

    fn from_str(text: &str) -> Result<DiskIo, String> {
        [DiskIo::Auto, DiskIo::Uring, DiskIo::Threads]
            .into_iter()
            .find(|io| io.to_string() == text)
            .ok_or_else(|| format!("`{text}` is none of auto, uring, threads"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for io in [DiskIo::Auto, DiskIo::Uring, DiskIo::Threads] {
            assert_eq!(io.to_string().parse(), Ok(io));
        }
        assert!("io_uring".parse::<DiskIo>().unwrap_err().contains("auto, uring, threads"));
    }
}
