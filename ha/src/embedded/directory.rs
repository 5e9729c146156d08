//! The directory of an embedded store: `tanist.db`, `reserve`, `members/` and `announced/`, on a local file
//! system.
//!
//! SQLite's write-ahead log needs shared memory, and the members need locks that the kernel releases at
//! death. Network file systems provide neither, so they are refused.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::own_directory;

/// The magic number of FUSE, which may hide any file system.
const FUSE: u32 = 0x6573_5546;

/// The paths of a store.
#[derive(Debug, Clone)]
pub(super) struct Directory {
    root: PathBuf,
}

impl Directory {
    /// The directory at `root`, whether it exists or not.
    pub(super) fn at(root: &Path) -> Directory {
        let root = root.to_owned();
        Directory { root }
    }

    /// Creates the directory if it is missing.
    pub(super) fn create(root: &Path) -> Result<Directory> {
        let failed = |path: &Path, error: std::io::Error| {
            let path = path.display();
            Error::Misconfigured(format!("{path} can't be used as a directory: {error}").into())
        };
        let directory = Directory::at(root);
        for path in [root, &directory.members(), &directory.announced()] {
            own_directory::make(path).map_err(|error| failed(path, error))?;
        }
        if let Some(kind) = network_file_system_of(root).map_err(|error| failed(root, error))? {
            let path = root.display();
            return Err(Error::Misconfigured(
                format!(
                    "{path} is on {kind}, a network file system: the embedded store needs a local \
                     one, and all processes on this host; use etcd or ZooKeeper for several hosts"
                )
                .into(),
            ));
        }
        Ok(directory)
    }

    pub(super) fn database(&self) -> PathBuf {
        self.root.join("tanist.db")
    }

    /// Contains one file for each contending process, locked for its lifetime.
    pub(super) fn members(&self) -> PathBuf {
        self.root.join("members")
    }

    /// Contains the announcement of each of them.
    pub(super) fn announced(&self) -> PathBuf {
        self.root.join("announced")
    }
}

fn network_file_system_of(path: &Path) -> std::io::Result<Option<String>> {
    // The type of the field differs by platform; magic numbers have 32 bits.
    let magic = rustix::fs::statfs(path)?.f_type as u32;
    if magic != FUSE {
        return Ok(network_file_system(magic).map(str::to_owned));
    }
    let device = fs::metadata(path)?.dev();
    let device = format!(
        "{}:{}",
        rustix::fs::major(device),
        rustix::fs::minor(device)
    );
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(fuse_type(&mounts, &device)
        .filter(|kind| is_remote_fuse(kind))
        .map(str::to_owned))
}

fn network_file_system(magic: u32) -> Option<&'static str> {
    match magic {
        0x0000_6969 => Some("NFS"),
        0x0000_517b => Some("SMB"),
        0xff53_4d42 => Some("CIFS"),
        0xfe53_4d42 => Some("SMB2"),
        0x5346_414f => Some("AFS"),
        0x7375_7245 => Some("Coda"),
        0x00c3_6400 => Some("Ceph"),
        0x0bd0_0bd0 => Some("Lustre"),
        0x0116_1970 => Some("GFS2"),
        0x7461_636f => Some("OCFS2"),
        _ => None,
    }
}

/// The type of the mount with that device number, from `/proc/self/mountinfo`.
fn fuse_type<'a>(mounts: &'a str, device: &str) -> Option<&'a str> {
    let mount = mounts
        .lines()
        .find(|line| line.split(' ').nth(2) == Some(device))?;
    mount.split_once(" - ")?.1.split(' ').next()
}

fn is_remote_fuse(kind: &str) -> bool {
    let Some(kind) = kind.strip_prefix("fuse.") else {
        return false;
    };
    let remote = [
        "sshfs",
        "s3fs",
        "gcsfuse",
        "rclone",
        "glusterfs",
        "ceph",
        "juicefs",
        "davfs",
    ];
    remote.iter().any(|name| kind.starts_with(name)) || kind.contains("nfs")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_magic_numbers_and_ext4_is_none() {
        assert_eq!(network_file_system(0x6969), Some("NFS"));
        assert_eq!(network_file_system(0xff53_4d42), Some("CIFS"));
        assert_eq!(network_file_system(0xef53), None);
    }

    #[test]
    fn sshfs_is_told_from_local_fuse_file_systems() {
        let mounts = "36 35 0:52 / /a rw - fuse.sshfs host:/ rw\n\
                      37 35 0:53 / /b rw shared:1 - fuse.fuse-overlayfs overlay rw\n";
        assert!(fuse_type(mounts, "0:52").is_some_and(is_remote_fuse));
        assert!(!fuse_type(mounts, "0:53").is_some_and(is_remote_fuse));
        assert_eq!(fuse_type(mounts, "0:54"), None);
    }

    #[test]
    fn a_directory_that_others_may_write_is_not_used() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::Permissions::from_mode(0o777);
        fs::set_permissions(root.path(), open).expect("set");
        let error = Directory::create(root.path()).expect_err("open to all");
        assert!(error.to_string().contains("chmod go-w"), "{error}");
    }

    #[test]
    fn a_directory_is_created_with_its_parents_and_a_file_in_its_place_is_an_error() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let path = root.path().join("a/b");
        Directory::create(&path).expect("created");
        assert!(path.join("members").is_dir());
        let file = root.path().join("file");
        fs::write(&file, "").expect("write");
        let error = Directory::create(&file)
            .expect_err("not a directory")
            .to_string();
        assert!(error.contains(&file.display().to_string()), "{error}");
    }
}
