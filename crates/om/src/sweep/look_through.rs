//! The question of a sweep, in the only order in which its answer is right: how often buckets have moved,
//! which groups there are, what a replica has, what each group knows of it, and then what nobody knows is
//! filed.

use super::compare::{Found, InContainer, KnownBlocks, Listed, compare};
use planted::Bug;
use proto::Failure;
use proto::om::{FileOrphansReply, SweptContainer};
use std::collections::BTreeSet;

/// The most blocks of one command, which takes some milliseconds.
pub(super) const FILED_AT_ONCE: usize = 1024;

/// The questions that a sweep asks about a container.
pub(super) trait Asked {
    /// The number of times that a bucket came to be in another group.
    async fn moves(&self) -> Result<u64, Failure>;
    /// All groups that may have a bucket.
    async fn groups(&self) -> Result<BTreeSet<u64>, Failure>;
    /// A part of the blocks that a replica has, from this local on.
    async fn list(&self, from_local: u64) -> Result<Listed, Failure>;
    /// The blocks that these groups know of the part.
    async fn known(
        &self,
        groups: &BTreeSet<u64>,
        from_local: u64,
        part: &Listed,
    ) -> Result<KnownBlocks, Failure>;
    /// Files blocks that no group knows; refused, if a bucket has moved since `moves` was counted.
    async fn file(&self, orphans: &[(InContainer, u64)], moves: u64) -> Result<FileOrphansReply, Failure>;
}

/// The count of moves and the groups, which are the same for all parts of a container. An entry of a bucket
/// that is read after the count names the place that the bucket has for as long as the count stays what it
/// is; so the groups are never older than the count.
#[derive(Debug)]
pub(super) struct Since {
    moves: u64,
    pub(super) groups: BTreeSet<u64>,
}

impl Since {
    pub(super) async fn read(asked: &impl Asked) -> Result<Since, Failure> {
        let moves = asked.moves().await?;
        Ok(Since { moves, groups: asked.groups().await? })
    }

    async fn moves(&self, asked: &impl Asked) -> Result<u64, Failure> {
        match planted::has(Bug::GroupsBeforeCount) {
            true => asked.moves().await,
            false => Ok(self.moves),
        }
    }
}

/// Looks all parts through, and answers what is named and not in the replica, up to so many blocks.
pub(super) async fn look_through(
    asked: &impl Asked,
    since: &Since,
    swept: &mut SweptContainer,
    missing_max: usize,
) -> Result<Vec<InContainer>, Failure> {
    let (mut missing, mut from_local) = (Vec::new(), Some(0));
    while let Some(from) = from_local {
        let listed = asked.list(from).await?;
        let moves = since.moves(asked).await?;
        let known = asked.known(&since.groups, from, &listed).await?;
        let found = compare(&listed, &known);
        file(asked, &found, moves, swept).await?;
        swept.blocks += listed.blocks.len() as u64;
        let room = missing_max.saturating_sub(missing.len());
        missing.extend(found.missing.into_iter().take(room));
        from_local = listed.next_local();
    }
    Ok(missing)
}

async fn file(
    asked: &impl Asked,
    found: &Found,
    moves: u64,
    swept: &mut SweptContainer,
) -> Result<(), Failure> {
    for some in found.orphans.chunks(FILED_AT_ONCE) {
        let filed = asked.file(some, moves).await?;
        swept.orphans += filed.filed;
        swept.orphan_bytes = swept.orphan_bytes.wrapping_add(filed.bytes);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::Code;
    use std::cell::RefCell;
    use std::collections::BTreeMap;

    /// The number of blocks of a part.
    const PART: usize = 2;

    /// Groups with the blocks that they name, and an operator who moves all of one group's to another one,
    /// which may be new, once so many questions were asked.
    #[derive(Default)]
    struct World {
        groups: BTreeMap<u64, BTreeSet<InContainer>>,
        there: Vec<InContainer>,
        moves: u64,
        asked: usize,
        moves_at: usize,
        moves_to: u64,
        filed: BTreeSet<InContainer>,
    }

    fn block(local: u64) -> InContainer {
        let mut block = [7; 24];
        block[..8].copy_from_slice(&local.to_be_bytes());
        block
    }

    impl World {
        /// Of six blocks a group names the even ones.
        fn new(moves_at: usize, moves_to: u64) -> RefCell<World> {
            let there: Vec<_> = (0..6).map(block).collect();
            let named = [0, 2, 4].map(block).into();
            let groups = BTreeMap::from([(0, BTreeSet::new()), (1, named), (2, BTreeSet::new())]);
            RefCell::new(World { groups, there, moves_at, moves_to, ..World::default() })
        }

        fn ask(&mut self) {
            if self.asked == self.moves_at {
                let moved = self.groups.insert(1, BTreeSet::new()).unwrap();
                self.groups.entry(self.moves_to).or_default().extend(moved);
                self.moves += 1;
            }
            self.asked += 1;
        }
    }

    impl Asked for RefCell<World> {
        async fn moves(&self) -> Result<u64, Failure> {
            self.borrow_mut().ask();
            Ok(self.borrow().moves)
        }

        async fn groups(&self) -> Result<BTreeSet<u64>, Failure> {
            self.borrow_mut().ask();
            Ok(self.borrow().groups.keys().copied().collect())
        }

        async fn list(&self, from_local: u64) -> Result<Listed, Failure> {
            self.borrow_mut().ask();
            let there = self.borrow().there.clone();
            let rest = there.iter().filter(|it| **it >= block(from_local));
            let blocks: Vec<_> = rest.map(|it| (*it, 10)).take(PART).collect();
            let is_last = blocks.last().is_none_or(|(last, _)| Some(last) == there.last());
            Ok(Listed { blocks, is_last })
        }

        async fn known(&self, groups: &BTreeSet<u64>, _: u64, _: &Listed) -> Result<KnownBlocks, Failure> {
            let mut known = KnownBlocks::default();
            for group in groups {
                self.borrow_mut().ask();
                self.borrow().groups[group].iter().for_each(|block| known.take(block, &[]));
            }
            Ok(known)
        }

        async fn file(
            &self,
            orphans: &[(InContainer, u64)],
            moves: u64,
        ) -> Result<FileOrphansReply, Failure> {
            self.borrow_mut().ask();
            let mut world = self.borrow_mut();
            if world.moves != moves {
                return Err(Failure::new(Code::NotYet, "a bucket has moved"));
            }
            world.filed.extend(orphans.iter().map(|(block, _)| *block));
            Ok(FileOrphansReply { filed: orphans.len() as u64, bytes: 10 })
        }
    }

    /// A sweep in which a bucket moves after so many questions: whether all went well, and how many questions
    /// there were.
    async fn sweep(moves_at: usize, moves_to: u64) -> (Result<(), String>, usize) {
        let world = World::new(moves_at, moves_to);
        let mut swept = SweptContainer::default();
        let swept = async {
            let since = Since::read(&world).await?;
            look_through(&world, &since, &mut swept, 100).await.map(drop)
        };
        let done = swept.await;
        let world = world.into_inner();
        let named = |block: &InContainer| world.groups.values().any(|group| group.contains(block));
        let went = match world.filed.iter().find(|block| named(block)) {
            Some(block) => Err(format!("{moves_at}: {block:?} is named, and was given up")),
            None if done.is_ok() && world.filed.len() != 3 => Err(format!("{:?}", world.filed)),
            None => Ok(()),
        };
        (went, world.asked)
    }

    /// All moments at which a bucket may move, to a group that is there and to one that comes with it.
    async fn sweep_all() -> Result<(), String> {
        for moves_to in [2, 9] {
            let (went, asked) = sweep(usize::MAX, moves_to).await;
            went?;
            assert!(asked > 3 * PART, "{asked} questions are one part only");
            for moves_at in 0..=asked {
                sweep(moves_at, moves_to).await.0?;
            }
        }
        Ok(())
    }

    #[tokio::test]
    async fn a_bucket_that_moves_at_any_moment_also_to_a_group_that_comes_then_loses_nothing() {
        sweep_all().await.unwrap();
    }

    #[tokio::test]
    async fn groups_that_are_older_than_the_count_are_found() {
        planted::plant(Some(Bug::GroupsBeforeCount));
        let found = sweep_all().await;
        planted::plant(None);
        assert!(found.is_err_and(|why| why.contains("was given up")));
    }
}
