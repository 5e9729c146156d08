//! What is made on this host for one program alone: its directory, with the artifacts that it finds there, and its control group.
//!
//! Invariant: it has one owner from the moment it is made, and goes with that, whether the program was started or not. Whoever owns it
//! of a program that was started has reaped the supervisor before.

use std::fs;
use std::path::{Path, PathBuf};

use super::artifacts::HeldArtifact;
use crate::telemetry::control_group;

/// Dropped, it is removed, and what still runs in the control group is killed, whatever session that has begun. Blocks for a second at
/// most if that takes its time to be gone.
#[derive(Debug)]
pub(crate) struct Premises {
    directory: PathBuf,
    group: Option<PathBuf>,
    artifacts: Vec<HeldArtifact>,
}

impl Premises {
    /// A directory that no other program has.
    pub(crate) fn new(directory: PathBuf) -> Premises {
        Premises {
            directory,
            group: None,
            artifacts: Vec::new(),
        }
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Also removes the control group that was made for the program.
    pub(crate) fn own_group(&mut self, group: PathBuf) {
        self.group = Some(group);
    }

    /// Also lets go of an artifact to which the directory has a link.
    pub(crate) fn own_artifact(&mut self, artifact: HeldArtifact) {
        self.artifacts.push(artifact);
    }
}

impl Drop for Premises {
    fn drop(&mut self) {
        if let Some(group) = &self.group
            && let Err(error) = control_group::remove(group)
        {
            tracing::warn!(path = %group.display(), %error, "a program's control group can't be removed");
        }
        // It may have anything in it, also directories that can't be written.
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            tracing::debug!(path = %self.directory.display(), %error, "a program's directory can't be removed");
        }
        // Only when nothing links to them any more.
        self.artifacts.clear();
    }
}
