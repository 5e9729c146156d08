//! The first set-up of a process that runs a part of a cluster: signal handlers, and a working directory.

use tanist_config::Configuration;
use tanist_process::WorkingDir;
use tanist_process::shutdown::watch_signals;
use tanist_telemetry::ExitCode;
use tokio_util::sync::CancellationToken;

use super::output::fail;

/// The signal handlers and the directory of this process.
#[derive(Debug)]
pub(super) struct Host {
    /// Cancelled when the process is asked to end.
    pub(super) stop: CancellationToken,
    /// Removed when this is dropped.
    pub(super) directory: WorkingDir,
}

impl Host {
    /// Sets both up for a process of this kind.
    pub(super) fn prepare(configuration: &Configuration, kind: &str) -> Result<Host, Failure> {
        let stop = watch_signals(configuration.process().shutdown_timeout);
        Ok(Host {
            stop: stop.map_err(|error| Failure::new(ExitCode::Fatal, &error))?,
            directory: own_directory(configuration, kind)?,
        })
    }
}

/// Only the directory, for a process that handles signals in its own way.
pub(super) fn own_directory(
    configuration: &Configuration,
    kind: &str,
) -> Result<WorkingDir, Failure> {
    let directory = WorkingDir::create(configuration.process(), kind);
    directory.map_err(|error| Failure::new(ExitCode::Directory, &error))
}

/// The reason why a process does not start.
#[derive(Debug)]
pub(super) struct Failure {
    code: ExitCode,
    cause: String,
}

impl Failure {
    pub(super) fn new(code: ExitCode, cause: &impl std::error::Error) -> Failure {
        let cause = cause.to_string();
        Failure { code, cause }
    }

    /// Shows the failure to a user at a terminal. Returns the exit code.
    pub(super) fn report(self) -> ExitCode {
        fail(self.cause);
        self.code
    }

    /// Writes the failure as the last entry of the process's log. Returns the exit code.
    pub(super) fn log(self) -> ExitCode {
        self.code.log_final_message(&self.cause);
        self.code
    }
}
