//! The process's file mode creation mask. Files of the process itself are private. Output of jobs belongs to
//! the user and gets the mask with which the process was started, or the configured one.
//!
//! The kernel has one mask for all threads of a process, so it is set once. Output that is created in this
//! process gets its mode after creation; a program gets the user's mask before it starts. Before [`restrict`]
//! is called (when this is a library in another program's process) nothing is changed. Directories that must
//! not belong to others are not checked here ([`tanist_ha::own_directory`]).

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, getxattr};
use rustix::process::umask;

/// Mask for files of this process.
const OWN: Mode = Mode::RWXG.union(Mode::RWXO);
/// If a directory has this attribute, its entries get their modes from it, not from the mask.
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// Mask for output of jobs.
static OUTPUT: OnceLock<u32> = OnceLock::new();

/// Makes files that this process creates from now on readable only for this user. `output`: mask for output of
/// jobs; `None`: the current mask. Only the first call has an effect.
pub fn restrict(output: Option<u32>) {
    OUTPUT.get_or_init(|| {
        let present = umask(OWN);
        output.unwrap_or(present.as_raw_mode())
    });
}

/// Returns the mask for output of jobs; `None`: that of this process.
pub fn of_output() -> Option<u32> {
    OUTPUT.get().copied()
}

/// Sets the mask of this process, which is about to become a program.
pub(crate) fn set(mask: u32) {
    umask(Mode::from_raw_mode(mask));
}

/// Creates a file for output of a job.
pub(crate) fn create_output_file(path: &Path) -> io::Result<File> {
    let file = File::create_new(path)?;
    if let Some(mode) = mode_of_output(path, 0o666) {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Creates a directory for output of a job, with missing parents.
pub(crate) fn create_output_directories(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let Some(above) = path.parent() else {
                return Err(error);
            };
            create_output_directories(above)?;
            match fs::create_dir(path) {
                // Another task of the job created it first.
                Err(_) if path.is_dir() => return Ok(()),
                made => made?,
            }
        }
        Err(_) if path.is_dir() => return Ok(()),
        Err(error) => return Err(error),
    }
    let Some(mode) = mode_of_output(path, 0o777) else {
        return Ok(());
    };
    // If the parent passes its group on to new entries, this directory does too.
    let inherited = fs::metadata(path)?.mode() & 0o7000;
    match fs::set_permissions(path, Permissions::from_mode(mode | inherited)) {
        // The cleanup of another job may have removed the directory while it was empty.
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Returns the mode that `path` must get; `None`: it has it already.
fn mode_of_output(path: &Path, wanted: u32) -> Option<u32> {
    let mask = of_output()?;
    let above = path.parent().unwrap_or(Path::new("."));
    let has_default_acl = getxattr(above, DEFAULT_ACL, &mut [0_u8; 0]).is_ok_and(|size| size > 0);
    (!has_default_acl).then_some(wanted & !mask)
}
