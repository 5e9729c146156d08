//! What is created on this host for one program only: its directory, with links to its artifacts, and its
//! control group.
//!
//! Invariant: it has exactly one owner from its creation on and is removed when that owner is dropped, whether
//! the program was started or not. If the program was started, the owner has reaped the supervisor before.

use std::fs;
use std::path::{Path, PathBuf};

use tanist_telemetry::control_group;

use super::artifacts::HeldArtifact;

/// On drop it is removed, and what still runs in the control group is killed, including other sessions.
/// The drop blocks for at most a second if that takes time.
#[derive(Debug)]
pub(crate) struct Sandbox {
    directory: PathBuf,
    group: Option<PathBuf>,
    artifacts: Vec<HeldArtifact>,
}

impl Sandbox {
    /// Takes over a directory that no other program has.
    pub(crate) fn new(directory: PathBuf) -> Sandbox {
        Sandbox {
            directory,
            group: None,
            artifacts: Vec::new(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Takes over the control group that was created for the program.
    pub(crate) fn own_group(&mut self, group: PathBuf) {
        self.group = Some(group);
    }

    /// Takes over an artifact to which the directory has a link.
    pub(crate) fn own_artifact(&mut self, artifact: HeldArtifact) {
        self.artifacts.push(artifact);
    }
}

impl Drop for Sandbox {
    fn drop(&mut self) {
        if let Some(group) = &self.group
            && let Err(error) = control_group::remove(group)
        {
            tracing::warn!(path = %group.display(), %error, "a program's control group can't be removed");
        }
        // It may contain anything, including directories that are not writable.
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::debug!(path = %self.directory.display(), %error, "a program's directory can't be removed");
        }
        // Only after the links to them are removed.
        self.artifacts.clear();
    }
}
