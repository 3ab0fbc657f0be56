//! The ids that openraft's types are made of. A module that imports none of ours: the runtime names these
//! ids, and the types name the runtime.

use openraft::LogId;
use openraft::impls::leader_id_std;
use openraft::vote::RaftLeaderId;

pub(crate) type LeaderId = leader_id_std::LeaderId<u64, u64>;
pub(crate) type RaftLogId = LogId<<LeaderId as RaftLeaderId>::Committed>;
