//! Directories that only this user may change: created with mode 0700, and checked before their content is
//! trusted.
//!
//! A directory passes the check if this user or root owns it, no other user may write to it, and no other
//! user can replace it. The same holds for every directory above it, with two exceptions: those may be
//! writable by all if they are sticky, like `/tmp`, and by a group of root or of this process. Every symbolic
//! link on the path must belong to this user or to root. This module does not check the directory's content.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::process::{getegid, geteuid};

/// The mode of directories that this crate creates.
pub const DIRECTORY_MODE: u32 = 0o700;
/// The mode of files that this crate creates.
pub const FILE_MODE: u32 = 0o600;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// Limit for symbolic links on a path; the same as the kernel's.
const MOST_LINKS: usize = 40;

/// The reason why other users may change a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOwn {
    /// Another user owns it.
    #[error(
        "{} belongs to the user with id {owner}, who could change its content, and this process runs as {user}: \
         give it to this user (chown), or name another directory", path.display()
    )]
    Owner {
        /// The directory, or one above it.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// The user that runs this process.
        user: u32,
    },
    /// Other users may write to it.
    #[error(
        "other users may write to {}, whose mode is {mode:04o}: remove that permission (chmod go-w), or name another directory",
        path.display()
    )]
    Writable {
        /// The directory, or one above it.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// A symbolic link of another user leads to it.
    #[error(
        "{} is a symbolic link of the user with id {owner}, who could redirect it: remove it, or name another directory",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
}

impl From<NotOwn> for io::Error {
    fn from(reason: NotOwn) -> io::Error {
        io::Error::new(io::ErrorKind::PermissionDenied, reason)
    }
}

/// Whether the open file is the one at `path`: no other process has removed or replaced it. False if that is unknown.
pub fn is_at(file: &File, path: &Path) -> bool {
    let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
    match (file.metadata(), fs::metadata(path)) {
        (Ok(open), Ok(named)) => identity(open) == identity(named),
        _ => false,
    }
}

/// Creates a directory and its parents if they are missing, and checks that only this user may change it.
pub fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(DIRECTORY_MODE).create(path)?;
    check(path)
}

/// Checks that only this user may change an existing directory. The error wraps a [`NotOwn`] if the check
/// fails.
pub fn check(path: &Path) -> io::Result<()> {
    let own = ProcessUser::current();
    let mut left = VecDeque::from(parts(&std::path::absolute(path)?));
    let mut at = PathBuf::from("/");
    let mut links = 0;
    loop {
        let found = fs::symlink_metadata(&at)?;
        if found.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            own.check_link(&at, &found)?;
            let target = fs::read_link(&at)?;
            // The parts of the target replace the link, before the parts that are left.
            at = match target.is_absolute() {
                true => PathBuf::from("/"),
                false => at.parent().unwrap_or(Path::new("/")).to_owned(),
            };
            for part in parts(&target).into_iter().rev() {
                left.push_front(part);
            }
        } else if left.is_empty() {
            return Ok(own.check_itself(&at, &found)?);
        } else {
            own.check_above(&at, &found)?;
        }
        match left.pop_front() {
            // `at` contains no symbolic link, so the directory above it is its parent. If `left` is empty,
            // the last part was a link and the loop checks its target next.
            Some(part) if part == ".." => {
                at.pop();
            }
            Some(part) => at.push(part),
            None => {}
        }
    }
}

/// The parts of a path, without the root.
fn parts(path: &Path) -> Vec<OsString> {
    let part = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().filter_map(part).collect()
}

/// The user and group of this process.
struct ProcessUser {
    user: u32,
    group: u32,
    /// The id that the kernel shows for users who are unknown in this process's user namespace; `None` if it
    /// is a real user here.
    overflow_user: Option<u32>,
}

impl ProcessUser {
    fn current() -> ProcessUser {
        ProcessUser {
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            overflow_user: unknown_user(),
        }
    }

    fn is_trusted(&self, owner: u32) -> bool {
        owner == 0 || owner == self.user
    }

    fn check_itself(&self, path: &Path, found: &Metadata) -> Result<(), NotOwn> {
        self.check_owner(path, found, self.is_trusted(found.uid()))?;
        let others = GROUP_WRITES | OTHERS_WRITE;
        check_mode(path, found, found.mode() & others == 0)
    }

    fn check_above(&self, path: &Path, found: &Metadata) -> Result<(), NotOwn> {
        // In a user namespace the host's root shows as the unknown user. A directory of that user which
        // others can only read is treated as root's.
        let is_host_root = self.overflow_user == Some(found.uid());
        let is_trusted = is_host_root || self.is_trusted(found.uid());
        self.check_owner(path, found, is_trusted)?;
        let mode = found.mode();
        let is_our_group = found.gid() == self.group || found.gid() == 0;
        let is_closed = mode & OTHERS_WRITE == 0 && (mode & GROUP_WRITES == 0 || is_our_group);
        check_mode(path, found, is_closed || mode & STICKY != 0)
    }

    fn check_owner(&self, path: &Path, found: &Metadata, holds: bool) -> Result<(), NotOwn> {
        if holds {
            return Ok(());
        }
        Err(NotOwn::Owner {
            path: path.to_owned(),
            owner: found.uid(),
            user: self.user,
        })
    }

    fn check_link(&self, path: &Path, found: &Metadata) -> Result<(), NotOwn> {
        if self.is_trusted(found.uid()) {
            return Ok(());
        }
        Err(NotOwn::Link {
            path: path.to_owned(),
            owner: found.uid(),
        })
    }
}

fn check_mode(path: &Path, found: &Metadata, holds: bool) -> Result<(), NotOwn> {
    if holds {
        return Ok(());
    }
    Err(NotOwn::Writable {
        path: path.to_owned(),
        mode: found.mode() & 0o7777,
    })
}

/// `None` if that id is a known user: in the host's own namespace it belongs to `overflow_user`.
fn unknown_user() -> Option<u32> {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    let overflow: u32 = overflow.trim().parse().ok()?;
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    (!is_mapped(&map, overflow)).then_some(overflow)
}

/// Whether a user namespace with this map contains the user. A line has: first id inside, first id outside,
/// count.
fn is_mapped(map: &str, user: u32) -> bool {
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|text| text.parse::<u64>().ok());
        match (numbers.next().flatten(), numbers.nth(1).flatten()) {
            (Some(first), Some(count)) => (first..first + count).contains(&u64::from(user)),
            _ => false,
        }
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, lchown, symlink};

    use super::*;

    const ANOTHER_USER: u32 = 65534;

    fn root() -> tempfile::TempDir {
        tempfile::tempdir().expect("a directory")
    }

    fn reason(path: &Path) -> Option<NotOwn> {
        let error = check(path).err()?;
        let inner = error.into_inner().expect("a reason");
        Some(*inner.downcast().expect("of this kind"))
    }

    fn is_root() -> bool {
        geteuid().is_root()
    }

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("set");
    }

    #[test]
    fn a_directory_is_made_for_this_user_alone_with_those_above_it() {
        let root = root();
        let path = root.path().join("a/b");
        make(&path).expect("made");
        for made in [&path, &root.path().join("a")] {
            assert_eq!(fs::metadata(made).expect("there").mode() & 0o777, 0o700);
        }
    }

    #[test]
    fn a_directory_that_others_may_write_is_none_of_ours_unless_it_is_above_and_sticky() {
        let root = root();
        let (above, path) = (root.path().join("a"), root.path().join("a/b"));
        make(&path).expect("made");
        for mode in [0o770, 0o702, 0o1777] {
            set_mode(&path, mode);
            let expected = NotOwn::Writable {
                path: path.clone(),
                mode,
            };
            assert_eq!(reason(&path), Some(expected));
        }
        set_mode(&path, 0o755);
        assert_eq!(reason(&path), None);
        set_mode(&above, 0o777);
        assert!(matches!(reason(&path), Some(NotOwn::Writable { path, .. }) if path == above));
        set_mode(&above, 0o1777);
        assert_eq!(reason(&path), None);
    }

    #[test]
    fn a_directory_or_a_link_of_another_user_is_none_of_ours_wherever_it_is_on_the_way() {
        if !is_root() {
            return;
        }
        let root = root();
        let (above, path) = (root.path().join("a"), root.path().join("a/b"));
        make(&path).expect("made");
        let theirs = |path: &Path| NotOwn::Owner {
            path: path.to_owned(),
            owner: ANOTHER_USER,
            user: 0,
        };
        for other in [&path, &above] {
            chown(other, Some(ANOTHER_USER), None).expect("given away");
            assert_eq!(reason(&path), Some(theirs(other)));
            chown(other, Some(0), None).expect("taken back");
        }
        let link = root.path().join("link");
        symlink("a", &link).expect("linked");
        assert_eq!(reason(&link.join("b")), None);
        assert_eq!(reason(&link), None);
        lchown(&link, Some(ANOTHER_USER), None).expect("given away");
        let expected = NotOwn::Link {
            path: link.clone(),
            owner: ANOTHER_USER,
        };
        assert_eq!(reason(&link.join("b")), Some(expected));
        // The target of one's own link is checked like any directory.
        let ours = root.path().join("ours");
        symlink(&path, &ours).expect("linked");
        chown(&above, Some(ANOTHER_USER), None).expect("given away");
        assert_eq!(reason(&ours), Some(theirs(&above)));
    }

    #[test]
    fn links_that_lead_in_a_circle_are_an_error() {
        let root = root();
        symlink("b", root.path().join("a")).expect("linked");
        symlink("a", root.path().join("b")).expect("linked");
        check(&root.path().join("a")).expect_err("a circle");
    }

    #[test]
    fn users_outside_a_namespace_are_distinguished_from_users_in_it() {
        assert!(is_mapped("         0          0 4294967295\n", 65534));
        assert!(!is_mapped("0 1000 1\n", 65534));
        assert!(is_mapped("0 1000 1\n1 100000 65536\n", 65534));
    }
}
