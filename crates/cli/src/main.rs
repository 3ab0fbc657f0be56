//! The `flotilla` binary: every role, the laptop cluster, and the command lines.

mod admin;
mod answer;
mod args;
mod backup;
mod credentials;
mod debug;
mod dev;
mod duration;
mod fs;
mod health;
mod http;
mod load;
mod logging;
mod memory;
mod memory_share;
mod metrics_page;
mod open_files;
mod output;
mod presence;
mod process_metrics;
mod ready;
mod reclaim_times;
mod role;
mod roles;
mod s3_limits;
mod server;
mod service_manager;
mod settings_file;
mod sh;
mod signals;
mod table;
mod version;

use args::{Args, Command};
use clap::{CommandFactory, Parser};
use std::process::ExitCode;
use tokio_util::task::AbortOnDropHandle;

/// The time for blocking work that is still under way when everything else has ended.
const STRAGGLERS_WITHIN: std::time::Duration = std::time::Duration::from_secs(5);

fn main() -> ExitCode {
    let words = args::with_plain_subcommands(std::env::args_os());
    let words = match settings_file::with_settings_file(words, &Args::command()) {
        Ok(words) => words,
        Err(error) => {
            output::complain(&format!("flotilla: {error:#}"));
            return ExitCode::from(args::WRONG_SETTINGS);
        }
    };
    let args = match Args::try_parse_from(words) {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(args::usage_exit_code(&error));
        }
    };
    logging::init(&args.command);
    // New files are private, but not where people fetch files of theirs.
    if matches!(args.command, Command::Dev(_) | Command::Server(_) | Command::Debug(_)) {
        disk::keep_new_files_private();
    }
    let serves = matches!(args.command, Command::Dev(_) | Command::Server(_));
    if serves && let Err(error) = disk::raise_open_files_limit() {
        tracing::warn!(%error, "the limit of open files stays as it is");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    let runtime = runtime.expect("a tokio runtime starts where threads and epoll are to be had");
    let code = runtime.block_on(async move {
        let _memory = serves.then(|| AbortOnDropHandle::new(tokio::spawn(memory::give_back_when_idle())));
        match args.command {
            Command::Dev(args) => exit_code(dev::run(args).await),
            Command::Server(args) => exit_code(server::run(*args).await),
            Command::Fs(args) => fs::run(args).await,
            Command::Sh(args) => admin_exit_code(sh::run(args).await),
            Command::Load(args) => admin_exit_code(load::run(args).await),
            Command::Admin(args) => admin_exit_code(admin::run(args).await),
            Command::Debug(args) => debug::run(args).await,
            Command::Health(args) => health::run(args).await,
            Command::Completion { shell } => exit_code(completion(shell)),
        }
    });
    // A stop that comes while disks are being opened does not wait for logs of hours: what a crash leaves is
    // what this leaves.
    runtime.shutdown_timeout(STRAGGLERS_WITHIN);
    code
}

fn completion(shell: clap_complete::Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "flotilla", &mut script);
    Ok(output::print_as_it_is(&String::from_utf8(script)?)?)
}

fn admin_exit_code(result: anyhow::Result<u8>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            let code = admin::exit_code(&error).map(ExitCode::from);
            let failure = exit_code(Err(error));
            code.unwrap_or(failure)
        }
    }
}

fn exit_code(result: anyhow::Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            output::complain(&format!("flotilla: {error:#}"));
            ExitCode::FAILURE
        }
    }
}
