use rpc::Local;
use std::time::Duration;

/// The members of a group of names that are asked to look up keys and to list them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OmReads {
    #[default]
    Leader,
    /// Any member, that of this process first: one that does not lead asks its leader how much it must have
    /// applied.
    Any,
}

/// The addresses of the services, and the client's limits.
#[derive(Clone, Debug)]
pub struct ClientOptions {
    /// "host:port" of SCM; several, separated by commas, are its members.
    pub scm: String,
    /// "host:port" of OM; several, separated by commas, are its members. `None`: SCM says who has the names.
    pub om: Option<String>,
    /// The members of OM that are asked to look up and to list keys.
    pub om_reads: OmReads,
    /// Bytes of one chunk, that is, of one Raft entry: large enough that its fixed costs vanish, small enough
    /// that several are under way while a body still arrives.
    pub chunk_bytes: usize,
    /// The bytes at which a block ends and the next one begins, on another pipeline if that is less busy.
    pub block_bytes_max: u64,
    /// The most unacknowledged bytes that all writers of this process together keep for one pipeline: 16
    /// chunks under way cover a round trip with an fsync of several milliseconds at gigabytes per second.
    pub stream_buffer_bytes_max: usize,
    /// The time in which all replicas must have a chunk, where that is asked for
    /// ([`crate::Client::with_ack`]). Past it a majority is enough, and [`crate::Written::reached`] says so.
    pub ack_all_within: Duration,
    /// The time for which a pipeline may acknowledge nothing before its writers go on elsewhere. About the
    /// time of an election, so that a planned change of leader moves nobody.
    pub stall: Duration,
    /// The time for which a write goes on looking for a pipeline, and a commit for OM, without any progress.
    pub write_deadline: Duration,
    /// The time for which a read goes on looking for a good replica without receiving a byte.
    pub read_deadline: Duration,
    /// The time for which one replica may keep a reader waiting before the next one is asked.
    pub read_stall: Duration,
    /// The time that one call to OM or SCM may take before it is tried again.
    pub call_timeout: Duration,
    /// The most bytes of data on its way through this process: read and not taken yet by who asked for it, or
    /// taken of a body and not acknowledged yet. Past half of them pieces are small. A thousand clients that
    /// read nothing come to 256 MiB then (of each the 64 KiB of its stream, and what HTTP holds: three pieces
    /// of 64 KiB), beside the half of those that came before; the rest is for who reads and writes. A gateway
    /// gives it three quarters of its memory: 288 + 256 of 576 MiB.
    pub memory_bytes_max: usize,
    /// The most containers whose locations are remembered; about 200 bytes each.
    pub locations_max: usize,
    /// Services of this process, which are called and not connected to.
    pub local: Local,
}

/// The least memory for data: a large piece and its stream fit into half of it.
const MEMORY_BYTES_MIN: usize = 4 << 20;

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            scm: "127.0.0.1:7400".to_owned(),
            om: None,
            om_reads: OmReads::Leader,
            chunk_bytes: 1 << 20,
            block_bytes_max: 256 << 20,
            stream_buffer_bytes_max: 16 << 20,
            ack_all_within: Duration::from_secs(1),
            stall: Duration::from_secs(2),
            write_deadline: Duration::from_secs(30),
            read_deadline: Duration::from_secs(15),
            read_stall: Duration::from_secs(5),
            call_timeout: Duration::from_secs(5),
            memory_bytes_max: 768 << 20,
            locations_max: 65_536,
            local: Local::default(),
        }
    }
}

impl ClientOptions {
    /// Checks the options; the error names all contradictions at once.
    pub fn validate(&self) -> Result<(), String> {
        let mut wrong = Vec::new();
        let given = [("SCM", Some(&self.scm)), ("OM", self.om.as_ref())];
        for (service, addresses) in given.into_iter().filter_map(|(service, it)| Some((service, it?))) {
            if let Err(failure) = proto::Seeker::parse(addresses) {
                wrong.push(format!("address of {service}: {failure}"));
            }
        }
        if self.chunk_bytes == 0 || self.chunk_bytes > 4 << 20 {
            wrong.push(format!("chunk_bytes must be from 1 to 4 MiB, it is {}", self.chunk_bytes));
        }
        if self.block_bytes_max < self.chunk_bytes as u64 {
            wrong.push(format!("block_bytes_max {} is less than chunk_bytes", self.block_bytes_max));
        }
        if self.stream_buffer_bytes_max < self.chunk_bytes {
            wrong.push(format!(
                "stream_buffer_bytes_max {} is less than chunk_bytes",
                self.stream_buffer_bytes_max
            ));
        }
        if self.stream_buffer_bytes_max > u32::MAX as usize {
            wrong.push(format!("stream_buffer_bytes_max {} is over 4 GiB", self.stream_buffer_bytes_max));
        }
        if self.ack_all_within > self.stall / 2 {
            // A writer that waits for a replica that is gone would take the pipeline for stalled.
            wrong.push(format!("ack_all_within must be at most half of stall, {:?}", self.stall));
        }
        if self.memory_bytes_max < MEMORY_BYTES_MIN {
            wrong.push(format!("memory_bytes_max {} is less than {MEMORY_BYTES_MIN}", self.memory_bytes_max));
        }
        if self.locations_max == 0 {
            wrong.push("locations_max must not be 0".to_owned());
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong.join("; ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_contradictions_are_reported_at_once() {
        assert_eq!(ClientOptions::default().validate(), Ok(()));
        let wrong = ClientOptions { chunk_bytes: 0, locations_max: 0, ..ClientOptions::default() };
        let message = wrong.validate().unwrap_err();
        assert!(message.contains("chunk_bytes") && message.contains("locations_max"), "{message}");
        let nowhere = ClientOptions { om: Some("om".to_owned()), ..ClientOptions::default() };
        assert!(nowhere.validate().unwrap_err().contains("address of OM"));
        let endless = ClientOptions { ack_all_within: Duration::MAX, ..ClientOptions::default() };
        assert!(endless.validate().unwrap_err().contains("half of stall"));
    }
}
