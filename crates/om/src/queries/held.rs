use super::Scan;
use crate::ops::KEPT_AT_ONCE;
use crate::tables::{
    BUCKETS_PREFIX, BucketNumber, INCOMING_PREFIX, Read, decode, number_in, runs_before, sending_key,
};
use prost::Message;
use proto::om::{BucketPlace, BucketRecord, HeldBucket, IncomingBucket, ListHeldRequest, ListHeldResponse};
use statedb::Db;

/// The buckets that the group has, and those of which all has come.
pub(crate) fn held(db: &Db, request: &ListHeldRequest) -> anyhow::Result<ListHeldResponse> {
    let ListHeldRequest { group, from, to } = *request;
    // Another history after what was read shows in the group's own log.
    let history = runs_before(db)?;
    // What comes is read first: it becomes what is here, and never the other way round.
    let mut held = Vec::new();
    each(db, INCOMING_PREFIX, from, to, |number, incoming: IncomingBucket| {
        if let (Some(moved), Some(record)) = (incoming.moved, incoming.record) {
            let place = Some(BucketPlace { group, number, epoch: moved.attempt });
            let bucket = record.bucket;
            held.push(HeldBucket { place, bucket, comes: Some(moved), ..HeldBucket::default() });
        }
        true
    })?;
    let (mut count, mut next) = (0, 0);
    each(db, BUCKETS_PREFIX, from, to, |number, record: BucketRecord| {
        if count == KEPT_AT_ONCE {
            next = number;
            return false;
        }
        count += 1;
        let BucketRecord { bucket, epoch, doubted, moves: stayed, .. } = record;
        let place = Some(BucketPlace { group, number, epoch });
        held.push(HeldBucket { place, bucket, doubted, stayed, comes: None });
        true
    })?;
    for held in held.iter_mut().filter(|held| held.stayed != 0) {
        let number = held.place.map_or(0, |place| place.number);
        if Read::get(db, &sending_key(BucketNumber(number)))?.is_some() {
            held.stayed = 0;
        }
    }
    if next != 0 {
        held.retain(|held| held.place.is_some_and(|place| place.number < next));
    }
    Ok(ListHeldResponse { held, next, history })
}

/// Goes through the rows of a table by buckets' numbers, until one is enough.
fn each<M: Message + Default>(
    db: &Db,
    table: &[u8],
    from: u64,
    to: u64,
    mut take: impl FnMut(u64, M) -> bool,
) -> anyhow::Result<()> {
    let mut scan = Scan::new(db, table, &[table, &from.to_be_bytes()].concat());
    while let Some((key, value)) = scan.record()? {
        let BucketNumber(number) = number_in(key)?;
        if number > to || !take(number, decode(key, value)?) {
            break;
        }
        scan.step();
    }
    Ok(())
}
