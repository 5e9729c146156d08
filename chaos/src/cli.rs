//! Runs the `tanist` program as a user does, and captures its output and exit code.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tokio::process::Command;

/// Timeout of a command. Attached runs take as long as their job.
const COMMAND_BOUND: Duration = Duration::from_secs(90);

/// The program with its working directory.
#[derive(Debug, Clone)]
pub struct Cli {
    program: PathBuf,
    directory: PathBuf,
    environment: Vec<(String, String)>,
}

/// The output and exit code of a command.
#[derive(Debug, Clone)]
pub struct CliOutput {
    /// The exit code; `None`: a signal ended the command.
    pub code: Option<i32>,
    /// The standard output.
    pub stdout: String,
    /// The standard error.
    pub stderr: String,
}

impl CliOutput {
    /// The standard output, if the exit code is 0.
    pub fn success(self) -> anyhow::Result<String> {
        ensure!(self.code == Some(0), "it failed: {self:#?}");
        Ok(self.stdout)
    }
}

impl Cli {
    /// Commands that run in `directory`.
    pub fn new(program: impl Into<PathBuf>, directory: impl Into<PathBuf>) -> Cli {
        let (program, directory) = (program.into(), directory.into());
        Cli {
            program,
            directory,
            environment: Vec::new(),
        }
    }

    /// The same with these additional environment variables.
    #[must_use]
    pub fn with_environment(&self, variables: &[(String, String)]) -> Cli {
        Cli {
            environment: variables.to_vec(),
            ..self.clone()
        }
    }

    /// The path of the program.
    pub fn program(&self) -> &Path {
        &self.program
    }

    /// Runs `tanist` with `arguments` until it ends. The process is killed if the future is dropped.
    pub async fn run(&self, arguments: &[&str]) -> anyhow::Result<CliOutput> {
        let line = format!("tanist {}", arguments.join(" "));
        let running = Command::new(&self.program)
            .args(arguments)
            .current_dir(&self.directory)
            // Only the arguments select the cluster.
            .env_remove("TANIST_CONF_DIR")
            .envs(self.environment.iter().cloned())
            .env("NO_COLOR", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))?;
        let output = tokio::time::timeout(COMMAND_BOUND, running.wait_with_output())
            .await
            .with_context(|| format!("`{line}` took longer than {COMMAND_BOUND:?}"))?
            .with_context(|| line)?;
        Ok(CliOutput {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        })
    }
}
