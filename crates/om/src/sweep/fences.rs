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

/// Fences that the root has made with one number. Whoever has those up to the one before needs no more.
#[derive(Clone, Copy)]
pub(super) struct New<'a> {
    pub(super) before: u64,
    pub(super) number: u64,
    pub(super) containers: &'a [u64],
}

/// What a group may lack.
#[derive(Clone, Copy)]
pub(super) enum Lacks<'a> {
    /// What its number says.
    ByNumber,
    /// These, if it has those before, by its number.
    New(New<'a>),
    /// All, whatever its number says: it has said that it lacks one.
    All,
}

/// What a group was told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Told {
    /// It has all fences of the root up to this number.
    pub(super) number: u64,
    /// All of them, as it did not have those of before: in it they are young.
    pub(super) is_all: bool,
}

/// What is to be sent to a group that says this of itself.
fn sent<'a>(number: u64, known: u64, lacks: Lacks<'a>) -> Option<Lacks<'a>> {
    match lacks {
        Lacks::All => Some(Lacks::All),
        // A number above the root's is of a root before it, which may have had other fences.
        _ if known == number => None,
        Lacks::New(new) if new.before == known && new.number > known => Some(lacks),
        _ => Some(Lacks::All),
    }
}

/// Has a group take all fences that the root has now, and answers up to which number these are.
pub(crate) async fn bring_all(root: Arc<Db>, others: &Others, group: u64) -> Result<u64, Failure> {
    let told = bring(root, group, Lacks::ByNumber, |some| ask(others, some)).await;
    told.map(|told| told.number)
}

/// Has a group other than the root take what it lacks.
pub(super) async fn bring<F>(
    root: Arc<Db>,
    group: u64,
    lacks: Lacks<'_>,
    ask: impl Fn(FenceContainersRequest) -> F,
) -> Result<Told, Failure>
where
    F: Future<Output = Result<FenceContainersResponse, Failure>>,
{
    // Before the rows: they are all that there were at this number, or more.
    let number = fences(&*root).map_err(broken)?.number;
    if group == ROOT {
        return Ok(Told { number, is_all: false });
    }
    let known = ask(FenceContainersRequest { group, ..FenceContainersRequest::default() }).await?;
    let history = known.history;
    match sent(number, known.number, lacks) {
        None => Ok(Told { number, is_all: false }),
        Some(Lacks::New(New { number, containers, .. })) => {
            let containers = containers.to_vec();
            let some = FenceContainersRequest { group, containers, complete_to: number, history };
            ask(some).await.map(|_| Told { number, is_all: false })
        }
        Some(_) => {
            let all = FenceContainersRequest { group, containers: Vec::new(), complete_to: number, history };
            send_all(root, all, ask).await.map(|()| Told { number, is_all: true })
        }
    }
}

/// Sends all rows of the root, and with the last of them that they are complete.
async fn send_all<F>(
    root: Arc<Db>,
    all: FenceContainersRequest,
    ask: impl Fn(FenceContainersRequest) -> F,
) -> Result<(), Failure>
where
    F: Future<Output = Result<FenceContainersResponse, Failure>>,
{
    let mut after = None;
    loop {
        let (db, from) = (root.clone(), after);
        let page = raft::blocking(move || page(&db, from)).await;
        let page = page.map_err(|error| Failure::internal(format!("read fences: {error}")))?;
        let containers = page.map_err(broken)?;
        let is_last = containers.len() < FENCED_AT_ONCE;
        after = containers.last().copied();
        let complete_to = if is_last { all.complete_to } else { 0 };
        let taken = ask(FenceContainersRequest { containers, complete_to, ..all.clone() }).await?;
        if taken.history != all.history {
            let group = all.group;
            let why = format!("group {group} was reset or restored while it was told of fences");
            return Err(Failure::new(Code::NotHere, why));
        }
        if is_last {
            return Ok(());
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

pub(super) async fn ask(
    others: &Others,
    some: FenceContainersRequest,
) -> Result<FenceContainersResponse, Failure> {
    others.ask(some.group, some, |mut om, some| async move { om.fence_containers(some).await }).await
}

fn broken(error: anyhow::Error) -> Failure {
    Failure::internal(format!("read fences: {error:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::FenceContainers;
    use crate::ops::testing::Namespace;
    use crate::overlay::Overlay;
    use std::cell::RefCell;

    const GROUP: u64 = 5;

    fn fence(root: &mut Namespace, containers: &[u64]) -> FenceContainersResponse {
        let containers = containers.to_vec();
        root.run::<FenceContainers>(FenceContainersRequest { containers, ..Default::default() }).unwrap()
    }

    /// The root's tables, as they are now.
    fn tables(root: &Namespace) -> (tempfile::TempDir, Arc<Db>) {
        let dir = tempfile::tempdir().unwrap();
        let db = Db::open(dir.path(), &statedb::DbOptions::default()).unwrap();
        let mut overlay = Overlay::new(&db);
        root.records(b"").into_iter().for_each(|(key, value)| overlay.put(key, value));
        let batch = overlay.into_batch();
        db.write(batch).unwrap();
        (dir, Arc::new(db))
    }

    async fn brought(root: &Namespace, group: &RefCell<Namespace>, lacks: Lacks<'_>) -> Told {
        let (_dir, db) = tables(root);
        let ask = |some| std::future::ready(group.borrow_mut().run::<FenceContainers>(some));
        bring(db, GROUP, lacks, ask).await.unwrap()
    }

    fn fenced(group: &RefCell<Namespace>) -> Vec<u64> {
        let rows = group.borrow().records(FENCED_PREFIX);
        rows.iter().map(|(key, _)| container_in(key).unwrap()).collect()
    }

    #[tokio::test]
    async fn a_group_is_sent_what_is_new_and_all_if_it_lacks_more_than_that() {
        let (mut root, group) = (Namespace::empty(), RefCell::new(Namespace::empty()));
        let first = fence(&mut root, &[1, 2]);
        let told = brought(&root, &group, Lacks::ByNumber).await;
        assert_eq!((told, fenced(&group)), (Told { number: first.number, is_all: true }, vec![1, 2]));
        let nothing = brought(&root, &group, Lacks::ByNumber).await;
        assert_eq!(nothing, Told { number: first.number, is_all: false });

        let containers = &[3][..];
        let FenceContainersResponse { before, number, .. } = fence(&mut root, containers);
        let told = brought(&root, &group, Lacks::New(New { before, number, containers })).await;
        assert_eq!((told, fenced(&group)), (Told { number, is_all: false }, vec![1, 2, 3]));

        // Somebody else's came between what the group has and these.
        fence(&mut root, &[4]);
        let containers = &[5][..];
        let FenceContainersResponse { before, number, .. } = fence(&mut root, containers);
        let told = brought(&root, &group, Lacks::New(New { before, number, containers })).await;
        assert_eq!((told, fenced(&group)), (Told { number, is_all: true }, vec![1, 2, 3, 4, 5]));
    }

    #[tokio::test]
    async fn a_group_that_says_that_it_lacks_a_fence_is_sent_all_whatever_its_number() {
        let (mut root, group) = (Namespace::empty(), RefCell::new(Namespace::empty()));
        let number = fence(&mut root, &[1, 2]).number;
        let said = FenceContainersRequest { group: GROUP, complete_to: number, ..Default::default() };
        group.borrow_mut().run::<FenceContainers>(said.clone()).unwrap();
        assert!(!brought(&root, &group, Lacks::ByNumber).await.is_all && fenced(&group).is_empty());
        assert!(brought(&root, &group, Lacks::All).await.is_all);
        assert_eq!(fenced(&group), [1, 2]);

        // It knows of numbers that this root has not drawn: of one before it, and of other fences.
        let group = RefCell::new(Namespace::empty());
        let later = FenceContainersRequest { complete_to: number + 100, ..said };
        group.borrow_mut().run::<FenceContainers>(later).unwrap();
        assert!(brought(&root, &group, Lacks::ByNumber).await.is_all);
        assert_eq!(fenced(&group), [1, 2]);
    }
}
