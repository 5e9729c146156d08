//! Directories whose content is this user's alone: made with mode 0700, and checked before anything in them is trusted.
//!
//! A directory counts as one's own if it belongs to this user or to root, nobody else may write to it, and nobody else can put another
//! one in its place: the same holds for every directory above it, except that those may be writable by all where they are sticky, as
//! `/tmp` is, and by a group of root or this process. A symbolic link on the way has to be this user's or root's. Not here: what is in it.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Component, Path, PathBuf};

use rustix::process::{getegid, geteuid};

/// The mode of a directory that this crate makes.
pub const DIRECTORY_MODE: u32 = 0o700;
/// The mode of a file that this crate makes.
pub const FILE_MODE: u32 = 0o600;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
/// As many links as the kernel follows.
const MOST_LINKS: usize = 40;

/// Why a directory is not this user's alone.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotOwn {
    /// It belongs to somebody else.
    #[error(
        "{} belongs to the user with id {owner}, who could change what is kept there, and this process runs as {user}: \
         give it to this user (chown), or name another directory", path.display()
    )]
    Owner {
        /// The directory, or one above it.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Who runs this process.
        user: u32,
    },
    /// Others may write to it.
    #[error(
        "other users may write to {}, whose mode is {mode:04o}: take that from them (chmod go-w), or name another directory",
        path.display()
    )]
    Writable {
        /// The directory, or one above it.
        path: PathBuf,
        /// Its permissions.
        mode: u32,
    },
    /// Somebody else's link leads to it.
    #[error(
        "{} is a symbolic link of the user with id {owner}, who could let it lead elsewhere: remove it, or name another directory",
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

/// Makes a directory, with those above it, if it is missing, and checks that it is this user's alone.
pub fn make(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(DIRECTORY_MODE).create(path)?;
    check(path)
}

/// Checks that a directory which is there is this user's alone. The error is a [`NotOwn`] where it is not.
pub fn check(path: &Path) -> io::Result<()> {
    let us = Us::this();
    let mut left: VecDeque<OsString> = parts(&std::path::absolute(path)?).collect();
    let mut at = PathBuf::from("/");
    let mut links = 0;
    loop {
        let found = fs::symlink_metadata(&at)?;
        if found.is_symlink() {
            links += 1;
            if links > MOST_LINKS {
                return Err(rustix::io::Errno::LOOP.into());
            }
            us.check_link(&at, &found)?;
            let target = fs::read_link(&at)?;
            at = match target.is_absolute() {
                true => PathBuf::from("/"),
                false => at.parent().unwrap_or(Path::new("/")).to_owned(),
            };
            for part in parts(&target).collect::<Vec<_>>().into_iter().rev() {
                left.push_front(part);
            }
        } else if left.is_empty() {
            return Ok(us.check_itself(&at, &found)?);
        } else {
            us.check_above(&at, &found)?;
        }
        match left.pop_front() {
            // No link is in `at`: what is above it is its parent. Where nothing is left, a link led to what is looked at next.
            Some(part) if part == ".." => {
                at.pop();
            }
            Some(part) => at.push(part),
            None => {}
        }
    }
}

/// The names on the way, without the root.
fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    let part = |component: Component<'_>| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some(OsString::from("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components()
        .filter_map(part)
        .collect::<Vec<_>>()
        .into_iter()
}

/// As whom this process runs.
struct Us {
    user: u32,
    group: u32,
    /// The id that the kernel shows for users who are unknown in this process's user namespace, if that is no user's here.
    nobody: Option<u32>,
}

impl Us {
    fn this() -> Us {
        Us {
            user: geteuid().as_raw(),
            group: getegid().as_raw(),
            nobody: unknown_user(),
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
        // The host's root is unknown in a user namespace: a directory of nobody's that all can only read is one of its.
        let is_hosts = self.nobody == Some(found.uid());
        self.check_owner(path, found, is_hosts || self.is_trusted(found.uid()))?;
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

/// `None` where that id is a user's: in the host's own namespace it is `nobody`'s.
fn unknown_user() -> Option<u32> {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok()?;
    let overflow: u32 = overflow.trim().parse().ok()?;
    let map = fs::read_to_string("/proc/self/uid_map").ok()?;
    (!is_mapped(&map, overflow)).then_some(overflow)
}

/// Whether a user namespace with this map knows the user. Lines are: first id inside, first id outside, how many.
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

    const SOMEBODY: u32 = 65534;

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
            owner: SOMEBODY,
            user: 0,
        };
        for other in [&path, &above] {
            chown(other, Some(SOMEBODY), None).expect("given away");
            assert_eq!(reason(&path), Some(theirs(other)));
            chown(other, Some(0), None).expect("taken back");
        }
        let link = root.path().join("link");
        symlink("a", &link).expect("linked");
        assert_eq!(reason(&link.join("b")), None);
        assert_eq!(reason(&link), None);
        lchown(&link, Some(SOMEBODY), None).expect("given away");
        let expected = NotOwn::Link {
            path: link.clone(),
            owner: SOMEBODY,
        };
        assert_eq!(reason(&link.join("b")), Some(expected));
        // What is behind one's own link counts as what is there.
        let ours = root.path().join("ours");
        symlink(&path, &ours).expect("linked");
        chown(&above, Some(SOMEBODY), None).expect("given away");
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
    fn users_that_a_namespace_does_not_know_are_told_from_those_that_it_does() {
        assert!(is_mapped("         0          0 4294967295\n", 65534));
        assert!(!is_mapped("0 1000 1\n", 65534));
        assert!(is_mapped("0 1000 1\n1 100000 65536\n", 65534));
    }
}
