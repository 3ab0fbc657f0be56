//! `flotilla admin`: asks SCM and prints, as a table for people or as JSON for programs.

mod answer;
pub(crate) mod args;
mod container;
mod datanode;
mod pipeline;
mod safe_mode;
mod scm;
mod switches;
mod words;

use answer::Answer;
use anyhow::bail;
use args::{AdminArgs, AdminCommand};
use scm::Scm;

pub(crate) async fn run(args: AdminArgs) -> anyhow::Result<()> {
    let mut scm = Scm::new(&args.cluster.scm);
    let Some(pause) = args.watch else {
        return answer(&mut scm, args.command).await?.print(args.json);
    };
    if !args.command.only_looks() {
        bail!("--watch repeats a command, and this one changes something");
    }
    loop {
        answer(&mut scm, args.command.clone()).await?.print_again(args.json)?;
        tokio::time::sleep(pause).await;
    }
}

async fn answer(scm: &mut Scm, command: AdminCommand) -> anyhow::Result<Answer> {
    match command {
        AdminCommand::Pipeline(command) => pipeline::run(scm, command).await,
        AdminCommand::Container(command) => container::run(scm, command).await,
        AdminCommand::Datanode(command) => datanode::run(scm, command).await,
        AdminCommand::SafeMode(command) => safe_mode::run(scm, command).await,
        AdminCommand::Replication(command) => switches::replication(scm, command).await,
        AdminCommand::Balancer(command) => switches::balancer(scm, command).await,
    }
}
