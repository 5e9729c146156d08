//! Makes output visible: part by part, exactly once, never over an existing file, by any process and any number
//! of times.

use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;
use tanist_proto::v1::Committable;

use super::{SinkError, sync_directory};

/// Marker file of a commit that has begun, in the directory of the pending files.
const COMMITTING: &str = "committing";

/// Makes output visible. Idempotent: output that is visible already stays as it is.
#[cfg(test)]
pub(crate) fn commit(committables: &[Committable]) -> Result<(), SinkError> {
    commit_while(committables, &|| true)
}

/// Does the same while `is_awaited` returns true. It is called before each part, since each may take long if a
/// file system hangs.
pub fn commit_while(
    committables: &[Committable],
    is_awaited: &dyn Fn() -> bool,
) -> Result<(), SinkError> {
    let paths = |committable: &Committable| {
        let pending = PathBuf::from(&committable.pending_path);
        (pending, PathBuf::from(&committable.final_path))
    };
    // If one part of the output can't become visible, none does.
    let mut waiting = Vec::new();
    for (pending, visible) in committables.iter().map(paths) {
        // In this order: a process that commits the same output at the same time (a deposed leader that does
        // not know it) creates the visible file and removes the pending file in one step.
        match (exists(&visible)?, exists(&pending)?) {
            (true, true) if are_one_file(&pending, &visible) => remove_second_name(&pending)?,
            (true, true) => return Err(SinkError::Occupied { path: visible }),
            (true, false) => {}
            (false, true) => waiting.extend(pending.parent().map(Path::to_owned)),
            (false, false) => was_taken(&pending, &visible)?,
        }
    }
    waiting.sort();
    waiting.dedup();
    for directory in waiting {
        mark(&directory).map_err(|error| SinkError::io("write to", &directory, error))?;
    }
    let mut parents = Vec::new();
    for committable in committables {
        let pending = Path::new(&committable.pending_path);
        let visible = Path::new(&committable.final_path);
        if !is_awaited() {
            return Err(SinkError::NotAwaited);
        }
        publish(pending, visible)?;
        parents.extend(visible.parent().map(Path::to_owned));
        parents.extend(pending.parent().map(Path::to_owned));
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
    match renameat_with(CWD, pending, CWD, visible, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(()),
        Err(Errno::EXIST) if is_in_the_way(pending, visible)? => {
            return Err(SinkError::Occupied {
                path: visible.to_owned(),
            });
        }
        Err(Errno::EXIST) => return Ok(()),
        Err(Errno::NOENT) => {
            // Or the output's directory was removed, and the pending file with it.
            return match exists(visible)? {
                true => Ok(()),
                false => was_taken(pending, visible),
            };
        }
        // The file system does not support this flag.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {}
        Err(error) => return Err(SinkError::io("move to", visible, error.into())),
    }
    match (exists(visible)?, exists(pending)?) {
        (false, true) => publish_by_a_link(pending, visible),
        (true, true) if are_one_file(pending, visible) => remove_second_name(pending),
        (true, true) => Err(SinkError::Occupied {
            path: visible.to_owned(),
        }),
        (true, false) => Ok(()),
        (false, false) => was_taken(pending, visible),
    }
}

/// Makes a file visible on a file system without a rename that never replaces. A link never replaces a file,
/// however long ago the check for one was. A process that stops in between leaves two names of one file; the
/// next commit removes the second name.
fn publish_by_a_link(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    match fs::hard_link(pending, visible) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            if !is_in_the_way(pending, visible)? {
                return Ok(());
            }
            return Err(SinkError::Occupied {
                path: visible.to_owned(),
            });
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return match exists(visible)? {
                true => Ok(()),
                false => was_taken(pending, visible),
            };
        }
        Err(error) => return Err(SinkError::io("link to", visible, error)),
    }
    remove_second_name(pending)
}

fn remove_second_name(pending: &Path) -> Result<(), SinkError> {
    match fs::remove_file(pending) {
        Err(error) if error.kind() != ErrorKind::NotFound => {
            Err(SinkError::io("remove", pending, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Whether both names are of one file: a commit by link stopped before it removed the pending name.
fn are_one_file(pending: &Path, visible: &Path) -> bool {
    let identity = |path: &Path| fs::metadata(path).map(|found| (found.dev(), found.ino()));
    match (identity(pending), identity(visible)) {
        (Ok(pending), Ok(visible)) => pending == visible,
        _ => false,
    }
}

/// Marks that a commit starts to take files from this directory. The marker survives a later crash.
fn mark(directory: &Path) -> io::Result<()> {
    let mark = directory.join(COMMITTING);
    if !fs::exists(&mark)? {
        File::create(&mark)?;
        sync_directory(directory)?;
    }
    Ok(())
}

/// Output is at neither path: checks whether a commit made it visible and it was taken away since. Otherwise it
/// is lost.
fn was_taken(pending: &Path, visible: &Path) -> Result<(), SinkError> {
    let mark = pending.with_file_name(COMMITTING);
    if exists(&mark)? {
        return Ok(());
    }
    let (pending, visible) = (pending.to_owned(), visible.to_owned());
    Err(SinkError::Lost { pending, visible })
}

/// Whether the visible file belongs to another run. The order of the checks is that of [`commit_while`].
fn is_in_the_way(pending: &Path, visible: &Path) -> Result<bool, SinkError> {
    Ok(exists(visible)? && exists(pending)? && !are_one_file(pending, visible))
}

fn exists(path: &Path) -> Result<bool, SinkError> {
    fs::exists(path).map_err(|error| SinkError::io("read", path, error))
}

#[cfg(test)]
mod tests {
    use tanist_proto::id::JobId;

    use super::*;
    use crate::sink::cleanup;
    use crate::sink::names::PENDING_DIRECTORY;
    use crate::sink::testing::pending;

    #[test]
    fn a_commit_may_be_repeated_at_any_point() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        commit(&parts[..1]).expect("first half");
        commit(&parts).expect("all");
        commit(&parts).expect("again");
        cleanup(directory.path(), job, "").expect("cleaned up");
        commit(&parts).expect("after the cleanup");
        assert_eq!(
            fs::read_to_string(directory.path().join("part-1")).expect("part"),
            "part-1"
        );
    }

    #[test]
    fn of_a_commit_that_nobody_waits_for_no_further_part_becomes_visible() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        let [first, second] = parts.clone().map(|part| PathBuf::from(part.final_path));
        let error = commit_while(&parts, &|| !first.exists()).expect_err("not to its end");
        assert!(matches!(error, SinkError::NotAwaited), "{error}");
        assert!(first.exists() && !second.exists());
        commit(&parts).expect("resumed");
        assert!(second.exists());
    }

    #[test]
    fn a_commit_overwrites_nothing() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        fs::write(&part.final_path, "precious").expect("written");
        let error = commit(std::slice::from_ref(&part)).expect_err("refused");
        assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
        assert_eq!(
            fs::read_to_string(&part.final_path).expect("part"),
            "precious"
        );
    }

    /// The leader had checked and was then stopped; meanwhile another run's output appeared.
    #[test]
    fn where_renames_replace_files_a_leader_that_stood_still_overwrites_nothing() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        let (from, to) = (Path::new(&part.pending_path), Path::new(&part.final_path));
        fs::write(to, "precious").expect("written");
        let error = publish_by_a_link(from, to).expect_err("in the way");
        assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
        assert_eq!(fs::read_to_string(to).expect("part"), "precious");
        // The successor has committed it.
        fs::remove_file(to).expect("taken away");
        commit(std::slice::from_ref(&part)).expect("committed");
        publish_by_a_link(from, to).expect("it is there");
        assert_eq!(fs::read_to_string(to).expect("part"), "part-0");
        // And it was taken away since.
        fs::remove_file(to).expect("taken away");
        publish_by_a_link(from, to).expect("it was there");
        assert!(!to.exists());
    }

    #[test]
    fn where_a_link_made_it_visible_a_crash_before_the_rest_is_no_other_runs_output() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        fs::hard_link(&part.pending_path, &part.final_path).expect("a crash after it");
        commit(std::slice::from_ref(&part)).expect("resumed");
        assert!(!Path::new(&part.pending_path).exists());
        assert_eq!(
            fs::read_to_string(&part.final_path).expect("part"),
            "part-0"
        );
    }

    #[test]
    fn of_an_output_that_is_partly_in_the_way_nothing_becomes_visible() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        fs::write(&parts[1].final_path, "precious").expect("written");
        let error = commit(&parts).expect_err("refused");
        assert!(matches!(error, SinkError::Occupied { .. }), "{error}");
        assert!(!Path::new(&parts[0].final_path).exists());
    }

    #[test]
    fn lost_output_is_an_error() {
        let directory = tempfile::tempdir().expect("directory");
        let part = pending(directory.path(), JobId::from_bits(1), "part-0");
        fs::remove_file(&part.pending_path).expect("removed");
        let error = commit(&[part]).expect_err("lost");
        assert!(matches!(error, SinkError::Lost { .. }), "{error}");
    }

    #[test]
    fn output_that_was_taken_away_once_it_was_visible_is_not_lost() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        commit_while(&parts, &|| !Path::new(&parts[0].final_path).exists()).expect_err("a crash");
        fs::remove_file(&parts[0].final_path).expect("taken");
        commit(&parts).expect("by the next leader");
        fs::remove_file(&parts[1].final_path).expect("taken");
        commit(&parts).expect("by the one after it");
        assert!(
            parts
                .iter()
                .all(|part| !Path::new(&part.final_path).exists())
        );
        // Without the marker, since the whole directory is elsewhere, it is not known whether it was committed.
        let away = directory.path().join(".away");
        fs::rename(directory.path().join(PENDING_DIRECTORY), away).expect("away");
        let error = commit(&parts).expect_err("lost");
        assert!(matches!(error, SinkError::Lost { .. }), "{error}");
    }

    #[test]
    fn of_an_output_that_is_partly_lost_nothing_becomes_visible() {
        let directory = tempfile::tempdir().expect("directory");
        let job = JobId::from_bits(1);
        let parts = ["part-0", "part-1"].map(|name| pending(directory.path(), job, name));
        fs::remove_file(&parts[1].pending_path).expect("removed");
        for _ in 0..2 {
            let error = commit(&parts).expect_err("lost");
            assert!(matches!(error, SinkError::Lost { .. }), "{error}");
            assert!(Path::new(&parts[0].pending_path).exists());
        }
    }
}
