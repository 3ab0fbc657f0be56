use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// Changes with each SIGHUP: files whose names were given away are to be opened again.
pub(crate) type Hangups = watch::Receiver<()>;

/// Listens to the signals with which an operator speaks to the process, from this call on. The token is
/// cancelled by the first SIGTERM or Ctrl-C: the process is to stop in an orderly way. The second one ends it
/// at once, which is what a crash does, and costs no more than that. SIGHUP, which a closed terminal sends
/// too, ends nothing.
pub(crate) fn listen() -> anyhow::Result<(CancellationToken, Hangups)> {
    let signals = Signals {
        terminate: signal(SignalKind::terminate()).context("wait for SIGTERM")?,
        interrupt: signal(SignalKind::interrupt()).context("wait for Ctrl-C")?,
        hangup: signal(SignalKind::hangup()).context("wait for SIGHUP")?,
    };
    let stop = CancellationToken::new();
    let (hung_up, hangups) = watch::channel(());
    tokio::spawn(run(signals, stop.clone(), hung_up));
    Ok((stop, hangups))
}

struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

async fn run(mut signals: Signals, stop: CancellationToken, hung_up: watch::Sender<()>) {
    loop {
        let ends = tokio::select! {
            received = signals.terminate.recv() => received.map(|()| SignalKind::terminate()),
            received = signals.interrupt.recv() => received.map(|()| SignalKind::interrupt()),
            received = signals.hangup.recv() => match received {
                Some(()) => {
                    info!("SIGHUP: the request log, if there is one, is opened again; nothing else is done");
                    hung_up.send_replace(());
                    continue;
                }
                None => None,
            },
        };
        // The runtime ends.
        let Some(kind) = ends else { return };
        if stop.is_cancelled() {
            warn!("a second signal: the process ends at once");
            // The exit code is that by which a shell says that a signal ended a process.
            std::process::exit(128 + kind.as_raw_value());
        }
        stop.cancel();
    }
}
