//! The plain counts of a group, each in one line: its name in code, its metric, and a label where several
//! share one.

use metrics::{Counter, Exposition, Metric};

macro_rules! tally {
    ($($(#[$doc:meta])* $count:ident: $metric:expr $(, $label:ident = $value:literal)?;)*) => {
        /// The counts while they grow, or as they were at some moment.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Tally<T> {
            $($(#[$doc])* pub $count: T,)*
        }

        impl Tally<Counter> {
            pub(crate) fn read(&self) -> Tally<u64> {
                Tally { $($count: self.$count.get(),)* }
            }
        }

        impl Tally<u64> {
            pub(super) fn expose(&self, group: &str, exposition: &mut Exposition) {
                $(exposition.counter($metric, &[("group", group), $((stringify!($label), $value))?], self.$count);)*
            }
        }
    };
}

const fn metric(name: &'static str, help: &'static str) -> Metric {
    Metric { name, help }
}

const REFUSED: Metric =
    metric("flotilla_raft_group_proposals_refused_total", "Proposals refused at once, by reason.");
const SENT: Metric = metric(
    "flotilla_raft_group_appends_sent_total",
    "Messages to followers: with entries, or with nothing but how far the group has committed.",
);

tally! {
    proposals: metric("flotilla_raft_group_proposals_total", "Proposals taken.");
    /// Proposals that were refused, and so never taken.
    busy: REFUSED, reason = "busy";
    disk_full: REFUSED, reason = "disk_full";
    too_large: REFUSED, reason = "too_large";
    append_entries: metric("flotilla_raft_group_append_entries_total", "Entries appended to the log.");
    append_bytes: metric("flotilla_raft_group_append_bytes_total", "Payload bytes appended to the log.");
    elections_started: metric("flotilla_raft_group_elections_total", "Elections this replica stood in.");
    elections_won: metric("flotilla_raft_group_elections_won_total", "Elections this replica won.");
    leader_changes: metric(
        "flotilla_raft_group_leader_changes_total",
        "Leaders this replica has seen, one after the other."
    );
    appends_sent: SENT, carries = "entries";
    /// Messages without entries: of a commit index that no entry came after.
    commits_sent: SENT, carries = "commit";
    streams_broken: metric(
        "flotilla_raft_group_append_streams_broken_total",
        "Streams to followers that could not be opened or broke."
    );
    logs_reverted: metric(
        "flotilla_raft_group_follower_logs_reverted_total",
        "Times a follower lacked entries that it had acknowledged to this leader."
    );
}
