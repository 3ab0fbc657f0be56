//! The view that watchers follow.

use crate::leader::Leader;
use crate::view;
use proto::scm::ClusterView;
use std::sync::Arc;
use std::time::Duration;

/// The least time between two views: a cluster in motion costs at most fifty views a second.
const VIEW_INTERVAL_MIN: Duration = Duration::from_millis(20);

/// The time after which the view is looked at without a change, since silence changes it too: whoever led and
/// says nothing more leads no more.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Publishes a new view after each change of tables or reports, until the leadership ends. A first change is
/// published at once; those that follow within [`VIEW_INTERVAL_MIN`] come together.
pub(crate) async fn publish_views(leader: &Leader) {
    let mut tables_changes = leader.tables.changes();
    let mut reports_changes = leader.reports_changed.subscribe();
    loop {
        let view = leader.read(view::cluster_view);
        leader.view.send_if_modified(|current: &mut Arc<ClusterView>| {
            let differs = view::differs(current, &view);
            if differs {
                *current = Arc::new(view);
            }
            differs
        });
        tokio::time::sleep(VIEW_INTERVAL_MIN).await;
        // Both waits for changes are safe to cancel: a change that nobody has seen stays unseen.
        tokio::select! {
            _ = reports_changes.changed() => {}
            _ = tables_changes.changed() => {}
            () = tokio::time::sleep(LOOK_INTERVAL) => {}
        }
    }
}
