//! The memory of a process for what it buffers and caches: one number for all of it, or one for each part.

use crate::role::Role;
use clap::Args as ClapArgs;
use client::ClientOptions;

/// RocksDB's of SCM, which has no number of its own.
const SCM_BYTES: usize = 64 << 20;

/// Memory for the data of datanodes. A disk that writes 200 MB/s would empty its queue of 16 MiB, which is
/// its share where there are four or more, in a twelfth of a second.
const DATA_BYTES: usize = 256 << 20;
/// The least memory for the data of each disk. A quarter of it is for what is under way to the disk, and must
/// hold the largest command of a log.
const DATA_BYTES_PER_DISK_MIN: usize = 4 * raft::COMMAND_BYTES_MAX;

/// Memory for the logs of SCM and OM: four groups that are written to keep their 32 MiB for followers that
/// lag.
const LOG_BYTES: usize = 128 << 20;
/// The least memory for the logs of SCM and OM: less holds not even the largest command of a log, and one is
/// let in whatever the limit says.
const LOG_BYTES_MIN: usize = raft::COMMAND_BYTES_MAX;

const OM_BYTES: usize = 256 << 20;
const OM_BYTES_MIN: usize = 16 << 20;
/// The least share of a gateway: of less, documents and lists would take more than their quarter. Who gives a
/// gateway a number of its own may give less.
const S3_SHARE_MIN: usize = 64 << 20;

#[derive(ClapArgs, Debug, Clone, Default)]
pub(crate) struct MemoryArgs {
    /// Memory for all that this process buffers and caches. Parts that have a number of their own
    /// (--s3-memory-bytes, --data-memory, --om-memory, --log-memory-bytes) keep it; the others share what is
    /// left as their defaults are. Default: all parts have their defaults
    #[arg(long, env = "FLOTILLA_MEMORY", value_name = "BYTES")]
    pub memory: Option<usize>,
    /// A datanode's memory for data, of all its disks together. A quarter of it is for what is received, one
    /// for what is on its way to the disks, and one for what is read and not taken yet; where one of them is
    /// full, who wants more of it waits, or is sent elsewhere. The rest has what was written last, for
    /// followers that lag and for readers. Beside it, as much as a quarter is for the indexes of all disks.
    /// Default: 256 MiB, or 64 MiB for each disk where there are more than four; of `flotilla dev`, of all
    /// three datanodes
    #[arg(long, env = "FLOTILLA_DATA_MEMORY", value_name = "BYTES")]
    pub data_memory: Option<usize>,
    /// Memory for the tables of all of OM's groups: blocks that were read, and what is not flushed yet.
    /// Default: 256 MiB
    #[arg(long, env = "FLOTILLA_OM_MEMORY", value_name = "BYTES")]
    pub om_memory: Option<usize>,
    /// Memory for the logs of SCM and OM: what is not written yet, and what was written last, for followers
    /// that lag. Where it is full of what is not written, writers wait. Default: 128 MiB
    #[arg(long, env = "FLOTILLA_LOG_MEMORY_BYTES", value_name = "BYTES")]
    pub log_memory_bytes: Option<usize>,
}

/// The memory of each part of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct MemoryShare {
    /// A gateway's for bodies, documents and lists.
    pub s3: usize,
    /// The data of all datanodes of the process.
    pub data: usize,
    /// The tables of OM's groups.
    pub om: usize,
    /// The logs of SCM and OM.
    pub logs: usize,
}

struct Part {
    option: &'static str,
    /// Whether the process has a role that needs it.
    is_used: bool,
    /// The number that it was given.
    said: Option<usize>,
    /// The number that it has where nobody says anything, and its weight where all share.
    usual: usize,
    least: usize,
    /// Whether a quarter of it is taken besides, for the indexes of data.
    has_index: bool,
}

impl Part {
    fn with_index(&self, bytes: usize) -> usize {
        if self.has_index { bytes.saturating_add(bytes / 4) } else { bytes }
    }
}

impl MemoryArgs {
    /// The numbers of a process with these roles and disks; `s3` is what was said of a gateway's.
    pub(crate) fn share(
        &self,
        s3: Option<usize>,
        roles: &[Role],
        disks: usize,
    ) -> Result<MemoryShare, String> {
        let has = |role: Role| roles.contains(&role);
        let part = |option, is_used, said, usual, least| Part {
            option,
            is_used,
            said,
            usual,
            least,
            has_index: false,
        };
        let s3_usual = ClientOptions::default().memory_bytes_max;
        let data_least = disks * DATA_BYTES_PER_DISK_MIN;
        let has_logs = has(Role::Scm) || has(Role::Om);
        let data_usual = DATA_BYTES.max(data_least);
        let data = part("--data-memory", has(Role::Datanode), self.data_memory, data_usual, data_least);
        let parts = [
            part("--s3-memory-bytes", has(Role::S3), s3, s3_usual, s3.unwrap_or(S3_SHARE_MIN)),
            Part { has_index: true, ..data },
            part("--om-memory", has(Role::Om), self.om_memory, OM_BYTES, OM_BYTES_MIN),
            part("--log-memory-bytes", has_logs, self.log_memory_bytes, LOG_BYTES, LOG_BYTES_MIN),
        ];
        for part in parts.iter().filter(|part| part.is_used) {
            if let Some(said) = part.said.filter(|said| *said < part.least) {
                let (option, least) = (part.option, part.least);
                let of = if part.has_index { format!(" for {disks} disks") } else { String::new() };
                return Err(format!("{option} {said} is too little{of}: {least} are needed"));
            }
        }
        let [s3, data, om, logs] = match self.memory {
            None => parts.each_ref().map(|part| part.said.unwrap_or(part.usual)),
            Some(total) => shared(&parts, total, if has(Role::Scm) { SCM_BYTES } else { 0 })?,
        };
        Ok(MemoryShare { s3, data, om, logs })
    }
}

/// Shares what is left of `total` beside `fixed`, which nobody can change, and what was said: each part gets
/// as much as its usual number is of all, and at least what it needs.
fn shared(parts: &[Part; 4], total: usize, fixed: usize) -> Result<[usize; 4], String> {
    let mut numbers = parts.each_ref().map(|part| part.said.or((!part.is_used).then_some(part.usual)));
    loop {
        let (mut left, mut usual) = (total.checked_sub(fixed), 0);
        for (part, number) in parts.iter().zip(numbers).filter(|(part, _)| part.is_used) {
            match number {
                Some(bytes) => left = left.and_then(|left| left.checked_sub(part.with_index(bytes))),
                None => usual += part.with_index(part.usual),
            }
        }
        let Some(left) = left else { return Err(too_little(parts, total, fixed)) };
        let share = |part: &Part| (part.usual as u128 * left as u128 / usual as u128) as usize;
        let open = || parts.iter().zip(numbers).enumerate().filter(|(_, (_, number))| number.is_none());
        let short: Vec<usize> =
            open().filter(|(_, (part, _))| share(part) < part.least).map(|(at, _)| at).collect();
        if short.is_empty() {
            let all = parts.each_ref().map(|part| if usual == 0 { 0 } else { share(part) });
            return Ok(std::array::from_fn(|at| numbers[at].unwrap_or(all[at])));
        }
        for at in short {
            numbers[at] = Some(parts[at].least);
        }
    }
}

fn too_little(parts: &[Part; 4], total: usize, fixed: usize) -> String {
    let needs = parts.iter().filter(|part| part.is_used);
    let needs = needs.map(|part| part.with_index(part.said.unwrap_or(part.least)));
    let needed = needs.fold(fixed, usize::saturating_add);
    format!("--memory {total} is too little for these roles and disks: {needed} are needed")
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Role; 4] = [Role::Scm, Role::Om, Role::Datanode, Role::S3];
    const MIB: usize = 1 << 20;

    fn of(memory: usize) -> MemoryArgs {
        MemoryArgs { memory: Some(memory), ..MemoryArgs::default() }
    }

    /// All that the numbers stand for.
    fn sum(share: &MemoryShare) -> usize {
        share.s3 + share.data + share.data / 4 + share.om + share.logs + SCM_BYTES
    }

    #[test]
    fn the_defaults_are_shares_of_their_sum() {
        let usual = MemoryArgs::default().share(None, &ALL, 2).unwrap();
        assert_eq!(usual, MemoryShare { s3: 768 * MIB, data: 256 * MIB, om: 256 * MIB, logs: 128 * MIB });
        assert_eq!(of(sum(&usual)).share(None, &ALL, 2).unwrap(), usual);
    }

    #[test]
    fn what_is_said_of_a_part_holds_and_the_others_share_what_is_left() {
        let less = of(1000 * MIB).share(None, &ALL, 2).unwrap();
        assert!(sum(&less) <= 1000 * MIB && sum(&less) > 999 * MIB, "{less:?}");
        let args = MemoryArgs { data_memory: Some(512 * MIB), ..of(1536 * MIB) };
        let share = args.share(Some(256 * MIB), &ALL, 2).unwrap();
        assert_eq!((share.data, share.s3), (512 * MIB, 256 * MIB));
        assert_eq!(share.om, 2 * share.logs);
        assert!(sum(&share) <= 1536 * MIB && sum(&share) > 1535 * MIB, "{share:?}");
    }

    /// Twelve disks need what they usually have.
    #[test]
    fn who_has_no_more_than_it_needs_gives_nothing() {
        let share = of(1200 * MIB).share(None, &ALL, 12).unwrap();
        assert_eq!(share.data, 768 * MIB);
        assert!(share.s3 < 768 * MIB && share.om == 2 * share.logs, "{share:?}");
        assert!(sum(&share) <= 1200 * MIB && sum(&share) > 1199 * MIB, "{share:?}");
    }

    #[test]
    fn only_the_roles_of_a_process_share() {
        assert_eq!(of(1024 * MIB).share(None, &[Role::S3], 0).unwrap().s3, 1024 * MIB);
        assert_eq!(of(1000 * MIB).share(None, &[Role::Datanode], 4).unwrap().data, 800 * MIB);
    }

    #[test]
    fn too_little_is_refused_with_what_is_needed() {
        let why = of(100 * MIB).share(None, &ALL, 2).unwrap_err();
        let needed: usize = why.split(' ').rev().find_map(|word| word.parse().ok()).unwrap();
        assert!(of(needed).share(None, &ALL, 2).is_ok(), "{why}");
        assert!(of(needed - 1).share(None, &ALL, 2).is_err(), "{why}");
        assert!(of(600 * MIB).share(Some(600 * MIB), &[Role::S3, Role::Scm], 0).is_err());
    }
}
