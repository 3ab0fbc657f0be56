//! The way of the root's fences to the other groups.

use crate::ops::FENCED_AT_ONCE;
use crate::others::Others;
use crate::tables::{FENCED_PREFIX, fenced_key, fences};
use crate::upgrade::rows_from;
use anyhow::Context;
use proto::om::{FenceContainersRequest, FenceContainersResponse, Fences, GroupSeen};
use proto::{Code, Failure};
use statedb::Db;
use std::sync::Arc;

/// Fences that the root has made with one number. Whoever has those up to the one before needs no more.
#[derive(Clone, Copy)]
pub(crate) struct New<'a> {
    pub(super) before: u64,
    pub(super) number: u64,
    pub(super) containers: &'a [u64],
}

/// The fences that a group may lack.
#[derive(Clone, Copy)]
pub(crate) enum Lacks<'a> {
    /// The fences after the number that the group has said.
    ByNumber,
    /// These fences, if by its number the group has those before.
    New(New<'a>),
    /// All fences, whatever the group's number says: it has said that it lacks one.
    All,
}

/// The outcome of telling a group what it lacks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Told {
    /// How far the group is since.
    pub(super) seen: GroupSeen,
    /// Whether the group was told all fences, as it lacked the earlier ones: to it all of them are young.
    pub(super) is_all: bool,
}

/// The fences that are to be sent to a group that has them up to `known`, from a root that has them up to
/// `number`.
fn sent<'a>(number: u64, known: u64, lacks: Lacks<'a>) -> Option<Lacks<'a>> {
    match lacks {
        Lacks::All => Some(Lacks::All),
        // A number above the root's is of a root before it, which may have had other fences.
        _ if known == number => None,
        Lacks::New(new) if new.before == known && new.number > known => Some(lacks),
        _ => Some(Lacks::All),
    }
}

/// Has a group other than the root, which has said this of itself, take what it lacks.
pub(super) async fn send<F>(
    root: Arc<Db>,
    said: GroupSeen,
    lacks: Lacks<'_>,
    ask: impl Fn(FenceContainersRequest) -> F,
) -> Result<Told, Failure>
where
    F: Future<Output = Result<FenceContainersResponse, Failure>>,
{
    // The number is read before the rows: they are all that there were at this number, or more.
    let Fences { number, lacks: is_root_short, .. } = fences(&*root).map_err(broken)?;
    if is_root_short {
        let why = "the root was reset or restored, and makes its fences anew";
        return Err(Failure::new(Code::NotYet, why));
    }
    let GroupSeen { group, history, .. } = said;
    let (told, is_all) = match sent(number, said.number, lacks) {
        None => return Ok(Told { seen: said, is_all: false }),
        Some(Lacks::New(New { number, containers, .. })) => {
            let containers = containers.to_vec();
            let some = FenceContainersRequest { group, containers, complete_to: number, history, known: 0 };
            (ask(some).await?, false)
        }
        Some(_) => {
            let containers = Vec::new();
            let all = FenceContainersRequest { group, containers, complete_to: number, history, known: 0 };
            (send_all(root, all, ask).await?, true)
        }
    };
    Ok(Told { seen: as_seen(group, &told), is_all })
}

/// Sends all rows of the root, and with the last of them that they are complete.
async fn send_all<F>(
    root: Arc<Db>,
    all: FenceContainersRequest,
    ask: impl Fn(FenceContainersRequest) -> F,
) -> Result<FenceContainersResponse, Failure>
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
            return Ok(taken);
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

pub(super) fn as_seen(group: u64, said: &FenceContainersResponse) -> GroupSeen {
    let FenceContainersResponse { number, history, index, .. } = *said;
    GroupSeen { group, history, number, index }
}

pub(super) fn broken(error: anyhow::Error) -> Failure {
    Failure::internal(format!("read the root: {error:#}"))
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
        let said = ask(FenceContainersRequest { group: GROUP, ..Default::default() }).await.unwrap();
        send(db, as_seen(GROUP, &said), lacks, ask).await.unwrap()
    }

    fn what(told: Told) -> (u64, bool) {
        (told.seen.number, told.is_all)
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
        assert_eq!((what(told), fenced(&group)), ((first.number, true), vec![1, 2]));
        let nothing = brought(&root, &group, Lacks::ByNumber).await;
        assert_eq!(what(nothing), (first.number, false));

        let containers = &[3][..];
        let FenceContainersResponse { before, number, .. } = fence(&mut root, containers);
        let told = brought(&root, &group, Lacks::New(New { before, number, containers })).await;
        assert_eq!((what(told), fenced(&group)), ((number, false), vec![1, 2, 3]));

        // Fences of somebody else came between what the group has and these.
        fence(&mut root, &[4]);
        let containers = &[5][..];
        let FenceContainersResponse { before, number, .. } = fence(&mut root, containers);
        let told = brought(&root, &group, Lacks::New(New { before, number, containers })).await;
        assert_eq!((what(told), fenced(&group)), ((number, true), vec![1, 2, 3, 4, 5]));
    }

    #[tokio::test]
    async fn a_root_that_lacks_fences_itself_tells_nobody_that_these_are_all() {
        let (mut root, group) = (Namespace::empty(), RefCell::new(Namespace::empty()));
        fence(&mut root, &[1]);
        root.put_records(crate::state_machine::reset_rows(crate::tables::ROOT, &root.db).unwrap());
        let (_dir, db) = tables(&root);
        let ask = |some| std::future::ready(group.borrow_mut().run::<FenceContainers>(some));
        let told = send(db, GroupSeen { group: GROUP, ..GroupSeen::default() }, Lacks::All, ask).await;
        assert!(told.is_err_and(|failure| failure.code == Code::NotYet) && fenced(&group).is_empty());
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

        // The group knows of numbers that this root has not drawn: those of a root before it, which had other
        // fences.
        let group = RefCell::new(Namespace::empty());
        let later = FenceContainersRequest { complete_to: number + 100, ..said };
        group.borrow_mut().run::<FenceContainers>(later).unwrap();
        assert!(brought(&root, &group, Lacks::ByNumber).await.is_all);
        assert_eq!(fenced(&group), [1, 2]);
    }
}
