use crate::duration::duration;
use crate::open_files;
use clap::Args as ClapArgs;
use client::ClientOptions;
use httpd::Limits;
use std::time::Duration;

/// The most requests of S3 that a gateway works for at once. Their data has a limit of its own,
/// `s3_memory_bytes`.
const REQUESTS_MAX: usize = 1024;

/// The memory for each transfer that may be slow, of which three quarters are for data. A slow transfer has a
/// large piece and its window (1.3 MiB) while half of that is free, and a small one (132 KiB) after that: so
/// many have three quarters of it at most, and the rest is the others'.
const BYTES_FOR_SLOW: usize = 768 << 10;

/// The part of the memory that is for documents and lists: one of so many.
const DOCUMENTS_PART: usize = 4;

/// The least memory for documents and lists. Half of it, which one address may have, holds the longest list:
/// a thousand keys of 1024 characters, each of them as a reference of 6 bytes.
const DOCUMENTS_BYTES_MIN: usize = 16 << 20;

/// Limits of a gateway for its clients. Those without an option are in [`Limits`].
#[derive(ClapArgs, Debug, Clone)]
pub(crate) struct S3Limits {
    /// S3: connections at once; one more is let in for an idle one, or else told to slow down. At most a
    /// quarter of the process's open files
    #[arg(long, default_value_t = Limits::default().connections_max, env = "FLOTILLA_S3_CONNECTIONS_MAX", value_parser = at_least_one)]
    pub s3_connections_max: usize,
    /// S3: connections of one address (of IPv6: one network of 64 bits); a proxy in front of the gateway is
    /// one. At most a quarter of all, or 64
    #[arg(long, default_value_t = Limits::default().connections_per_address_max, env = "FLOTILLA_S3_CONNECTIONS_PER_ADDRESS_MAX", value_parser = at_least_one)]
    pub s3_connections_per_address_max: usize,
    /// S3: requests that are worked for at once, without those that wait for their clients; more get SlowDown
    #[arg(long, default_value_t = REQUESTS_MAX, env = "FLOTILLA_S3_REQUESTS_MAX", value_parser = at_least_one)]
    pub s3_requests_max: usize,
    /// S3: how long a request's headers may take to come
    #[arg(long, default_value = "10s", env = "FLOTILLA_S3_HEAD_MAX", value_parser = duration)]
    pub s3_head_max: Duration,
    /// S3: how long a connection may lie without a request
    #[arg(long, default_value = "2m", env = "FLOTILLA_S3_IDLE_MAX", value_parser = duration)]
    pub s3_idle_max: Duration,
    /// S3: how long a client may stand still that sends a body or takes an answer; it is let go then
    #[arg(long, default_value = "60s", env = "FLOTILLA_S3_TRANSFER_IDLE_MAX", value_parser = duration)]
    pub s3_transfer_idle_max: Duration,
    /// S3: a client that sends or takes less than this while it is waited for is let go as if it stood still;
    /// 0: no least rate
    #[arg(long, default_value_t = Limits::default().bytes_per_second_min, env = "FLOTILLA_S3_BYTES_PER_SECOND_MIN")]
    pub s3_bytes_per_second_min: u64,
    /// S3: memory for what is read and not taken yet by clients, and what they sent and is not written yet: a
    /// quarter of it (at least 16 MiB) for documents and lists, half of that for one address, the rest for
    /// data. Past half of that pieces are smaller; past all of it more get SlowDown, and those under way
    /// wait. Default: 768 MiB
    #[arg(long, env = "FLOTILLA_S3_MEMORY_BYTES", value_parser = memory_bytes)]
    pub s3_memory_bytes: Option<usize>,
}

impl Default for S3Limits {
    fn default() -> Self {
        let limits = Limits::default();
        S3Limits {
            s3_connections_max: limits.connections_max,
            s3_connections_per_address_max: limits.connections_per_address_max,
            s3_requests_max: REQUESTS_MAX,
            s3_head_max: limits.head_max,
            s3_idle_max: limits.idle_max,
            s3_transfer_idle_max: limits.transfer_idle_max,
            s3_bytes_per_second_min: limits.bytes_per_second_min,
            s3_memory_bytes: None,
        }
    }
}

impl S3Limits {
    fn memory_bytes(&self) -> usize {
        self.s3_memory_bytes.unwrap_or(ClientOptions::default().memory_bytes_max)
    }

    /// The part of the memory that is for data.
    pub(crate) fn data_bytes(&self) -> usize {
        data_bytes(self.memory_bytes())
    }

    /// The part of the memory that is for documents and lists: however slowly they are sent and taken, data
    /// has its own.
    pub(crate) fn documents_bytes(&self) -> usize {
        (self.memory_bytes() / DOCUMENTS_PART).max(DOCUMENTS_BYTES_MIN)
    }

    pub(crate) fn limits(&self) -> Limits {
        Limits {
            connections_max: self.s3_connections_max.min(open_files::part(open_files::OF_S3)),
            connections_per_address_max: self.s3_connections_per_address_max,
            head_max: self.s3_head_max,
            idle_max: self.s3_idle_max,
            transfer_idle_max: self.s3_transfer_idle_max,
            bytes_per_second_min: self.s3_bytes_per_second_min,
            slow_max: Limits::default().slow_max.min(self.memory_bytes() / BYTES_FOR_SLOW),
            ..Limits::default()
        }
    }
}

/// A number of which 0 would let nobody in, while everything is called ready.
fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) => Err("at least 1".to_owned()),
        number => number.map_err(|error| format!("{error}")),
    }
}

fn memory_bytes(text: &str) -> Result<usize, String> {
    let bytes = text.parse().map_err(|error| format!("{error}"))?;
    ClientOptions { memory_bytes_max: data_bytes(bytes), ..ClientOptions::default() }.validate()?;
    Ok(bytes)
}

fn data_bytes(memory_bytes: usize) -> usize {
    memory_bytes - memory_bytes / DOCUMENTS_PART
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        limits: S3Limits,
    }

    #[test]
    fn defaults_of_the_command_line_are_those_of_the_code() {
        let line = Line::parse_from(["flotilla"]).limits;
        assert_eq!(line.limits(), S3Limits::default().limits());
        assert_eq!(line.s3_requests_max, REQUESTS_MAX);
        assert_eq!(line.memory_bytes(), ClientOptions::default().memory_bytes_max);
        assert!(Line::try_parse_from(["flotilla", "--s3-memory-bytes", "1048576"]).is_err());
        for nobody in ["--s3-requests-max", "--s3-connections-max", "--s3-connections-per-address-max"] {
            assert!(Line::try_parse_from(["flotilla", nobody, "0"]).is_err(), "{nobody}");
            assert!(Line::try_parse_from(["flotilla", nobody, "1"]).is_ok(), "{nobody}");
        }
    }

    #[test]
    fn documents_have_a_quarter_of_the_memory_and_room_for_the_longest_list_of_one_address() {
        let check = |memory_bytes, documents_bytes, data_bytes| {
            let limits = S3Limits { s3_memory_bytes: Some(memory_bytes), ..S3Limits::default() };
            assert_eq!((limits.documents_bytes(), limits.data_bytes()), (documents_bytes, data_bytes));
        };
        check(768 << 20, 192 << 20, 576 << 20);
        check(8 << 20, 16 << 20, 6 << 20);
    }
}
