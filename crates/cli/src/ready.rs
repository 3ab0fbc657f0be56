use anyhow::Context;
use std::path::Path;

/// Tells scripts where things are: `KEY=value` lines, whole or not at all.
pub(crate) fn write_ready_file(path: Option<&Path>, values: &[(&str, String)]) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let text: String = values.iter().map(|(key, value)| format!("{key}={value}\n")).collect();
    disk::write_file_durably(path, text.as_bytes()).with_context(|| format!("write {}", path.display()))
}
