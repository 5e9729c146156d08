//! Renames that never replace a file.

use std::io;
use std::path::Path;

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::io::Errno;

/// Renames a file to a name that no file has. `None`: the file system has no such rename, and nothing was done.
pub(super) fn rename_to_unused(from: &Path, to: &Path) -> Option<io::Result<()>> {
    match renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => None,
        renamed => Some(renamed.map_err(io::Error::from)),
    }
}
