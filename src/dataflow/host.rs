//! What the process gives to its tasks beside a runtime and the exchange, and what of a task may outlive its own code.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use super::exec::{ArtifactCache, KeptArtifacts, ProgramLeases};
use crate::telemetry::control_group::ControlGroups;

/// The name of the host that this process runs on, as it calls itself.
pub(crate) fn host_name() -> String {
    let names = rustix::system::uname();
    names.nodename().to_string_lossy().into_owned()
}

/// Where what was uploaded for a job is fetched.
#[async_trait]
pub trait UploadSource: Send + Sync + fmt::Debug + 'static {
    /// An object of the cluster's blob store, unchecked. It goes on over changes of the leader; the error says why it was given
    /// up.
    async fn object(&self, name: &str) -> Result<Bytes, String>;
}

/// A process to which nothing is uploaded.
#[derive(Debug)]
struct NoUploads;

#[async_trait]
impl UploadSource for NoUploads {
    async fn object(&self, _name: &str) -> Result<Bytes, String> {
        Err("this process fetches nothing".to_owned())
    }
}

/// What every task of a process gets.
#[derive(Debug, Clone)]
pub struct TaskHost {
    /// The binary that supervises programs.
    pub(super) exec_binary: PathBuf,
    /// Where programs get their directories.
    pub(super) working_dir: PathBuf,
    /// The files that jobs ship.
    pub(super) artifacts: ArtifactCache,
    /// Those of them that were fetched, by job.
    pub(super) kept_artifacts: KeptArtifacts,
    /// Extended resources that the process has, each with a further variable in which its programs find theirs.
    pub(super) external_resources: BTreeMap<String, Option<String>>,
    /// Where those come from that are too large for a graph.
    pub(super) uploads: Arc<dyn UploadSource>,
    /// Where control groups for programs are made, or why nowhere.
    pub(super) control_groups: Result<ControlGroups, String>,
    /// Within which time a cancelled task has to have ended; none: nobody minds.
    pub(super) cancellation_timeout: Option<Duration>,
    /// Until when programs of isolated jobs may run.
    pub(super) leases: ProgramLeases,
    /// Whoever runs the job has started this process for it, and gave it its standard input.
    pub(super) is_of_a_command: bool,
}

impl TaskHost {
    /// Tasks keep their files in `working_dir`, which nobody else uses, not even another one of these in the same process: each
    /// removes what its own tasks need no more.
    pub fn new(working_dir: PathBuf) -> TaskHost {
        TaskHost {
            // This very binary, also after its file was replaced.
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

    /// For tasks that run no programs: they have no directory.
    #[cfg(test)]
    pub(crate) fn without_programs() -> TaskHost {
        TaskHost::new(PathBuf::from("/dev/null/none"))
    }

    /// The same with extended resources, each with a further variable in which programs find theirs.
    #[must_use]
    pub fn with_external_resources(self, all: BTreeMap<String, Option<String>>) -> TaskHost {
        TaskHost {
            external_resources: all,
            ..self
        }
    }

    /// The same, whose programs are held to their limits in groups that are made there; else why they are not.
    #[must_use]
    pub fn with_control_groups(self, control_groups: Result<ControlGroups, String>) -> TaskHost {
        TaskHost {
            control_groups,
            ..self
        }
    }

    /// The same, which is ended by a task that has not ended so long after it was cancelled. None: by none.
    #[must_use]
    pub fn ended_by_tasks_after(self, cancellation_timeout: Option<Duration>) -> TaskHost {
        TaskHost {
            cancellation_timeout,
            ..self
        }
    }

    /// The same in the process of a command that runs one job.
    #[must_use]
    pub fn of_a_command(self) -> TaskHost {
        TaskHost {
            is_of_a_command: true,
            ..self
        }
    }

    /// The same, which fetches what was uploaded from there.
    #[must_use]
    pub fn fetching_from(self, uploads: Arc<dyn UploadSource>) -> TaskHost {
        TaskHost { uploads, ..self }
    }

    /// The same with another binary to supervise programs: where this one's `main` is somebody else's.
    #[must_use]
    pub fn supervised_by(self, exec_binary: PathBuf) -> TaskHost {
        TaskHost {
            exec_binary,
            ..self
        }
    }
}

/// Held by whatever belongs to a task and may outlive its future: the task counts as ended when all clones are dropped.
#[derive(Debug, Clone)]
pub struct Lingering {
    _held: mpsc::Sender<()>,
}

/// Waits for all that lingers of a task.
#[derive(Debug)]
pub(super) struct AllGone(mpsc::Receiver<()>);

impl Lingering {
    pub(super) fn new() -> (Lingering, AllGone) {
        let (held, released) = mpsc::channel(1);
        (Lingering { _held: held }, AllGone(released))
    }
}

impl AllGone {
    pub(super) async fn wait(mut self) {
        let _nothing_is_ever_sent = self.0.recv().await;
    }
}
