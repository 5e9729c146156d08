//! Checks for leftovers of ended jobs besides records: slots, blobs, processes, files.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use tanist_gateway::kinds;
use tanist_ha::keys::Key;
use tanist_ha::records::record::{self, Payload};
use tanist_ha::store::CoordinationStore;

use crate::cluster::Cluster;
use crate::dump;
use crate::wait::wait_for;

/// Timeout until all resources are released.
const BOUND: Duration = Duration::from_secs(30);
/// The format of all records.
const FORMAT: u16 = 1;

impl Cluster {
    /// Waits until no job holds a slot.
    pub async fn wait_until_slots_are_free(&mut self) -> anyhow::Result<()> {
        let is_free = |body: &serde_json::Value| {
            body["slots-total"].as_u64() > Some(0) && body["slots-total"] == body["slots-available"]
        };
        let path = "/v1/overview";
        self.wait_for_rest("all slots to be free", BOUND, path, is_free)
            .await?;
        Ok(())
    }

    /// Waits until every blob in `directory` is referenced by a record. A leader that died between a blob
    /// and its record leaves an orphan that is removed much later: orphans of these terms are ignored.
    pub async fn check_blobs(&self, directory: &Path, terms: &[u64]) -> anyhow::Result<()> {
        let records = self.records().await?;
        wait_for("no blob to be left", BOUND, async || {
            let wanted = blobs_of(&*records).await?;
            let left: Vec<String> = files_below(directory)?
                .into_iter()
                .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
                // The marker of the storage stays.
                .filter(|name| !name.starts_with("storage-"))
                .filter(|name| !wanted.contains(name) && !is_of_a_term(name, terms))
                .collect();
            ensure!(left.is_empty(), "blobs are left: {left:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// The objects in the blob store with this text in their names. The embedded store keeps them next to its data.
    pub fn objects(&self, called: &str) -> anyhow::Result<BTreeSet<PathBuf>> {
        files_called(&self.store_directory, called)
    }

    /// Waits until all processes that jobs of this cluster started have ended. They are recognized by the
    /// cluster's directory in their environment.
    pub async fn check_no_programs(&mut self) -> anyhow::Result<()> {
        let own: BTreeSet<u32> = self.pids();
        let directory = self.directory().to_owned();
        wait_for("all programs to be gone", BOUND, async || {
            let left: Vec<String> = processes_of(&directory)?
                .into_iter()
                .filter(|(pid, _)| !own.contains(pid))
                .map(|(pid, command)| format!("{pid} {command}"))
                .collect();
            ensure!(left.is_empty(), "processes are left: {left:?}");
            anyhow::Ok(())
        })
        .await
    }

    /// Resident memory of all JobManagers and TaskManagers that run, in bytes.
    pub fn memory(&mut self) -> anyhow::Result<u64> {
        let mut bytes = 0;
        for pid in self.pids() {
            // It may just have ended.
            let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else {
                continue;
            };
            let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
            let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
            let kib: u64 = kib.context("no VmRSS")?.trim().parse()?;
            bytes += kib * 1024;
        }
        Ok(bytes)
    }

    fn pids(&mut self) -> BTreeSet<u32> {
        let managers = self.jobmanagers.iter().map(|manager| &manager.process);
        let all = managers.chain(&self.taskmanagers);
        all.filter_map(|process| process.pid()).collect()
    }

    /// Checks, after all processes have ended in order, that none has left a file of its own: the
    /// cluster's directory contains only their logs, the store's files, and files of the test itself.
    pub fn check_no_local_files(&self, expected: &[PathBuf]) -> anyhow::Result<()> {
        let is_expected = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name == "process.log")
                || path.starts_with(&self.store_directory)
                || expected.iter().any(|known| path.starts_with(known))
        };
        let left: Vec<PathBuf> = files_below(self.directory())?
            .into_iter()
            .filter(|path| !is_expected(path))
            .collect();
        ensure!(left.is_empty(), "files are left: {left:?}");
        Ok(())
    }
}

/// The files below a directory with this text in their paths.
pub fn files_called(directory: &Path, called: &str) -> anyhow::Result<BTreeSet<PathBuf>> {
    let files = files_below(directory)?;
    let is_called = |path: &PathBuf| path.to_string_lossy().contains(called);
    Ok(files.into_iter().filter(is_called).collect())
}

/// The names of all blobs that records refer to.
async fn blobs_of(store: &dyn CoordinationStore) -> anyhow::Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for kind in [kinds::GRAPHS, kinds::STATES, kinds::RESULTS] {
        for (name, value) in dump::items(store, kind).await? {
            let key = Key::new(kind, name);
            if let Payload::Blob { pointer, .. } = record::decode(&key, FORMAT, &value)? {
                names.insert(pointer.name.to_string());
            }
        }
    }
    Ok(names)
}

/// The name of a blob consists of owner, epoch and a random part.
fn is_of_a_term(blob: &str, terms: &[u64]) -> bool {
    let epoch = blob.split('-').nth(1).and_then(|epoch| epoch.parse().ok());
    epoch.is_some_and(|epoch| terms.contains(&epoch))
}

/// All files in a directory and below; none if it does not exist.
fn files_below(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        let entries = match std::fs::read_dir(&directory) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error).with_context(|| directory.display().to_string()),
        };
        for entry in entries {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                directories.push(entry.path());
            } else {
                files.push(entry.path());
            }
        }
    }
    files.sort();
    Ok(files)
}

/// The processes that have a directory in their environment, with their command lines. Zombies have no environment.
fn processes_of(directory: &Path) -> anyhow::Result<Vec<(u32, String)>> {
    let wanted = directory.to_string_lossy().into_owned();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc")? {
        let entry = entry?;
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok())
        else {
            continue;
        };
        // The process may end during the read.
        let read = |name: &str| {
            let bytes = std::fs::read(entry.path().join(name)).unwrap_or_default();
            String::from_utf8_lossy(&bytes).replace('\0', " ")
        };
        let command = read("cmdline");
        if !command.is_empty() && read("environ").contains(&wanted) {
            found.push((pid, command));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_term_of_a_blob_is_in_its_name() {
        assert!(is_of_a_term("00ab-7-0123456789abcdef", &[6, 7]));
        assert!(!is_of_a_term("00ab-8-0123456789abcdef", &[6, 7]));
        assert!(!is_of_a_term("something", &[7]));
    }

    #[test]
    fn a_process_is_found_by_a_directory_in_its_environment() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        let mut child = std::process::Command::new("sh")
            .args(["-c", "echo runs; read line"])
            .env("OUTPUT", directory.path())
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()?;
        // A process that was just started has no environment for a moment.
        let mut said = [0; 5];
        let output = child.stdout.as_mut().context("it is piped")?;
        std::io::Read::read_exact(output, &mut said)?;
        let found = processes_of(directory.path())?;
        child.kill()?;
        child.wait()?;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].0, child.id());
        assert_eq!(processes_of(directory.path())?, []);
        Ok(())
    }

    #[test]
    fn files_are_found_however_deep() -> anyhow::Result<()> {
        let directory = tempfile::tempdir()?;
        std::fs::create_dir_all(directory.path().join("a/b"))?;
        std::fs::write(directory.path().join("a/b/c"), "")?;
        assert_eq!(
            files_below(directory.path())?,
            [directory.path().join("a/b/c")]
        );
        assert!(files_below(&directory.path().join("none"))?.is_empty());
        Ok(())
    }
}
