use anyhow::{Context, bail};
use std::path::Path;

/// Checks that the ready file's directory is there: a cluster that takes a while to start should not fail at
/// its last step. The directory is not made, since a missing one is more often a wrong path.
pub(crate) fn check_ready_file(path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let parent = match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
        Some(parent) => parent,
        None => bail!("--ready-file {}: names no file", path.display()),
    };
    if parent.is_dir() {
        return Ok(());
    }
    bail!("--ready-file {}: there is no directory {}", path.display(), parent.display())
}

/// Tells scripts where things are, and with which keys: `KEY=value` lines, whole or not at all, for the owner
/// only.
pub(crate) fn write_ready_file(path: Option<&Path>, values: &[(&str, String)]) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    check_ready_file(Some(path))?;
    let text: String = values.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    disk::write_private_file_durably(path, text.as_bytes())
        .with_context(|| format!("write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_directory_is_an_error_and_stays_missing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("none/ready");
        let error = check_ready_file(Some(&path)).unwrap_err().to_string();
        assert!(error.contains("there is no directory"), "{error}");
        write_ready_file(Some(&path), &[]).unwrap_err();
        assert!(!path.parent().unwrap().exists());
        check_ready_file(Some(Path::new("ready"))).unwrap();
    }
}
