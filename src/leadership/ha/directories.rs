//! The directories of a store on this host and of the blobs: only the user of the processes may access them.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use tanist_config::{HaOptions, StorageLocation};
use tanist_ha::blob;
use tanist_ha::own_directory::{self, NotOwn};

/// A directory that can't be used.
#[derive(Debug, thiserror::Error)]
#[error("{key}: {path} can't be used: {source}{}", advice(.key, .source))]
pub struct DirectoryError {
    key: &'static str,
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// What to do: mostly the directory belongs to another user.
fn advice(key: &str, error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::PermissionDenied => {
            format!("; name a directory of your own with -D {key}=DIR, or in the configuration")
        }
        _ => String::new(),
    }
}

impl DirectoryError {
    /// The directory that the option `key` names.
    pub fn new(key: &'static str, path: PathBuf, source: io::Error) -> DirectoryError {
        DirectoryError { key, path, source }
    }
}

/// Creates the directory of a store on this host if it is missing, and makes sure that only this user can access
/// it and the blob directory. An error if no process can use them as they are configured; a temporary failure
/// is left to the processes that open the store.
pub async fn make_directory(options: &HaOptions) -> Result<(), DirectoryError> {
    check_directories(options).await?;
    let Some(path) = options.backend.directory().map(Path::to_owned) else {
        return Ok(());
    };
    let making = path.clone();
    match blocking(move || own_directory::make(&making)).await {
        Err(error)
            if matches!(
                error.kind(),
                ErrorKind::PermissionDenied
                    | ErrorKind::NotFound
                    | ErrorKind::NotADirectory
                    | ErrorKind::AlreadyExists
                    | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            Err(DirectoryError::new(options.place.option, path, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Checks that the directories of a store on this host and of the blobs, if they exist, are accessible only to
/// this user.
pub async fn check_directories(options: &HaOptions) -> Result<(), DirectoryError> {
    let mut directories = Vec::new();
    if let Some(cluster) = options.backend.directory() {
        let paths = cluster.parent().into_iter().chain([cluster]);
        directories.extend(paths.map(|path| (options.place.option, path.to_owned())));
    }
    let storages = [
        (blob::options::BLOBS, &options.storage),
        (blob::options::CHECKPOINTS, &options.checkpoint_storage),
    ];
    for (key, storage) in storages {
        let location = storage.as_ref().map(|storage| &storage.location);
        if let Some(StorageLocation::Directory(path)) = location {
            directories.push((key, path.clone()));
        }
    }
    for (key, path) in directories {
        let checking = path.clone();
        match blocking(move || own_directory::check(&checking)).await {
            // Only an operator can correct this error. Others may pass: the directory may be readable later.
            Err(error) if error.get_ref().is_some_and(|inner| inner.is::<NotOwn>()) => {
                return Err(DirectoryError::new(key, path, error));
            }
            Ok(()) | Err(_) => {}
        }
    }
    Ok(())
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let done = tokio::task::spawn_blocking(work).await;
    done.map_err(io::Error::other).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_for_a_directory_without_access_says_how_to_name_another_one() {
        let denied = io::Error::from(ErrorKind::PermissionDenied);
        let error = DirectoryError::new("process.working-dir", "/tmp/tanist".into(), denied);
        let told = error.to_string();
        assert!(told.contains("-D process.working-dir=DIR"), "{told}");
    }
}
