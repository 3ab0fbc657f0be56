//! The ids that openraft's types are made of. A leaf: the runtime knows them, of which the types are made too.

use openraft::LogId;
use openraft::impls::leader_id_std;
use openraft::vote::RaftLeaderId;

pub(crate) type LeaderId = leader_id_std::LeaderId<u64, u64>;
pub(crate) type RaftLogId = LogId<<LeaderId as RaftLeaderId>::Committed>;
