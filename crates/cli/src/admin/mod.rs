//! `flotilla admin`: asks SCM and prints, as a table for people or as JSON for programs.

pub(crate) mod args;
mod bucket;
mod bucket_move;
mod container;
mod datanode;
mod keys;
mod log;
mod members;
mod om;
mod om_backup;
mod om_groups;
mod om_restore;
mod om_wire;
mod pipeline;
mod rack;
mod raft;
mod registry;
mod safe_mode;
mod scm;
mod space;
mod status;
mod sweep;
mod switches;
mod unsettled;
mod unused;
mod uploads;
mod views;
mod words;

pub(crate) use self::registry::exit_code;
pub(crate) use self::status::FREE_PERCENT_WARNING;
use crate::answer::Answer;
use anyhow::bail;
use args::{AdminArgs, AdminCommand, KeyCommand};
use scm::Scm;

/// Does what the command asks, and returns the exit code.
pub(crate) async fn run(args: AdminArgs) -> anyhow::Result<u8> {
    if let Some(watch) = registry::watch_of(&args.command) {
        registry::watch(&args.cluster.scm, watch, args.looks.json).await?;
        return Ok(0);
    }
    if let AdminCommand::Log { rpc, directives, reset } = &args.command {
        if args.looks.watch.is_some() {
            bail!("--watch repeats questions to the cluster, and this one is to a process");
        }
        log::run(rpc, directives.clone(), *reset).await?.print(args.looks.json)?;
        return Ok(0);
    }
    let mut scm = Scm::new(&args.cluster.scm)?;
    let AdminArgs { looks, command, .. } = args;
    looks.show(command.only_looks(), async || answer(&mut scm, command.clone()).await).await
}

async fn answer(scm: &mut Scm, command: AdminCommand) -> anyhow::Result<Answer> {
    match command {
        AdminCommand::Status => status::run(scm).await,
        AdminCommand::Pipeline(command) => pipeline::run(scm, command).await,
        AdminCommand::Container(command) => container::run(scm, command).await,
        AdminCommand::Datanode(command) => datanode::run(scm, command).await,
        AdminCommand::Rack(command) => rack::run(scm, command).await,
        AdminCommand::Scm(command) => members::run(scm, command).await,
        AdminCommand::Om(command) => om::run(scm, command).await,
        AdminCommand::Bucket(command) => bucket::run(&scm.addresses().join(","), command).await,
        AdminCommand::Key(KeyCommand::Explain { path }) => keys::explain(scm, &path).await,
        AdminCommand::Raft(command) => raft::run(scm, command).await,
        AdminCommand::SafeMode(command) => safe_mode::run(scm, command).await,
        AdminCommand::Replication(command) => switches::replication(scm, command).await,
        AdminCommand::Balancer(command) => switches::balancer(scm, command).await,
        AdminCommand::Space { command } => space::run(scm, command).await,
        AdminCommand::Reclaim(command) => space::reclaim(scm, command).await,
        AdminCommand::Sweep(command) => sweep::run(scm, command).await,
        AdminCommand::Log { .. } => bail!("a process is asked for what it logs, and no cluster"),
        AdminCommand::Registry(command) => registry::run(&scm.addresses().join(","), command).await,
    }
}
