use anyhow::bail;
use std::path::PathBuf;
use std::time::Duration;

/// The most bytes of one chunk's data.
pub(crate) const CHUNK_BYTES_MAX: usize = 4 << 20;

/// The parts of a node's memory, of the same size: chunks that are received, what is read, what is written to
/// disks, and what logs keep, which also have what the others leave.
const MEMORY_PARTS: usize = 4;

/// The least memory for the index of each disk. Half of it is for what is not flushed yet: with less, hardly
/// anything is gathered before it is written.
const INDEX_BYTES_MIN: usize = 8 << 20;

/// The least memory of a node: each part has room for a chunk; with less a handful of readers would wait for
/// each other.
const MEMORY_BYTES_MIN: usize = MEMORY_PARTS * CHUNK_BYTES_MAX;

/// Settings of a datanode.
#[derive(Clone, Debug)]
pub struct DatanodeOptions {
    /// Data directories, one for each disk of the machine.
    pub disks: Vec<PathBuf>,
    /// The way in which the files of the disks are read and written.
    pub disk_io: disk::DiskIo,
    /// The address at which SCM answers, "host:port".
    pub scm: String,
    /// The address at which others reach this node, "host:port".
    pub address: String,
    /// The version of the software that runs here, as SCM and operators are told it; empty: they are told
    /// nothing.
    pub version: String,
    /// The interval at which SCM hears of this node when nothing changes.
    pub heartbeat: Duration,
    pub pipeline_timing: raft::Timing,
    /// The size of a container: it is followed by the next when it is nearly this large.
    pub container_bytes_max: u64,
    /// Memory for data, of all disks, streams and readers together. A quarter is for chunks that were
    /// received and are not applied yet, of which a pipeline has as much as it leaves to others: past it they
    /// are answered `Busy`. A quarter is for what is read and not sent yet: past half of that readers get
    /// smaller messages, and past all of it they wait, or are sent elsewhere; about as many readers as it has
    /// 128 KiB may stand still. A quarter is for what is on its way to the disks, which have the same share
    /// of it each: past that appends wait. Logs keep what they wrote last in what is left. Beside it the
    /// indexes of all disks have as much as one part, together.
    pub memory_bytes_max: usize,
    /// The bytes of one write stream's chunks that are taken in and not yet answered; past it the stream is
    /// not read, so that its sender waits. Twice what a gateway keeps for one stream (16 MiB); no more than
    /// all streams may have.
    pub write_bytes_per_stream_max: usize,
    /// The time that a read waits for its replica to have applied what it asks for, and for memory.
    pub read_wait: Duration,
    /// The rate at which the closed containers of each disk are read to find what it lost; 0 turns that off.
    /// A disk of 4 TB takes 5.5 days at the default.
    pub scrub_bytes_per_second: u64,
    /// The time from the beginning of one such pass to the beginning of the next, if it ends sooner.
    pub scrub_interval: Duration,
    /// The part of what a closed container takes, in percent, that must be dead for it to be written anew.
    pub compact_above_percent: u64,
    /// The rate at which writing containers anew reads what stays; 0 turns that off. A container of 2 GiB of
    /// which half is dead takes 32 s at the default.
    pub compact_bytes_per_second: u64,
    /// The time after a deletion after which a container is read anew, to hash it or to write it without what
    /// is dead: more deletions may follow. After six times as long less needs to be dead
    /// (`compaction/worker.rs`).
    pub deletion_pause: Duration,
    /// The rate at which all replicas that are made here come together, and the rate at which all that are
    /// sent to others go. A container of 2 GiB takes 32 s at the default, which leaves half of a spinning
    /// disk (150 MB/s), or of a link of 1 Gbit/s, to users.
    pub copy_bytes_per_second: u64,
    /// The bytes of each pipeline's log that stay, for members that were away for a while; what is older goes
    /// once all have it. The log's index in memory takes 16 bytes for each entry that stays, so 256 KiB with
    /// entries of 4 KiB.
    pub log_tail_bytes: u64,
    /// The interval at which a pipeline's leader looks whether some of the log may go.
    pub forget_interval: Duration,
    pub log: raftlog::LogSpaceOptions,
    pub db: statedb::DbOptions,
}

impl Default for DatanodeOptions {
    fn default() -> Self {
        Self {
            disks: Vec::new(),
            disk_io: disk::DiskIo::Auto,
            scm: String::new(),
            address: String::new(),
            version: String::new(),
            heartbeat: Duration::from_secs(1),
            pipeline_timing: raft::Timing::PIPELINE,
            container_bytes_max: 2 << 30,
            memory_bytes_max: 256 << 20,
            write_bytes_per_stream_max: 32 << 20,
            read_wait: Duration::from_secs(1),
            scrub_bytes_per_second: 8 << 20,
            scrub_interval: Duration::from_secs(7 * 24 * 3600),
            compact_above_percent: 50,
            compact_bytes_per_second: 32 << 20,
            deletion_pause: Duration::from_secs(10),
            copy_bytes_per_second: 64 << 20,
            log_tail_bytes: 64 << 20,
            forget_interval: Duration::from_secs(5),
            log: raftlog::LogSpaceOptions::default(),
            db: statedb::DbOptions::default(),
        }
    }
}

impl DatanodeOptions {
    /// Checks the settings; the error has all contradictions at once.
    pub fn validate(&self) -> anyhow::Result<()> {
        let mut wrong = Vec::new();
        if self.disks.is_empty() {
            wrong.push("no data directory is given".to_owned());
        }
        for (n, disk) in self.disks.iter().enumerate() {
            if self.disks[..n].contains(disk) {
                wrong.push(format!("data directory {} is given twice", disk.display()));
            }
        }
        for (name, address) in [("the SCM's address", &self.scm), ("the advertised address", &self.address)] {
            if !is_host_port(address) {
                wrong.push(format!("{name} is `{address}`, expected host:port"));
            }
        }
        if self.heartbeat.is_zero() {
            wrong.push("the heartbeat interval is zero".to_owned());
        }
        if self.scrub_interval.is_zero() {
            wrong.push("scrub_interval is zero; scrub_bytes_per_second 0 turns scrubbing off".to_owned());
        }
        if !(1..=100).contains(&self.compact_above_percent) {
            wrong.push(format!("compact_above_percent is {}, not 1 to 100", self.compact_above_percent));
        }
        if self.copy_bytes_per_second == 0 {
            wrong.push("copy_bytes_per_second is zero: nothing would ever be repaired".to_owned());
        }
        let chunk = CHUNK_BYTES_MAX;
        if self.write_bytes_per_stream_max < chunk {
            let bytes = self.write_bytes_per_stream_max;
            wrong.push(format!("write_bytes_per_stream_max is {bytes}, one chunk may have {chunk}"));
        }
        if self.memory_bytes_max < MEMORY_BYTES_MIN {
            let bytes = self.memory_bytes_max;
            wrong.push(format!("memory_bytes_max is {bytes}, at least {MEMORY_BYTES_MIN} are needed"));
        }
        if self.forget_interval.is_zero() {
            wrong.push("forget_interval is zero".to_owned());
        }
        if self.container_bytes_max == 0 {
            wrong.push("container_bytes_max is zero".to_owned());
        }
        if wrong.is_empty() { Ok(()) } else { bail!("{}", wrong.join("; ")) }
    }

    /// The part of its memory that one kind of owner may take whatever the others do.
    pub(crate) fn memory_part_bytes(&self) -> usize {
        self.memory_bytes_max / MEMORY_PARTS
    }

    pub(crate) fn stream_bytes_max(&self) -> usize {
        self.write_bytes_per_stream_max.min(self.memory_part_bytes())
    }

    /// The settings of each disk's logs. What is written is in memory twice for a moment, among what logs
    /// keep and on its way to the disk: so logs leave a part alone. They share the rest with what is received
    /// and read.
    pub(crate) fn log_of_each_disk(&self) -> raftlog::LogSpaceOptions {
        let part = self.memory_part_bytes();
        let of_each_disk = part / self.disks.len().max(1);
        raftlog::LogSpaceOptions {
            shared: Some(raftlog::SharedMemory::new(self.memory_bytes_max - part)),
            unflushed_bytes_max: self.log.unflushed_bytes_max.min(of_each_disk),
            ..self.log.clone()
        }
    }

    /// The settings of the disks' indexes, which share memory.
    pub(crate) fn of_indexes(&self) -> statedb::DbOptions {
        let bytes = self.memory_part_bytes().max(self.disks.len() * INDEX_BYTES_MIN);
        statedb::DbOptions { shared: Some(statedb::SharedMemory::new(bytes)), ..self.db.clone() }
    }

    /// The bytes at which the next container is asked for: early enough that what is in flight meanwhile (64
    /// MiB of proposals for the default of 2 GiB) still fits.
    pub(crate) fn container_roll_bytes(&self) -> u64 {
        self.container_bytes_max - self.container_bytes_max / 32
    }

    /// The bytes at which writes are refused because no next container was to be had.
    pub(crate) fn container_refuse_bytes(&self) -> u64 {
        self.container_bytes_max.saturating_mul(2)
    }
}

fn is_host_port(address: &str) -> bool {
    let parts = address.rsplit_once(':');
    parts.is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contradictions_are_said_at_once() {
        let options = DatanodeOptions {
            disks: vec!["/data/0".into(), "/data/0".into()],
            scm: "nowhere".to_owned(),
            address: "127.0.0.1:7400".to_owned(),
            memory_bytes_max: 1,
            ..DatanodeOptions::default()
        };
        let message = options.validate().unwrap_err().to_string();
        for expected in ["given twice", "`nowhere`", "memory_bytes_max is 1,"] {
            assert!(message.contains(expected), "{message}");
        }
        assert!(!message.contains("advertised"), "{message}");
    }
}
