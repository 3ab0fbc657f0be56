use super::harness::{Drill, REPAIRED_WITHIN, Setup, Shown, stood_still};
use crate::commands::admin_json;
use std::time::Instant;

/// kill -9 of the leader of three SCMs in the middle of writes, and with it of a datanode: another SCM leads,
/// and has that node's pipelines replaced and its containers copied.
pub(super) async fn run() -> Shown {
    let mut drill = Drill::start(Setup { scms: 3, ..Setup::default() }).await;
    let writers = drill.load().await;
    let lost = drill.node_at(1).await;
    let first = leader(&drill);
    drill.cluster.scms[first].kill9();
    drill.cluster.datanodes[1].kill9();
    let killed = Instant::now();
    let next =
        drill.until("leader among the others", REPAIRED_WITHIN, async || drill.scm_leads().await).await;
    assert_ne!(leader(&drill), first);
    let without = async || drill.replaced_without(lost, None).await;
    drill.until("replaced pipelines", REPAIRED_WITHIN, without).await;
    let replaced = killed.elapsed();
    writers.progress(30).await;
    let still = stood_still(&writers, killed);
    drill.until("repair", REPAIRED_WITHIN, async || drill.repaired_without(lost).await).await;
    let repaired = killed.elapsed();

    // It comes back as a follower, and the node with what others have by now.
    drill.cluster.scms[first].start_again();
    drill.cluster.datanodes[1].start_again();
    let written = drill.settle(writers).await;
    Shown {
        objects: written.acknowledged.len(),
        figures: vec![
            ("stood_still_s", still),
            ("next_leader_s", next.as_secs_f64()),
            ("replaced_s", replaced.as_secs_f64()),
            ("repaired_s", repaired.as_secs_f64()),
        ],
    }
}

/// The place of SCM's leader in the cluster's list.
pub(super) fn leader(drill: &Drill) -> usize {
    let roles = admin_json(&drill.cluster.scm_address, &["scm", "roles"]);
    let members = roles["members"].as_array().unwrap();
    let leader = members.iter().find(|member| member["role"] == "leader").expect("the one that answered");
    let addresses = &drill.cluster.scm_addresses;
    addresses.iter().position(|address| leader["address"] == **address).unwrap()
}
