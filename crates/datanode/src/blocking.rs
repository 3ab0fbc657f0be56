//! Steps that block, beside the tasks that await them.

/// [`raft::blocking`] for work that can fail.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> anyhow::Result<T> + Send + 'static,
) -> anyhow::Result<T> {
    match raft::blocking(work).await {
        Ok(result) => result,
        Err(failure) => Err(anyhow::Error::new(failure).context("run a blocking step")),
    }
}
