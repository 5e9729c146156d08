//! The exit codes of all processes of Tanist, and the last log entry of a process.
//!
//! A process that was killed by a signal has no code of ours: shells show 128 plus the signal's number. A
//! command that ends in order because of a signal uses the same number.

use std::fmt;

/// Why a process ended. The number is its exit status.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum ExitCode {
    /// Successful: the command succeeded, the job finished, or a server ended in order after a signal.
    Ended = 0,
    /// The request of a client was refused.
    Unsuccessful = 1,
    /// The command line is invalid.
    Usage = 2,
    /// The job file can't be read or is invalid; nothing was submitted.
    InvalidJob = 3,
    /// The job that was waited for FAILED.
    JobFailed = 4,
    /// The job that was waited for was CANCELED.
    JobCanceled = 5,
    /// No JobManager answered within `client.timeout`; the request may still take effect.
    Unreachable = 6,
    /// The job that was waited for was quarantined: it continues, and may still finish.
    Quarantined = 7,
    /// Not started: the configuration is invalid or can't be read.
    Configuration = 10,
    /// Not started: a port can't be bound.
    Port = 11,
    /// Not started: a local directory can't be used.
    Directory = 13,
    /// Fatal error: the store's driver is broken permanently, the process's own state is corrupt, memory is
    /// exhausted, or a task did not end after its cancellation. Start the process again.
    Fatal = 20,
    /// Refused permanently: unknown worker, another cluster or incarnation, a store that is a copy, an
    /// incompatible version. Do not restart it automatically: a restart does not help, and it would accept
    /// another incarnation (not a copy: `tanist ha accept`). An operator has to decide.
    Refused = 21,
    /// The orderly shutdown took longer than `process.shutdown-timeout`, or a second signal ended it.
    ShutdownCutShort = 22,
    /// SIGINT (^C) ended a waiting command, with the code that shells show for any program. Accepted requests continue.
    Interrupted = 130,
    /// The same for SIGTERM.
    Terminated = 143,
}

impl ExitCode {
    /// Every code.
    pub const ALL: [ExitCode; 16] = [
        ExitCode::Ended,
        ExitCode::Unsuccessful,
        ExitCode::Usage,
        ExitCode::InvalidJob,
        ExitCode::JobFailed,
        ExitCode::JobCanceled,
        ExitCode::Unreachable,
        ExitCode::Quarantined,
        ExitCode::Configuration,
        ExitCode::Port,
        ExitCode::Directory,
        ExitCode::Fatal,
        ExitCode::Refused,
        ExitCode::ShutdownCutShort,
        ExitCode::Interrupted,
        ExitCode::Terminated,
    ];

    /// The exit status.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// A word for logs.
    pub fn name(self) -> &'static str {
        match self {
            ExitCode::Ended => "ended",
            ExitCode::Unsuccessful => "unsuccessful",
            ExitCode::Usage => "usage",
            ExitCode::InvalidJob => "invalid-job",
            ExitCode::JobFailed => "job-failed",
            ExitCode::JobCanceled => "job-canceled",
            ExitCode::Unreachable => "unreachable",
            ExitCode::Quarantined => "quarantined",
            ExitCode::Configuration => "configuration",
            ExitCode::Port => "port",
            ExitCode::Directory => "directory",
            ExitCode::Fatal => "fatal",
            ExitCode::Refused => "refused",
            ExitCode::ShutdownCutShort => "shutdown-cut-short",
            ExitCode::Interrupted => "interrupted",
            ExitCode::Terminated => "terminated",
        }
    }

    /// A description for people.
    pub fn text(self) -> &'static str {
        match self {
            ExitCode::Ended => "ended as requested",
            ExitCode::Unsuccessful => "the request was refused",
            ExitCode::Usage => "the command line is wrong",
            ExitCode::InvalidJob => "the job is wrong: nothing was submitted",
            ExitCode::JobFailed => "the job failed",
            ExitCode::JobCanceled => "the job was canceled",
            ExitCode::Unreachable => "no JobManager answered",
            ExitCode::Quarantined => "stopped waiting: the job is quarantined",
            ExitCode::Configuration => "not started: the configuration is wrong",
            ExitCode::Port => "not started: a port can't be bound",
            ExitCode::Directory => "not started: a local directory can't be used",
            ExitCode::Fatal => "fatal error while running",
            ExitCode::Refused => "refused permanently",
            ExitCode::ShutdownCutShort => "shut down before cleaning up",
            ExitCode::Interrupted => "interrupted by SIGINT",
            ExitCode::Terminated => "interrupted by SIGTERM",
        }
    }

    /// Logs the exit code and the cause as the last entry of a process, and waits briefly until it is
    /// written. At `info` if the process ended as requested, else at `error`.
    pub fn log_final_message(self, cause: &str) {
        let (exit_code, reason) = (self.code(), self.name());
        super::make_room();
        match self {
            ExitCode::Ended => tracing::info!(exit_code, reason, cause, "ended as requested"),
            other => tracing::error!(exit_code, reason, cause, "{}", other.text()),
        }
        super::flush();
    }
}

impl fmt::Display for ExitCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.text(), self.code())
    }
}

impl From<ExitCode> for std::process::ExitCode {
    fn from(code: ExitCode) -> std::process::ExitCode {
        std::process::ExitCode::from(code.code())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn codes_and_names_are_distinct_and_those_of_signals_are_as_shells_show_them() {
        let codes: BTreeSet<u8> = ExitCode::ALL.iter().map(|code| code.code()).collect();
        let names: BTreeSet<&str> = ExitCode::ALL.iter().map(|code| code.name()).collect();
        assert_eq!(
            (codes.len(), names.len()),
            (ExitCode::ALL.len(), ExitCode::ALL.len())
        );
        let of_signals = [ExitCode::Interrupted, ExitCode::Terminated].map(ExitCode::code);
        assert_eq!(
            of_signals,
            [128 + 2, 128 + 15],
            "as shells show SIGINT and SIGTERM"
        );
        let others = codes.iter().filter(|code| !of_signals.contains(code));
        assert!(others.copied().all(|code| code < 126), "{codes:?}");
        assert_eq!(ExitCode::Usage.code(), 2, "clap ends with 2");
    }
}
