//! `flotilla fs`: files and directories, with the words, the errors and the exit codes of `hadoop fs`.

mod cat;
mod failure;
mod get;
mod local;
mod ls;
mod mkdir;
mod path;
mod put;
mod rm;
mod store;

use crate::args::{FsArgs, FsCommand, WRONG_USAGE};
use crate::output::{complain, printable};
use client::{Client, ClientOptions};
use failure::Failure;
use std::process::ExitCode;
use std::time::Duration;
use store::Store;

/// The time for which a client goes on trying: somebody waits at a terminal. A gateway would try for longer.
const PATIENCE: Duration = Duration::from_secs(10);

pub(crate) async fn run(args: FsArgs) -> ExitCode {
    let options = ClientOptions {
        scm: args.cluster.scm.clone(),
        write_deadline: PATIENCE,
        read_deadline: PATIENCE,
        ..ClientOptions::default()
    };
    let scm = options.scm.clone();
    let store = Store::new(Client::connect(options));
    let (name, failures) = match args.command {
        FsCommand::Ls { help: _, recursive, human, directory, paths } => {
            let depth = match (directory, recursive) {
                (true, _) => ls::Depth::Itself,
                (false, true) => ls::Depth::All,
                (false, false) => ls::Depth::Children,
            };
            ("ls", ls::run(&store, depth, human, &paths).await)
        }
        FsCommand::Put { force, ack, paths } => ("put", put::run(&store, force, ack, &paths).await),
        FsCommand::Get { force, paths } => ("get", get::run(&store, force, &paths).await),
        FsCommand::Cat { paths } => ("cat", cat::run(&store, &paths).await),
        FsCommand::Rm { force, recursive, skip_trash: _, paths } => {
            ("rm", rm::run(&store, force, recursive, &paths).await)
        }
        FsCommand::Mkdir { parents, paths } => ("mkdir", mkdir::run(&store, parents, &paths).await),
    };
    for failure in &failures {
        let at = match failure {
            Failure::Cluster(_) => format!("cluster of SCM at {scm}: "),
            _ => String::new(),
        };
        complain(&format!("{name}: {at}{}", printable(&failure.to_string())));
    }
    match failures.as_slice() {
        [] => ExitCode::SUCCESS,
        [Failure::Arguments(_)] => ExitCode::from(WRONG_USAGE),
        _ => ExitCode::FAILURE,
    }
}
