use anyhow::Context;
use clap::Parser;
use flotilla_kvnode::{Args, Node};
use tokio::signal::unix::{SignalKind, signal};

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_default_env().unwrap_or_else(|_| {
        tracing_subscriber::EnvFilter::new("warn,flotilla_raft=info,flotilla_kvnode=info")
    });
    tracing_subscriber::fmt().with_env_filter(filter).with_ansi(false).with_writer(std::io::stderr).init();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(args.worker_threads)
        .enable_all()
        .build()
        .context("start tokio")?;
    runtime.block_on(run(args))
}

async fn run(args: Args) -> anyhow::Result<()> {
    // Signals are listened for before anything is opened: one that comes early ends the process in order too.
    let mut terminate = signal(SignalKind::terminate()).context("listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("listen for SIGINT")?;
    let ready_file = args.ready_file.clone();
    let node = Node::start(args).await?;
    if let Some(path) = ready_file {
        let text = format!("RAFT={}\nCLIENT={}\n", node.raft_address(), node.client_address());
        disk::write_private_file_durably(&path, text.as_bytes()).context("write the ready file")?;
    }
    println!("ready raft={} client={}", node.raft_address(), node.client_address());
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    node.stop().await;
    Ok(())
}
