macro_rules! counts {
    ($($name:ident),*) => {
        /// The counts of a run.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $(pub $name: u64,)*
        }

        impl Counts {
            /// All counts by name.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }
    };
}

pub(crate) use counts;

counts!(
    events,
    elections,
    crashes,
    crashes_amid_member_changes,
    crashes_amid_snapshot_writes,
    crashes_amid_snapshot_receives,
    crashes_amid_snapshot_installs,
    partitions,
    split_clients,
    upset_elections,
    transfers,
    full_disks,
    writes,
    reads,
    follower_reads,
    lease_reads,
    member_changes,
    removals,
    snapshots_written,
    snapshots_installed,
    dozes
);
