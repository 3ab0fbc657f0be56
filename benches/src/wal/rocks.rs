use super::appenders::append_in_threads;
use super::contender::{Appended, Case, Contender, Limits, payload};
use rocksdb::statistics::{StatsLevel, Ticker};
use rocksdb::{DB, DBCompactionStyle, FifoCompactOptions, Options, WriteBatch, WriteOptions};
use std::path::Path;

/// Logs in one RocksDB, each write synced to its WAL. A thread for each log; a window is one `WriteBatch`
/// with so many puts. RocksDB is spared what a log does not need: no compaction, old tables dropped whole,
/// WAL files recycled, a write buffer so large that tables are seldom written.
pub(super) struct Rocks {
    case: Case,
    options: Options,
    db: DB,
    logs: Vec<Rows>,
    payload: Vec<u8>,
}

/// One log; its keys are its number and the entry's index.
struct Rows {
    log: u64,
    next_index: u64,
}

impl Rocks {
    pub(super) fn open(case: Case, root: &Path) -> Rocks {
        let mut options = Options::default();
        options.create_if_missing(true);
        options.enable_statistics();
        options.set_statistics_level(StatsLevel::ExceptHistogramOrTimers);
        options.set_write_buffer_size(512 << 20);
        options.set_recycle_log_file_num(4);
        options.set_compaction_style(DBCompactionStyle::Fifo);
        let mut fifo = FifoCompactOptions::default();
        fifo.set_max_table_files_size(64 << 20);
        options.set_fifo_compaction_options(&fifo);
        let db = DB::open(&options, root).expect("open RocksDB");
        let logs = (1..=case.logs as u64).map(|log| Rows { log, next_index: 1 }).collect();
        Rocks { case, options, db, logs, payload: payload(case.payload_bytes) }
    }
}

impl Rows {
    fn append(&mut self, db: &DB, payload: &[u8], count: usize) {
        let mut batch = WriteBatch::default();
        for _ in 0..count {
            let mut key = [0; 16];
            key[..8].copy_from_slice(&self.log.to_be_bytes());
            key[8..].copy_from_slice(&self.next_index.to_be_bytes());
            batch.put(key, payload);
            self.next_index += 1;
        }
        let mut synced = WriteOptions::default();
        synced.set_sync(true);
        db.write_opt(batch, &synced).expect("write");
    }
}

impl Contender for Rocks {
    fn append(&mut self, limits: Limits) -> Appended {
        let (db, payload, window) = (&self.db, &self.payload, self.case.window);
        let mut appenders: Vec<_> =
            self.logs.iter_mut().map(|log| move || log.append(db, payload, window)).collect();
        append_in_threads(self.case, limits, &mut appenders)
    }

    fn syncs(&self) -> u64 {
        self.options.get_ticker_count(Ticker::WalFileSynced)
    }

    fn reclaim(&mut self) {
        // The table holds nothing anybody reads again; FIFO drops it with the next one.
        self.db.flush().expect("flush");
    }
}
