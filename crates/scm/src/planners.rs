//! The planners, which make what SCM's leader decides by itself of groups, pipelines, containers and nodes
//! (the registry has its own, beside them). Each tick looks at the world once and asks the planners, which
//! are functions of it and of what they remember: their decisions are commands for the log, carried out
//! before the next tick, or orders for nodes, which hear of them in their heartbeats.

use crate::adoption::Adoption;
use crate::balancer::Balancer;
use crate::closing::{Closing, ClosingGraces};
use crate::departures;
use crate::leader::Leader;
use crate::leader_moves::LeaderBalancer;
use crate::om_groups::OmGroups;
use crate::om_leaders::{self, OmSuccession};
use crate::ops::delete_containers::DELETE_CONTAINERS_MAX;
use crate::options::ScmOptions;
use crate::pipelines::{Placing, creation, ready_to_open};
use crate::replication::{Replication, SLICE, Tasks, note_replaced};
use crate::resolution::Resolution;
use crate::safe_mode;
use crate::world::World;
use proto::Failure;
use proto::scm::{
    AdoptCommand, ChangeOmGroupCommand, DeleteContainersCommand, NoteNodesCommand, OpenPipelineCommand,
    SettleContainersCommand, scm_command::Command,
};
use std::time::Duration;
use tokio::time::{Instant, sleep_until};
use tracing::{info, warn};
use types::ContainerId;

/// The time between two looks at everything. Ten thousand pipelines take a few milliseconds.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// The time between two looks at the containers of nodes that leave.
const DEPARTURES_INTERVAL: Duration = Duration::from_secs(1);
/// The time between two looks of each balancer, each of which moves at most one thing.
const BALANCE_INTERVAL: Duration = Duration::from_secs(2);
/// The time for which a group's leader is told who is to lead instead.
pub(crate) const OM_SUCCESSION_MAX: Duration = Duration::from_secs(15);
/// The most commands of one tick, which bounds the proposals in flight.
const COMMANDS_MAX: usize = 256;

/// The length, in the log, of a decision that is not carried out.
const WHAT_CHARS_MAX: usize = 200;

/// The planners of one leadership.
struct Planners {
    options: ScmOptions,
    om_groups: OmGroups,
    placing: Placing,
    adoption: Adoption,
    closing: Closing,
    resolution: Resolution,
    leaders: LeaderBalancer,
    balancer: Balancer,
    look: Pace,
    departures: Pace,
    balance: Pace,
    balance_oms: Pace,
}

/// The decisions of one tick, beside orders.
#[derive(Default)]
struct Decisions {
    commands: Vec<Command>,
    /// Whether a round of placement was due: pipelines were placed, or there was no place for one.
    has_placed: bool,
    enough_is_known: bool,
    successions: Vec<OmSuccession>,
}

/// The pace of something that is done at intervals.
struct Pace {
    interval: Duration,
    due: Instant,
}

/// Runs until the leadership ends.
pub(crate) async fn decide(leader: &Leader) {
    let mut planners = Planners::new(&leader.options, Instant::now());
    let mut view = leader.view.subscribe();
    loop {
        let Decisions { commands, has_placed, enough_is_known, successions } = tick(leader, &mut planners);
        for OmSuccession { group, replica, why } in successions {
            info!(group, replica, why, "move the leader of names");
            leader.change_oms(|oms| oms.wish(group, replica, Instant::now() + OM_SUCCESSION_MAX));
        }
        if enough_is_known {
            info!("enough is known to move data");
            leader.set_left_safe_mode();
        }
        futures::future::join_all(commands.into_iter().map(|command| carry_out(leader, command))).await;
        if has_placed {
            leader.rounds.send_modify(|rounds| *rounds += 1);
        }
        tokio::select! {
            () = leader.places_changed.notified() => {}
            () = leader.oms_changed.notified() => {}
            _ = view.changed() => {}
            () = sleep_until(planners.due(Instant::now())) => {}
        }
    }
}

fn tick(leader: &Leader, planners: &mut Planners) -> Decisions {
    let now = Instant::now();
    let is_look_due = planners.look.is_due(now);
    let changed = leader.change_nodes(|tables, nodes| {
        if !is_look_due {
            return Vec::new();
        }
        note_replaced(tables, nodes, now);
        nodes.replicas_mut().take_changed(SLICE)
    });
    let (places, is_known) = (leader.places(), leader.has_left_safe_mode());
    leader.plan(|world, replication| {
        let names = planners.om_groups.decide(world);
        let mut decisions = planners.place(places, world);
        decisions.commands.splice(0..0, names);
        if is_look_due {
            decisions.enough_is_known = !is_known && safe_mode::waits(world).is_empty();
            decisions.commands.extend(planners.look(world, &replication.tasks));
            decisions.successions = om_leaders::plan_from_full(world);
            if decisions.successions.is_empty() && planners.balance_oms.is_due(now) {
                decisions.successions.extend(om_leaders::plan(world, planners.options.leader_move_interval));
            }
            planners.order(changed, world, replication);
            decisions.commands.extend(planners.reclaim(world, replication));
        }
        decisions.commands.truncate(COMMANDS_MAX);
        decisions
    })
}

impl Planners {
    fn new(options: &ScmOptions, now: Instant) -> Planners {
        let graces = ClosingGraces {
            member_fault: options.member_fault_grace,
            quasi_close: options.quasi_close_after,
            let_go: options.stale_after,
        };
        Planners {
            om_groups: OmGroups::new(options.placement_delay, options.om_groups),
            placing: Placing::new(options.placement_delay, options.pipelines_per_disk, now),
            adoption: Adoption::new(options.stale_after),
            closing: Closing::new(graces),
            resolution: Resolution::new(options.stale_after),
            leaders: LeaderBalancer::new(options.leader_move_interval),
            balancer: Balancer::new(options),
            look: Pace::new(LOOK_INTERVAL, now),
            departures: Pace::new(DEPARTURES_INTERVAL, now),
            balance: Pace::new(BALANCE_INTERVAL, now),
            balance_oms: Pace::new(BALANCE_INTERVAL, now),
            options: options.clone(),
        }
    }

    fn due(&self, now: Instant) -> Instant {
        let due = self.look.due.min(self.placing.due());
        self.om_groups.due(now).map_or(due, |names| names.min(due))
    }

    /// Decides on new pipelines: places them, and opens those that have a leader.
    fn place(&mut self, places: u64, world: &World<'_>) -> Decisions {
        let open = |pipeline| Command::OpenPipeline(OpenPipelineCommand { pipeline });
        let mut commands: Vec<Command> = ready_to_open(world).map(|pipeline| open(pipeline.0)).collect();
        let placed = self.placing.plan(places, world);
        let has_placed = placed.is_some();
        let create = |places| Command::CreatePipeline(creation(places));
        commands.extend(placed.into_iter().flatten().map(create));
        Decisions { commands, has_placed, ..Decisions::default() }
    }

    /// Decides what goes on with pipelines, containers and nodes that are there.
    fn look(&mut self, world: &World<'_>, tasks: &Tasks) -> Vec<Command> {
        let mut commands: Vec<Command> =
            self.adoption.decide(world).map(Command::Adopt).into_iter().collect();
        commands.extend(self.closing.decide(world));
        let containers = self.resolution.decide(world);
        if !containers.is_empty() {
            commands.push(Command::SettleContainers(SettleContainersCommand { containers }));
        }
        if self.departures.is_due(world.now) {
            commands.extend(departures::due(world, tasks).into_iter().map(Command::SetNodeDuty));
            let deaths = departures::deaths(world).inspect(|NoteNodesCommand { dead, back }| {
                info!(?dead, ?back, "nodes are dead, or have come back");
            });
            commands.extend(deaths.map(Command::NoteNodes));
        }
        commands
    }

    /// Gives the orders that nodes are asked to carry out.
    fn order(&mut self, changed: Vec<ContainerId>, world: &World<'_>, replication: &mut Replication) {
        replication.look(changed, world, &self.options);
        let tasks = &mut replication.tasks;
        if self.balance.is_due(world.now) {
            if let Some(best) = self.leaders.plan(world, tasks) {
                info!(pipeline = %best.pipeline, from = %best.from, to = %best.to, "move a leader");
                tasks.ask(best.from, best.order(), world.now);
            }
            if let Some((to, order)) = self.balancer.plan(world, tasks) {
                info!(%to, ?order, "move a container for balance");
                tasks.ask(to, order, world.now);
            }
        }
    }

    /// The command that deletes containers in which nothing is left.
    fn reclaim(&mut self, world: &World<'_>, replication: &Replication) -> Option<Command> {
        let Replication { discards, tasks, .. } = replication;
        let containers = discards.to_delete(world, tasks, DELETE_CONTAINERS_MAX);
        (!containers.is_empty()).then_some(Command::DeleteContainers(DeleteContainersCommand { containers }))
    }
}

impl Pace {
    fn new(interval: Duration, now: Instant) -> Pace {
        Pace { interval, due: now }
    }

    /// Whether it is time; if so, the next time is an interval from now.
    fn is_due(&mut self, now: Instant) -> bool {
        let is_due = now >= self.due;
        if is_due {
            self.due = now + self.interval;
        }
        is_due
    }
}

async fn carry_out(leader: &Leader, command: Command) {
    let refused = match leader.propose(command.clone()).await {
        Ok(reply) if reply.refused.is_empty() => None,
        Ok(reply) => Some(Failure::internal(reply.refused)),
        Err(failure) => Some(failure),
    };
    if let Some(failure) = refused {
        let what: String = format!("{command:?}").chars().take(WHAT_CHARS_MAX).collect();
        warn!(%failure, what, "a decision is not carried out");
        return;
    }
    tell(&command);
    if matches!(command, Command::ClosePipeline(_) | Command::EndPipeline(_) | Command::SetNodeDuty(_)) {
        leader.note_places_changed();
    }
}

fn tell(command: &Command) {
    match command {
        Command::CreatePipeline(create) => {
            let nodes: Vec<u64> = create.places.iter().map(|place| place.node).collect();
            info!(?nodes, "created a pipeline");
        }
        Command::OpenPipeline(open) => info!(pipeline = open.pipeline, "pipeline is open"),
        Command::ClosePipeline(close) => {
            info!(pipeline = close.pipeline, reason = %close.reason, "pipeline closes");
        }
        Command::QuasiClosePipeline(close) => {
            warn!(pipeline = close.pipeline, "nobody leads it to its end: its members end by themselves");
        }
        Command::EndPipeline(end) => info!(pipeline = end.pipeline, "pipeline is over"),
        Command::SettleContainers(settled) => tell_settled(settled),
        Command::DeleteContainers(DeleteContainersCommand { containers }) => {
            let containers: Vec<u64> = containers.iter().map(|emptied| emptied.container).collect();
            info!(?containers, "nothing is left in these containers; their replicas go");
        }
        Command::Adopt(adopt) => tell_adopted(adopt),
        Command::SetNodeDuty(set) => info!(node = set.node, duty = set.duty().as_str_name(), "node's duty"),
        Command::SetOmDuty(set) => info!(om = set.om, duty = set.duty().as_str_name(), "OM's duty"),
        Command::FoundOmGroup(found) => {
            info!(group = found.group, om = found.om, "an OM is to begin a group of names");
        }
        Command::NoteOmGroup(noted) => {
            let replicas = noted.members.iter().map(|member| member.replica);
            let oms = noted.members.iter().map(|member| member.om);
            let (replicas, oms): (Vec<u64>, Vec<u64>) = (replicas.collect(), oms.collect());
            info!(group = noted.group, ?replicas, ?oms, "a group of names has these members");
        }
        Command::ChangeOmGroup(change) => {
            let ChangeOmGroupCommand { group, removed, added } = change;
            info!(group, ?removed, ?added, "a group of names is to change: replicas leave, OMs come");
        }
        _ => {}
    }
}

fn tell_settled(settled: &SettleContainersCommand) {
    for closed in &settled.containers {
        info!(
            container = closed.container,
            state = closed.state().as_str_name(),
            last_term = closed.last_term,
            last_index = closed.last_index,
            "container is settled"
        );
    }
}

fn tell_adopted(adopt: &AdoptCommand) {
    for described in &adopt.pipelines {
        let members: Vec<u64> = described.members.iter().map(|member| member.node).collect();
        warn!(pipeline = described.pipeline, ?members, "adopted a pipeline that the forced reset had lost");
    }
    for container in &adopt.containers {
        let (container, pipeline) = (container.container, container.pipeline);
        warn!(container, pipeline, "adopted a container that the forced reset had lost");
    }
}
