use crate::server::{DEADLINE, Server};
use bytes::Bytes;
use proto::scm::*;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// A datanode as SCM hears it, without the datanode.
#[derive(Clone)]
pub(crate) struct Datanode {
    pub(crate) uuid: u8,
    pub(crate) node: u64,
    pub(crate) cluster: String,
    pub(crate) address: String,
    pub(crate) disks: Vec<DiskReport>,
}

impl Datanode {
    pub(crate) fn new(uuid: u8, disks: u8) -> Datanode {
        let disk = |n: u8| DiskReport {
            disk: Bytes::from([&[uuid; 15][..], &[n]].concat()),
            capacity_bytes: 1000,
            free_bytes: 1000 - u64::from(uuid) - u64::from(n),
            state: DiskState::Works as i32,
            ..DiskReport::default()
        };
        let disks = (0..disks).map(disk).collect();
        Datanode { uuid, node: 0, cluster: String::new(), address: format!("node{uuid}:7400"), disks }
    }

    pub(crate) async fn register(&mut self, server: &mut Server) -> Result<(), proto::Failure> {
        let request = RegisterRequest {
            uuid: Bytes::from(vec![self.uuid; 16]),
            cluster: self.cluster.clone(),
            address: self.address.clone(),
            disks: self.disks.clone(),
            node: 0,
            process: 0,
        };
        let response = server.client.register(request).await?.into_inner();
        (self.node, self.cluster) = (response.node, response.cluster);
        Ok(())
    }

    /// Comes back at another address: it is let in once nothing has been heard from the old one for a while.
    pub(crate) async fn move_to(&mut self, address: &str, server: &mut Server) {
        self.address = address.to_owned();
        let give_up = Instant::now() + DEADLINE;
        while let Err(failure) = self.register(server).await {
            assert_eq!(failure.code, proto::Code::PreconditionFailed, "{failure}");
            assert!(Instant::now() < give_up, "{failure}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    pub(crate) async fn heartbeat(&self, server: &mut Server) -> HeartbeatResponse {
        self.report(server, Vec::new()).await.unwrap()
    }

    pub(crate) async fn report(
        &self,
        server: &mut Server,
        pipelines: Vec<PipelineReport>,
    ) -> Result<HeartbeatResponse, proto::Failure> {
        let request = self.request(pipelines);
        Ok(server.client.heartbeat(request).await?.into_inner())
    }

    /// A heartbeat with a full report.
    pub(crate) async fn report_all(
        &self,
        server: &mut Server,
        pipelines: Vec<PipelineReport>,
        containers: Vec<ContainerReplica>,
    ) -> Result<HeartbeatResponse, proto::Failure> {
        let request = HeartbeatRequest {
            containers,
            report_begins: true,
            report_ends: true,
            ..self.request(pipelines)
        };
        Ok(server.client.heartbeat(request).await?.into_inner())
    }

    pub(crate) fn request(&self, pipelines: Vec<PipelineReport>) -> HeartbeatRequest {
        HeartbeatRequest {
            node: self.node,
            cluster: self.cluster.clone(),
            address: self.address.clone(),
            disks: self.disks.clone(),
            pipelines,
            ..HeartbeatRequest::default()
        }
    }

    /// The reports that this node would make of these pipelines if each were led by its first member.
    pub(crate) fn reports(&self, pipelines: &[Pipeline]) -> Vec<PipelineReport> {
        let mine = |pipeline: &Pipeline| {
            let member = pipeline.members.iter().find(|member| member.node == self.node)?;
            Some(PipelineReport {
                pipeline: pipeline.pipeline,
                replica: member.replica,
                term: 1,
                leader_replica: pipeline.members[0].replica,
                container: pipeline.first_container,
                container_bytes: 100,
                state: MemberState::Runs as i32,
                ..PipelineReport::default()
            })
        };
        pipelines.iter().filter_map(mine).collect()
    }
}

/// Registered datanodes of two disks, numbered from 1.
pub(crate) async fn register(server: &mut Server, count: u8) -> Vec<Datanode> {
    let mut datanodes: Vec<Datanode> = (1..=count).map(|uuid| Datanode::new(uuid, 2)).collect();
    for datanode in &mut datanodes {
        datanode.register(server).await.unwrap();
    }
    datanodes
}

/// The number of pipelines that each disk carries.
pub(crate) fn per_disk(pipelines: &[Pipeline]) -> BTreeMap<Bytes, u32> {
    let mut counts = BTreeMap::new();
    for member in pipelines.iter().flat_map(|pipeline| &pipeline.members) {
        *counts.entry(member.disk.clone()).or_default() += 1;
    }
    counts
}
