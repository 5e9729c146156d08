//! `tanist demo`: a cluster of real processes whose leader is killed again and again while jobs run, with a
//! commentary.
//!
//! Three JobManagers and two TaskManagers run as child processes on the embedded store, in a directory of their
//! own. The processes and the directory are removed when the demo ends, also when it fails or is interrupted.
//! If a JobManager is killed from outside, the demo shows that takeover and its duration too, and starts the
//! process again. The demo succeeds only if no task was restarted, the streaming job's records came without a
//! gap or a repetition, and the word count's result is equal to that of a single thread.

mod children;
mod others;
mod settings;
mod story;
mod stream;
pub mod ticks;
mod watch;
mod words;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use self::children::Playground;
pub use self::settings::Inherited;
use self::story::Story;
use crate::telemetry::ExitCode;

/// Interval between two queries to the leader about a job.
const ASK_INTERVAL: Duration = Duration::from_millis(10);

/// The options of the demo.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DemoOptions {
    /// Amount of text to count, in megabytes. More text makes a longer job.
    pub megabytes: usize,
    /// Whether the directory with logs, input and output stays.
    pub keep: bool,
    /// The configuration that the processes inherit, except for the settings that the demo needs for itself.
    pub inherited: Inherited,
}

impl Default for DemoOptions {
    fn default() -> DemoOptions {
        // A few seconds of work in a release build as well as in a debug build.
        let megabytes = if cfg!(debug_assertions) { 24 } else { 160 };
        DemoOptions {
            megabytes,
            keep: false,
            inherited: Inherited::default(),
        }
    }
}

/// Why the demo did not show what it should.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// A file or a process of its own failed.
    #[error("{what}: {source}")]
    Io {
        /// The operation that failed.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// The store could not be watched.
    #[error("the store can't be watched: {0}")]
    Store(#[source] tanist_ha::Error),
    /// The cluster or the job did not do what was expected.
    #[error("{0}")]
    Unexpected(String),
    /// A process ended that should not have.
    #[error("{name} ended by itself: {status}; the end of its log:\n{log}")]
    Ended {
        /// Its name.
        name: String,
        /// How it ended.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// A result is wrong.
    #[error("THE RESULT IS WRONG: {0}")]
    WrongResult(String),
    /// A signal ended the demo.
    #[error("interrupted")]
    Interrupted(ExitCode),
}

impl DemoError {
    fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> DemoError {
        let what = what.into();
        move |source| DemoError::Io { what, source }
    }
}

/// Runs the demo with `program` as the `tanist` of all processes. Everything is cleaned up when it returns.
pub async fn run(program: PathBuf, options: DemoOptions) -> Result<(), DemoError> {
    let listen = |kind| signal(kind).map_err(DemoError::io("signals can't be listened to"));
    let mut interrupt = listen(SignalKind::interrupt())?;
    let mut terminate = listen(SignalKind::terminate())?;
    let mut hangup = listen(SignalKind::hangup())?;
    let mut playground = Playground::create(program, options.inherited.clone(), options.keep)?;
    let played = tokio::select! {
        played = Story::play(&mut playground, &options) => played,
        _ = interrupt.recv() => Err(DemoError::Interrupted(ExitCode::Interrupted)),
        _ = terminate.recv() => Err(DemoError::Interrupted(ExitCode::Terminated)),
        // Its terminal is gone, and no user could stop it.
        _ = hangup.recv() => Err(DemoError::Interrupted(ExitCode::Terminated)),
    };
    let directory = playground.directory().display().to_string();
    let stopped = playground.stop().await;
    if options.keep {
        tell(&format!(
            "all processes are stopped; logs and files stay in {directory}"
        ));
    } else {
        tell("all processes are stopped, and the directory is removed");
    }
    played.and(stopped)
}

fn unexpected<T>(text: &str) -> Result<T, DemoError> {
    Err(DemoError::Unexpected(text.to_owned()))
}

/// Prints one line of the commentary.
fn tell(line: &str) {
    println!("  {line}");
}
