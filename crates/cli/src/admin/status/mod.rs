//! `flotilla admin status`: one verdict on the whole cluster, and the command that tells more of each thing
//! that is wrong.

mod findings;

use super::members::{BEHIND_USUALLY, ROLES_PATIENCE};
use super::scm::Scm;
use super::{datanode, om_groups, pipeline, sweep, unsettled};
use crate::answer::Answer;
use findings::{Findings, Severity, answer};
use proto::registry::{Health, Instance};
use proto::scm::{
    ClusterStatus, DatanodeInfo, DiskReport, DiskState, GetClusterStatusRequest, ListOmsResponse,
    ListScmMembersRequest, NodeDuty, NodeState, OmGroupInfo, OmInfo, Pipeline, PipelineState, ScmMember,
};
use registry::{RegistryClient, health};
use std::collections::BTreeSet;
use std::time::Duration;
use tokio::time::timeout;

/// The free shares of a disk below which it is time for more disks, and below which writes are about to fail.
pub(crate) const FREE_PERCENT_WARNING: u64 = 15;
const FREE_PERCENT_CRITICAL: u64 = 5;
/// The time for the word on names: whoever asks this at night does not want it to keep all others waiting.
const NAMES_PATIENCE: Duration = Duration::from_secs(3);
/// The name that SCM's registry gives to its word on an instance's clock.
const CLOCK_CHECK: &str = "clock";
const CLOCK_CODE: &str = "clock";
const CLOCKS_APART: &str = "clocks are not SCM's: times that people read are wrong, and a gateway refuses signatures that are 15 minutes off";

pub(super) async fn run(scm: &mut Scm) -> anyhow::Result<Answer> {
    let mut findings = Findings::default();
    let mut cluster = String::new();
    if let Err(error) = look(scm, &mut cluster, &mut findings).await {
        let (code, what) = match cluster.is_empty() {
            true => ("scm-down", "SCM does not answer, so nothing else is known"),
            false => ("scm-in-part", "SCM does not answer all questions, so there may be more"),
        };
        findings.note(Severity::Critical, code, format!("{what}: {error:#}"), "scm roles");
    }
    Ok(answer(&cluster, findings))
}

async fn look(scm: &mut Scm, cluster: &mut String, findings: &mut Findings) -> anyhow::Result<()> {
    // SCM's members are asked first, and for a short while: whoever asks this at night wants the answer
    // "nobody leads" soon.
    let members = scm
        .look_within(ROLES_PATIENCE, async |client| client.list_scm_members(ListScmMembersRequest {}).await);
    let members = members.await?;
    *cluster = members.cluster;
    let status = scm.look(async |client| client.get_cluster_status(GetClusterStatusRequest {}).await).await?;
    look_at_scm(&members.members, &status, findings);
    look_at_nodes(&datanode::datanodes(scm).await?, findings);
    look_at_oms(&om_groups::oms(scm).await?, findings);
    look_at_pipelines(&pipeline::pipelines(scm).await?, findings);
    look_at_containers(&status, findings);
    look_at_names(scm, findings).await;
    let registry = RegistryClient::new(&scm.addresses().join(","))?;
    match registry.instances("").await {
        Ok(listed) => look_at_services(&listed.instances, findings),
        Err(failure) => {
            let what = format!("the registry does not answer: {failure}");
            findings.note(Severity::Warning, "registry", what, "registry services");
        }
    }
    Ok(())
}

fn look_at_scm(members: &[ScmMember], status: &ClusterStatus, findings: &mut Findings) {
    let behind = members.iter().filter(|member| member.behind > BEHIND_USUALLY);
    let behind = behind.map(|member| format!("{} ({} entries)", member.address, member.behind)).collect();
    findings.note_each(Severity::Warning, "scm-behind", "members of SCM are behind", behind, "scm roles");
    let joining = members.iter().filter(|member| !member.is_voter);
    let joining = joining.map(|member| member.address.clone()).collect();
    findings.note_each(
        Severity::Warning,
        "scm-joining",
        "members of SCM have no vote yet",
        joining,
        "scm roles",
    );
    if !status.full_disk.is_empty() {
        let what = format!("SCM's leader can write nothing down: {}", status.full_disk);
        findings.note(Severity::Critical, "scm-full", what, "scm roles");
    }
    if status.safe_mode {
        let what =
            format!("safe mode: nothing is repaired or deleted; {}", status.safe_mode_waits.join("; "));
        findings.note(Severity::Warning, "safe-mode", what, "safemode status");
    }
    if !status.switches.unwrap_or_default().replication {
        let what = "replication is switched off: lost replicas are not made up for".to_owned();
        findings.note(Severity::Warning, "replication-off", what, "replication status");
    }
    if status.switches.unwrap_or_default().reclaim_stopped {
        let what = "reclaiming is stopped: what is deleted takes its space until it is started".to_owned();
        findings.note(Severity::Warning, "reclaim-off", what, "reclaim status");
    }
}

fn look_at_nodes(nodes: &[DatanodeInfo], findings: &mut Findings) {
    // An operator has said of the other nodes that they may be away.
    let expected: Vec<&DatanodeInfo> = nodes
        .iter()
        .filter(|node| !matches!(node.duty(), NodeDuty::NodeDecommissioned | NodeDuty::NodeInMaintenance))
        .collect();
    if nodes.is_empty() {
        let what = "no datanode has registered: nothing can be written".to_owned();
        findings.note(Severity::Critical, "node-none", what, "datanode list");
    }
    let named = |state: NodeState| {
        let all = expected.iter().filter(move |node| node.state() == state);
        all.map(|node| format!("{} ({})", node.node, node.address)).collect()
    };
    let list = "datanode list";
    findings.note_each(Severity::Critical, "node-dead", "nodes are dead", named(NodeState::NodeDead), list);
    findings.note_each(
        Severity::Warning,
        "node-stale",
        "nodes are silent",
        named(NodeState::NodeStale),
        list,
    );
    let problems = |of_clocks: bool| {
        let all = expected.iter().filter(|node| !node.problem.is_empty());
        let these = all.filter(move |node| node.clock_apart == of_clocks);
        these.map(|node| format!("node {}: {}", node.node, node.problem)).collect()
    };
    findings.note_each(Severity::Warning, "node-problem", "nodes with a problem", problems(false), list);
    findings.note_each(Severity::Warning, CLOCK_CODE, CLOCKS_APART, problems(true), list);

    let disks = || expected.iter().flat_map(|node| node.disks.iter().map(|disk| (node.node, disk)));
    let name = |node: u64, disk: &[u8]| {
        let disk = proto::disk_id(disk).map(|id| id.to_string()).unwrap_or_default();
        format!("{disk} of node {node}")
    };
    let diskinfo = "datanode diskinfo";
    // A small disk takes no more data while a larger share of it is free: the log keeps a reserve.
    let is_full =
        |disk: &DiskReport| disk.state() == DiskState::Full || has_less_than(FREE_PERCENT_CRITICAL, disk);
    let is_filling = |disk: &DiskReport| !is_full(disk) && has_less_than(FREE_PERCENT_WARNING, disk);
    let works = |disk: &DiskReport| disk.state() != DiskState::Failed;
    let that = |is_meant: &dyn Fn(&DiskReport) -> bool| {
        disks().filter(|(_, disk)| is_meant(disk)).map(|(node, disk)| name(node, &disk.disk)).collect()
    };
    let failed = disks().filter(|(_, disk)| !works(disk)).map(|(node, disk)| match disk.why.as_str() {
        "" => name(node, &disk.disk),
        why => format!("{} ({why})", name(node, &disk.disk)),
    });
    let failed = failed.collect();
    findings.note_each(Severity::Critical, "disk-failed", "disks have failed", failed, diskinfo);
    let hanging = that(&|disk| disk.state() == DiskState::Hangs);
    findings.note_each(Severity::Warning, "disk-hanging", "disks hang", hanging, diskinfo);
    let what = format!("disks take no more data, or have less than {FREE_PERCENT_CRITICAL} % free");
    findings.note_each(
        Severity::Critical,
        "disk-full",
        &what,
        that(&|disk| works(disk) && is_full(disk)),
        diskinfo,
    );
    let filling = that(&|disk| works(disk) && is_filling(disk));
    let what = format!("disks have less than {FREE_PERCENT_WARNING} % free");
    findings.note_each(Severity::Warning, "disk-filling", &what, filling, diskinfo);
}

fn look_at_oms(listed: &ListOmsResponse, findings: &mut Findings) {
    // An OM without an address, whose place another directory has, is of no account any more once its
    // replicas are elsewhere.
    let expected = || {
        let stays = |om: &&OmInfo| om.replicas > 0 || !om.address.is_empty();
        listed.oms.iter().filter(|om| om.duty() != NodeDuty::NodeDecommissioned).filter(stays)
    };
    if listed.oms.is_empty() {
        let what = "no OM has registered: there are no names".to_owned();
        findings.note(Severity::Critical, "om-none", what, "om roles");
    }
    let named = |is_meant: fn(&OmInfo) -> bool| {
        let all = expected().filter(|om| is_meant(om));
        let where_it_is = |om: &OmInfo| match om.address.as_str() {
            "" => format!("{} (another directory is at its address)", om.om),
            address => format!("{} ({address})", om.om),
        };
        all.map(where_it_is).collect()
    };
    let dead = named(|om| om.state() == NodeState::NodeDead && om.replicas > 0);
    let away = named(|om| om.state() == NodeState::NodeDead && om.replicas == 0);
    let silent = named(|om| om.state() == NodeState::NodeStale);
    findings.note_each(Severity::Critical, "om-dead", "OMs are dead", dead, "om roles");
    let what = "OMs that could take a dead one's place are dead themselves";
    findings.note_each(Severity::Warning, "om-standby", what, away, "om roles");
    findings.note_each(Severity::Warning, "om-stale", "OMs are silent", silent, "om roles");
    let problems = |of_clocks: bool| {
        let all = expected().filter(|om| !om.problem.is_empty());
        let these = all.filter(move |om| om.clock_apart == of_clocks);
        these.map(|om| format!("OM {}: {}", om.om, om.problem)).collect()
    };
    findings.note_each(Severity::Warning, "om-problem", "OMs with a problem", problems(false), "om roles");
    findings.note_each(Severity::Warning, CLOCK_CODE, CLOCKS_APART, problems(true), "om roles");
    let groups = |is_down: bool| {
        let ill = listed.groups.iter().filter(|group| !group.problem.is_empty());
        let these = ill.filter(move |group| group.is_down == is_down);
        let number = |group: &OmGroupInfo| group.group.as_ref().map_or(0, |group| group.group);
        these.map(move |group| format!("{} ({})", number(group), group.problem)).collect()
    };
    let what = "groups of names take no changes";
    findings.note_each(Severity::Critical, "om-group-down", what, groups(true), "om groups");
    let what = "groups of names are not as they should be";
    findings.note_each(Severity::Warning, "om-group", what, groups(false), "om groups");
}

/// Whether less than this share of a disk is free; false for a disk whose size is not known.
fn has_less_than(percent: u64, disk: &DiskReport) -> bool {
    u128::from(disk.free_bytes) * 100 < u128::from(percent) * u128::from(disk.capacity_bytes)
}

fn look_at_pipelines(pipelines: &[Pipeline], findings: &mut Findings) {
    let open = || pipelines.iter().filter(|pipeline| pipeline.state() == PipelineState::PipelineOpen);
    let list = "pipeline list";
    if !open().any(|pipeline| pipeline.leader_node != 0) {
        let what = "no pipeline is open and led: nothing can be written".to_owned();
        findings.note(Severity::Critical, "pipeline-none", what, list);
    }
    let unled = open().filter(|pipeline| pipeline.leader_node == 0);
    let unled = unled.map(|pipeline| pipeline.pipeline.to_string()).collect();
    findings.note_each(Severity::Warning, "pipeline-unled", "pipelines have no leader", unled, list);
    let closing = pipelines.iter().filter(|pipeline| pipeline.state().is_closing());
    let closing =
        closing.map(|pipeline| format!("{} ({})", pipeline.pipeline, pipeline.close_reason)).collect();
    findings.note_each(Severity::Warning, "pipeline-closing", "pipelines are closing", closing, list);
    let ill = open().flat_map(|pipeline| {
        let number = pipeline.pipeline;
        pipeline.health.iter().map(move |ill| format!("{number} on node {}: {}", ill.node, ill.problem))
    });
    let ill = ill.collect();
    findings.note_each(Severity::Warning, "pipeline-member", "pipelines with a bad member", ill, list);
}

fn look_at_containers(status: &ClusterStatus, findings: &mut Findings) {
    use Severity::{Critical, Warning};
    let mut count = |severity, code, what, count, more| findings.count(severity, code, what, count, more);
    let missing = "container list --trouble missing";
    count(Critical, "container-missing", "containers have no good replica", status.missing, missing);
    let undecided = "container list --state quasi-closed";
    let what = "containers wait for members that may have more of them";
    count(Critical, "container-quasi-closed", what, status.quasi_closed, undecided);
    let open = "container list --state open";
    let what = "containers of pipelines that are over are being decided: stop no node, take no disk away";
    count(Warning, "container-undecided", what, status.undecided, open);
    let few = "container list --trouble under-replicated";
    let what = "containers have less than three good replicas";
    count(Warning, "container-under-replicated", what, status.under_replicated, few);
    let bad = "container list --trouble unhealthy";
    count(Warning, "container-unhealthy", "containers have a bad replica", status.unhealthy, bad);
    let different = "container list --trouble different";
    count(
        Warning,
        "container-different",
        "containers have replicas that differ",
        status.different,
        different,
    );
    let ahead = "container list --trouble ahead";
    let what = "containers have a replica that goes on past their end";
    count(Critical, "container-ahead", what, status.ahead, ahead);
    let diverged = "container list --trouble diverged";
    let what = "containers have acknowledged data on one node that the others have not";
    count(Critical, "container-diverged", what, status.diverged, diverged);
    let what = "containers have all replicas in one rack";
    let crowded = "container list --trouble mis-replicated";
    count(Warning, "container-mis-replicated", what, status.mis_replicated, crowded);
    let what = "copies of containers failed lately";
    count(Warning, "copies-failed", what, status.copies_failed, "replication status");
}

/// Looks for names whose block is nowhere, as the root's leader knows, and for names that may be missing. A
/// leader that does not answer is told of elsewhere.
async fn look_at_names(scm: &Scm, findings: &mut Findings) {
    if let Ok(Ok(Some(what))) = timeout(NAMES_PATIENCE, unsettled::stuck(scm)).await {
        findings.note(Severity::Warning, "bucket-stuck", what, "om unsettled");
    }
    let Ok(Ok(found)) = timeout(NAMES_PATIENCE, sweep::found(scm)).await else { return };
    let sweep::Found { lost, first, stopped } = found;
    if lost > 0 {
        let first = first.map(|first| format!(", as {first}")).unwrap_or_default();
        let what = format!("{lost} keys have blocks that no replica has{first}");
        findings.note(Severity::Critical, "names-lost", what, "om lost");
    }
    if !stopped.is_empty() {
        let what = format!("the sweep for blocks without a name is stopped: {stopped}");
        findings.note(Severity::Warning, "sweep-stopped", what, "sweep status");
    }
}

fn look_at_services(instances: &[Instance], findings: &mut Findings) {
    let passing = |service: &str| {
        instances.iter().any(|instance| instance.service == service && health(instance) != Health::Critical)
    };
    let more = "registry instances";
    if !passing("om") {
        let what = "no OM is well: no name can be read or changed".to_owned();
        findings.note(Severity::Critical, "om-down", what, "registry instances om");
    }
    // Datanodes are judged by SCM's own word, above, and so are the clocks of OMs.
    let others = || instances.iter().filter(|instance| instance.service != "datanode");
    // Clocks are a finding of their own: an instance whose clock is wrong does its work.
    let without_clock = |instance: &Instance| {
        let checks = instance.checks.iter().filter(|check| check.name != CLOCK_CHECK);
        Instance { checks: checks.cloned().collect(), ..instance.clone() }
    };
    let ill = |wanted: Health| {
        let all = others().map(without_clock).filter(move |instance| health(instance) == wanted);
        all.map(|instance| {
            let checks = instance.checks.iter().filter(|check| check.health() != Health::Passing);
            let said = checks.map(|check| check.output.as_str()).collect::<Vec<_>>().join("; ");
            format!("{} {} ({said})", instance.service, instance.id)
        })
        .collect()
    };
    let clocks = others().filter(|instance| instance.service != "om").flat_map(|instance| {
        let apart = instance.checks.iter();
        let apart = apart.filter(|check| check.name == CLOCK_CHECK && check.health() != Health::Passing);
        apart.map(move |check| format!("{} {}: {}", instance.service, instance.id, check.output))
    });
    findings.note_each(Severity::Warning, CLOCK_CODE, CLOCKS_APART, clocks.collect(), more);
    findings.note_each(
        Severity::Critical,
        "service-critical",
        "services do no work",
        ill(Health::Critical),
        more,
    );
    findings.note_each(
        Severity::Warning,
        "service-warning",
        "services are not well",
        ill(Health::Warning),
        more,
    );
    let versions: BTreeSet<&str> = instances
        .iter()
        .filter_map(|instance| instance.metadata.get("version"))
        .map(String::as_str)
        .collect();
    if versions.len() > 1 {
        let versions = versions.into_iter().map(str::to_owned).collect();
        findings.note_each(
            Severity::Warning,
            "versions",
            "processes of several versions run",
            versions,
            more,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proto::registry::Check;
    use proto::scm::{MemberHealth, Switches};

    fn codes(look: impl FnOnce(&mut Findings)) -> Vec<(&'static str, Severity)> {
        let mut findings = Findings::default();
        look(&mut findings);
        findings.0.iter().map(|finding| (finding.code, finding.severity)).collect()
    }

    fn node(node: u64, state: NodeState) -> DatanodeInfo {
        let mut disk = DiskReport { capacity_bytes: 1000, free_bytes: 500, ..DiskReport::default() };
        disk.set_state(DiskState::Works);
        DatanodeInfo { node, state: state as i32, disks: vec![disk], ..DatanodeInfo::default() }
    }

    #[test]
    fn nodes_and_disks_are_named_unless_somebody_said_that_they_may_be_away() {
        let of = |nodes: &[DatanodeInfo]| codes(|findings| look_at_nodes(nodes, findings));
        assert_eq!(of(&[]), [("node-none", Severity::Critical)]);
        assert_eq!(of(&[node(1, NodeState::NodeHealthy)]), []);
        let dead = node(1, NodeState::NodeDead);
        assert_eq!(
            of(&[dead.clone(), node(2, NodeState::NodeStale)]),
            [("node-dead", Severity::Critical), ("node-stale", Severity::Warning)]
        );
        assert_eq!(of(&[DatanodeInfo { duty: NodeDuty::NodeInMaintenance as i32, ..dead }]), []);
        let with = |free: u64, failed: bool| {
            let mut node = node(1, NodeState::NodeHealthy);
            node.disks[0] = DiskReport { free_bytes: free, ..node.disks[0].clone() };
            if failed {
                node.disks[0].set_state(DiskState::Failed);
            }
            of(&[node])
        };
        assert_eq!(with(150, false), []);
        assert_eq!(with(149, false), [("disk-filling", Severity::Warning)]);
        assert_eq!(with(50, false), [("disk-filling", Severity::Warning)]);
        assert_eq!(with(49, false), [("disk-full", Severity::Critical)]);
        assert_eq!(with(49, true), [("disk-failed", Severity::Critical)]);
        let mut hanging = node(1, NodeState::NodeHealthy);
        hanging.disks[0].set_state(DiskState::Hangs);
        assert_eq!(of(&[hanging]), [("disk-hanging", Severity::Warning)]);
        let mut small = node(1, NodeState::NodeHealthy);
        let state = DiskState::Full as i32;
        small.disks[0] = DiskReport { free_bytes: 350, state, ..small.disks[0].clone() };
        assert_eq!(of(&[small]), [("disk-full", Severity::Critical)]);
    }

    #[test]
    fn pipelines_without_a_leader_are_told_of_and_none_at_all_is_critical() {
        let open = |pipeline: u64, leader_node: u64| Pipeline {
            pipeline,
            leader_node,
            state: PipelineState::PipelineOpen as i32,
            ..Pipeline::default()
        };
        let of = |pipelines: &[Pipeline]| codes(|findings| look_at_pipelines(pipelines, findings));
        let none = ("pipeline-none", Severity::Critical);
        let unled = ("pipeline-unled", Severity::Warning);
        assert_eq!(of(&[]), [none]);
        assert_eq!(of(&[open(1, 3)]), []);
        assert_eq!(of(&[open(1, 3), open(2, 0)]), [unled]);
        assert_eq!(of(&[open(2, 0)]), [none, unled]);
        let health = vec![MemberHealth { node: 2, problem: "behind".to_owned() }];
        assert_eq!(of(&[Pipeline { health, ..open(1, 3) }]), [("pipeline-member", Severity::Warning)]);
    }

    #[test]
    fn what_an_instance_says_of_itself_commands_no_terminal() {
        let output = "\x1b]0;all is well\x07\x1b[2J".to_owned();
        let checks = vec![Check { name: "a".to_owned(), health: Health::Critical as i32, output }];
        let mut findings = Findings::default();
        look_at_services(
            &[Instance { service: "web".to_owned(), checks, ..Instance::default() }],
            &mut findings,
        );
        let text = answer("\x1b[2Jc", findings).text;
        assert!(text.contains("\\u001b]0;all is well\\u0007\\u001b[2J"), "{text:?}");
        assert!(!text.contains('\x07'), "{text:?}");
        let printed = crate::output::printable_lines(&text);
        assert!(printed.starts_with("cluster \\u001b[2Jc: critical\n"), "{printed:?}");
    }

    #[test]
    fn the_worst_finding_is_the_verdict_and_stands_first() {
        let mut findings = Findings::default();
        look_at_containers(
            &ClusterStatus { under_replicated: 2, missing: 1, ..ClusterStatus::default() },
            &mut findings,
        );
        look_at_scm(&[], &ClusterStatus { switches: None, ..ClusterStatus::default() }, &mut findings);
        let answer = answer("c", findings);
        assert_eq!(answer.exit_code, 2);
        let codes: Vec<_> = answer.json["findings"].as_array().unwrap().iter().map(|f| &f["code"]).collect();
        assert_eq!(codes, ["container-missing", "container-under-replicated", "replication-off"]);
        let well = ClusterStatus {
            switches: Some(Switches { replication: true, ..Switches::default() }),
            ..ClusterStatus::default()
        };
        let reclaim_stopped = Switches { reclaim_stopped: true, ..well.switches.unwrap() };
        let stopped = ClusterStatus { switches: Some(reclaim_stopped), ..well.clone() };
        let mut findings = Findings::default();
        look_at_scm(&[], &stopped, &mut findings);
        assert_eq!(findings.0.iter().map(|it| it.code).collect::<Vec<_>>(), ["reclaim-off"]);
        let mut findings = Findings::default();
        look_at_scm(&[], &well, &mut findings);
        let answer = super::answer("c", findings);
        assert_eq!((answer.exit_code, answer.text.as_str()), (0, "cluster c: ok\n"));
    }

    #[test]
    fn services_are_judged_by_their_checks_and_an_om_is_needed() {
        let instance = |service: &str, health: Health, version: &str| Instance {
            service: service.to_owned(),
            checks: vec![Check { health: health as i32, ..Check::default() }],
            metadata: [("version".to_owned(), version.to_owned())].into(),
            ..Instance::default()
        };
        let of = |instances: &[Instance]| codes(|findings| look_at_services(instances, findings));
        assert_eq!(of(&[instance("om", Health::Passing, "1")]), []);
        assert_eq!(
            of(&[instance("om", Health::Critical, "1")]),
            [("om-down", Severity::Critical), ("service-critical", Severity::Critical)]
        );
        assert_eq!(
            of(&[instance("om", Health::Passing, "1"), instance("s3gw", Health::Warning, "2")]),
            [("service-warning", Severity::Warning), ("versions", Severity::Warning)]
        );
    }

    #[test]
    fn clocks_of_nodes_and_services_are_one_kind_of_finding() {
        let late = "its clock is 61 s behind SCM's";
        let apart =
            DatanodeInfo { problem: late.to_owned(), clock_apart: true, ..node(1, NodeState::NodeHealthy) };
        let replaced = DatanodeInfo { problem: "gone".to_owned(), ..node(2, NodeState::NodeHealthy) };
        let of_nodes = codes(|findings| look_at_nodes(&[apart, replaced], findings));
        assert_eq!(of_nodes, [("node-problem", Severity::Warning), ("clock", Severity::Warning)]);

        let check = |name: &str, health: Health| Check {
            name: name.to_owned(),
            health: health as i32,
            output: late.to_owned(),
        };
        let instance = |service: &str, health: Health| Instance {
            service: service.to_owned(),
            id: "a".to_owned(),
            checks: vec![check("clock", Health::Warning), check("ready", health)],
            ..Instance::default()
        };
        let mut findings = Findings::default();
        look_at_services(
            &[instance("om", Health::Passing), instance("s3gw", Health::Passing)],
            &mut findings,
        );
        let [clock] = &findings.0[..] else { panic!("{:?}", findings.0) };
        assert_eq!((clock.code, clock.severity), ("clock", Severity::Warning));
        assert!(clock.what.ends_with(&format!(": s3gw a: {late}")), "{}", clock.what);
        let also_ill = codes(|findings| {
            look_at_services(
                &[instance("om", Health::Passing), instance("s3gw", Health::Critical)],
                findings,
            );
        });
        assert_eq!(also_ill, [("clock", Severity::Warning), ("service-critical", Severity::Critical)]);
        // The clocks of datanodes and OMs are told of from SCM's own word.
        let of_registry = [instance("om", Health::Passing), instance("datanode", Health::Passing)];
        let mut findings = Findings::default();
        look_at_services(&of_registry, &mut findings);
        assert!(findings.0.is_empty(), "{:?}", findings.0);
    }
}
