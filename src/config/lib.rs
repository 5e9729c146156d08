//! Configuration: one YAML file with Flink's key names, overridden by `TANIST_` environment variables,
//! overridden by `-D key=value`.
//!
//! [`Configuration::load`] reads all three, refuses keys that aren't in the table of options, checks types and
//! relations, and builds [`ClusterOptions`] once; the rest of the program sees no text. It reports all errors
//! at once, each with the place where the value was written. It binds, connects to and creates nothing.
//!
//! Invariants: a loaded configuration is valid; the value of a secret is never part of an error, a log or a `Debug`.

mod address;
mod build;
mod checkpointing;
mod control_groups;
mod error;
mod external;
mod file;
mod load;
mod memory;
#[cfg(test)]
mod memory_tests;
mod options;
mod reference;
mod secrets;
mod table;
mod umask;
mod value;
mod values;

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

pub use address::{AllowedHosts, Host, HostPort, PortRange, StorageLocation};
pub use build::stores::HighAvailabilityType;
pub use checkpointing::{CheckpointRetention, ClaimMode, RestoreFrom};
pub use control_groups::ControlGroupsOption;
pub use error::{ConfigError, Problem, Source};
pub use external::ExternalResource;
pub use memory::{MemoryContradiction, MemoryOptions, Share, TaskManagerMemory};
pub use options::{
    CheckpointOptions, CleanupOptions, ClientOptions, ClusterOptions, HaOptions, HeartbeatOptions,
    JobManagerOptions, JobOptions, LogOptions, ProcessOptions, RegistrationOptions,
    ResourceOptions, RestOptions, RestartStrategyOptions, RpcOptions, SecurityOptions,
    StateRecoveryOptions, StorageOptions, StorePlace, TaskManagerOptions, WorkerOptions,
};
pub use reference::reference;
pub use table::{DefaultValue, OptionSpec, find, options};
pub use umask::Umask;
pub use value::{
    Attempts, ExecutionTarget, FailoverStrategyType, FailureThreshold, LoadBalanceMode, LocalUsers,
    LogFormat, LogLevel, MemorySize, RestartStrategyType, Secret, WorkerDriver, parse_duration,
};

use value::nearest;
use values::Values;

/// Shown instead of the value of a secret.
const MASK: &str = "******";

/// The sources of a configuration.
#[derive(Debug, Clone, Default)]
pub struct LoadOptions {
    /// The file. Without it `$TANIST_CONF_DIR/tanist.yaml` is read; without that variable, none.
    pub file: Option<PathBuf>,
    /// The environment: names and values.
    pub environment: Vec<(String, String)>,
    /// The arguments of `-D`: `key=value`. The last one of a key wins.
    pub overrides: Vec<String>,
}

impl LoadOptions {
    /// Takes this process's environment. Bytes of variables that aren't Unicode become replacement characters.
    pub fn from_environment() -> LoadOptions {
        let lossy = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        };
        let environment = std::env::vars_os().map(lossy).collect();
        LoadOptions {
            environment,
            ..LoadOptions::default()
        }
    }

    /// Adds a file to read.
    pub fn with_file(mut self, file: impl Into<PathBuf>) -> LoadOptions {
        self.file = Some(file.into());
        self
    }

    /// Adds an override, as `-D key=value` does.
    pub fn with(mut self, key: &str, value: &str) -> LoadOptions {
        self.overrides.push(format!("{key}={value}"));
        self
    }
}

/// A valid configuration, with the origin of each value.
#[derive(Debug, Clone)]
pub struct Configuration {
    file: Option<PathBuf>,
    values: Values,
    options: ClusterOptions,
    passed_over: Vec<String>,
    warnings: Vec<String>,
}

/// The value of one option, safe to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    /// The option's key.
    pub key: &'static str,
    /// The value as written; asterisks for a secret; a derived default in words; `None` if there is none.
    pub value: Option<String>,
    /// The origin of the value.
    pub source: Source,
}

impl Configuration {
    /// Reads, checks and builds. The error contains all problems.
    pub fn load(load: LoadOptions) -> Result<Configuration, ConfigError> {
        let facts = build::HostFacts::gather(&load.environment);
        let load::Loaded {
            file,
            values,
            passed_over,
            mut problems,
        } = load::load(load);
        let built = build::build(&values, &facts);
        problems.extend(built.problems);
        if !problems.is_empty() {
            return Err(ConfigError { problems });
        }
        Ok(Configuration {
            file,
            values,
            options: built.options,
            passed_over,
            warnings: built.warnings,
        })
    }

    /// The configuration if nothing is set, not even `HOME` in the environment.
    pub fn defaults() -> Configuration {
        Configuration::load(LoadOptions::default())
            .expect("the defaults are valid, as a test checks")
    }

    /// Environment variables with the prefix `TANIST_` that set no option because Kubernetes made them for a service.
    pub fn passed_over(&self) -> &[String] {
        &self.passed_over
    }

    /// All typed options.
    pub fn options(&self) -> &ClusterOptions {
        &self.options
    }

    /// The store of leadership and jobs.
    pub fn ha(&self) -> &HaOptions {
        &self.options.ha
    }

    /// The addresses of the JobManager.
    pub fn jobmanager(&self) -> &JobManagerOptions {
        &self.options.jobmanager
    }

    /// The options of the TaskManager.
    pub fn taskmanager(&self) -> &TaskManagerOptions {
        &self.options.taskmanager
    }

    /// The options of the REST server.
    pub fn rest(&self) -> &RestOptions {
        &self.options.rest
    }

    /// The heartbeats between components.
    pub fn heartbeat(&self) -> &HeartbeatOptions {
        &self.options.heartbeat
    }

    /// The options of calls between processes.
    pub fn rpc(&self) -> &RpcOptions {
        &self.options.rpc
    }

    /// How components register with each other.
    pub fn registration(&self) -> &RegistrationOptions {
        &self.options.registration
    }

    /// Slots and the ResourceManager.
    pub fn resources(&self) -> &ResourceOptions {
        &self.options.resources
    }

    /// The defaults of jobs.
    pub fn jobs(&self) -> &JobOptions {
        &self.options.jobs
    }

    /// The restart strategy of jobs that set none.
    pub fn restart_strategy(&self) -> &RestartStrategyOptions {
        &self.options.restart_strategy
    }

    /// When checkpoints are taken of jobs that don't say it.
    pub fn checkpoints(&self) -> &CheckpointOptions {
        &self.options.checkpoints
    }

    /// Which tasks of a job restart after a failure.
    pub fn failover_strategy(&self) -> FailoverStrategyType {
        self.options.failover_strategy
    }

    /// The number of failures that are kept of a job.
    pub fn exception_history_size(&self) -> NonZeroU32 {
        self.options.exception_history_size
    }

    /// The cleanup after ended jobs.
    pub fn cleanup(&self) -> &CleanupOptions {
        &self.options.cleanup
    }

    /// The options of clients.
    pub fn client(&self) -> &ClientOptions {
        &self.options.client
    }

    /// The process: its directories and its shutdown.
    pub fn process(&self) -> &ProcessOptions {
        &self.options.process
    }

    /// The log.
    pub fn log(&self) -> &LogOptions {
        &self.options.log
    }

    /// The file that was read, if any.
    pub fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Settings that are allowed but probably not intended. The caller logs them at start.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// All options in the order of the table, secrets masked.
    pub fn settings(&self) -> Vec<Setting> {
        options().map(|spec| self.values.setting(spec)).collect()
    }

    /// The explicitly set options as environment variables that give another process the same configuration.
    /// Secrets are not masked: use this only for the environment of a process.
    pub fn environment(&self) -> Vec<(String, String)> {
        let variable = |spec: &'static OptionSpec| {
            // The other process reads the secret from the same file.
            let is_read = matches!(self.values.setting(spec).source, Source::SecretFile { .. });
            let text = self.values.text(spec.key).filter(|_| !is_read)?;
            Some((spec.environment_variable(), text.to_owned()))
        };
        options().filter_map(variable).collect()
    }

    /// The explicitly set options, secrets masked.
    pub fn explicit_settings(&self) -> Vec<Setting> {
        self.settings()
            .into_iter()
            .filter(|setting| setting.source != Source::Default)
            .collect()
    }
}

/// Masks the values of secrets in the arguments of a process so that they can be logged: `-D key=value`, `-Dkey=value`.
pub fn mask_arguments(arguments: impl IntoIterator<Item = String>) -> Vec<String> {
    let mask = |argument: String| {
        let text = argument.strip_prefix("-D").unwrap_or(&argument);
        let text = text.strip_prefix('=').unwrap_or(text);
        match text.split_once('=') {
            Some((key, value)) if is_secret(key) => {
                let kept = argument.len() - value.len();
                format!("{}{MASK}", &argument[..kept])
            }
            _ => argument,
        }
    };
    arguments.into_iter().map(mask).collect()
}

/// Whether the value of `key` must not be shown: a secret option, or a key that looks like one, perhaps misspelled.
fn is_secret(key: &str) -> bool {
    let key = key.trim();
    let named_so = || {
        let lower = key.to_lowercase();
        ["password", "secret", "token"]
            .iter()
            .any(|word| lower.contains(word))
    };
    let misspelled = || {
        nearest(key, options().map(|spec| spec.key))
            .and_then(find)
            .is_some_and(|s| s.secret)
    };
    find(key).map_or_else(|| named_so() || misspelled(), |spec| spec.secret)
}

#[cfg(test)]
mod tests;
