use crate::support::*;
use raftlog::{Entry, HardState};
use types::{LogIndex, OwnerId};

fn roll(term: u64, index: u64, to: u64) -> Entry {
    Entry { roll_to: Some(OwnerId(to)), ..entry(term, index, 100) }
}

#[tokio::test]
async fn a_roll_moves_the_log_to_the_next_owner() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let mut batch = entries(1, 0..3, 1000);
    batch.push(roll(1, 3, 2000));
    batch.extend(entries(1, 4..6, 1000));
    append(&log, batch.clone()).await;
    let state = log.state();
    assert_eq!(state.owner, OwnerId(2000));
    let metas = log.read_meta(LogIndex(0)..LogIndex(6), 10).await.unwrap();
    let places: Vec<_> = metas.iter().map(|meta| (meta.place.owner.0, meta.place.segment)).collect();
    assert_eq!(places, [(1000, 0), (1000, 0), (1000, 0), (1000, 0), (2000, 0), (2000, 0)]);
    assert_eq!(metas[4].place.offset, 0);
    log.close().await;
    assert_eq!(std::fs::metadata(machine.segment(2000, 0)).unwrap().len(), state.owner_bytes);
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(log.state(), state);
    assert_eq!(read_all(&log).await, batch);
}

#[tokio::test]
async fn earlier_owners_are_freed_by_the_purge_that_takes_their_last_entry() {
    let machine = Machine::new();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..3, 1000)).await;
    let frees = |to: u64| log.frees_earlier_owners(LogIndex(to));
    assert!(!frees(1) && !frees(2), "there are none");
    append(&log, vec![roll(1, 3, 2000)]).await;
    assert!(!frees(2) && frees(3));
    append(&log, entries(1, 4..6, 1000)).await;
    assert!(!frees(2) && frees(3) && frees(4));
    log.purge(id(1, 3)).await.unwrap();
    assert!(!frees(3) && !frees(4), "they are free");
    log.close().await;
}

#[tokio::test]
async fn truncation_undoes_rolls_and_survives_a_restart() {
    let machine = Machine::small_segments(3000);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    let kept = entries(1, 0..4, 700);
    let mut batch = kept.clone();
    batch.extend([roll(1, 4, 2000), entry(1, 5, 700), entry(1, 6, 2500), roll(1, 7, 3000), entry(1, 8, 10)]);
    append(&log, batch).await;
    assert!(machine.segment(3000, 0).exists());
    log.truncate_after(Some(LogIndex(3))).await.unwrap();
    assert_eq!(log.state().owner, OwnerId(1000));
    assert!(!machine.segment(2000, 0).exists() && !machine.segment(3000, 0).exists());
    let state = log.state();
    log.close().await;
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!((log.state(), read_all(&log).await), (state, kept.clone()));
    // The owner may be rolled to again, by an entry of a later term.
    append(&log, vec![roll(2, 4, 2000), entry(2, 5, 50)]).await;
    log.close().await;
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(read_all(&log).await[..4], kept);
    assert_eq!(log.state().last, Some(id(2, 5)));
}

#[tokio::test]
async fn truncating_just_behind_a_roll_keeps_the_roll() {
    let machine = Machine::small_segments(3000);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, vec![entry(1, 0, 100), roll(1, 1, 2000), entry(1, 2, 2000), entry(1, 3, 2000)]).await;
    log.truncate_after(Some(LogIndex(1))).await.unwrap();
    assert_eq!((log.state().owner, log.state().owner_bytes), (OwnerId(2000), 0));
    append(&log, vec![entry(2, 2, 300)]).await;
    log.close().await;
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(read_all(&log).await, [entry(1, 0, 100), roll(1, 1, 2000), entry(2, 2, 300)]);
}

#[tokio::test]
async fn appends_under_way_are_truncated_in_order() {
    let machine = Machine::small_segments(20_000).without_cache();
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    for round in 0..20u64 {
        let tokens: Vec<_> =
            (0..10).map(|n| log.append(vec![entry(round + 1, round * 5 + n, 1500)]).unwrap()).collect();
        let kept = round * 5 + 4;
        log.truncate_after(Some(LogIndex(kept))).await.unwrap();
        for token in tokens {
            token.durable().await.unwrap();
        }
        assert_eq!(log.state().last, Some(id(round + 1, kept)));
    }
    let expected: Vec<_> = (0..100).map(|index| entry(index / 5 + 1, index, 1500)).collect();
    assert_eq!(read_all(&log).await, expected);
    log.close().await;
    assert_eq!(read_all(&space.open(spec(1)).await.unwrap()).await, expected);
}

#[tokio::test]
async fn purged_entries_are_forgotten_and_stay_readable_by_place() {
    let machine = Machine::small_segments(3000);
    let space = machine.start();
    let log = space.open(spec(1)).await.unwrap();
    append(&log, entries(1, 0..20, 1000)).await;
    let place = log.read_meta(LogIndex(2)..LogIndex(3), 1).await.unwrap()[0].place;
    log.purge(id(1, 9)).await.unwrap();
    log.purge(id(1, 5)).await.unwrap(); // an older one changes nothing
    assert_eq!(log.state().purged, Some(id(1, 9)));
    assert_eq!(log.id_at(LogIndex(9)).await.unwrap(), id(1, 9));
    assert!(log.read(LogIndex(9)..LogIndex(12), 1000).await.is_err());
    let state = log.state();
    log.close().await;
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(log.state(), state);
    assert_eq!(read_all(&log).await, entries(1, 10..20, 1000));
    let pieces = space.read_body("containers", place, 0..1000).await.unwrap();
    assert_eq!(pieces.bytes, *entry(1, 2, 1000).body.bytes());

    log.delete_purged_segments().await.unwrap();
    // Entry 9 ends segment 4, where the log's start still stands.
    assert!(!machine.segment(1000, 3).exists() && machine.segment(1000, 4).exists());
    assert!(space.read_body("containers", place, 0..1000).await.is_err());
    // A snapshot brought the log past its end.
    log.purge(id(7, 100)).await.unwrap();
    assert_eq!(log.state().last, Some(id(7, 100)));
    append(&log, entries(7, 101..103, 10)).await;
    log.close().await;
    let log = space.open(spec(1)).await.unwrap();
    assert_eq!(read_all(&log).await, entries(7, 101..103, 10));
}

#[tokio::test]
async fn hard_state_is_what_was_saved_last() {
    let machine = Machine::new();
    let space = machine.start();
    for vote_term in 1..6 {
        let log = space.open(spec(1)).await.unwrap();
        let vote = HardState { vote_term, vote_replica: vote_term * 2, vote_committed: vote_term % 2 == 0 };
        log.save_hard_state(HardState { vote_term: 0, ..vote }).await.unwrap();
        log.save_hard_state(vote).await.unwrap();
        log.close().await;
        let log = space.open(spec(1)).await.unwrap();
        assert_eq!(log.state().hard_state, Some(vote));
        log.close().await;
    }
}
