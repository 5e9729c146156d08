//! What the process provides to its operators: files and directories of programs, uploads, leases, limits. The process
//! configures a [`TaskHost`] once; all operators share it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tanist_telemetry::control_group::ControlGroups;

use super::exec::{ArtifactCache, KeptArtifacts, ProgramLeases};

/// Source of the artifacts that were uploaded for a job.
#[async_trait]
pub trait UploadSource: Send + Sync + fmt::Debug + 'static {
    /// Fetches an object of the cluster's blob store. The content is not verified. The fetch continues
    /// when the leader changes; the error says why it was given up.
    async fn object(&self, name: &str) -> Result<Bytes, String>;
}

/// The upload source of a process that fetches nothing.
#[derive(Debug)]
struct NoUploads;

#[async_trait]
impl UploadSource for NoUploads {
    async fn object(&self, _name: &str) -> Result<Bytes, String> {
        Err("this process fetches nothing".to_owned())
    }
}

/// What all operators of a process share on this host.
#[derive(Debug, Clone)]
pub struct TaskHost {
    /// The binary that supervises programs.
    pub(super) exec_binary: PathBuf,
    /// Parent of the programs' directories.
    pub(super) working_dir: PathBuf,
    /// The files that jobs ship.
    pub(super) artifacts: ArtifactCache,
    /// Artifacts that were fetched and are kept per job.
    pub(super) kept_artifacts: KeptArtifacts,
    /// Extended resources of the process by name, each with an additional variable in which programs
    /// find their share.
    pub(super) external_resources: BTreeMap<String, Option<String>>,
    /// Source of the artifacts that are too large for the job graph.
    pub(super) uploads: Arc<dyn UploadSource>,
    /// Where control groups for programs are created, or the reason why they can't be.
    pub(super) control_groups: Result<ControlGroups, String>,
    /// Timeout for a cancelled task to end. `None`: no timeout.
    pub(super) cancellation_timeout: Option<Duration>,
    /// Until when programs of isolated jobs may run.
    pub(super) leases: ProgramLeases,
    /// The process was started by a command that runs one job and passes its standard input on.
    pub(super) is_of_a_command: bool,
}

impl TaskHost {
    /// Creates a host whose tasks keep their files in `working_dir`. No other process and no other
    /// `TaskHost` in this process may use that directory: each removes what its own tasks do not
    /// need any more.
    pub fn new(working_dir: PathBuf) -> TaskHost {
        TaskHost {
            // This binary, also after its file was replaced.
            exec_binary: PathBuf::from("/proc/self/exe"),
            artifacts: ArtifactCache::new(working_dir.join("artifacts")),
            kept_artifacts: KeptArtifacts::default(),
            uploads: Arc::new(NoUploads),
            leases: ProgramLeases::default(),
            control_groups: Err("this process makes none".to_owned()),
            cancellation_timeout: None,
            working_dir,
            external_resources: BTreeMap::new(),
            is_of_a_command: false,
        }
    }

    /// A host for tasks that run no programs: they have no directory.
    #[cfg(any(test, feature = "testing"))]
    pub fn without_programs() -> TaskHost {
        TaskHost::new(PathBuf::from("/dev/null/none"))
    }

    /// Sets the extended resources, each with an additional variable in which programs find their
    /// share.
    #[must_use]
    pub fn with_external_resources(self, all: BTreeMap<String, Option<String>>) -> TaskHost {
        TaskHost {
            external_resources: all,
            ..self
        }
    }

    /// Sets where control groups that limit programs are created, or the reason why they can't be.
    #[must_use]
    pub fn with_control_groups(self, control_groups: Result<ControlGroups, String>) -> TaskHost {
        TaskHost {
            control_groups,
            ..self
        }
    }

    /// Sets the timeout after which a cancelled task that has not ended makes the process exit. `None`:
    /// never.
    #[must_use]
    pub fn ended_by_tasks_after(self, cancellation_timeout: Option<Duration>) -> TaskHost {
        TaskHost {
            cancellation_timeout,
            ..self
        }
    }

    /// Marks the process as that of a command that runs one job.
    #[must_use]
    pub fn of_a_command(self) -> TaskHost {
        TaskHost {
            is_of_a_command: true,
            ..self
        }
    }

    /// Sets the source of uploaded artifacts.
    #[must_use]
    pub fn fetching_from(self, uploads: Arc<dyn UploadSource>) -> TaskHost {
        TaskHost { uploads, ..self }
    }

    /// Sets another binary to supervise programs, for a process whose `main` is not Tanist's.
    #[must_use]
    pub fn supervised_by(self, exec_binary: PathBuf) -> TaskHost {
        TaskHost {
            exec_binary,
            ..self
        }
    }
}
