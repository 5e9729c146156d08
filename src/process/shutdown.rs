//! How a process is asked to end: SIGTERM and SIGINT end it in order; a second signal, or an end that takes too
//! long, ends it at once. SIGHUP never ends it.

use std::sync::OnceLock;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::time::Duration;

use tanist_telemetry::ExitCode;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

static FIRST_SIGNAL: OnceLock<ExitCode> = OnceLock::new();

/// The exit code of the first signal, for a command that a signal ended before its result.
pub fn interrupted_by() -> ExitCode {
    FIRST_SIGNAL.get().copied().unwrap_or(ExitCode::Interrupted)
}

/// Watches for signals from here on. The first one cancels the token.
pub fn watch_signals(shutdown_timeout: Duration) -> std::io::Result<CancellationToken> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    // SIGHUP must not end a process that runs a part of a cluster, even if nothing else handles it.
    let hangup = signal(SignalKind::hangup())?;
    let stop = CancellationToken::new();
    let asked = stop.clone();
    tokio::spawn(async move {
        let _hangup = hangup;
        let name = next(&mut terminate, &mut interrupt).await;
        let code = match name {
            "SIGTERM" => ExitCode::Terminated,
            _ => ExitCode::Interrupted,
        };
        // Only the first one counts.
        let _ = FIRST_SIGNAL.set(code);
        info!(signal = name, "shutdown was requested");
        asked.cancel();
        start_watchdog(shutdown_timeout);
        let name = next(&mut terminate, &mut interrupt).await;
        error!(
            signal = name,
            "shutdown was requested a second time: ending at once"
        );
        end_at_once("a second signal arrived before the shutdown was complete");
    });
    Ok(stop)
}

async fn next(terminate: &mut Signal, interrupt: &mut Signal) -> &'static str {
    tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    }
}

/// Ends the process after the timeout. On a dedicated thread, since every runtime may hang.
fn start_watchdog(timeout: Duration) {
    let watchdog = move || {
        // No message is ever sent. The lints forbid sleeping threads; this is the permitted wait, for the one
        // thread that needs it.
        let (keep, never) = sync_channel::<()>(0);
        if never.recv_timeout(timeout) == Err(RecvTimeoutError::Timeout) {
            end_at_once("the shutdown took longer than process.shutdown-timeout");
        }
        drop(keep);
    };
    let started = std::thread::Builder::new()
        .name("watchdog".to_owned())
        .spawn(watchdog);
    if let Err(failure) = started {
        error!(%failure, "no thread for the watchdog of the shutdown");
    }
}

fn end_at_once(cause: &str) {
    ExitCode::ShutdownCutShort.log_final_message(cause);
    std::process::exit(ExitCode::ShutdownCutShort.code().into());
}
