//! Disk space reserved beside the data for a full disk: deletions and elections need some space themselves,
//! because SQLite first writes a deletion to its log.
//!
//! The file `reserve` has no content. Its space is released when a deletion or a write of the election runs
//! out of space, and reserved again, as far as there is room, before the next put. Puts may only take the
//! space beyond the reserve, so that a full store can always be emptied and led. Any process may release or
//! fill it. If the file system can't reserve space, there is no reserve.
//!
//! Invariant: the file is created when the database is opened and never again. If it is missing, its
//! directory is being removed, and a new file would make that fail.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::own_directory;

/// The full size in bytes: the size to which SQLite's log grows before it is written from its beginning
/// again.
const WHOLE: u64 = 4 * 1024 * 1024;
/// The minimum size in bytes: with less, puts are refused.
const LEAST: u64 = 1024 * 1024;
/// The step in bytes by which a smaller size is tried.
const STEP: u64 = 128 * 1024;
/// The unit of `st_blocks`, in bytes.
const BLOCK: u64 = 512;

/// The reserve file; see the module documentation.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    /// The reserve of the database at this path.
    pub(super) fn beside(database: &Path) -> Reserve {
        Reserve {
            path: database.with_file_name("reserve"),
        }
    }

    /// Creates the file and fills it as far as there is room.
    pub(super) fn make(&self) {
        let mut options = OpenOptions::new();
        options
            .create(true)
            .append(true)
            .mode(own_directory::FILE_MODE);
        if options.open(&self.path).is_ok() {
            self.keep();
        }
    }

    /// Fills the file if needed. Returns false if there is no room. Other errors are left to the write that
    /// meets them.
    pub(super) fn keep(&self) -> bool {
        let reserved = self.reserved();
        reserved >= WHOLE || self.open().is_none_or(|file| reserve(&file, reserved))
    }

    /// Releases its space. Returns false if there was none.
    pub(super) fn release(&self) -> bool {
        let has_some = self.reserved() > 0;
        has_some && self.open().is_some_and(|file| file.set_len(0).is_ok())
    }

    fn reserved(&self) -> u64 {
        std::fs::metadata(&self.path).map_or(0, |found| found.blocks() * BLOCK)
    }

    fn open(&self) -> Option<File> {
        OpenOptions::new().write(true).open(&self.path).ok()
    }
}

/// Extends the file from the reserved size to [`WHOLE`], or as far as there is room. Returns false if that is
/// less than [`LEAST`].
fn reserve(file: &File, reserved: u64) -> bool {
    let sizes = (1..).map(|steps| WHOLE - steps * STEP);
    let longer = std::iter::once(WHOLE)
        .chain(sizes)
        .take_while(|&size| size > reserved);
    for size in longer {
        match fallocate(file, FallocateFlags::empty(), 0, size) {
            Ok(()) => return size >= LEAST,
            Err(Errno::NOSPC | Errno::DQUOT) => {}
            // The file system can't reserve space: there is no reserve.
            Err(_) => return true,
        }
    }
    reserved >= LEAST
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_filled_given_up_and_filled_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let reserve = Reserve::beside(&directory.path().join("store.db"));
        assert!(!reserve.release(), "there is none yet");
        reserve.make();
        for _ in 0..2 {
            assert!(reserve.keep() && reserve.keep());
            assert!(reserve.release());
        }
    }

    #[test]
    fn one_that_is_gone_is_not_made_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let reserve = Reserve::beside(&directory.path().join("store.db"));
        reserve.make();
        std::fs::remove_file(directory.path().join("reserve")).expect("it was made");
        assert!(reserve.keep() && !reserve.release());
        let left = std::fs::read_dir(directory.path()).expect("readable");
        assert_eq!(left.count(), 0);
    }

    #[test]
    fn a_directory_that_is_gone_is_no_lack_of_space() {
        let directory = tempfile::tempdir().expect("a directory");
        let reserve = Reserve::beside(&directory.path().join("gone/store.db"));
        assert!(reserve.keep());
    }
}
