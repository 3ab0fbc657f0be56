//! The contents of a bucket, part by part: all its rows, those that change meanwhile once more, and what is
//! remembered of its requests.
//!
//! Rows are read as they are now, in their order. A row that changes behind the place that the reading has
//! come to is read again; one ahead of it is yet to be read. So nothing of the tables is held on to, and a
//! part is small however long it takes.

use crate::ops::about;
use crate::rules::ROWS_PART_BYTES;
use crate::tables::{
    BucketNumber, QUEUE_KEY, REMEMBERED_PREFIX, Read, contents, decode, remembered_key, successor,
};
use crate::taps::{CHANGED_MAX, OpenTap};
use crate::upgrade::rows_from;
use anyhow::{Context, bail, ensure};
use prost::Message;
use proto::om::{MovedRow, RememberedRequests, RequestQueue};
use statedb::Db;
use std::collections::BTreeSet;

/// The most rows and requests of a part.
const COUNT_MAX: usize = 4096;
/// The bytes that are read at a time in the search for the bucket's requests among others.
const SOUGHT_BYTES_MAX: usize = 4 << 20;

pub(crate) struct Parts {
    number: BucketNumber,
    tap: OpenTap,
    /// The last row that was read in order; before the first there is none.
    last: Vec<u8>,
    has_read_all: bool,
    /// Rows up to `last` that have changed since they were read.
    changed: BTreeSet<Vec<u8>>,
    /// The place in the queue of remembered requests up to which they are read.
    place: u64,
    pub(crate) count_max: usize,
}

#[derive(Default)]
pub(crate) struct Part {
    pub(crate) rows: Vec<MovedRow>,
    pub(crate) requests: Vec<RememberedRequests>,
    pub(crate) bytes: usize,
    /// The number of rows and requests.
    count: usize,
    /// Whether there was nothing more when the part was read.
    pub(crate) is_rest: bool,
}

impl Part {
    fn is_full(&self, bytes_max: usize, count_max: usize) -> bool {
        self.bytes >= bytes_max || self.count >= count_max
    }

    /// Whether so much more would be too much for the part. What is too much alone goes alone.
    fn has_no_room(&self, bytes: usize, count: usize, count_max: usize) -> bool {
        self.count != 0 && (self.bytes + bytes > ROWS_PART_BYTES || self.count + count > count_max)
    }

    fn push(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.bytes += key.len() + value.as_ref().map_or(0, Vec::len);
        self.count += 1;
        self.rows.push(MovedRow { key: key.into(), value: value.map(Into::into) });
    }
}

impl Parts {
    /// The parts of a bucket whose tap was opened before: all that was under way then is applied.
    pub(crate) fn new(number: BucketNumber, tap: OpenTap) -> Parts {
        let (last, changed) = Default::default();
        Parts { number, tap, last, has_read_all: false, changed, place: 0, count_max: COUNT_MAX }
    }

    /// Reads the next part. What is in it need not be read again.
    pub(crate) fn next(&mut self, db: &Db) -> anyhow::Result<Part> {
        let seen = self.tap.take();
        if let Some(why) = seen.broken {
            bail!("{why}");
        }
        let is_behind = |row: &Vec<u8>| self.has_read_all || *row <= self.last;
        self.changed.extend(seen.changed.into_iter().filter(is_behind));
        let count = self.changed.len();
        ensure!(count <= CHANGED_MAX, "it changes faster than it is sent: {count} rows are to be sent again");
        let mut part = Part::default();
        self.read_changed(db, &mut part)?;
        self.read_on(db, &mut part)?;
        let has_all_requests = self.read_requests(db, &mut part)?;
        part.is_rest = self.changed.is_empty() && self.has_read_all && has_all_requests;
        Ok(part)
    }

    fn read_changed(&mut self, db: &Db, part: &mut Part) -> anyhow::Result<()> {
        // While rows are read in order, half of the bytes are theirs: both readings come on.
        let bytes_max = if self.has_read_all { ROWS_PART_BYTES } else { ROWS_PART_BYTES / 2 };
        while !part.is_full(bytes_max, self.count_max)
            && let Some(row) = self.changed.pop_first()
        {
            let value = Read::get(db, &row)?;
            part.push(row, value);
        }
        Ok(())
    }

    fn read_on(&mut self, db: &Db, part: &mut Part) -> anyhow::Result<()> {
        for table in contents(self.number) {
            if self.last >= successor(&table).context("a table ends")? {
                continue;
            }
            let from = if self.last < table { table.clone() } else { [&self.last[..], b"\0"].concat() };
            for row in rows_from(db, &table, &from) {
                if part.is_full(ROWS_PART_BYTES, self.count_max) {
                    return Ok(());
                }
                let (key, value) = row?;
                self.last = key.to_vec();
                part.push(key.into_vec(), Some(value.into_vec()));
            }
        }
        self.has_read_all = true;
        Ok(())
    }

    /// Reads remembered requests into the part, and answers whether it has come to the last of them.
    fn read_requests(&mut self, db: &Db, part: &mut Part) -> anyhow::Result<bool> {
        let queue: RequestQueue = db.message(QUEUE_KEY)?.unwrap_or_default();
        // Requests before the queue's first are forgotten.
        self.place = self.place.max(queue.first);
        let mut sought = 0;
        for row in rows_from(db, REMEMBERED_PREFIX, &remembered_key(self.place)) {
            if part.is_full(ROWS_PART_BYTES, self.count_max) || sought >= SOUGHT_BYTES_MAX {
                return Ok(false);
            }
            let (key, value) = row?;
            sought += value.len();
            let requests = about(decode(&key, &value)?, self.number);
            let (bytes, count) =
                requests.as_ref().map_or((0, 0), |requests| (requests.encoded_len(), requests.replies.len()));
            if part.has_no_room(bytes, count, self.count_max) {
                return Ok(false);
            }
            (part.bytes, part.count) = (part.bytes + bytes, part.count + count);
            part.requests.extend(requests);
            let place = key[REMEMBERED_PREFIX.len()..].try_into().context("a place has 8 bytes")?;
            self.place = u64::from_be_bytes(place) + 1;
        }
        Ok(true)
    }
}
