use std::io;
use std::path::{Path, PathBuf};

/// The place of a relative path below `root`; refuses what could leave it or means two things.
pub(crate) fn below(root: &Path, path: &str) -> io::Result<PathBuf> {
    let mut full = root.to_owned();
    if path.is_empty() {
        return Ok(full);
    }
    for part in path.split('/') {
        if part.is_empty() || part == "." || part == ".." || part.contains('\0') {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("`{path}` is not a path inside a data directory"),
            ));
        }
        full.push(part);
    }
    Ok(full)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_cannot_leave_the_directory() {
        for bad in ["/etc", "..", "a/../b", "a//b", "a/", "./a", "a\0b", "/"] {
            let error = below(Path::new("/data"), bad).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{bad:?}");
        }
        assert_eq!(below(Path::new("/data"), "a/b").unwrap(), Path::new("/data/a/b"));
        assert_eq!(below(Path::new("/data"), "").unwrap(), Path::new("/data"));
    }
}
