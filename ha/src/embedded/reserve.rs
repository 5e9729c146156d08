//! Space kept beside the data for the day on which the disk is full: deletions and elections need some themselves, since
//! SQLite writes what it deletes into its log first.
//!
//! The file `reserve` holds nothing. Its space is given up when a deletion, or a write of the election, finds none, and reserved again,
//! as much as there is room for, before anything is put: what is put may only take the rest, and never the last of it, so that a full
//! store can always be emptied and be led. Any process may give it up or fill it; where the file system can't reserve space there is
//! none.
//!
//! Invariant: the file is made when the database is opened and never again. One that is gone goes with its directory, which
//! somebody is removing, and would not be empty.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::own_directory;

/// What is kept where there is room: as much as SQLite's log grows to before it is written from its beginning again.
const WHOLE: u64 = 4 * 1024 * 1024;
/// With less than that nothing is put.
const LEAST: u64 = 1024 * 1024;
/// What it is filled by where there is not room for the whole.
const STEP: u64 = 128 * 1024;
/// What `st_blocks` counts in.
const BLOCK: u64 = 512;

/// See the module.
#[derive(Debug)]
pub(super) struct Reserve {
    path: PathBuf,
}

impl Reserve {
    /// That of the database at this path.
    pub(super) fn beside(database: &Path) -> Reserve {
        Reserve {
            path: database.with_file_name("reserve"),
        }
    }

    /// Makes it, if there is room for it.
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

    /// Fills it if that is to be done. False: there is no room. Other troubles are left to those whose writes meet them.
    pub(super) fn keep(&self) -> bool {
        let reserved = self.reserved();
        reserved >= WHOLE || self.open().is_none_or(|file| reserve(&file, reserved))
    }

    /// Gives its space to others. False: there was none.
    pub(super) fn give_up(&self) -> bool {
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

fn is_lack_of_space(error: Option<Errno>) -> bool {
    matches!(error, Some(Errno::NOSPC | Errno::DQUOT))
}

/// Lengthens it from what is reserved to [`WHOLE`], or as far as there is room. False: that is less than [`LEAST`].
fn reserve(file: &File, reserved: u64) -> bool {
    let sizes = (1..).map(|steps| WHOLE - steps * STEP);
    let longer = std::iter::once(WHOLE)
        .chain(sizes)
        .take_while(|&size| size > reserved);
    for size in longer {
        match fallocate(file, FallocateFlags::empty(), 0, size) {
            Ok(()) => return size >= LEAST,
            Err(error) if is_lack_of_space(Some(error)) => {}
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
        assert!(!reserve.give_up(), "there is none yet");
        reserve.make();
        for _ in 0..2 {
            assert!(reserve.keep() && reserve.keep());
            assert!(reserve.give_up());
        }
    }

    #[test]
    fn one_that_is_gone_is_not_made_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let reserve = Reserve::beside(&directory.path().join("store.db"));
        reserve.make();
        std::fs::remove_file(directory.path().join("reserve")).expect("it was made");
        assert!(reserve.keep() && !reserve.give_up());
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
