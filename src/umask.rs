//! The process's file mode creation mask. What a process makes for itself is closed to others; what jobs write is the user's, and has the
//! mask with which the process was started, or the one that is configured.
//!
//! The kernel has one mask for all threads of a process, so it is set once and stays. Output that is made in this process gets its mode after
//! it was made; a program gets the user's mask before it starts. Until [`restrict`] was called (this is then a library in somebody's
//! process) nothing is changed. Not here: directories that must not be others' ([`tanist_ha::own_directory`]).

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::OnceLock;

use rustix::fs::{Mode, getxattr};
use rustix::process::umask;

/// The mask of what this process makes for itself.
const OWN: Mode = Mode::RWXG.union(Mode::RWXO);
/// Where a directory has it, its entries get their modes from it and not from the mask.
const DEFAULT_ACL: &str = "system.posix_acl_default";

/// The mask of what jobs write.
static OUTPUT: OnceLock<u32> = OnceLock::new();

/// From now on only this user may read what this process makes. `output`: the mask of what jobs write; none: the present one. The first
/// call counts.
pub(crate) fn restrict(output: Option<u32>) {
    OUTPUT.get_or_init(|| {
        let present = umask(OWN);
        output.unwrap_or(present.as_raw_mode())
    });
}

/// The mask of what jobs write; none: it is this process's.
pub(crate) fn of_output() -> Option<u32> {
    OUTPUT.get().copied()
}

/// In this process, which becomes a program.
pub(crate) fn set(mask: u32) {
    umask(Mode::from_raw_mode(mask));
}

/// Makes a new file for the output of a job.
pub(crate) fn create_output_file(path: &Path) -> io::Result<File> {
    let file = File::create_new(path)?;
    if let Some(mode) = mode_of_output(path, 0o666) {
        file.set_permissions(Permissions::from_mode(mode))?;
    }
    Ok(file)
}

/// Makes a directory for the output of a job where it is missing, with those above it.
pub(crate) fn create_output_directories(path: &Path) -> io::Result<()> {
    match fs::create_dir(path) {
        Ok(()) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let Some(above) = path.parent() else {
                return Err(error);
            };
            create_output_directories(above)?;
            match fs::create_dir(path) {
                // Another task of the job was faster.
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
    // The group is inherited by what is in it where that holds for the directory above.
    let inherited = fs::metadata(path)?.mode() & 0o7000;
    match fs::set_permissions(path, Permissions::from_mode(mode | inherited)) {
        // Somebody cleans up behind another job, as directories are empty.
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The mode that `path` was to have of `wanted`; none: it has it.
fn mode_of_output(path: &Path, wanted: u32) -> Option<u32> {
    let mask = of_output()?;
    let above = path.parent().unwrap_or(Path::new("."));
    let has_default_acl = getxattr(above, DEFAULT_ACL, &mut [0_u8; 0]).is_ok_and(|size| size > 0);
    (!has_default_acl).then_some(wanted & !mask)
}
