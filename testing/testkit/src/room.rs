use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The bytes that a file, or all files below a directory, take on their disk, as `du` counts. What goes
/// meanwhile takes nothing.
pub fn disk_bytes(path: &Path) -> u64 {
    let Ok(metadata) = std::fs::symlink_metadata(path) else { return 0 };
    let below = || std::fs::read_dir(path).into_iter().flatten().flatten();
    match metadata.is_dir() {
        true => below().map(|entry| disk_bytes(&entry.path())).sum(),
        false => metadata.blocks() * 512,
    }
}
