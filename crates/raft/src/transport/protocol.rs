//! The messages of other hosts that are understood here.

use proto::{Code, Failure, raft as wire};
use types::{GroupId, ReplicaId};

/// The version of what members say to each other. It grows when a message means something that an older
/// process would get wrong; what an older one may ignore needs no new version. Hosts take messages of their
/// own version and all before.
pub const PROTOCOL_VERSION: u32 = 1;

/// The address of a message. Everything that is sent to a replica bears one, and [`crate::open_groups`]
/// checks it.
pub(crate) fn address(group: GroupId, replica: ReplicaId, cluster: &str) -> wire::Address {
    wire::Address {
        group: group.to_u64(),
        replica: replica.0,
        cluster: cluster.to_owned(),
        version: PROTOCOL_VERSION,
    }
}

/// Refuses a version that is not understood here, before anything else of a message is looked at. Processes
/// from before versions were sent say 0.
pub(crate) fn check_version(version: u32) -> Result<(), Failure> {
    let version = version.max(1);
    if version <= PROTOCOL_VERSION {
        return Ok(());
    }
    let why = format!(
        "the message is of version {version} of the Raft protocol, this process understands versions up to \
         {PROTOCOL_VERSION}: install the newer release here"
    );
    Err(Failure::new(Code::NewerVersion, why))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn older_versions_and_our_own_are_understood_and_newer_ones_are_not() {
        for version in 0..=PROTOCOL_VERSION {
            assert_eq!(check_version(version), Ok(()));
        }
        for version in [PROTOCOL_VERSION + 1, u32::MAX] {
            let failure = check_version(version).unwrap_err();
            assert_eq!((failure.code, failure.retry), (Code::NewerVersion, proto::Retry::No));
            assert!(failure.message.contains(&format!("version {version} ")), "{failure}");
        }
    }
}
