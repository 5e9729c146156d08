//! Makes output visible: part by part, exactly once, never over an existing file, by any process and any number
//! of times.
//!
//! All parts are checked before the first one is moved. If one is lost, or its place is taken by another run's file,
//! none becomes visible ([`SinkError`]). The leader commits; a deposed leader may do the same at the same time.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use prost::Message as _;
use tanist_ha::failpoint::failpoint_on_a_thread;
use tanist_proto::v1::{CheckpointCommittable, Committable};

use super::marks::{Mark, is_marked};
use super::renaming::rename_to_unused;
use super::{KIND, SinkError, remove_if_exists, sync_directory};

/// The parts that committables of a checkpoint name.
pub fn decoded(committables: &[CheckpointCommittable]) -> Result<Vec<Committable>, SinkError> {
    let decode = |committable: &CheckpointCommittable| {
        let uid = || committable.uid.clone();
        if committable.kind != KIND {
            let kind = committable.kind.clone();
            return Err(SinkError::UnknownKind { uid: uid(), kind });
        }
        let part = Committable::decode(&*committable.content);
        part.map_err(|source| SinkError::Unreadable { uid: uid(), source })
    };
    committables.iter().map(decode).collect()
}

/// Makes output visible that the durable manifest of a checkpoint lists; see [`commit_while`]. `committables` is all
/// that it lists.
pub fn commit_checkpoint_while(
    number: u64,
    committables: &[Committable],
    is_awaited: &dyn Fn() -> bool,
) -> Result<(), SinkError> {
    commit_marked(&Mark::of_checkpoint(number), committables, is_awaited)
}

/// [`commit_while`] to the end.
#[cfg(test)]
pub(crate) fn commit(committables: &[Committable]) -> Result<(), SinkError> {
    commit_while(committables, &|| true)
}

/// Makes the output of a finished job visible. Idempotent: output that is visible already stays as it is.
/// Stops with an error when `is_awaited` returns false: it is called before each part, since each may take long if a
/// file system hangs.
pub fn commit_while(
    committables: &[Committable],
    is_awaited: &dyn Fn() -> bool,
) -> Result<(), SinkError> {
    commit_marked(&Mark::of_end(), committables, is_awaited)
}

fn commit_marked(
    mark: &Mark,
    committables: &[Committable],
    is_awaited: &dyn Fn() -> bool,
) -> Result<(), SinkError> {
    let paths = |committable: &Committable| {
        let pending = PathBuf::from(&committable.pending_path);
        (pending, PathBuf::from(&committable.final_path))
    };
    // First all parts are checked: if one can't become visible, none does.
    let mut waiting = BTreeSet::new();
    let mut names: BTreeMap<PathBuf, Vec<String>> = BTreeMap::new();
    for (pending, visible) in committables.iter().map(paths) {
        if let (Some(directory), Some(name)) = (pending.parent(), pending.file_name()) {
            let names = names.entry(directory.to_owned()).or_default();
            names.push(name.to_string_lossy().into_owned());
        }
        // In this order: a process that commits the same output at the same time (a deposed leader that does
        // not know it) creates the visible file and removes the pending file in one step.
        match (exists(&visible)?, exists(&pending)?) {
            // A commit by link that stopped. The second name goes when no other part is in the way.
            (true, true) if are_one_file(&pending, &visible) => {}
            (true, true) => return Err(SinkError::Occupied { path: visible }),
            (true, false) => {}
            (false, true) => waiting.extend(pending.parent().map(Path::to_owned)),
            (false, false) => was_taken(&pending, &visible)?,
        }
    }
    // Then the marks, durable before the first part is moved: a part that is at neither path later was taken, not lost.
    for (directory, names) in names {
        if !waiting.contains(&directory) {
            continue;
        }
        if !is_awaited() {
            return Err(SinkError::NotAwaited);
        }
        let marked = mark.write(&directory, &names);
        marked.map_err(|error| SinkError::io("write to", &directory, error))?;
    }
    let mut parents = Vec::new();
    let mut left = committables.len();
    for committable in committables {
        let pending = Path::new(&committable.pending_path);
        let visible = Path::new(&committable.final_path);
        if !is_awaited() {
            return Err(SinkError::NotAwaited);
        }
        publish(pending, visible)?;
        parents.extend(visible.parent().map(Path::to_owned));
        parents.extend(pending.parent().map(Path::to_owned));
        left -= 1;
        if left > 0 && mark != &Mark::of_end() {
            failpoint_on_a_thread("checkpoint.some-committed");
        }
    }
    parents.sort();
    parents.dedup();
    for parent in parents {
        match sync_directory(&parent) {
            Ok(()) => {}
            // A commit repeated after the cleanup finds that the directory of pending files is gone.
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(SinkError::io("sync", &parent, error)),
        }
    }
    Ok(())
}

fn publish(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    match rename_to_unused(pending, visible) {
        Some(renamed) => published(pending, visible, "move to", renamed),
        None => match (exists(visible)?, exists(pending)?) {
            (false, true) => publish_by_a_link(pending, visible),
            (true, true) if are_one_file(pending, visible) => remove_second_name(pending),
            (true, true) => Err(occupied(visible)),
            (true, false) => Ok(()),
            (false, false) => was_taken(pending, visible),
        },
    }
}

/// Makes a file visible on a file system without a rename that never replaces. A link never replaces a file,
/// however long ago the check for one was. A process that stops in between leaves two names of one file; the
/// next commit removes the second name.
fn publish_by_a_link(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    published(pending, visible, "link to", fs::hard_link(pending, visible))?;
    remove_second_name(pending)
}

/// Evaluates the result of giving a file its visible name. Another process may have done it before.
fn published(
    pending: &Path,
    visible: &Path,
    action: &'static str,
    moved: io::Result<()>,
) -> Result<(), SinkError> {
    match moved {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            match is_in_the_way(pending, visible)? {
                true => Err(occupied(visible)),
                false => remove_second_name(pending),
            }
        }
        // Or the output's directory was removed, and the pending file with it.
        Err(error) if error.kind() == ErrorKind::NotFound => match exists(visible)? {
            true => Ok(()),
            false => was_taken(pending, visible),
        },
        Err(error) => Err(SinkError::io(action, visible, error)),
    }
}

fn occupied(visible: &Path) -> SinkError {
    let path = visible.to_owned();
    SinkError::Occupied { path }
}

fn remove_second_name(pending: &Path) -> Result<(), SinkError> {
    remove_if_exists(pending).map_err(|error| SinkError::io("remove", pending, error))
}

/// Whether both names are of one file: a commit by link stopped before it removed the pending name.
fn are_one_file(pending: &Path, visible: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (identity(pending), identity(visible)) {
        (Ok(pending), Ok(visible)) => pending == visible,
        _ => false,
    }
}

/// For output that is at neither path: Ok if a mark says that a commit made it visible, so that a consumer has taken it
/// away since. Otherwise it is lost.
fn was_taken(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    if is_marked(pending).map_err(|error| SinkError::io("read marks beside", pending, error))? {
        return Ok(());
    }
    let (pending, visible) = (pending.to_owned(), visible.to_owned());
    Err(SinkError::Lost { pending, visible })
}

/// Whether the visible file belongs to another run. The order of the checks matters, as in [`commit_marked`].
fn is_in_the_way(pending: &Path, visible: &Path) -> Result<bool, SinkError> {
    Ok(exists(visible)? && exists(pending)? && !are_one_file(pending, visible))
}

fn exists(path: &Path) -> Result<bool, SinkError> {
    fs::exists(path).map_err(|error| SinkError::io("read", path, error))
}

#[cfg(test)]
#[path = "committing_tests.rs"]
mod tests;
