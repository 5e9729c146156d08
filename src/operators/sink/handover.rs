//! Gives pending files that a retained checkpoint names to a job that begins from it.
//!
//! Each file gets a second name, in the directory of the other job's run: a link, or a copy where the file system has
//! none. So each job removes its own names, and no order of these removals takes a file from the other one. What a
//! snapshot names of a file is never changed: a zombie of the ended job may only append to it.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::{Path, PathBuf};

use tanist_proto::id::JobId;

use super::names::{PENDING_DIRECTORY, handed_over, run_directory};
use super::{SinkError, sync_ancestors};
use crate::umask;

/// How often a directory is created that another job's cleanup may remove while it is empty.
const TRIES: u32 = 5;

/// Gives these pending files to a run of a job. Returns the path of each in the same order. Idempotent. They may be in
/// the output directories `directories` alone, which the cleanup after that job looks at.
pub fn hand_over(
    paths: &[Vec<u8>],
    (job, run): (JobId, &str),
    directories: &[PathBuf],
    is_awaited: &dyn Fn() -> bool,
) -> Result<Vec<Vec<u8>>, SinkError> {
    let mut given = Vec::with_capacity(paths.len());
    for path in paths {
        if !is_awaited() {
            return Err(SinkError::NotAwaited);
        }
        let path = Path::new(OsStr::from_bytes(path));
        let directory = output_directory(path).filter(|it| directories.iter().any(|own| own == it));
        let (Some(directory), Some(name)) = (directory, path.file_name()) else {
            return Err(SinkError::Elsewhere {
                path: path.to_owned(),
            });
        };
        let run = directory
            .join(PENDING_DIRECTORY)
            .join(run_directory(job, run));
        let to = run.join(handed_over(name));
        give(path, &to)?;
        given.push(to.into_os_string().into_vec());
    }
    let mut runs: Vec<&Path> = Vec::new();
    for path in &given {
        let path = Path::new(OsStr::from_bytes(path));
        if path.parent().is_some_and(|run| !runs.contains(&run)) {
            runs.extend(path.parent());
            sync_ancestors(path).map_err(|error| SinkError::io("sync", path, error))?;
        }
    }
    Ok(given)
}

/// The output directory of a pending file.
fn output_directory(pending: &Path) -> Option<&Path> {
    let ours = pending.parent()?.parent()?;
    (ours.file_name()? == PENDING_DIRECTORY).then_some(ours.parent()?)
}

fn give(from: &Path, to: &Path) -> Result<(), SinkError> {
    let mut tries = 0;
    loop {
        tries += 1;
        let made = to.parent().map_or(Ok(()), umask::create_output_directories);
        made.map_err(|error| SinkError::io("create", to, error))?;
        match fs::hard_link(from, to) {
            Ok(()) => return Ok(()),
            // An earlier call made it. It is the same file: the random number in the name says so.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => return Ok(()),
            Err(error) if error.kind() == ErrorKind::NotFound => {
                let is_there =
                    fs::exists(from).map_err(|error| SinkError::io("read", from, error))?;
                if !is_there {
                    return Err(SinkError::Removed {
                        path: from.to_owned(),
                    });
                }
                if tries >= TRIES {
                    return Err(SinkError::io("link to", to, error));
                }
            }
            // The file system has no links.
            Err(_) => return copy(from, to),
        }
    }
}

/// Copies a file. The copy gets its name when it is complete and durable.
fn copy(from: &Path, to: &Path) -> Result<(), SinkError> {
    let mut unfinished = OsString::from(to);
    unfinished.push(format!(".{:016x}", rand::random::<u64>()));
    let unfinished = PathBuf::from(unfinished);
    let copied = fs::copy(from, &unfinished)
        .and_then(|_| File::open(&unfinished)?.sync_all())
        .and_then(|()| fs::rename(&unfinished, to));
    copied.map_err(|error| SinkError::io("copy to", to, error))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::sink::testing::pending;
    use crate::sink::{Below, cleanup, remove_superseded};

    const FIRST: JobId = JobId::from_bits(1);
    const SECOND: JobId = JobId::from_bits(2);
    const THIRD: JobId = JobId::from_bits(3);

    fn path_of(bytes: &[u8]) -> &Path {
        Path::new(OsStr::from_bytes(bytes))
    }

    #[test]
    fn each_job_has_a_name_of_its_own_for_a_file_that_is_handed_over() {
        let directory = tempfile::tempdir().expect("directory");
        let directories = [directory.path().to_owned()];
        let open = pending(directory.path(), FIRST, "v-0-1-00000000000000aa").pending_path;
        let content = fs::read(&open).expect("readable");
        let give = |path: &[u8], job| {
            let paths = [path.to_vec()];
            let given = hand_over(&paths, (job, "r"), &directories, &|| true);
            given.expect("handed over").remove(0)
        };
        let second = give(open.as_bytes(), SECOND);
        assert_eq!(give(open.as_bytes(), SECOND), second, "once more");
        let third = give(&second, THIRD);
        assert_eq!(path_of(&third).file_name(), path_of(&second).file_name());
        cleanup(directory.path(), FIRST, "").expect("cleaned up");
        cleanup(directory.path(), SECOND, "r").expect("cleaned up");
        assert_eq!(fs::read(path_of(&third)).expect("readable"), content);
        // It goes when no manifest of the job names it.
        let remove = |kept: &BTreeSet<Vec<u8>>| {
            let below = Below::default();
            let superseded = (&below, kept);
            remove_superseded(directory.path(), (THIRD, "r"), superseded, &|| true)
        };
        remove(&BTreeSet::from([third.clone()])).expect("removed");
        assert!(path_of(&third).exists());
        remove(&BTreeSet::new()).expect("removed");
        assert!(!path_of(&third).exists());
    }

    #[test]
    fn a_file_that_is_gone_or_in_a_directory_that_no_sink_of_the_job_has_is_not_handed_over() {
        let parent = tempfile::tempdir().expect("directory");
        let [here, there] = ["here", "there"].map(|name| parent.path().join(name));
        let open = pending(&there, FIRST, "open").pending_path;
        let give = |path: &str| {
            let paths = [path.as_bytes().to_vec()];
            let given = hand_over(&paths, (SECOND, "r"), std::slice::from_ref(&here), &|| true);
            given.expect_err("refused")
        };
        let error = give(&open);
        assert!(matches!(error, SinkError::Elsewhere { .. }), "{error}");
        let gone = pending(&here, FIRST, "gone").pending_path;
        fs::remove_file(&gone).expect("removed");
        let error = give(&gone);
        assert!(matches!(error, SinkError::Removed { .. }), "{error}");
    }

    #[test]
    fn a_copy_is_complete_when_it_has_its_name() {
        let directory = tempfile::tempdir().expect("directory");
        let [from, to] = ["from", "to"].map(|name| directory.path().join(name));
        fs::write(&from, "content").expect("written");
        copy(&from, &to).expect("copied");
        assert_eq!(fs::read(&to).expect("readable"), b"content");
        assert_eq!(fs::read_dir(directory.path()).expect("listed").count(), 2);
    }
}
