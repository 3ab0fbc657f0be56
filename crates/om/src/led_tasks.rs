use crate::replica::Replica;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use tokio::task::{AbortHandle, JoinSet};
use types::{GroupId, ReplicaId};

/// Tasks for replicas that lead, one at a time for each thing that one has to do. A task ends with its
/// replica's lead, whatever it waits for: it holds the replica, whose tables are to be deleted, and made
/// anew, once SCM wants that.
pub(crate) struct LedTasks<T> {
    tasks: JoinSet<()>,
    under_way: BTreeMap<(GroupId, ReplicaId, T), AbortHandle>,
}

impl<T> Default for LedTasks<T> {
    fn default() -> LedTasks<T> {
        LedTasks { tasks: JoinSet::new(), under_way: BTreeMap::new() }
    }
}

impl<T: Ord> LedTasks<T> {
    /// Ends the tasks for all replicas but these, which lead.
    pub(crate) fn keep(&mut self, led: &[Arc<Replica>]) {
        while self.tasks.try_join_next().is_some() {}
        let led: BTreeSet<_> = led.iter().map(|replica| (replica.group.id(), replica.id())).collect();
        let is_over = |(group, replica, _): &(GroupId, ReplicaId, T)| !led.contains(&(*group, *replica));
        let over = self.under_way.iter().filter(|(of, _)| is_over(of));
        over.for_each(|(_, task)| task.abort());
        self.under_way.retain(|_, task| !task.is_finished());
    }

    /// Begins a task for a replica, unless it is under way.
    pub(crate) fn begin<F>(&mut self, replica: &Replica, thing: T, work: impl FnOnce() -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let of = (replica.group.id(), replica.id(), thing);
        let tasks = &mut self.tasks;
        self.under_way.entry(of).or_insert_with(|| tasks.spawn(work()));
    }
}
