//! The demonstration: a cluster whose leader is killed again and again while jobs run, with a commentary.
//!
//! Three JobManagers and two TaskManagers run as child processes on the embedded store, in a directory of their
//! own. The processes and the directory are removed when the demo ends, also when it fails or is interrupted.
//! If a JobManager is killed from outside, the demo shows that takeover and its duration too, and starts the
//! process again. The demo succeeds only if no task was restarted, the streaming job's records came without a
//! gap or a repetition, and the word count's result is equal to that of a single thread.
//!
//! Not here: the command line, which is that of the program `tanist-demo`.

mod cluster;
mod external_kills;
mod scenario;
mod settings;
mod stream;
pub mod ticks;
mod watch;
mod words;

use std::path::PathBuf;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};

pub use self::settings::Inherited;

use self::cluster::DemoCluster;
use self::scenario::Scenario;

/// The options of the demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoOptions {
    /// The `tanist` of all processes.
    pub program: PathBuf,
    /// Amount of text to count, in megabytes. More text makes a longer job.
    pub megabytes: usize,
    /// Whether the directory with logs, input and output stays.
    pub keep: bool,
    /// The configuration that the processes inherit, except for the settings that the demo needs for itself.
    pub inherited: Inherited,
}

impl DemoOptions {
    /// A few seconds of work, in a release build as well as in a debug build.
    pub const MEGABYTES: usize = if cfg!(debug_assertions) { 24 } else { 160 };
}

/// How the demo ended, if it did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Everything was as it should be.
    Succeeded,
    /// A signal ended it.
    Interrupted(SignalKind),
}

/// Runs the demo. Everything is cleaned up when it returns. It fails if the cluster did not do what it should.
pub async fn run(options: DemoOptions) -> anyhow::Result<Outcome> {
    let listen = |kind| signal(kind).context("signals can't be listened to");
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let mut cluster = DemoCluster::create(&options)?;
    let outcome = tokio::select! {
        played = Scenario::play(&mut cluster, options.megabytes) => played.map(|()| Outcome::Succeeded),
        _ = interrupt.recv() => Ok(Outcome::Interrupted(SignalKind::interrupt())),
        _ = terminate.recv() => Ok(Outcome::Interrupted(SignalKind::terminate())),
        // Its terminal is gone, and no user could stop it.
        _ = hangup.recv() => Ok(Outcome::Interrupted(SignalKind::terminate())),
    };
    let directory = cluster.directory().display().to_string();
    let stopped = cluster.stop().await;
    if options.keep {
        print_line(&format!(
            "all processes are stopped; logs and files stay in {directory}"
        ));
    } else {
        print_line("all processes are stopped, and the directory is removed");
    }
    match outcome {
        Ok(Outcome::Succeeded) => stopped.map(|()| Outcome::Succeeded),
        other => other,
    }
}

/// Prints one line of the commentary.
fn print_line(line: &str) {
    println!("  {line}");
}
