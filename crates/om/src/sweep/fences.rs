//! The way of the root's fences to the other groups.

use crate::ops::FENCED_AT_ONCE;
use crate::others::Others;
use crate::tables::{FENCED_PREFIX, ROOT, fenced_key, fences};
use crate::upgrade::rows_from;
use anyhow::Context;
use proto::om::{FenceContainersRequest, FenceContainersResponse};
use proto::{Code, Failure};
use statedb::Db;
use std::sync::Arc;

/// Fences that the root has beside those up to a number: whoever has these needs no more.
#[derive(Clone, Copy)]
pub(super) struct New<'a> {
    pub(super) before: u64,
    pub(super) containers: &'a [u64],
}

/// Has a group take all fences that the root has now, and answers up to which number these are.
pub(crate) async fn bring_all(root: Arc<Db>, others: &Others, group: u64) -> Result<u64, Failure> {
    bring(root, others, group, None).await
}

pub(super) async fn bring(
    root: Arc<Db>,
    others: &Others,
    group: u64,
    new: Option<New<'_>>,
) -> Result<u64, Failure> {
    // Before the rows: they are all that there were at this number, or more.
    let number = fences(&*root).map_err(broken)?.number;
    if group == ROOT {
        return Ok(number);
    }
    let known = ask(others, FenceContainersRequest { group, ..FenceContainersRequest::default() }).await?;
    if known.number >= number {
        return Ok(number);
    }
    let (history, mut after) = (known.history, None);
    if let Some(New { containers, .. }) = new.filter(|new| new.before == known.number) {
        let containers = containers.to_vec();
        let some = FenceContainersRequest { group, containers, complete_to: number, history };
        return ask(others, some).await.map(|_| number);
    }
    loop {
        let (db, from) = (root.clone(), after);
        let page = raft::blocking(move || page(&db, from)).await;
        let page = page.map_err(|error| Failure::internal(format!("read fences: {error}")))?;
        let containers = page.map_err(broken)?;
        let is_last = containers.len() < FENCED_AT_ONCE;
        after = containers.last().copied();
        let complete_to = if is_last { number } else { 0 };
        let some = FenceContainersRequest { group, containers, complete_to, history };
        let taken = ask(others, some).await?;
        if taken.history != history {
            let why = format!("group {group} was reset or restored while it was told of fences");
            return Err(Failure::new(Code::NotHere, why));
        }
        if is_last {
            return Ok(number);
        }
    }
}

fn page(root: &Db, after: Option<u64>) -> anyhow::Result<Vec<u64>> {
    let from = after.map_or(FENCED_PREFIX.to_vec(), |after| [fenced_key(after), vec![0]].concat());
    rows_from(root, FENCED_PREFIX, &from).take(FENCED_AT_ONCE).map(|row| container_in(&row?.0)).collect()
}

/// The container of a row of fences, by its key.
pub(super) fn container_in(key: &[u8]) -> anyhow::Result<u64> {
    let number = key.get(1..).unwrap_or_default().try_into().context("a container's number has 8 bytes")?;
    Ok(u64::from_be_bytes(number))
}

async fn ask(others: &Others, some: FenceContainersRequest) -> Result<FenceContainersResponse, Failure> {
    others.ask(some.group, some, |mut om, some| async move { om.fence_containers(some).await }).await
}

fn broken(error: anyhow::Error) -> Failure {
    Failure::internal(format!("read fences: {error:#}"))
}
