//! The kinds of orders: what each is about, and who carries it out. **A new kind is a message on the wire and
//! an arm here.**

use super::check::check_replica;
use super::close::close_replica;
use super::copy::copy;
use super::delete::delete_replica;
use super::discard::{discard, take_discards};
use super::order::{Key, Means, Order};
use crate::ending::Ender;
use crate::opening::{Begins, Opener};
use crate::pipeline::PipelineOrder;
use anyhow::bail;
use prost::Message;
use proto::scm::task::Task as Told;
use proto::scm::{
    CheckReplica, CloseReplica, MemberState, Pipeline, PipelineReport, PipelineState, RollContainer, Task,
    TaskKind,
};
use types::{ContainerId, LogId, LogIndex, NodeId, PipelineId, ReplicaId, Term};

/// The parts of a node that make its pipelines what SCM says they are.
#[derive(Clone)]
pub(crate) struct Carrier {
    pub opener: Opener,
    pub ender: Ender,
}

impl Means {
    /// The order that a task comes to; `None` for a task of a kind that only a newer SCM knows.
    pub(crate) fn order(&self, task: Task) -> Option<Order> {
        let means = self.clone();
        let said = said(&task);
        let order = match task.task? {
            Told::Copy(order) => {
                let key = Key::container(TaskKind::TaskCopy, ContainerId(order.container));
                Order::new(key, "copy", |run| async move { copy(&means, order, &run).await })
            }
            Told::Delete(order) => {
                let key = Key::container(TaskKind::TaskDelete, ContainerId(order.container));
                Order::new(key, "delete", |run| async move { delete_replica(&means, &order, &run).await })
            }
            Told::Close(CloseReplica { container, last_term, last_index }) => {
                let container = ContainerId(container);
                let last = LogId { term: Term(last_term), index: LogIndex(last_index) };
                let last = Some(last).filter(|last| *last != LogId::default());
                let key = Key::container(TaskKind::TaskClose, container);
                Order::new(key, "close", move |_| async move {
                    Ok(close_replica(&means.disks, container, last).await?)
                })
            }
            Told::Check(CheckReplica { container, asked_ms }) => {
                let container = ContainerId(container);
                let key = Key::container(TaskKind::TaskCheck, container);
                Order::new(key, "check", move |run| async move {
                    run.until_stop(check_replica(&means, container, asked_ms, &run.progress)).await
                })
            }
            Told::MoveLeader(order) => {
                let key = Key::pipeline(TaskKind::TaskMoveLeader, PipelineId(order.pipeline));
                Order::new(key, "move the leader", move |run| async move {
                    let pipeline = means.pipelines.running(key.pipeline)?;
                    let moving = pipeline.group.transfer_leader(ReplicaId(order.to_replica));
                    run.until_stop(async { Ok(moving.await?) }).await
                })
            }
            Told::Discard(order) => {
                let key = Key::container(TaskKind::TaskDiscard, ContainerId(order.container));
                let portion = order.portion;
                let discard =
                    Order::new(
                        key,
                        "discard blocks",
                        |run| async move { discard(&means, order, &run).await },
                    );
                Order { portion, ..discard }
            }
            Told::TakeDiscards(order) => {
                let key = Key::container(TaskKind::TaskTakeDiscards, ContainerId(order.container));
                Order::new(
                    key,
                    "take discards",
                    |run| async move { take_discards(&means, order, &run).await },
                )
            }
            Told::Roll(RollContainer { pipeline, container }) => {
                let (pipeline, container) = (PipelineId(pipeline), ContainerId(container));
                let key = Key { container, ..Key::pipeline(TaskKind::TaskRoll, pipeline) };
                Order::new(key, "roll", move |_| async move {
                    means.pipelines.running(pipeline)?.roll_after(container);
                    Ok(())
                })
            }
        };
        Some(order.saying(said))
    }
}

/// The task's bytes, without what makes it no other task: where a copy comes from.
fn said(task: &Task) -> Vec<u8> {
    let mut task = task.clone();
    if let Some(Told::Copy(copy)) = &mut task.task {
        copy.sources.clear();
    }
    task.encode_to_vec()
}

impl Carrier {
    /// The order that a pipeline's state comes to on this node; `None` where nothing is left to do. A
    /// pipeline is one key: its replica is created, ended and let go of one after the other.
    pub(crate) fn order(&self, node: NodeId, pipeline: &Pipeline) -> Option<Order> {
        let (id, end) = (PipelineId(pipeline.pipeline), ContainerId(pipeline.end_container));
        let key = Key::pipeline(TaskKind::TaskPipeline, id);
        let Carrier { opener, ender } = self.clone();
        let own = PipelineOrder::for_node(pipeline, node).transpose()?;
        let order = match pipeline.state() {
            PipelineState::PipelineAllocated | PipelineState::PipelineOpen => {
                if opener.pipelines.open(id).is_some() {
                    return None;
                }
                let report = own.as_ref().ok().map(|own| PipelineReport {
                    pipeline: id.0,
                    replica: own.replica.0,
                    state: MemberState::Opening.into(),
                    ..PipelineReport::default()
                });
                let (what, begins) = match pipeline.has_begun {
                    true => ("open", Begins::Before),
                    false => ("create", Begins::Anew),
                };
                let create = Order::new(key, what, move |run| async move {
                    let order = own?;
                    // A creation goes on to its end, also when SCM wants something else meanwhile: half of a
                    // pipeline would be in nobody's books.
                    run.until_node_ends(async { Ok(opener.carry_out(&order, begins).await.map(drop)?) }).await
                });
                Order { making: report, ..create }
            }
            PipelineState::PipelineQuasiClosing => Order::new(key, "quasi-close", move |_| async move {
                ender.end_pipeline(id, end);
                ender.quasi_close_pipeline(id).await
            }),
            PipelineState::PipelineClosing => Order::new(key, "end", move |_| async move {
                ender.end_pipeline(id, end);
                Ok(())
            }),
            PipelineState::PipelineClosed => {
                Order::new(key, "let go", |_| async move { ender.let_go_ordered(own?).await })
            }
            PipelineState::Unspecified => Order::new(key, "nothing known", |_| async move {
                bail!("SCM names no state of the pipeline that is known here")
            }),
        };
        Some(order.saying(end.0.to_le_bytes().to_vec()))
    }
}
