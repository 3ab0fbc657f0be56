//! `flotilla admin`: asks SCM and prints, as a table for people or as JSON for programs.

mod datanode;
mod pipeline;

use crate::args::{AdminArgs, AdminCommand, DatanodeCommand, PipelineCommand};
use anyhow::Context;
use proto::Failure;
use proto::scm::scm_client::ScmClient;
use std::time::Duration;
use tonic::transport::{Channel, Endpoint};

pub(crate) async fn run(args: AdminArgs) -> anyhow::Result<()> {
    let mut scm = connect(&args.cluster.scm).await?;
    match args.command {
        AdminCommand::Pipeline(PipelineCommand::List) => pipeline::list(&mut scm, args.json).await,
        AdminCommand::Datanode(DatanodeCommand::List) => datanode::list(&mut scm, args.json).await,
    }
}

async fn connect(address: &str) -> anyhow::Result<ScmClient<Channel>> {
    let endpoint = Endpoint::from_shared(format!("http://{address}"));
    let endpoint = endpoint.with_context(|| format!("`{address}` is not host:port (--scm)"))?;
    let endpoint = endpoint.connect_timeout(Duration::from_secs(3)).timeout(Duration::from_secs(10));
    let channel = endpoint.connect().await;
    let channel = channel.with_context(|| format!("no SCM answers at {address} (--scm, FLOTILLA_SCM)"))?;
    Ok(ScmClient::new(channel))
}

/// What SCM refused, in its own words.
fn refused(status: tonic::Status) -> anyhow::Error {
    anyhow::Error::new(Failure::from(status)).context("SCM refused")
}
