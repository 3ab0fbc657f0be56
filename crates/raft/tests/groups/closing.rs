//! A disk that holds up a state machine while its replica is ended.

use crate::cluster::{CLUSTER, TIMING};
use crate::metadata::{GROUP, log_spec};
use bytes::Bytes;
use disk::RealDisk;
use flotilla_raft::{
    AddressBook, Applied, Command, Committed, GroupSpec, GroupStart, HostOptions, Member, RaftHost, Role,
    StateMachine,
};
use raftlog::{LogSpace, LogSpaceOptions};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use types::{NodeId, ReplicaId};

/// Applies a command once it is let, and says whether it is still there.
struct HeldUp {
    begun: Sender<()>,
    let_go: Mutex<Receiver<()>>,
    is_there: Arc<AtomicBool>,
}

impl StateMachine for HeldUp {
    fn applied(&self) -> anyhow::Result<Option<Applied>> {
        Ok(None)
    }

    fn apply(&mut self, batch: Vec<Committed>, _: Applied) -> anyhow::Result<Vec<Bytes>> {
        if !batch.is_empty() {
            self.begun.send(()).expect("the test waits");
            // Dropped: the test is over.
            let _ = self.let_go.lock().expect("no holder panics").recv();
        }
        Ok(vec![Bytes::new(); batch.len()])
    }
}

impl Drop for HeldUp {
    fn drop(&mut self) {
        self.is_there.store(false, Ordering::SeqCst);
    }
}

/// A time that is longer than a close waits for a group that does not stop.
const LONGER_THAN_A_CLOSE: Duration = Duration::from_secs(25);

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_replica_is_not_retired_while_its_state_machine_still_works() {
    let dir = tempfile::tempdir().unwrap();
    let space = LogSpace::new(Arc::new(RealDisk::open(dir.path(), 1).unwrap()), LogSpaceOptions::default());
    let host = RaftHost::new(HostOptions::default(), AddressBook::default());
    let replica = ReplicaId(1);
    let spec = GroupSpec {
        cluster: CLUSTER.to_owned(),
        group: GROUP,
        replica,
        timing: TIMING,
        start: GroupStart::First(vec![Member {
            replica,
            node: NodeId(1),
            address: "127.0.0.1:1".to_owned(),
        }]),
        campaign: true,
        lease_reads: false,
        snapshots: None,
    };
    let ((begun, has_begun), (let_it_go, let_go)) = (channel(), channel());
    let is_there = Arc::new(AtomicBool::new(true));
    let machine = HeldUp { begun, let_go: Mutex::new(let_go), is_there: is_there.clone() };
    let group = host.open(spec, &space, log_spec(), machine).await.unwrap();
    group.watch().wait_for(|status| status.role == Role::Leader).await.unwrap();
    let proposed = tokio::spawn(async move { group.apply(Command::default()).await });
    tokio::task::spawn_blocking(move || has_begun.recv()).await.unwrap().unwrap();

    let (retiring, space) = (host.clone(), space.clone());
    let mut retired = tokio::spawn(async move { retiring.retire(GROUP, replica, &space).await });
    tokio::time::timeout(LONGER_THAN_A_CLOSE, &mut retired)
        .await
        .expect_err("what it writes is nobody else's yet");
    let_it_go.send(()).unwrap();
    retired.await.unwrap().unwrap();
    assert!(!is_there.load(Ordering::SeqCst));
    let _ = proposed.await;
}
